// token.h: the 16 bytes that each end of a local socket says first: "FDL1", four zeros, and a token or its answer. Not included from outside
// the RPC runtime.
#ifndef FD_RPC_TOKEN_H
#define FD_RPC_TOKEN_H

#include "common/rpc/loop.h"

enum { TOKEN_GREETING_BYTES = 16 };

// Waits for the greeting of the other end; the first part of the owner's struct.
struct token_wait {
    struct pollee pollee; // first: callbacks cast back
    struct rpc_loop *loop;
    uint64_t timer;
    size_t have;
    unsigned char greeting[TOKEN_GREETING_BYTES];
    void (*on_token)(struct token_wait *wait, uint64_t token); // must end the wait; token 0: malformed, or not in time
};

// Begins to wait. False: no memory; nothing has begun.
bool token_wait_begin(struct token_wait *wait, struct rpc_loop *loop, int fd, uint64_t limit_us,
                      void (*on_token)(struct token_wait *wait, uint64_t token)) MUST_CHECK;
// Reads what has arrived already; may call on_token.
void token_wait_read(struct token_wait *wait);
// Returns its socket, which is the caller's again.
int token_wait_end(struct token_wait *wait);

// Sends a greeting. False: nobody would hear it.
bool token_send(int fd, uint64_t token) MUST_CHECK;

#endif
