// up.h: `fastdecode up`: the whole mesh on one machine.
#ifndef FD_FASTDECODE_UP_UP_H
#define FD_FASTDECODE_UP_UP_H

// Runs until SIGTERM or SIGINT, or until a child says that it cannot be helped. Returns the exit status.
int up_main(int argc, char **argv);

#endif
