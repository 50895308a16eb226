// test_sched_stall.c: a long prompt beside sequences that decode: how many of its rows a step gets, what the others' clients see, and how
// long the prompt waits for its first token.
//
// The mesh reports 1,000 us + 50 us a row, and pair_ns for each prefill row and token of its context.
#include <stdlib.h>

#include "common/base/checked.h"
#include "tests/unit/test_sched_mesh.h"

enum { DECODES = 8, PROMPT = 3000, TARGET_US = 6000, STEPS_MAX = 4000, BASE_US = 1000, ROW_US = 50 };

static struct mesh mesh;

static struct sched_config base(void)
{
    struct sched_config config = mesh_config;
    config.max_batch_rows = 1024;
    config.plan_ahead = 1;
    config.tile_rows = 8;
    config.step_target_us = TARGET_US;
    config.context_tokens = 8192;
    return config;
}

static struct mesh *start(const struct sched_config config)
{
    mesh_init(&mesh, &config, 1);
    mesh.s_part_us = 0;
    mesh_s_part_up(&mesh);
    mesh_place_up(&mesh, 0, 4000);
    for (int i = 0; i < DECODES; i++)
        mesh_arrive(&mesh, 5, 8000, 0);
    return &mesh;
}

// Returns the step that the next tick plans, and its time.
static const struct sched_step_action *next_step(struct mesh *m, double *us)
{
    for (;;) {
        size_t count = mesh_next_tick(m);
        for (size_t i = 0; i < count; i++) {
            const struct sched_step_action *step = &m->actions[i].step;
            if (m->actions[i].kind != SCHED_STEP)
                continue;
            double pairs = 0;
            for (uint32_t r = DECODES; r < step->run_count; r++)
                pairs += step->runs[r].count * (step->runs[r].position + (step->runs[r].count + 1) / 2.0);
            *us = BASE_US + ROW_US * step->row_count + pairs * m->pair_ns / 1000;
            return step;
        }
    }
}

static void decode(struct mesh *m, int steps)
{
    double us;
    for (int i = 0; i < steps; i++)
        next_step(m, &us);
}

static void the_chunk_shrinks_as_its_prompt_grows(void **state)
{
    struct mesh *m = start(base());
    m->pair_ns = 60; // at 3,000 tokens a row takes 230 us instead of 50
    decode(m, 50);
    mesh_arrive(m, PROMPT, 5, 0);
    uint32_t first = 0, last = 0, rows = 0;
    double us, longest_us = 0, sum_us = 0, steps = 0;
    while (rows < PROMPT) {
        const struct sched_step_action *step = next_step(m, &us);
        if (step->run_count <= DECODES)
            continue;
        last = step->row_count - DECODES;
        if (rows + last < PROMPT)
            assert_int_equal(step->row_count % 8, 0);
        rows += last;
        first = first ? first : last;
        if (rows > 400) { // it has learned what a pair takes
            longest_us = MAX(longest_us, us);
            sum_us += us;
            steps++;
        }
    }
    assert_true(longest_us <= 1.1 * TARGET_US);
    assert_true(sum_us / steps >= 0.75 * TARGET_US); // and what there is, is used
    assert_true(first >= 64);
    assert_true(last <= 32);
    mesh_fini(m);
}

// Prompts of a few rows do not take a step each.
static void prompts_share_a_step(void **state)
{
    struct mesh *m = start(base());
    decode(m, 50);
    for (int i = 0; i < 4; i++)
        mesh_arrive(m, 10 + (uint32_t)i, 5, 0);
    double us;
    const struct sched_step_action *step = next_step(m, &us);
    assert_int_equal(step->run_count, DECODES + 4);
    mesh_fini(m);
}

// Beside a long context there may be time for less than a tile only, but never for just one row at a time.
static void never_crumbs(void **state)
{
    struct mesh *m = start(base());
    m->pair_ns = 2000;
    decode(m, 50);
    mesh_arrive(m, PROMPT, 5, 0);
    double us;
    for (uint32_t rows = 0; rows + 8 < PROMPT;) {
        const struct sched_step_action *step = next_step(m, &us);
        if (step->run_count > DECODES && rows > 0)
            assert_true(step->row_count - DECODES >= 4);
        rows += step->row_count - DECODES;
    }
    mesh_fini(m);
}

// A few disturbed steps do not change the time of decode rows, by which the target is stretched.
static void disturbed_steps_do_not_stretch_the_target(void **state)
{
    struct sched_config config = base();
    config.step_target_us = 1000; // so the stretch decides: 2.4 x 1,400 us
    struct mesh *m = start(config);
    decode(m, 100);
    m->slow_us = 20000;
    decode(m, 6);
    m->slow_us = 0;
    mesh_arrive(m, PROMPT, 5, 0);
    double us;
    for (int i = 0; i < 12; i++) {
        next_step(m, &us);
        if (i >= 6) // by then it knows again what a row takes
            assert_true(us <= 1.25 * 2.4 * (BASE_US + ROW_US * DECODES));
    }
    mesh_fini(m);
}

// Prompts come all the time, so that no step shows the time of decode rows alone, which has grown. The excess must not be attributed to
// the rows of the chunk: it would become smaller, so cost more a row, and end at the smallest size.
static void longer_contexts_are_not_laid_on_the_chunk(void **state)
{
    struct mesh *m = start(base());
    m->s_part_row_us = 50;
    decode(m, 50);
    m->slow_us = 20000;
    uint32_t rows = 0;
    double us;
    for (int i = 0; i < 400; i++) {
        if (i % 2 == 0 && i < 80)
            mesh_arrive(m, PROMPT, 5, 0);
        const struct sched_step_action *step = next_step(m, &us);
        assert_true(step->run_count > DECODES);
        rows += i >= 350 ? step->row_count - DECODES : 0;
    }
    printf("%u rows a chunk\n", rows / 50); // 2.4 times what decode rows take have room for 600
    assert_true(rows / 50 >= 64);
    mesh_fini(m);
}

// A row of a prompt always takes twice what the s-part says. That must not be taken for slower decode rows, which would stretch the
// target, and so the chunk, and so the step, without end.
static void dear_rows_do_not_stretch_the_target(void **state)
{
    struct mesh *m = start(base());
    const double alone_us = 5000 + 50 * DECODES;
    m->s_part_row_us = 25;
    m->pair_ns = 12; // as it is taken to be: 25 us a row, over 2,000
    m->slow_us = 4000;
    decode(m, 3400); // so that contexts grow little afterwards
    double us, sum_us = 0;
    for (int i = 0; i < 400; i++) {
        if (i % 5 == 0)
            mesh_arrive(m, PROMPT, 5, 0);
        next_step(m, &us);
        sum_us += i >= 300 ? us + m->slow_us : 0;
    }
    printf("steps of %.0f us, %.2f times what decode rows take\n", sum_us / 100, sum_us / 100 / alone_us);
    assert_true(sum_us / 100 <= 1.25 * 2.4 * alone_us);
    mesh_fini(m);
}

// While a step waits for weights from the disk, rows of prompts cost nothing: all that fit into that time are taken, whatever the target.
static void rows_are_free_while_weights_are_read(void **state)
{
    enum { STREAM_US = 60000, ROWS_THAT_FIT = 850 };
    struct sched_config config = base();
    struct mesh *m = &mesh;
    config.chunk_max_tokens = 1000;
    mesh_init(m, &config, 1);
    m->stream_us = STREAM_US;
    m->s_part_row_us = 50; // 500 + 50 a row
    mesh_s_part_up(m);
    mesh_place_up(m, 0, 4000);
    for (int i = 0; i < DECODES; i++)
        mesh_arrive(m, 5, 4000, 0);
    decode(m, 50);
    mesh_arrive(m, PROMPT, 5, 0);
    double us;
    uint32_t steps = 0, most = 0;
    for (uint32_t rows = 0; rows < PROMPT; steps++) {
        const struct sched_step_action *step = next_step(m, &us);
        rows += step->row_count - DECODES;
        most = MAX(most, step->row_count);
        assert_true(us <= 1.4 * STREAM_US);
    }
    assert_true(most >= ROWS_THAT_FIT);
    assert_true(steps <= 10); // 8 rows, then twice as many each time; without the free time there are 40
    mesh_fini(m);
}

// While a step waits for weights from the disk, rows of prompts cost nothing: those that fit into that time do not count for the target.
// Decode rows alone take 20 ms then, of which they compute 1; the target is 2.4 times that.
static void rows_that_are_free_do_not_count_for_the_target(void **state)
{
    enum { STREAM_US = 20000, ROWS = 700 };
    struct sched_config config = base();
    struct mesh *m = &mesh;
    double us;
    config.chunk_max_tokens = 1000;
    mesh_init(m, &config, 1);
    m->stream_us = STREAM_US;
    m->s_part_row_us = 50; // 500 + 50 a row
    mesh_s_part_up(m);
    mesh_place_up(m, 0, 4000);
    mesh_arrive(m, PROMPT, 5, 0); // alone, so that large steps are known
    for (int i = 0; i < 5; i++)
        next_step(m, &us);
    for (int i = 0; i < DECODES; i++)
        mesh_arrive(m, 5, 4000, 0);
    decode(m, 50);
    mesh_arrive(m, PROMPT, 5, 0);
    const struct sched_step_action *step = next_step(m, &us);
    while (step->run_count <= DECODES)
        step = next_step(m, &us);
    assert_true(step->row_count >= ROWS); // without the free time 504
    assert_true(us <= 2.5 * STREAM_US);
    mesh_fini(m);
}

// Prompts that come at once are computed in as few readings of the weights as there are rows that fit into one, whatever the most is where
// weights stay. Returns the number of steps until all are done; *longest: rows of the largest.
static uint32_t readings_of(uint32_t row_us, uint32_t *longest)
{
    enum { STREAM_US = 1000000, BURST = 32, TOKENS = 128 };
    const struct sched_time layers[] = {{1, 1000}, {512, 1000 + 511.0 * row_us}}, heads[] = {{1, 100}, {512, 600}};
    struct sched_config config = base();
    struct mesh *m = &mesh;
    uint32_t steps = 0, rows = 0;
    double us;
    config.max_batch_rows = 2048;
    config.max_sequences = config.max_waiting = 64;
    config.chunk_max_tokens = 512;
    mesh_init(m, &config, 1);
    m->calm = true;
    m->stream_us = STREAM_US;
    m->s_part_row_us = row_us;
    mesh_s_part_up(m);
    struct sched_event *up = &m->events[m->event_count - 1];
    up->s_part_up.layers = layers, up->s_part_up.layer_count = 2;
    up->s_part_up.heads = heads, up->s_part_up.head_count = 2;
    mesh_place_up(m, 0, 4000);
    for (int i = 0; i < BURST; i++)
        mesh_arrive(m, TOKENS, 100, 0);
    *longest = 0;
    for (; rows < BURST * TOKENS; steps++) {
        const struct sched_step_action *step = next_step(m, &us);
        *longest = MAX(*longest, step->row_count);
        for (uint32_t r = 0; r < step->run_count; r++)
            rows += step->runs[r].position < TOKENS ? step->runs[r].count : 0;
    }
    mesh_fini(m);
    return steps;
}

static void prompts_fill_the_time_of_reading(void **state)
{
    uint32_t rows;
    assert_true(readings_of(200, &rows) <= 3); // 5,000 rows a reading, of 2,048 at most
    assert_true(readings_of(1000, &rows) <= 5 && rows > 900 && rows < 1100);
    readings_of(10000, &rows); // a hundred: no more than where weights stay
    assert_true(rows <= 512);
}

// --- without a step target that was set -------------------------------------------------------------------------------

enum { PAIR_NS = 10 };

// One in `one_in` steps takes extra_us longer; and each takes base_us longer.
struct noise {
    uint32_t one_in, extra_us, base_us;
};

// Steps from the prompt's arrival to its first token.
struct seen {
    uint32_t count;
    double us[STEPS_MAX], sum_us;
};

static struct mesh *start_untargeted(void)
{
    struct sched_config config = base();
    config.tile_rows = 4; // so that a chunk comes near to the time that there is
    config.step_target_us = 0;
    struct mesh *m = start(config);
    m->pair_ns = PAIR_NS;
    return m;
}

// Lets the next step be planned with its noise; returns its time, and how many rows it has.
static double next_noisy_step(struct mesh *m, const struct noise *noise, uint32_t *rows)
{
    double us;
    *rows = next_step(m, &us)->row_count;
    m->slow_us = noise->base_us + (noise->one_in > 0 && mesh_random(m, noise->one_in) == 0 ? noise->extra_us : 0);
    return us + m->slow_us;
}

static void decode_noisy(struct mesh *m, int steps, const struct noise *noise)
{
    uint32_t rows;
    for (int i = 0; i < steps; i++)
        next_noisy_step(m, noise, &rows);
}

// A prompt comes: until its rows are all planned.
static void read_prompt(struct mesh *m, const struct noise *noise, struct seen *seen)
{
    uint32_t rows, done = 0;
    mesh_arrive(m, PROMPT, 5, 0);
    *seen = (struct seen){0};
    while (done < PROMPT) {
        double us = next_noisy_step(m, noise, &rows);
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
    struct mesh *m = start_untargeted();
    struct seen seen;
    decode_noisy(m, 100, &calm);
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
    struct mesh *m = start_untargeted();
    static struct seen first, later;
    decode_noisy(m, 100, &calm);
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
        struct mesh *m = start_untargeted();
        decode_noisy(m, 100, noise);
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
    struct mesh *m = start_untargeted();
    static struct seen seen;
    decode_noisy(m, 100, &calm);
    read_prompt(m, &calm, &seen);
    decode_noisy(m, 200, &slow);
    read_prompt(m, &slow, &seen);
    const double mean = seen.sum_us / seen.count / alone_us(&slow), most = quantile(&seen, 0.99) / alone_us(&slow);
    printf("%.2f times in the mean, p99 %.2f\n", mean, most);
    assert_true(most <= 2.5 && mean >= 1.7);
    mesh_fini(m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_chunk_shrinks_as_its_prompt_grows),
        cmocka_unit_test(prompts_share_a_step),
        cmocka_unit_test(never_crumbs),
        cmocka_unit_test(disturbed_steps_do_not_stretch_the_target),
        cmocka_unit_test(longer_contexts_are_not_laid_on_the_chunk),
        cmocka_unit_test(dear_rows_do_not_stretch_the_target),
        cmocka_unit_test(rows_are_free_while_weights_are_read),
        cmocka_unit_test(rows_that_are_free_do_not_count_for_the_target),
        cmocka_unit_test(prompts_fill_the_time_of_reading),
        cmocka_unit_test(steady_steps_keep_to_the_target),
        cmocka_unit_test(unsteady_steps_are_planned_shorter),
        cmocka_unit_test(prompts_are_not_starved),
        cmocka_unit_test(a_slower_machine_has_a_longer_target),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
