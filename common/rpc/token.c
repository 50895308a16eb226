// token.c: see token.h.
#include "common/rpc/token.h"

#include <errno.h>
#include <string.h>
#include <sys/socket.h>

#include "common/wire/wire.h"

static const unsigned char magic[8] = {'F', 'D', 'L', '1'};

void token_wait_read(struct token_wait *wait)
{
    ssize_t count = recv(wait->pollee.fd, wait->greeting + wait->have, TOKEN_GREETING_BYTES - wait->have, MSG_DONTWAIT);

    if (count < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR))
        return;
    wait->have += count > 0 ? (size_t)count : 0;
    if (count > 0 && wait->have < TOKEN_GREETING_BYTES)
        return;
    bool good = count > 0 && !memcmp(wait->greeting, magic, sizeof magic);
    wait->on_token(wait, good ? wire_load_u64(wait->greeting + sizeof magic) : 0);
}

static void on_ready(struct pollee *pollee, short events)
{
    (void)events;
    token_wait_read((struct token_wait *)pollee);
}

static void on_silence(void *arg)
{
    struct token_wait *wait = arg;
    wait->timer = 0;
    wait->on_token(wait, 0);
}

bool token_wait_begin(struct token_wait *wait, struct rpc_loop *loop, int fd, uint64_t limit_us,
                      void (*on_token)(struct token_wait *wait, uint64_t token))
{
    *wait = (struct token_wait){.pollee = {.fd = fd, .events = POLLIN, .on_ready = on_ready}, .loop = loop, .on_token = on_token};
    wait->timer = rpc_loop_timer(loop, limit_us, on_silence, wait);
    if (wait->timer && loop_watch(loop, &wait->pollee))
        return true;
    rpc_loop_cancel_timer(loop, wait->timer);
    return false;
}

int token_wait_end(struct token_wait *wait)
{
    loop_unwatch(wait->loop, &wait->pollee);
    rpc_loop_cancel_timer(wait->loop, wait->timer);
    return wait->pollee.fd;
}

bool token_send(int fd, uint64_t token)
{
    unsigned char greeting[TOKEN_GREETING_BYTES];

    memcpy(greeting, magic, sizeof magic);
    wire_store_u64(greeting + sizeof magic, token);
    return send(fd, greeting, sizeof greeting, MSG_NOSIGNAL | MSG_DONTWAIT) == (ssize_t)sizeof greeting;
}
