/* member.h: the s-part's and the kv-workers' side of membership: registering with the scheduler, heartbeats, draining.
 *
 *     connected ─▶ on_connect (the service gathers what it holds) ─▶ member_register() ─▶ on_registered
 *         ▲                                                                                │ heartbeat twice a second
 *         └──────────── the scheduler is new, does not know us, or the connection broke ◀──┘
 *
 * Lives on a loop whose thread computes nothing, so that a long attention never delays a heartbeat.
 */
#ifndef FD_MEMBER_MEMBER_H
#define FD_MEMBER_MEMBER_H

#include "cluster.pb-c.h"
#include "common/rpc/rpc.h"

enum { MEMBER_NAME_BYTES = 64 };

struct member;

struct member_config {
    const char *scheduler; /* address */
    struct rpc_hello hello;
    const char *name; /* stable over restarts; copied */
    void (*on_connect)(void *user);
    void (*on_registered)(void *user, const Fastdecode__RegisterReply *reply);
    void (*fill_heartbeat)(void *user, Fastdecode__HeartbeatRequest *heartbeat);
    // The member goes on as this incarnation, and registers once more: the service's own servers must say it in their hello before
    // member_register() is called.
    void (*on_incarnation)(void *user, uint64_t incarnation);
    // With each answer of the scheduler: the incarnation of the s-part that it knows; 0: it knows none. NULL: nobody asks.
    void (*on_s_part)(void *user, uint64_t incarnation);
    void *user;
};

/* INVALID_ARGUMENT: no name, or too long a one: cut, two workers would be taken for one. */
enum status member_check_name(const char *name, struct error *error) MUST_CHECK;

/* INVALID_ARGUMENT: an address to listen on that is none to connect to ("tcp://0.0.0.0:7402"). option: what to say instead. */
enum status member_check_address(const char *address, const char *option, struct error *error) MUST_CHECK;

enum status member_open(struct rpc_loop *loop, const struct member_config *config, struct member **out,
                        struct error *error) MUST_CHECK;
void member_close(struct member *member);

/* Sends the registration (name and incarnation are filled in). Without a connection nothing happens: on_connect comes. */
void member_register(struct member *member, Fastdecode__RegisterRequest *request);
bool member_is_registered(const struct member *member);

/* Asks the scheduler to move everything away; on_done(user) when nothing is left, or when the scheduler cannot be asked. */
void member_drain(struct member *member, void (*on_done)(void *user), void *user);

// A number that grows at each start of a service while the clock does: milliseconds since 1970, shifted to leave room for a counter below.
// Where a member's clock was set back the scheduler names the newest number it knows, and the member takes the next one.
uint64_t member_incarnation(void);

// Fencing. True: the caller said hello as `service` (NULL: as anyone), `incarnation` is the one it said, and it is not below `newest`,
// the newest of that service known here, nor a day or more beyond it and this host's clock. Otherwise the call has been ended:
// PERMISSION_DENIED, INVALID_ARGUMENT or FAILED_PRECONDITION, with the reason.
bool member_caller_is(struct rpc_call *call, const char *service, uint64_t incarnation, uint64_t newest);

#endif
