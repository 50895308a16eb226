// batch_ask.h: requests in flight over HTTP, many at a time on one thread, until each has an answer that stands.
//
// An answer stands if asking again would not change it: 200, and the errors that the request itself is to blame for. A server that is away,
// full or not ready (no connection, 408, 429, 502 to 504) is asked again after a pause: 0.5 s, doubled up to 30 s, or what Retry-After
// says. Other errors of the server are asked again three times. An answer about the key or the URL (401, 403, an unknown path) is none: the
// run should end.
#ifndef FD_FASTDECODE_LOAD_BATCH_ASK_H
#define FD_FASTDECODE_LOAD_BATCH_ASK_H

#include <stdbool.h>
#include <stdint.h>

#include "common/base/status.h"
#include "common/batch/batch_line.h"

struct batch_asker;

struct batch_answer {
    uint64_t number; // of the line
    const char *custom_id;
    int status;             // 0: none, see error
    const char *request_id; // "" if the server gave none
    const char *body;
    size_t body_bytes;
    const struct batch_error *error;
};

struct batch_asker_config {
    const char *url; // "http://host:port", with or without "/v1"
    const char *api_key;
    uint32_t concurrency;
    // An answer that stands. Valid for the call.
    void (*answered)(void *arg, const struct batch_answer *answer);
    void *arg;
};

// config's strings are borrowed. The caller closes *out.
enum status batch_asker_open(const struct batch_asker_config *config, struct batch_asker **out, struct error *error) MUST_CHECK;
// Requests in flight are dropped. NULL is allowed.
void batch_asker_close(struct batch_asker *asker);

bool batch_asker_has_room(const struct batch_asker *asker);
uint32_t batch_asker_in_flight(const struct batch_asker *asker);
// Asks. line is moved from. There must be room.
void batch_asker_add(struct batch_asker *asker, uint64_t number, struct batch_line *line);
// Goes on for at most wait_ms; calls `answered`. Returns early at a signal.
void batch_asker_run(struct batch_asker *asker, int wait_ms);
// When the server last gave an answer that stands (0: never), and what was wrong last ("": nothing).
uint64_t batch_asker_answered_us(const struct batch_asker *asker);
const char *batch_asker_trouble(const struct batch_asker *asker);
// Whether the server refuses whatever is asked; trouble says why.
bool batch_asker_is_refused(const struct batch_asker *asker);

#endif
