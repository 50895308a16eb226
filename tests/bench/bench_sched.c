// bench_sched.c: how long a tick takes at scale: 10,000 running sequences on 256 workers, two mini-batches.
//
// Each tick takes one step's answer (5,000 rows) and emits one step (5,000 rows); sequences end and arrive all the time,
// so that placement over 256 places, and balancing them, is part of it. The ceiling printed beside it is the mere copying of a step's runs.
// usage: bench_sched [sequences [places [ticks]]]
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/clock.h"
#include "common/base/measure.h"
#include "common/sched/sched.h"

enum { MINI_BATCHES = 2, AHEAD = 2, ACTIONS = 65536, EVENTS = 16384 };

static struct sched_action actions[ACTIONS];
static struct sched_event events[EVENTS];
static size_t event_count;
static uint64_t rng = 88172645463325252u, next_sequence = 1;

static uint32_t random_below(uint32_t below)
{
    rng ^= rng << 13;
    rng ^= rng >> 7;
    rng ^= rng << 17;
    return (uint32_t)((rng >> 16) % below);
}

static void arrive(void)
{
    events[event_count++] = (struct sched_event){
        .kind = SCHED_ARRIVE,
        .arrive = {.sequence = next_sequence++,
                   .prompt_tokens = 16 + random_below(64),
                   .max_new_tokens = 200 + random_below(800),
                   .held_place = SCHED_NO_PLACE},
    };
}

struct flight {
    struct sched_step_action steps[MINI_BATCHES * AHEAD + 1];
    uint32_t count;
};

static void take(struct flight *flight, size_t action_count, uint64_t *rows)
{
    for (size_t i = 0; i < action_count; i++) {
        if (actions[i].kind == SCHED_STEP) {
            flight->steps[flight->count++] = actions[i].step;
            *rows += actions[i].step.row_count;
        } else if (actions[i].kind == SCHED_FINISHED) {
            arrive();
        } else if (actions[i].kind == SCHED_MOVE) {
            events[event_count++] = (struct sched_event){
                .kind = SCHED_MOVED,
                .moved = {actions[i].move.sequence, actions[i].move.id, actions[i].move.positions, true},
            };
        }
    }
}

static void report(double *us, uint32_t count, uint64_t rows)
{
    double sum = 0;
    for (uint32_t i = 0; i < count; i++)
        sum += us[i];
    const double median = median_of(us, count); // sorts them
    printf("tick: p50 %.0f us, p99 %.0f us, max %.0f us; %.1f ns a row\n", median, us[count * 99 / 100], us[count - 1],
           sum * 1e3 / (double)rows);
}

// Measures what moving a step's runs alone costs: each is read and written once.
static double copy_us(uint32_t rows)
{
    struct sched_run *from = calloc(rows, sizeof(*from)), *to = calloc(rows, sizeof(*to));
    uint64_t start = clock_now_us();
    for (int i = 0; i < 1000 && from != NULL && to != NULL; i++) {
        memcpy(to, from, rows * sizeof(*from));
        __asm__ volatile("" : : "r"(to) : "memory");
    }
    double us = (double)(clock_now_us() - start) / 1000;
    free(from);
    free(to);
    return us;
}

static struct sched *start(const struct sched_config *config)
{
    struct sched *sched;
    struct error error;
    if (sched_init(config, &sched, &error) != STATUS_OK) {
        fprintf(stderr, "%s\n", error.text);
        exit(1);
    }
    events[event_count++] = (struct sched_event){.kind = SCHED_S_PART_UP};
    for (uint32_t p = 0; p < config->max_places; p++) {
        events[event_count++] = (struct sched_event){
            .kind = SCHED_PLACE_UP,
            .place_up = {.place = p,
                         .pages_total = config->max_running / config->max_places * 160 + 64,
                         .bytes_per_second = 10000000000,
                         .link_us = 50,
                         .accepts_moves = true},
        };
    }
    return sched;
}

// The oldest step is answered: every row done, every sample there.
static void answer(struct flight *flight, struct sched_result *results)
{
    if (flight->count == 0)
        return;
    struct sched_step_action step = flight->steps[0];
    memmove(&flight->steps[0], &flight->steps[1], --flight->count * sizeof(flight->steps[0]));
    for (uint32_t i = 0; i < step.run_count; i++)
        results[i] = (struct sched_result){.outcome = SCHED_DONE, .sampled = step.runs[i].sample};
    events[event_count++] = (struct sched_event){
        .kind = SCHED_STEP_DONE,
        .step_done = {.step = step.step, .results = results, .result_count = step.run_count, .total_us = 2000 + step.row_count},
    };
}

static void measure(struct sched *sched, uint32_t sequences, uint32_t ticks, struct sched_result *results, double *us)
{
    struct flight flight = {.count = 0};
    struct sched_stats stats = {.running = 0};
    uint64_t now_us = 1, rows = 0, measured_rows = 0;
    for (uint32_t arrived = 0, measured = 0; measured < ticks;) {
        for (uint32_t i = 0; i < 200 && arrived < sequences; i++, arrived++)
            arrive();
        answer(&flight, results);
        now_us += 5000;
        uint64_t start_ns = clock_now_ns();
        size_t count = sched_step(sched, now_us, events, event_count, actions, ACTIONS);
        uint64_t end_ns = clock_now_ns();
        event_count = 0;
        uint64_t before = rows;
        take(&flight, count, &rows);
        sched_get_stats(sched, &stats);
        if (stats.running >= sequences - sequences / 50 || measured > 0) {
            us[measured++] = (double)(end_ns - start_ns) / 1e3;
            measured_rows += rows - before;
        }
    }
    printf("%u sequences running, %u mini-batches, %.0f rows a step; %llu handed over, %llu to the other mini-batch\n",
           stats.running, MINI_BATCHES, (double)measured_rows / ticks, (unsigned long long)stats.moved,
           (unsigned long long)stats.relabelled);
    report(us, ticks, measured_rows);
}

int main(int argc, char **argv)
{
    uint32_t sequences = argc > 1 ? (uint32_t)strtoul(argv[1], NULL, 10) : 10000;
    uint32_t places = argc > 2 ? (uint32_t)strtoul(argv[2], NULL, 10) : 256;
    uint32_t ticks = argc > 3 ? (uint32_t)strtoul(argv[3], NULL, 10) : 5000;
    struct sched_config config = {
        .max_sequences = 2 * sequences,
        .max_running = sequences,
        .max_waiting = sequences,
        .max_batch_rows = sequences + 2048,
        .mini_batches = MINI_BATCHES,
        .plan_ahead = AHEAD,
        .page_tokens = 16,
        .chunk_max_tokens = 2048,
        .context_tokens = 4096,
        .max_places = places,
        .balance = true,
        .layers = 30,
        .kv_bytes_per_token = 23040,
    };
    struct sched *sched = start(&config);
    struct sched_result *results = calloc(config.max_batch_rows, sizeof(*results));
    double *us = calloc(ticks, sizeof(*us));
    if (results != NULL && us != NULL)
        measure(sched, sequences, ticks, results, us);
    printf("%u places; copying the runs of such a step: %.1f us\n", places, copy_us(sequences / MINI_BATCHES));
    free(us);
    free(results);
    sched_fini(sched);
    return 0;
}
