// commands.h: the commands of this folder. argv[0] is the command's name; each returns the exit status.
#ifndef FD_FASTDECODE_PLAN_COMMANDS_H
#define FD_FASTDECODE_PLAN_COMMANDS_H

int plan_main(int argc, char **argv);
int sim_main(int argc, char **argv);

#endif
