// commands.h: the commands of this folder. argv[0] is the command's name; each returns the exit status.
#ifndef FD_FASTDECODE_KEYS_COMMANDS_H
#define FD_FASTDECODE_KEYS_COMMANDS_H

int certs_main(int argc, char **argv);
int key_main(int argc, char **argv);

#endif
