// mesh.c: runs schedules. See --help.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/base/checked.h"
#include "common/base/log.h"
#include "tests/sim/schedule.h"

// Learns what each kind of request should get, before it is first asked for.
static bool learn(const struct schedule *s)
{
    static struct schedule alone;
    const bool says = world.says;

    world.says = false;
    for (uint32_t i = 0; i < s->client_count; i++) {
        const uint32_t kind = s->clients[i].kind;
        if (clients_expected(kind))
            continue;
        schedule_alone(kind, &alone);
        const char *failure = schedule_run(&alone);
        if (failure || !clients_answer(0)) {
            fprintf(stderr, "mesh: kind %u alone: %s\n", kind, failure ? failure : "no answer");
            return false;
        }
        clients_learn(kind, clients_answer(0));
        clients_end();
    }
    world.says = says;
    return true;
}

static const char *run_one(const struct schedule *s)
{
    if (!learn(s))
        return "what is expected is not known";
    const char *failure = schedule_run(s);
    clients_end();
    return failure;
}

int main(int argc, char **argv)
{
    static struct schedule schedule;
    uint64_t seed = getenv("FD_SIM_SEED") ? strtoull(getenv("FD_SIM_SEED"), NULL, 10) : 1, count = argc > 1 ? strtoull(argv[1], NULL, 10) : 1;
    uint32_t failures = 0;

    log_threshold = LOG_INFO;
    services_prepare();
    world.says = getenv("FD_SIM_SEED") != NULL;
    uint64_t cpu_ns = real_now_ns(CLOCK_PROCESS_CPUTIME_ID), events = 0;
    for (uint64_t i = 0; i < count; i++) {
        schedule_make(seed + i, &schedule);
        if (world.says)
            schedule_write(&schedule, stdout);
        const char *failure = run_one(&schedule);
        events += world.events;
        if (failure) {
            failures++;
            printf("seed %llu: %s\n", (unsigned long long)(seed + i), failure);
        }
        if (world.says)
            printf("hash %016llx events %llu\n", (unsigned long long)world.hash, (unsigned long long)world.events);
        fflush(stdout);
    }
    printf("%llu seeds, %u failed, %.1f ms a seed, %.0f events a seed\n", (unsigned long long)count, failures,
           (double)(real_now_ns(CLOCK_PROCESS_CPUTIME_ID) - cpu_ns) * 1e-6 / (double)count, (double)events / (double)count);
    services_end();
    return failures > 0;
}
