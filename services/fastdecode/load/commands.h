// commands.h: the commands of this folder. argv[0] is the command's name; each returns the exit status.
#ifndef FD_FASTDECODE_LOAD_COMMANDS_H
#define FD_FASTDECODE_LOAD_COMMANDS_H

int batch_main(int argc, char **argv);
int capacity_main(int argc, char **argv);
int chat_main(int argc, char **argv);
int health_main(int argc, char **argv);

#endif
