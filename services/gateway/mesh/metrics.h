// metrics.h: this gateway's counters, and their rendering as Prometheus text.
//
// A gateway exports only its own requests, so that sums over gateways are right. The scheduler's text (totals of the mesh) can be
// appended; a metric family that both have is taken from the gateway. Safe from any thread.
#ifndef FD_GATEWAY_MESH_METRICS_H
#define FD_GATEWAY_MESH_METRICS_H

#include <stdint.h>

#include "services/gateway/http/json_write.h"
#include "services/gateway/mesh/mesh.h"

struct metrics;

enum metrics_histogram {
    METRICS_FIRST_TOKEN, // arrival to the first token
    METRICS_BETWEEN_TOKENS,
    METRICS_REQUEST, // arrival to the end of the answer
    METRICS_QUEUE,   // arrival to the hand-over to the scheduler: parsing, tokenizing, waiting for the mesh
    METRICS_HISTOGRAM_COUNT,
};

enum metrics_counter {
    METRICS_PROMPT_TOKENS,
    METRICS_GENERATED_TOKENS,
    METRICS_CLIENT_LEFT,
    METRICS_RESUBMITTED,
    METRICS_COUNTER_COUNT,
};

// The text of /metrics as it is written. A struct of zeros is an empty one; its text is the caller's.
enum { METRICS_FAMILIES_MAX = 64 };
struct metrics_page {
    struct text text;
    const char *families[METRICS_FAMILIES_MAX]; // so far: the scheduler's of the same name are left out
    uint32_t family_count;
};

enum status metrics_open(struct metrics **out) MUST_CHECK;
void metrics_close(struct metrics *metrics);

void metrics_observe(struct metrics *metrics, enum metrics_histogram which, double seconds);
void metrics_count(struct metrics *metrics, enum metrics_counter which, uint64_t add);
// Counts an answer that was sent with this status. reason: why the request was refused; static, one of a few dozen; NULL: it was not.
void metrics_answer(struct metrics *metrics, int status, const char *reason);

// Begin a family; type: "gauge" or "counter". Names are borrowed. The second writes its only sample, too.
void metrics_page_family(struct metrics_page *page, const char *name, const char *type, const char *help);
void metrics_page_number(struct metrics_page *page, const char *name, const char *type, const char *help, uint64_t value);
// Appends a gauge with the label model_name, whose value may hold anything.
void metrics_page_model(struct metrics_page *page, const char *name, const char *help, const char *model, double value);
// Appends what was counted and observed.
void metrics_page_counts(struct metrics_page *page, struct metrics *metrics);
// Appends the well-formed lines of the scheduler's text whose family is not ours.
void metrics_page_mesh(struct metrics_page *page, const char *mesh_text);

// --- a text of the scheduler's, fetched at most once in a while however many clients ask for it ----------------------
//
// Its metrics, its view of the mesh.
// The limit is needed because the scheduler answers on its only thread, and such paths need no key.

struct scrape;

// text: the scheduler's answer, at most kept_us old, or NULL if there was none. Valid for the call.
typedef void scrape_done_fn(void *arg, const char *text);

// Asks the scheduler: mesh_metrics(), mesh_view().
typedef void scrape_ask_fn(struct mesh *mesh, uint64_t timeout_us, mesh_text_fn *done, void *arg);

// mesh is borrowed. Returns NULL when out of memory. The caller closes it, after the mesh.
struct scrape *scrape_open(struct mesh *mesh, scrape_ask_fn *ask, uint64_t kept_us);
void scrape_close(struct scrape *scrape); // NULL is allowed

// Loop thread. Calls done once, now or later. Returns false when out of memory; done is not called then.
bool scrape_get(struct scrape *scrape, scrape_done_fn *done, void *arg);

#endif
