// tls_dial.c: see tls_dial.h. Works on the thread of the link that it makes, so it may wait; both parts have a deadline.
#include "common/rpc/tls_dial.h"

#include <poll.h>
#include <stdio.h>

#include "common/base/checked.h"
#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/rpc/address.h"
#include "common/rpc/dial.h"
#include "common/rpc/transport.h"

// Waits until the socket is ready for the step, or for the end of it all. False: it was given up.
static bool await(int fd, enum tls_step step, int give_up_fd, uint64_t until_us)
{
    const uint64_t now_us = clock_now_us();
    struct pollfd polled[] = {{.fd = fd, .events = step == TLS_STEP_READ ? POLLIN : POLLOUT}, {.fd = give_up_fd, .events = POLLIN}};

    return poll(polled, 2, (int)((until_us - MIN(until_us, now_us)) / 1000 + 1)) < 1 || !polled[1].revents;
}

// True: both ends are who they should be.
static bool shake_hands(const struct tls_dial_config *config, struct tls_session *session)
{
    const uint64_t until_us = clock_now_us() + TLS_HANDSHAKE_US;
    const char *why = "no handshake in time";
    enum tls_step step;

    for (;;) {
        step = tls_session_handshake(session);
        if ((step != TLS_STEP_READ && step != TLS_STEP_WRITE) || clock_now_us() >= until_us)
            break;
        if (!await(tls_session_fd(session), step, config->give_up_fd, until_us))
            return false;
    }
    if (step == TLS_STEP_DONE)
        return true;
    if (step == TLS_STEP_FAILED)
        why = tls_session_why(session);
    else if (step == TLS_STEP_END)
        why = "it has closed the connection in the handshake";
    if (why[0])
        tls_refused(config->tls, config->address, config->address, why);
    return false;
}

struct tls_session *tls_dial(const struct tls_dial_config *config)
{
    struct tls_peer expected = {.roles = config->peer_roles};
    char port[ADDRESS_PORT_BYTES];
    const char *why = "want tls+tcp://HOST:PORT";
    struct tls_session *session;
    int fd = -1;

    _Static_assert(sizeof expected.host >= ADDRESS_HOST_BYTES, "a host that can be dialed can be expected");
    if (address_split(config->address, expected.host, port))
        fd = dial_connect(expected.host, port, config->give_up_fd, TRANSPORT_DIAL_MS * 1000ull, &why);
    if (fd < 0) {
        log_debug("TLS-NOT-CONNECTED", "address=%s why=\"%s\"", config->address, why);
        return NULL;
    }
    atomic_store_explicit(config->is_accepted, true, memory_order_relaxed);
    if (!(session = tls_session_open(config->tls, fd, false, &expected)) || shake_hands(config, session))
        return session;
    tls_session_close(session);
    return NULL;
}
