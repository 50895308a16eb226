// bench_sim.c: how long the simulator takes at scale: 1,000 workers, 1,000,000 sequences (prompt 512, 128 generated) that arrive at
// 0.9 of what the mesh can do. The target is 300 ns of one core a row and 4 GiB; the ceiling printed beside it is none.
// usage: bench_sim [sequences [workers [batch]]]
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include "common/base/checked.h"
#include "common/base/clock.h"
#include "common/sim/sim.h"
#include "common/sim/workload.h"

enum { PROMPT = 512, GENERATED = 128, LAYERS = 32, MINI_BATCHES = 2 };

int main(int argc, char **argv)
{
    uint64_t count = argc > 1 ? strtoull(argv[1], NULL, 10) : 1000000;
    uint32_t workers = argc > 2 ? (uint32_t)strtoul(argv[2], NULL, 10) : 1000;
    uint32_t batch = argc > 3 ? (uint32_t)strtoul(argv[3], NULL, 10) : 16 * workers;
    struct sim_place *places = calloc(workers, sizeof *places);
    // A step of a full mini-batch, prompts included, takes the S-part 2 ms a layer; each worker three quarters of that.
    double rows = (double)batch / MINI_BATCHES * (1 + (double)PROMPT / GENERATED), layer_us = 2000;
    double load = (double)batch / MINI_BATCHES / workers * (PROMPT + GENERATED / 2.0);
    double capacity = batch / (MINI_BATCHES * LAYERS * layer_us / 1e6) / GENERATED;
    struct sim_config config = {
        .sched = {.max_sequences = 4 * batch + 65536,
                  .max_running = batch,
                  .max_waiting = 2 * batch + 65536,
                  .max_batch_rows = (uint32_t)(2 * rows) + 4096,
                  .mini_batches = MINI_BATCHES,
                  .chunk_tokens = (uint32_t)(1.5 * rows),
                  .page_tokens = 16,
                  .context_tokens = PROMPT + GENERATED,
                  .max_places = workers,
                  .layers = LAYERS,
                  .kv_bytes_per_token = 1 << 19},
        .s_part = {.layers = LAYERS, .first_share = 0.25},
        .places = places,
        .place_count = workers,
        .backlog = true,
        .noise_sigma = 0.1,
        .reply_us = 100,
        .seed = 1,
    };
    struct workload work;
    struct sim_result result;
    struct error error;
    struct rusage usage;

    cost_curve_add(&config.s_part.layer, 1, layer_us / 10);
    cost_curve_add(&config.s_part.layer, rows, layer_us);
    for (uint32_t i = 0; i < workers; i++)
        places[i] =
            (struct sim_place){.cost = {.token_us = 0.6 * layer_us / load, .prefill_us = 0.02 * layer_us / load, .link_us = 40},
                               .pages_total = 64 * (PROMPT + GENERATED) / 16};
    if (workload_make(count, 0.9 * capacity, PROMPT, GENERATED, 0, 1, &work, &error)) {
        fprintf(stderr, "bench_sim: %s\n", error.text);
        return 1;
    }
    config.requests = work.requests;
    config.request_count = work.count;
    uint64_t begin_us = clock_now_us();
    if (sim_run(&config, &result, &error)) {
        fprintf(stderr, "bench_sim: %s\n", error.text);
        return 1;
    }
    double seconds = (double)(clock_now_us() - begin_us) / 1e6;
    uint64_t all_rows = result.decode_rows + result.prefill_rows;
    getrusage(RUSAGE_SELF, &usage);
    printf("%llu sequences, %u workers, batch %u: %.1f s virtual, %llu steps of %.0f rows, %.0f tokens/s, %.2f of arrivals' rate\n",
           (unsigned long long)count, workers, batch, result.seconds, (unsigned long long)result.steps,
           (double)all_rows / (double)result.steps, result.tokens_per_second,
           result.tokens_per_second / (0.9 * capacity * GENERATED));
    printf("busy: S-part %.2f, workers %.2f; mean batch %.0f; first token p50 %.2f s, p99 %.2f s; finished %llu, lost %llu\n",
           result.s_part_busy, result.r_part_busy, result.mean_batch, result.ttft.p50_s, result.ttft.p99_s,
           (unsigned long long)result.finished, (unsigned long long)(result.lost + result.rejected));
    printf("%.1f s: %.1f ns a row (target 300), %.2f GiB (target 4)\n", seconds, seconds * 1e9 / (double)all_rows,
           (double)usage.ru_maxrss / (1 << 20));
    workload_free(&work);
    free(places);
    return 0;
}
