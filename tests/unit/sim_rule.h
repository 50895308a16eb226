// sim_rule.h: the mesh that tests of the placement rule simulate: a local pool and two workers beyond a link, an S-part whose times the
// core is told, and a burst: all requests wait from the start.
#ifndef FD_TESTS_UNIT_SIM_RULE_H
#define FD_TESTS_UNIT_SIM_RULE_H

#include "tests/unit/sim_of.h"

enum { RULE_WORKERS = 2, RULE_PLACES = 1 + RULE_WORKERS /* the first is the local pool */, RULE_PAGE = 16 };

// A place: its attention time of a context token and of one in a prompt, its round trip, its pages.
struct rule_place {
    double token_us, prefill_us, link_us, pages;
};

static inline void rule_places(struct sim_place *places /* [RULE_PLACES] */, struct rule_place local, struct rule_place worker)
{
    for (uint32_t i = 0; i < RULE_PLACES; i++) {
        const struct rule_place *p = i > 0 ? &worker : &local;
        places[i] = (struct sim_place){.cost = {.token_us = p->token_us, .prefill_us = p->prefill_us, .link_us = p->link_us},
                                       .pages_total = (uint32_t)p->pages,
                                       .local = i == 0};
    }
}

// Pages that so many sequences of a length have in all, and a few to begin and to end with.
static inline double rule_pages(uint32_t sequences, double tokens) { return sequences * (tokens / RULE_PAGE + 4); }

// Returns a configuration in which `running` of `count` requests go on at once. The caller adds the times of the S-part's layers.
static inline struct sim_config rule_config(const struct sim_place *places, const struct sim_request *requests, uint32_t count,
                                            uint32_t running, uint32_t layers)
{
    return (struct sim_config){
        .sched = {.max_sequences = count + 256,
                  .max_running = running,
                  .max_waiting = count,
                  .max_batch_rows = 640,
                  .mini_batches = 2,
                  .mini_batch_auto = true,
                  .balance = true,
                  .page_tokens = RULE_PAGE,
                  .context_tokens = 8192,
                  .max_places = RULE_PLACES,
                  .layers = layers,
                  .kv_bytes_per_token = 20000},
        .s_part = {.layers = layers, .first_share = 0.25},
        .places = places,
        .place_count = RULE_PLACES,
        .requests = requests,
        .request_count = count,
        .backlog = true,
        .calibrated = true,
        .noise_sigma = 0.05,
        .reply_us = 50,
    };
}

#endif
