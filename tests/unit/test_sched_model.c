// test_sched_model.c: what the core knows of step times: from calibration, from steps, and after the machine has changed.
#include <math.h>

#include "common/sched/state.h"
#include "tests/cmocka.h"

#define assert_about(value, wanted, share) assert_true(fabs((value) / (wanted)-1) <= (share))

static double true_us(double rows, double slow) { return slow * (4000 + 400 * rows); }

static void learn(struct sched_curve *m, uint32_t steps, double rows, double slow)
{
    for (uint32_t i = 0; i < steps; i++)
        sched_curve_learn(m, rows, true_us(rows, slow) * (i % 2 ? 1.03 : 0.97));
}

static void calibration_is_believed_until_steps_say_otherwise(void **state)
{
    static const struct sched_time points[] = {{1, 4400}, {8, 7200}, {64, 29600}, {256, 106400}};
    struct sched_curve m = {0};

    assert_true(sched_curve_us(&m, 10) <= 0);
    sched_curve_calibrate(&m, points, ARRAY_COUNT(points));
    assert_about(sched_curve_us(&m, 8), 7200, 0.001);
    assert_about(sched_curve_us(&m, 160), true_us(160, 1), 0.001);
    assert_about(m.row_us, 400, 0.05);
    learn(&m, 60, 8, 1);
    assert_about(sched_curve_us(&m, 8), 7200, 0.04);
    assert_about(sched_curve_us(&m, 160), true_us(160, 1), 0.06);
}

// Steps of 128 rows were fast; then the machine slows to half its speed, and only steps of 8 rows come.
static void a_class_that_was_fast_does_not_outweigh_what_is_new(void **state)
{
    struct sched_curve m = {0};

    learn(&m, 50, 8, 1);
    learn(&m, 50, 128, 1);
    assert_about(sched_curve_us(&m, 128), true_us(128, 1), 0.04);
    learn(&m, 60, 8, 2);
    assert_about(sched_curve_us(&m, 8), true_us(8, 2), 0.05);
    assert_about(sched_curve_us(&m, 128), true_us(128, 2), 0.15);
    assert_about(m.base_us + 128 * m.row_us, true_us(128, 2), 0.15);
    learn(&m, 12, 128, 2);
    assert_about(sched_curve_us(&m, 128), true_us(128, 2), 0.05);
}

// The slope of whole steps follows the sizes that are seen, as soon as a few of a size have come.
static void whole_steps_forget_old_classes(void **state)
{
    struct sched_curve m = {.whole = true};

    learn(&m, 50, 8, 1);
    learn(&m, 50, 128, 0.5);
    for (uint32_t i = 0; i < 2000; i++) {
        learn(&m, 1, 8, 1);
        learn(&m, 1, 64, 1);
    }
    assert_about(m.base_us + 64 * m.row_us, true_us(64, 1), 0.1);
    assert_about(m.base_us + 8 * m.row_us, true_us(8, 1), 0.1);
}

// A change that makes only one size take longer is not attributed to the others for good.
static void a_class_alone_that_changes_comes_out_right(void **state)
{
    struct sched_curve m = {0};

    learn(&m, 50, 8, 1);
    learn(&m, 50, 128, 1);
    for (uint32_t i = 0; i < 60; i++) {
        learn(&m, 1, 8, 1.5); // longer contexts, say
        learn(&m, 1, 128, 1);
    }
    assert_about(sched_curve_us(&m, 8), true_us(8, 1.5), 0.06);
    assert_about(sched_curve_us(&m, 128), true_us(128, 1), 0.06);
}

static void one_disturbed_step_changes_little(void **state)
{
    struct sched_curve m = {0};

    learn(&m, 50, 8, 1);
    learn(&m, 50, 128, 1);
    sched_curve_learn(&m, 8, 20 * true_us(8, 1));
    assert_about(sched_curve_us(&m, 8), true_us(8, 1), 0.25);
    assert_about(sched_curve_us(&m, 128), true_us(128, 1), 0.05);
    learn(&m, 60, 8, 1);
    assert_about(sched_curve_us(&m, 8), true_us(8, 1), 0.06);
}

// Classes that take about as long as each other come in turn, with noise: what one learns moves the others neither up nor down for good.
static void alike_classes_do_not_drift(void **state)
{
    static const struct sched_time prompt = {256, 106400};

    for (uint32_t slower = 0; slower < 3; slower++) { // the smaller one, by 0, 5 and 30 %: kernels may favour certain sizes
        struct sched_curve m = {0};
        const double us[] = {10000 * (1 + 0.05 * slower * (slower + 1)), 10000};
        uint64_t random = 1;
        sched_curve_calibrate(&m, &prompt, 1);
        for (uint32_t i = 0; i < 100000; i++) {
            random = random * 6364136223846793005u + 1442695040888963407u;
            sched_curve_learn(&m, i % 2 ? 8 : 7, us[i % 2] * (0.97 + 0.06 * (double)(random >> 40) / (1 << 24)));
        }
        assert_about(sched_curve_us(&m, 256), 106400, 0.2);
        assert_about(sched_curve_us(&m, 7), us[0], 0.05);
    }
}

static void s_part_up(struct sched *s, bool on_device, const struct sched_time *layers, uint32_t count)
{
    const struct sched_event e = {.kind = SCHED_S_PART_UP,
                                  .s_part_up = {.on_device = on_device, .layers = layers, .layer_count = count}};
    struct sched_action actions[1 + SCHED_ACTIONS_SPARE];
    assert_int_equal(sched_step(s, 1000, &e, 1, actions, ARRAY_COUNT(actions)), 0);
}

// An s-part whose device is lost comes back on the CPU's cores, twenty times as slow; one that comes back as it was is known.
static void another_device_is_another_model(void **state)
{
    static const struct sched_time cores[] = {{1, 4400}, {64, 29600}}, device[] = {{1, 400}, {64, 500}, {256, 900}};
    const struct sched_config config = {.max_sequences = 8,
                                        .max_batch_rows = 256,
                                        .page_tokens = 16,
                                        .context_tokens = 64,
                                        .max_places = 1,
                                        .layers = 4,
                                        .kv_bytes_per_token = 1000,
                                        .mini_batches = 1,
                                        .max_waiting = 8};
    struct sched *s;
    struct error error;

    assert_int_equal(sched_init(&config, &s, &error), STATUS_OK);
    s_part_up(s, true, device, 3);
    assert_about(sched_curve_us(&s->time.layers, 64), 500, 0.001);
    learn(&s->time.layers, 60, 8, 0.1);
    s_part_up(s, true, device, 3);
    assert_about(sched_curve_us(&s->time.layers, 8), true_us(8, 0.1), 0.05);
    s_part_up(s, false, cores, 2);
    assert_about(sched_curve_us(&s->time.layers, 64), 29600, 0.001);
    assert_about(sched_curve_us(&s->time.layers, 1), 4400, 0.001);
    assert_about(sched_curve_us(&s->time.whole, 64), 29600, 0.001);
    assert_true(s->time.whole.whole);
    sched_fini(s);
}

static void the_error_is_the_mean_of_the_latest(void **state)
{
    struct sched_time_error e = {0};

    for (uint32_t i = 0; i < 400; i++)
        sched_time_judge(&e, 50, 100);
    for (uint32_t i = 0; i < 400; i++)
        sched_time_judge(&e, i % 2 ? 110 : 90, 100);
    assert_about(e.ratio, 0.1, 0.01);
    assert_true(e.steps == 800);
    assert_about(e.predicted_us, 400 * 50.0 + 400 * 100.0, 1e-6);
    assert_about(e.measured_us, 800 * 100.0, 1e-6);
}

// The line knows little of a curve that bends, as with experts: steps of a few rows and of hundreds in turn must not move the sizes between
// them that were not seen for long.
static void a_curve_that_bends_keeps_what_it_knew(void **state)
{
    static const struct sched_time points[] = {{1, 3000}, {8, 12000}, {32, 48000}, {128, 96000}, {512, 108000}};
    struct sched_curve m = {0};

    sched_curve_calibrate(&m, points, ARRAY_COUNT(points));
    for (uint32_t i = 0; i < 4000; i++) {
        const uint32_t rows = i / 40 % 3 == 0 ? 1 + i % 3 : 260 + i % 250; // a while of decode rows, then of prompts
        sched_curve_learn(&m, rows, rows < 8 ? 3000 + (rows - 1) * 9000 / 7.0 : 96000 + (rows - 128) * 12000 / 384.0);
    }
    assert_about(sched_curve_us(&m, 32), 48000, 1);
    assert_about(sched_curve_us(&m, 128), 96000, 1);
    assert_true(sched_curve_us(&m, 32) > 24000 - 1 && sched_curve_us(&m, 128) > 48000 - 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(calibration_is_believed_until_steps_say_otherwise),
        cmocka_unit_test(a_class_that_was_fast_does_not_outweigh_what_is_new),
        cmocka_unit_test(whole_steps_forget_old_classes),
        cmocka_unit_test(a_class_alone_that_changes_comes_out_right),
        cmocka_unit_test(one_disturbed_step_changes_little),
        cmocka_unit_test(alike_classes_do_not_drift),
        cmocka_unit_test(another_device_is_another_model),
        cmocka_unit_test(the_error_is_the_mean_of_the_latest),
        cmocka_unit_test(a_curve_that_bends_keeps_what_it_knew),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
