// transport.h: what an endpoint asks of a transport: one table each, so that it need not know which it is. Not included from outside the
// RPC runtime.
//
// A port is one endpoint's end of a transport: it opens links, by address (listen, dial) or, where a transport works beside another
// one's link, by offer. Everything is called on the loop's thread, and so are all events. An event may close the port.
#ifndef FD_RPC_TRANSPORT_H
#define FD_RPC_TRANSPORT_H

#include "common/rpc/frame.h"
#include "common/rpc/loop.h"
#include "common/rpc/roles.h"

// One connection; the first part of a transport's own struct.
struct transport_link {
    const struct transport *transport;
    uint32_t id;        // given by the endpoint, before it starts the link; of one that was offered: of the link beside it
    bool is_usable;     // what is sent arrives: the peer is known to be at the other end
    bool is_local;      // the peer is on this host
    bool met_tls;       // the peer speaks TLS, which this transport does not; known once the link is gone
    enum rpc_role role; // that the peer's certificate names; RPC_ROLE_NONE: this transport has no certificates
    const char *at;     // of ours, at which it was accepted, or what was dialed; NULL: this transport does not know
    const char *peer;   // "10.0.0.3:4711", "process 123" of this host, or what was dialed; NULL: this transport does not know
};

struct transport_events {
    void (*on_link)(void *user, struct transport_link *link); // takes it: free() ends it
    void (*on_failed)(void *user, uint32_t id);               // no link will come: of dial (id 0), or of the offer beside this link
    void (*on_message)(void *user, uint32_t id, struct frame *frame); // takes the frame
    void (*on_gone)(void *user, uint32_t id);                         // once a link: it is over, and is to be freed
    void (*on_room)(void *user);                                      // see resume
};

struct transport_config {
    struct rpc_loop *loop;
    uint64_t max_message_bytes;
    bool lent;           // what is received lies in memory that was lent
    struct rpc_tls *tls; // NULL: this process has no certificate
    uint32_t peer_roles; // that the other end of a dial may have, where there are certificates
    const struct transport_events *events;
    void *user;
};

enum { TRANSPORT_NAME_BYTES = 24 };
// How long a dial waits before it is begun anew: the kernel repeats SYN ever more rarely, and would notice late that a firewall lets it through.
enum { TRANSPORT_DIAL_MS = 10000 };

// An invitation to connect beside a link. Good once.
struct transport_offer {
    char name[TRANSPORT_NAME_BYTES]; // "": none
    uint64_t token, answer;
};

struct transport_port;

// Entries marked "NULL" may be missing.
struct transport {
    // NULL: it cannot be used here, or there is no memory.
    struct transport_port *(*open)(const struct transport_config *config);
    void (*close)(struct transport_port *port); // no event comes any more; its links must have been freed

    // By address; NULL: links come of offers. They return what was wrong, or NULL. *port_number: the bound one of tcp, else 0.
    const char *(*listen)(struct transport_port *port, const char *address, int *port_number);
    const char *(*dial)(struct transport_port *port, const char *address); // once a port; on_link or on_failed follows
    // Whether somebody has accepted the connection that is dialed, though it need not become a link. NULL: this transport does not know.
    bool (*is_accepted)(const struct transport_port *port);

    // By offer; NULL: links come of addresses. False: nothing can be offered or taken now.
    bool (*offer)(struct transport_port *port, uint32_t id, struct transport_offer *out);        // on_link follows if it is taken
    bool (*take)(struct transport_port *port, uint32_t id, const struct transport_offer *offer); // on_link or on_failed follows
    void (*withdraw)(struct transport_port *port, uint32_t id);                                  // offers and takes of this link

    // A link.
    void (*start)(struct transport_link *link); // begins to receive
    void (*allow)(struct transport_link *link,
                  uint64_t max_bytes);           // from now on messages may be as long. NULL: always as the port's
    void (*resume)(struct transport_link *link); // on_room: receives again, if it had stopped. NULL: never stops
    void (*send)(struct transport_link *link, struct frame *frame); // takes it. A peer that reads nothing any more is gone
    void (*shut)(struct transport_link *link);                      // on_gone follows. NULL: that of the link beside it does
    void (*drain)(struct transport_link *link);                     // hands on what the peer said before its end. NULL: nothing
    void (*free)(struct transport_link *link);
};

extern const struct transport transport_nng;   // ipc, tcp, inproc
extern const struct transport transport_tls;   // tls+tcp
extern const struct transport transport_local; // a plain socket beside a link within one host

#endif
