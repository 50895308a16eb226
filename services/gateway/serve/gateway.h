// gateway.h: the gateway as a whole: HTTP in front, the scheduler behind, the API between.
//
//   polling thread ── routes, keys, limits ──▶ work pool ── parse, tokenize ──▶ RPC loop ── requests in flight
//        ▲                                         │ (an answer that needs no mesh)      │
//        └──────────────────────── exchange ◀──────┴─────────────────────────────────────┘
//
// Example: 4,096 open streams take 4,096 x (exchange 1.4 KB + libmicrohttpd's pool 16 KB + request and detokenizer about 2 KB + 4
// bytes a token) = 80 MB. They need no threads of their own.
#ifndef FD_GATEWAY_SERVE_GATEWAY_H
#define FD_GATEWAY_SERVE_GATEWAY_H

#include <stdbool.h>
#include <stdint.h>

#include "common/base/status.h"
#include "common/rpc/security.h"

struct gateway;

struct gateway_config {
    const char *host;
    uint32_t port;
    const char *scheduler; // address
    const char *listen;    // address of the health service; NULL: none
    const char *model, *chat_template, *pooling, *served_model_name, *api_key_file;
    const char *tool_parser, *reasoning_parser; // "auto", "none" or a name of services/gateway/answer
    const char *sampling;                       // language.h
    struct rpc_security_settings security;
    const char *trace;         // NULL: none
    const char *otlp_endpoint; // NULL, "none": requests are not traced
    double trace_sample;       // share of the requests that are traced if their clients do not say
    const char *cors_origin;
    const char *admin_host; // NULL: /metrics is at the public address
    uint32_t admin_port;
    bool admin_takes_any_port;      // if that one is taken
    const char *admin_key_file;     // NULL: /metrics and the view of the mesh are for this machine; "open": for anybody
    const char *tls_cert, *tls_key; // NULL: plain HTTP
    const char *audit_file;         // NULL: none
    uint32_t context;               // 0: the model's
    uint32_t max_connections, max_queue, threads;
    uint32_t max_connections_per_address; // 0: half of max_connections; loopback addresses are limited by max_connections only
    double key_share;                     // with several keys, the share of the queue that one key may fill
    uint64_t max_body_bytes;
    uint32_t max_request_tokens; // the most choices x tokens x (1 + alternatives) of one request
    uint64_t max_unsent_bytes;   // the most bytes of unread answers, all clients together
    uint64_t min_read_rate;      // bytes a second; 0: no limit
    double request_timeout_s, header_timeout_s, body_timeout_s, idle_timeout_s, ready_grace_s, resume_limit_s, keep_alive_s;
    const char *batch_dir; // NULL: no files and batches
    uint64_t batch_max_file_bytes, batch_max_disk_bytes;
    uint32_t batch_max_lines, batch_concurrency;
    uint64_t responses_bytes; // of answers of /v1/responses that are kept; 0: none are
    uint32_t responses_count; // of one key
    double responses_keep_s;
    bool mesh_metrics; // append the scheduler's metrics to the gateway's own
    bool trace_append; // append to the file of another service
};

// Sets every field to its default.
void gateway_defaults(struct gateway_config *config);

// Reads and checks the model's metadata, the chat template, keys and certificates, and checks the addresses; listens nowhere.
enum status gateway_check(const struct gateway_config *config, struct error *error) MUST_CHECK;

// Starts everything. config's strings are borrowed. The scheduler need not be there yet. The caller closes *out.
enum status gateway_open(const struct gateway_config *config, struct gateway **out, struct error *error) MUST_CHECK;
uint32_t gateway_port(const struct gateway *gateway);
uint32_t gateway_admin_port(const struct gateway *gateway); // 0: there is none
// Reads keys and certificates (of HTTPS and of the mesh) again, and opens the audit file again, within a tenth of a second. Any thread; never blocks.
void gateway_reload(struct gateway *gateway);

// Drains the gateway, in at most limit_s. /ready fails at once. For notice_s, new connections and requests are still accepted, so that load
// balancers can notice. Then nothing new is accepted and requests in flight are answered. Returns whether all were. May be called again.
bool gateway_drain(struct gateway *gateway, double notice_s, double limit_s);
// Ends everything. Requests in flight fail with shutting_down, in their answers or as the last event of their streams. Blocks. NULL is allowed.
void gateway_close(struct gateway *gateway);

#endif
