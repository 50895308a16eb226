// main.c: runs seeds. See usage[].
#include <errno.h>
#include <inttypes.h>
#include <jansson.h>
#include <sqlite3.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/base/checked.h"
#include "common/base/log.h"
#include "tests/sim/disk/disk.h"

static const char usage[] =
    "usage: disk [--seeds N] [--from SEED] [--twice]\n"
    "  Runs seeds SEED to SEED + N - 1: 1 and 1000, if not given. --twice: each two times, with the same hash.\n"
    "  FD_SIM_SEED=N runs that one alone, and prints each operation of the disk.\n";

enum { CHUNK = 500 }; // seeds of a process

struct options {
    uint64_t first, count;
    bool twice;
};

// A child keeps it up to date for its parent.
struct progress {
    uint64_t seed; // at work
    uint64_t failed, hash, operations, faults;
    struct disk_counts counts;
};

static uint64_t mix(uint64_t a, uint64_t b) { return (a ^ b) * UINT64_C(0x9e3779b97f4a7c15) ^ a >> 29; }

// Runs a seed. Returns its hash; sim.failure says what was wrong.
static uint64_t run_seed(uint64_t seed)
{
    sim_begin(seed);
    sqlite3_randomness(0, NULL); // it asks anew
    disk_begin();
    if (sim_chance(25))
        weights_run();
    else
        batches_run();
    if (!sim.failure[0] && (sim.blocks || sim.descriptors))
        sim_fail("%" PRIu64 " blocks of memory and %u descriptors are left", sim.blocks, sim.descriptors);
    files_end();
    return sim.hash;
}

static void run_chunk(const struct options *options, uint64_t end, struct progress *progress)
{
    for (; progress->seed < end; progress->seed++) {
        const uint64_t hash = run_seed(progress->seed);
        progress->operations += disk.operations;
        progress->faults += disk.failed;
        if (!sim.failure[0] && options->twice && run_seed(progress->seed) != hash)
            sim_fail("the second run differs");
        if (sim.failure[0]) {
            printf("seed %" PRIu64 ": %s\n", progress->seed, sim.failure);
            fflush(stdout);
            progress->failed++;
        }
        progress->hash = mix(mix(progress->hash, hash), sim.failure[0] != 0);
        progress->counts = counts;
    }
}

// A child for some seeds at a time, and another one for those that it leaves.
static void run_all(const struct options *options, struct progress *progress)
{
    const uint64_t end = options->first + options->count;

    while (progress->seed < end) {
        const uint64_t chunk_end = MIN(progress->seed + CHUNK, end);
        int status = 0;
        fflush(stdout);
        counts = progress->counts;
        const pid_t child = fork();
        if (child == 0) {
            run_chunk(options, chunk_end, progress);
            exit(0);
        }
        if (child < 0 || waitpid(child, &status, 0) != child) {
            perror("disk: fork");
            exit(1);
        }
        if (status == 0)
            continue;
        printf("seed %" PRIu64 ": the process ended with %s %d\n", progress->seed, WIFSIGNALED(status) ? "signal" : "status",
               WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status));
        progress->failed++;
        progress->hash = mix(progress->hash, progress->seed);
        progress->seed++;
    }
}

static bool read_options(int argc, char **argv, struct options *out)
{
    *out = (struct options){.first = 1, .count = 1000};
    for (int i = 1; i < argc; i++) {
        const bool has_value = i + 1 < argc;
        if (strcmp(argv[i], "--twice") == 0)
            out->twice = true;
        else if (strcmp(argv[i], "--seeds") == 0 && has_value)
            out->count = strtoull(argv[++i], NULL, 10);
        else if (strcmp(argv[i], "--from") == 0 && has_value)
            out->first = strtoull(argv[++i], NULL, 10);
        else
            return false;
    }
    return true;
}

int main(int argc, char **argv)
{
    struct progress *progress = mmap(NULL, sizeof *progress, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    const char *alone = getenv("FD_SIM_SEED");
    struct options options;

    if (!read_options(argc, argv, &options) || progress == MAP_FAILED) {
        fputs(usage, stderr);
        return 2;
    }
    json_set_alloc_funcs(malloc, free); // its memory counts
    assert_always(sqlite3_initialize() == SQLITE_OK);
    vfs_register();
    log_threshold = LOG_INFO;
    if (alone)
        options = (struct options){.first = strtoull(alone, NULL, 10), .count = 1, .twice = false};
    sim.says = alone != NULL;
    setvbuf(stdout, NULL, _IOLBF, 0); // a child that aborts has said all
    progress->seed = options.first;
    const uint64_t began_ns = real_now_ns();
    run_all(&options, progress);
    const double seconds = (double)(real_now_ns() - began_ns) * 1e-9;
    printf("%.0f seeds a second, %" PRIu64 " operations and %" PRIu64 " that failed, %" PRIu64 " lives, %" PRIu64 " kills, %" PRIu64
           " power cuts, %" PRIu64 " uploads, %" PRIu64 " batches, %" PRIu64 " files of weights, %" PRIu64 " there after all\n",
           (double)options.count / seconds, progress->operations, progress->faults, progress->counts.lives, progress->counts.kills,
           progress->counts.cuts, progress->counts.uploads, progress->counts.batches, progress->counts.weights,
           progress->counts.after_all);
    printf("%" PRIu64 " seeds, %" PRIu64 " failed, hash %016" PRIx64 "\n", options.count, progress->failed, progress->hash);
    return progress->failed > 0;
}
