// test_sched_stall.c: a long prompt beside sequences that decode, without a step target that was set: what their clients see, and how long
// the prompt waits for its first token.
//
// The mesh takes 1,000 us + 50 us a row, and PAIR_NS for each prefill row and token of its context. Some steps take longer than that, by chance.
#include <stdlib.h>

#include "common/base/checked.h"
#include "tests/unit/test_sched_mesh.h"

enum { DECODES = 8, PROMPT = 3000, STEPS_MAX = 4000, BASE_US = 1000, ROW_US = 50, PAIR_NS = 10 };

static struct mesh mesh;

static const struct sched_config config = {
    .max_sequences = 64,
    .max_waiting = 64,
    .max_batch_rows = 1024,
    .mini_batches = 1,
    .mini_batch_fill = 1,
    .plan_ahead = 1,
    .tile_rows = 4, // so that a chunk comes near to the time that there is
    .page_tokens = 16,
    .context_tokens = 8192,
    .max_places = MESH_PLACES,
    .layers = 10,
    .kv_bytes_per_token = 1000,
};

// One in `one_in` steps takes extra_us longer; and each takes base_us longer.
struct noise {
    uint32_t one_in, extra_us, base_us;
};

// Steps from the prompt's arrival to its first token.
struct seen {
    uint32_t count;
    double us[STEPS_MAX], sum_us;
};

static struct mesh *start(void)
{
    mesh_init(&mesh, &config, 1);
    mesh.s_part_us = 0;
    mesh.pair_ns = PAIR_NS;
    mesh_s_part_up(&mesh);
    mesh_place_up(&mesh, 0, 4000);
    for (int i = 0; i < DECODES; i++)
        mesh_arrive(&mesh, 5, 8000, 0);
    return &mesh;
}

// Lets the next step be planned with its noise; returns its time, and how many rows it has.
static double next_step(struct mesh *m, const struct noise *noise, uint32_t *rows)
{
    for (;;) {
        size_t count = mesh_next_tick(m);
        for (size_t i = 0; i < count; i++)
            if (m->actions[i].kind == SCHED_STEP) {
                const struct sched_step_action *step = &m->actions[i].step;
                double pairs = 0;
                *rows = step->row_count;
                for (uint32_t r = DECODES; r < step->run_count; r++)
                    pairs += step->runs[r].count * (step->runs[r].position + (step->runs[r].count + 1) / 2.0);
                m->slow_us = noise->base_us + (noise->one_in > 0 && mesh_random(m, noise->one_in) == 0 ? noise->extra_us : 0);
                return BASE_US + ROW_US * *rows + pairs * PAIR_NS / 1000 + m->slow_us;
            }
    }
}

static void decode(struct mesh *m, int steps, const struct noise *noise)
{
    uint32_t rows;
    for (int i = 0; i < steps; i++)
        next_step(m, noise, &rows);
}

// A prompt comes: until its rows are all planned.
static void read_prompt(struct mesh *m, const struct noise *noise, struct seen *seen)
{
    uint32_t rows, done = 0;
    mesh_arrive(m, PROMPT, 5, 0);
    *seen = (struct seen){0};
    while (done < PROMPT) {
        double us = next_step(m, noise, &rows);
        assert_true(seen->count < STEPS_MAX);
        done += rows > DECODES ? rows - DECODES : 0;
        seen->us[seen->count++] = us;
        seen->sum_us += us;
    }
}

static int by_time(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double quantile(struct seen *seen, double share)
{
    qsort(seen->us, seen->count, sizeof seen->us[0], by_time);
    return seen->us[MIN((uint32_t)(share * seen->count), seen->count - 1)];
}

// Returns the time that decode rows take alone.
static double alone_us(const struct noise *noise) { return BASE_US + ROW_US * DECODES + noise->base_us; }

// Steps are as predicted: none is longer than 2.2 times one without the prompt, once a step has shown what a row takes. What that
// leaves for the prompt is used.
static void steady_steps_keep_to_the_target(void **state)
{
    const struct noise calm = {0};
    struct mesh *m = start();
    struct seen seen;
    decode(m, 100, &calm);
    read_prompt(m, &calm, &seen);
    const double mean = seen.sum_us / seen.count / alone_us(&calm), most = quantile(&seen, 1) / alone_us(&calm);
    printf("%.2f times in the mean, %.2f at most\n", mean, most);
    assert_true(most <= 2.3);
    assert_true(mean >= 1.7);
    mesh_fini(m);
}

// One step in eight takes half as long again: the target makes room for them, so that clients see what they would of steady steps.
static void unsteady_steps_are_planned_shorter(void **state)
{
    const struct noise calm = {0}, noise = {.one_in = 8, .extra_us = 700};
    struct mesh *m = start();
    static struct seen first, later;
    decode(m, 100, &calm);
    read_prompt(m, &calm, &first);
    read_prompt(m, &noise, &later); // learns it
    read_prompt(m, &noise, &later);
    printf("p99: %.2f times; p50 %.2f, of steady steps %.2f\n", quantile(&later, 0.99) / alone_us(&calm),
           quantile(&later, 0.5) / alone_us(&calm), quantile(&first, 0.5) / alone_us(&calm));
    assert_true(quantile(&later, 0.99) <= 2.25 * alone_us(&calm));
    assert_true(quantile(&later, 0.5) < 0.95 * quantile(&first, 0.5));
    read_prompt(m, &calm, &later);
    read_prompt(m, &calm, &later); // and forgets it
    assert_true(quantile(&later, 0.5) > 0.97 * quantile(&first, 0.5));
    mesh_fini(m);
}

// However unsteady steps are, prompts get their share.
static void prompts_are_not_starved(void **state)
{
    static const struct noise noises[] = {{0}, {8, 700, 0}, {4, 1400, 0}};
    static struct seen seen;
    for (size_t i = 0; i < ARRAY_COUNT(noises); i++) {
        const struct noise *noise = &noises[i];
        struct mesh *m = start();
        decode(m, 100, noise);
        read_prompt(m, noise, &seen);
        read_prompt(m, noise, &seen);
        double row_us = ROW_US + PROMPT / 2 * PAIR_NS / 1e3, least = (2.2 / 1.3 - 1) * alone_us(noise) / row_us;
        printf("%.1f rows a step, %.1f at least\n", (double)PROMPT / seen.count, least);
        assert_true((double)PROMPT / seen.count >= 0.7 * least);
        mesh_fini(m);
    }
}

// The machine becomes three times as slow: the target follows it within one prompt, for it is a multiple of what is measured.
static void a_slower_machine_has_a_longer_target(void **state)
{
    const struct noise calm = {0}, slow = {.base_us = 2800};
    struct mesh *m = start();
    static struct seen seen;
    decode(m, 100, &calm);
    read_prompt(m, &calm, &seen);
    decode(m, 200, &slow);
    read_prompt(m, &slow, &seen);
    const double mean = seen.sum_us / seen.count / alone_us(&slow), most = quantile(&seen, 0.99) / alone_us(&slow);
    printf("%.2f times in the mean, p99 %.2f\n", mean, most);
    assert_true(most <= 2.5 && mean >= 1.7);
    mesh_fini(m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(steady_steps_keep_to_the_target),
        cmocka_unit_test(unsteady_steps_are_planned_shorter),
        cmocka_unit_test(prompts_are_not_starved),
        cmocka_unit_test(a_slower_machine_has_a_longer_target),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
