// otlp_post.h: one HTTP POST after another, by libcurl, on the exporter's thread.
#ifndef FD_OTLP_OTLP_POST_H
#define FD_OTLP_OTLP_POST_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/status.h"

struct otlp_post;

enum otlp_outcome {
    OTLP_TAKEN,
    OTLP_REFUSED, // for good
    OTLP_AGAIN,   // nobody answers, or what answers says that it is busy
};

struct otlp_answer {
    enum otlp_outcome outcome;
    uint64_t retry_after_us; // 0: not said
    uint64_t rejected;       // of OTLP_TAKEN: how many spans of them were not
    char why[160];           // unless OTLP_TAKEN
};

// url: with its path. RESOURCE_EXHAUSTED: no memory, *out is NULL.
enum status otlp_post_open(const char *url, struct otlp_post **out) MUST_CHECK;
void otlp_post_close(struct otlp_post *post); // NULL is allowed

// Sends a body and waits for the answer; both in at most ten seconds, and not beyond the time that otlp_post_end_by() sets.
void otlp_post_send(struct otlp_post *post, const void *body, size_t bytes, struct otlp_answer *answer);

// Waits until then (clock_now_us()), or until otlp_post_end_by() is called.
void otlp_post_wait(struct otlp_post *post, uint64_t until_us);

// Sets when the exporter must end, and wakes it. Any thread. end_us: 0 until then.
void otlp_post_end_by(struct otlp_post *post, uint64_t end_us);
uint64_t otlp_post_end_us(const struct otlp_post *post);

#endif
