// commands.h: the commands of `fastdecode` besides `up`. argv[0] is the command's name; returns the exit status.
#ifndef FD_SERVICES_FASTDECODE_COMMANDS_H
#define FD_SERVICES_FASTDECODE_COMMANDS_H

int batch_main(int argc, char **argv);
int certs_main(int argc, char **argv);
int capacity_main(int argc, char **argv);
int chat_main(int argc, char **argv);
int model_main(int argc, char **argv);
int plan_main(int argc, char **argv);
int quantize_main(int argc, char **argv);
int eval_main(int argc, char **argv);
int sim_main(int argc, char **argv);
int health_main(int argc, char **argv);
int key_main(int argc, char **argv);

#endif
