// scrape.c: see scrape.h. Everything runs on the loop thread.
#include "services/gateway/mesh/scrape.h"

#include <stdlib.h>
#include <string.h>

#include "common/base/clock.h"

enum { ANSWER_US = 500000 };

struct waiter {
    struct waiter *next;
    scrape_done_fn *done;
    void *arg;
};

struct scrape {
    struct mesh *mesh;
    scrape_ask_fn *ask;
    uint64_t kept_us;
    struct waiter *waiters; // not NULL: the scheduler has been asked
    char *text;             // its last answer; NULL: none
    uint64_t answered_us;   // when; 0: never
};

struct scrape *scrape_open(struct mesh *mesh, scrape_ask_fn *ask, uint64_t kept_us)
{
    struct scrape *scrape = calloc(1, sizeof *scrape);

    if (scrape)
        *scrape = (struct scrape){.mesh = mesh, .ask = ask, .kept_us = kept_us};
    return scrape;
}

void scrape_close(struct scrape *scrape)
{
    if (!scrape)
        return;
    while (scrape->waiters) {
        struct waiter *waiter = scrape->waiters;
        scrape->waiters = waiter->next;
        free(waiter);
    }
    free(scrape->text);
    free(scrape);
}

static void on_answer(void *arg, const char *text)
{
    struct scrape *scrape = arg;
    struct waiter *waiter = scrape->waiters;

    free(scrape->text);
    scrape->text = text ? strdup(text) : NULL;
    scrape->answered_us = clock_now_us();
    scrape->waiters = NULL;
    while (waiter) {
        struct waiter *next = waiter->next;
        waiter->done(waiter->arg, scrape->text);
        free(waiter);
        waiter = next;
    }
}

bool scrape_get(struct scrape *scrape, scrape_done_fn *done, void *arg)
{
    struct waiter *waiter;
    bool asked = scrape->waiters != NULL;

    if (!asked && scrape->answered_us && clock_now_us() - scrape->answered_us < scrape->kept_us) {
        done(arg, scrape->text);
        return true;
    }
    waiter = malloc(sizeof *waiter);
    if (!waiter)
        return false;
    *waiter = (struct waiter){scrape->waiters, done, arg};
    scrape->waiters = waiter;
    if (!asked)
        scrape->ask(scrape->mesh, ANSWER_US, on_answer, scrape);
    return true;
}
