// commands.h: the commands of this folder. argv[0] is the command's name; each returns the exit status.
#ifndef FD_FASTDECODE_MODEL_COMMANDS_H
#define FD_FASTDECODE_MODEL_COMMANDS_H

int model_main(int argc, char **argv);
int quantize_main(int argc, char **argv);
int eval_main(int argc, char **argv);

#endif
