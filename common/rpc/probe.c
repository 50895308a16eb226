// probe.c: asks a service whether it is ready, or alive, and prints the answer.
#include <stdio.h>
#include <string.h>

#include "common/base/checked.h"
#include "common/base/clock.h"
#include "common/rpc/address.h"
#include "common/rpc/rpc.h"
#include "envelope.pb-c.h"

struct probe {
    struct rpc_channel *channel;
    const char *address;
    bool over, answered, ready;
    char why[400]; // begins with the address
};

static void on_reply(void *user, struct rpc_message *message)
{
    struct probe *probe = user;
    const Fastdecode__HealthReply *reply = rpc_message_unpack(message, &fastdecode__health_reply__descriptor);
    if (!reply)
        return; // on_end says so
    probe->answered = true;
    probe->ready = reply->ready;
    printf("%s %s %s%s%s\n", reply->service, reply->version, reply->ready ? "ready" : "not ready", reply->ready ? "" : ": ",
           reply->ready ? "" : reply->reason);
}

static void on_end(void *user, enum status status, const char *text)
{
    struct probe *probe = user;
    probe->over = true;
    snprintf(probe->why, sizeof probe->why, "%s: %s: %s", probe->address, status_name(status),
             status ? text : "a malformed answer");
}

static void on_up(void *user, const struct rpc_peer *peer)
{
    struct probe *probe = user;
    Fastdecode__HealthRequest request = FASTDECODE__HEALTH_REQUEST__INIT;
    const struct rpc_callbacks callbacks = {.on_message = on_reply, .on_end = on_end};
    struct error error;

    (void)peer;
    if (rpc_call_start(probe->channel, &fastdecode__health__descriptor, "Check", &request.base, NULL, &callbacks, probe, NULL,
                       &error)) {
        snprintf(probe->why, sizeof probe->why, "%s", error.text);
        probe->over = true;
    }
}

static void on_down(void *user, const char *why)
{
    struct probe *probe = user;
    probe->over = true; // it refuses or has closed the connection, and would do so again
    snprintf(probe->why, sizeof probe->why, "%s", why);
}

// It refuses, or is refused, before there is a connection that could be down; it would be so again. The process dials nothing else.
static bool tls_is_refused(struct probe *probe, const struct rpc_security *security)
{
    char why[256];

    if (!rpc_tls_refused(security->tls, why, sizeof why))
        return false;
    snprintf(probe->why, sizeof probe->why, "%s: TLS is refused: %s", probe->address, why);
    return true;
}

static enum status ask(const char *address, uint32_t timeout_ms, const struct rpc_security *security, bool alive,
                       struct error *error)
{
    struct probe probe = {.address = address};
    uint64_t limit_us = clock_now_us() + timeout_ms * 1000ull;
    struct rpc_loop *loop;
    enum status status = STATUS_OK;
    const struct rpc_channel_config config = {
        .address = address,
        .hello = {.service = RPC_PROBE_NAME},
        .peer_roles = RPC_IS_ANY,
        .on_up = on_up,
        .on_down = on_down,
        .user = &probe,
    };

    if (rpc_loop_open(&loop))
        return error_set(error, STATUS_RESOURCE_EXHAUSTED, "no memory");
    snprintf(probe.why, sizeof probe.why, "%s: nothing answers there", address);
    rpc_loop_set_security(loop, security);
    if (rpc_channel_open(loop, &config, &probe.channel, error)) {
        rpc_loop_close(loop);
        return error->status;
    }
    while (!tls_is_refused(&probe, security) && !probe.over && clock_now_us() < limit_us)
        rpc_loop_run(loop, limit_us - MIN(limit_us, clock_now_us()), 0);
    if (!probe.ready && !(alive && probe.answered))
        status = error_set(error, STATUS_UNAVAILABLE, "%s", probe.answered ? "" : probe.why);
    rpc_channel_close(probe.channel); // which says why, too
    rpc_loop_close(loop);
    return status;
}

enum status rpc_probe(const char *address, uint32_t timeout_ms, const struct rpc_security *security, struct error *error)
{
    return ask(address, timeout_ms, security, false, error);
}

enum status rpc_probe_self(const char *listen, const struct rpc_security_settings *settings, bool alive, struct error *error)
{
    enum { READY_MS = 2000, ALIVE_MS = 10000 };
    char address[512], host[ADDRESS_HOST_BYTES], port[ADDRESS_PORT_BYTES];
    struct rpc_security security = {0};

    if (!listen)
        return error_set(error, STATUS_INVALID_ARGUMENT, "--probe wants --listen as the service has it");
    snprintf(address, sizeof address, "%s", listen);
    if (rpc_address_is_everywhere(listen) && address_split(listen, host, port))
        snprintf(address, sizeof address, "%.*s%s:%s", (int)(strstr(listen, "://") + 3 - listen), listen,
                 strchr(host, ':') ? "[::1]" : "127.0.0.1", port);
    if (rpc_security_open(settings, NULL, &security, error))
        return error->status;
    enum status status = ask(address, alive ? ALIVE_MS : READY_MS, &security, alive, error);
    rpc_security_close(&security);
    return status;
}
