// runner_internal.h: the state of a runner and of its items, which tests see, too.
#ifndef FD_GATEWAY_BATCH_RUNNER_INTERNAL_H
#define FD_GATEWAY_BATCH_RUNNER_INTERNAL_H

#include <pthread.h>

#include "common/base/clock.h"
#include "common/base/log.h"
#include "services/gateway/batch/job.h"
#include "services/gateway/batch/runner.h"

enum {
    BATCH_JOBS_MAX = 32,        // at work at a time
    BATCH_JOBS_ENDING_MAX = 32, // and so many more that only end
};

enum batch_item_state { BATCH_ITEM_ASKED, BATCH_ITEM_PAUSED, BATCH_ITEM_ANSWERED };

struct batch_item {
    struct batch_item *next, *previous; // in the runner's list of all
    struct batch_item *next_ended;
    struct batch_runner *runner;
    struct batch_job *job;
    enum batch_item_state state;
    uint64_t number;
    struct batch_line line;    // custom_id and body
    struct exchange *exchange; // not held; under the runner's mutex; NULL: none
    uint32_t pauses, server_errors;
    uint64_t again_us; // with PAUSED; with ANSWERED: when to write again
    bool left;         // its exchange was cancelled
    // the answer
    int status; // 0: none
    char *body;
    size_t body_bytes;
    struct batch_error error; // code NULL: none
};

struct batch_runner {
    struct batch_runner_config config;
    pthread_t thread;
    bool has_thread;
    pthread_mutex_t mutex;
    pthread_cond_t wake;
    // under mutex
    bool stopping, changed;
    struct batch_item *ended;
    struct batch_runner_stats stats;
    // the thread's
    struct batch_item *items;
    uint32_t item_count;
    struct batch_job *jobs[BATCH_JOBS_MAX + BATCH_JOBS_ENDING_MAX];
    uint32_t job_count, turn;
    uint64_t saved_us, purged_us;
    struct expiry_clock expiry; // windows and files end by it
    bool busy;                  // there is more to do at once
};

#endif
