// member.h: the s-part's and the kv-workers' side of membership: registering with the scheduler, heartbeats, draining.
//
//     connected ─▶ on_connect (the service gathers what it holds) ─▶ member_register() ─▶ on_registered
//         ▲                                                                                │ heartbeat twice a second
//         └── the scheduler is new, does not know us, or is silent, or the connection broke ◀──┘
//
// A registration that is refused is repeated, after 0.2 s and then ever later up to a second; the log says so once, and seldom after.
//
// Runs on a loop whose thread does not compute, so that long attention never delays a heartbeat.
#ifndef FD_MESH_MEMBER_H
#define FD_MESH_MEMBER_H

#include "cluster.pb-c.h"
#include "common/rpc/rpc.h"

enum { MEMBER_NAME_BYTES = 64 };

struct member;

struct member_config {
    const char *scheduler; // address
    struct rpc_hello hello;
    const char *name; // stable over restarts; copied
    void (*on_connect)(void *user);
    void (*on_registered)(void *user, const Fastdecode__RegisterReply *reply);
    void (*fill_heartbeat)(void *user, Fastdecode__HeartbeatRequest *heartbeat);
    // The member changes to this incarnation and registers again. The service's own servers must use it in their hello before
    // member_register() is called.
    void (*on_incarnation)(void *user, uint64_t incarnation);
    // Called with each answer of the scheduler: the incarnation of the s-part it knows, 0 if none. May be NULL.
    void (*on_s_part)(void *user, uint64_t incarnation);
    // Called with each answer, after on_s_part: the stages of the s-part, in any order; count 0: it is no pipeline. May be NULL.
    void (*on_stages)(void *user, Fastdecode__Stage *const *stages, size_t count);
    void *user;
};

// INVALID_ARGUMENT: the name is empty or too long. Cutting it could make two workers look like one.
enum status member_check_name(const char *name, struct error *error) MUST_CHECK;

// The address at which others are to connect to a socket.
struct member_address {
    const char *given;     // by the option; NULL: it is found
    const char *listening; // of the socket
    const char *scheduler; // which way others are
    const char *option;    // "advertise", for the error
};

// Writes what was given, or where the socket listens; if that is everywhere, with this host's address on the way to the scheduler.
// INVALID_ARGUMENT: nobody could connect there. UNAVAILABLE: this host has no other address (yet).
enum status member_advertise(const struct member_address *address, char *out, size_t out_bytes, struct error *error) MUST_CHECK;

enum status member_open(struct rpc_loop *loop, const struct member_config *config, struct member **out,
                        struct error *error) MUST_CHECK;
void member_close(struct member *member);

// Fills in name and incarnation and sends the registration. Does nothing without a connection: on_connect will follow.
void member_register(struct member *member, Fastdecode__RegisterRequest *request);
bool member_is_registered(const struct member *member);

// UNAVAILABLE: the scheduler will not take this process any more; the service must end with this error and be started again.
enum status member_check(const struct member *member, struct error *error) MUST_CHECK;

// Asks the scheduler to move everything away. Calls on_done(user) when nothing is left or the scheduler cannot be asked.
void member_drain(struct member *member, void (*on_done)(void *user), void *user);

// Returns a number that is larger at each start, as long as the clock is right: milliseconds since 1970, shifted left by 20 bits. If the
// clock was set back, the scheduler names the newest number it knows and the member takes the next one.
uint64_t member_incarnation(void);

// True for a number that is more than a day ahead of this host's clock.
bool member_is_ahead(uint64_t incarnation);

// Fencing. True if the caller said hello as `service` (NULL: any) with this incarnation, and it is neither below `newest`, the newest of that
// service known here, nor above `newest` and more than a day ahead of this host's clock. Otherwise ends the call with PERMISSION_DENIED,
// INVALID_ARGUMENT or FAILED_PRECONDITION and the reason.
bool member_caller_is(struct rpc_call *call, const char *service, uint64_t incarnation, uint64_t newest);

#endif
