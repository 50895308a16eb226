// test_split.c: the split of layers over s-parts against all splits that there are.
#include <math.h>
#include <string.h>

#include "common/base/checked.h"
#include "common/plan/split.h"
#include "tests/cmocka.h"

enum { LAYERS_MAX = 12 };

static uint32_t rng = 1;

static uint32_t random_below(uint32_t limit)
{
    rng = rng * 1664525 + 1013904223;
    return (uint32_t)((uint64_t)(rng >> 8) * limit >> 24);
}

// Tries every split of what is left from `first` on over the stages from `stage` on. Returns the slowest stage of the best; INFINITY: none fits.
static double best_of_all(const struct plan_split *s, uint32_t stage, uint32_t first)
{
    double best = INFINITY;
    for (uint32_t end = first + 1; end <= s->layer_count; end++) {
        struct plan_range range = {first, end};
        uint64_t memory = s->memory_bytes && s->memory_bytes[stage] ? s->memory_bytes[stage] : UINT64_MAX;
        if (plan_split_bytes(s, stage, range) > memory || (stage + 1 == s->stages && end < s->layer_count))
            continue;
        double us = plan_split_us(s, stage, range);
        double rest = stage + 1 == s->stages ? 0 : best_of_all(s, stage + 1, end);
        best = MIN(best, MAX(us, rest));
    }
    return best;
}

static void it_is_the_best_of_all_splits(void **state)
{
    uint32_t fitting = 0, refused = 0;

    for (int round = 0; round < 2000; round++) {
        double layer_us[LAYERS_MAX];
        uint64_t layer_bytes[LAYERS_MAX], memory[PLAN_STAGES_MAX];
        struct plan_split s = {.layer_us = layer_us,
                               .layer_bytes = round % 3 ? layer_bytes : NULL,
                               .layer_count = 1 + random_below(LAYERS_MAX),
                               .embed_us = random_below(10),
                               .head_us = random_below(2) ? random_below(400) : 0,
                               .embed_bytes = random_below(50),
                               .head_bytes = random_below(300),
                               .stage_bytes = random_below(20),
                               .memory_bytes = round % 4 ? memory : NULL};
        s.stages = 1 + random_below(MIN(s.layer_count, PLAN_STAGES_MAX));
        for (uint32_t l = 0; l < s.layer_count; l++) {
            layer_us[l] = 1 + random_below(100);
            layer_bytes[l] = 1 + random_below(100);
        }
        for (uint32_t i = 0; i < s.stages; i++)
            memory[i] = random_below(8) ? 60 + random_below(600) : 0;
        struct plan_range ranges[PLAN_STAGES_MAX];
        struct error error;
        double slowest = 0, found = 0, best = best_of_all(&s, 0, 0);
        enum status status = plan_split_layers(&s, ranges, &slowest, &error);
        if (isinf(best)) {
            assert_int_equal(status, STATUS_RESOURCE_EXHAUSTED);
            refused++;
            continue;
        }
        assert_int_equal(status, STATUS_OK);
        fitting++;
        for (uint32_t i = 0, next = 0; i < s.stages; next = ranges[i++].end) {
            assert_int_equal(ranges[i].first, next);
            assert_true(ranges[i].end > ranges[i].first);
            assert_true(!s.memory_bytes || !memory[i] || plan_split_bytes(&s, i, ranges[i]) <= memory[i]);
            found = MAX(found, plan_split_us(&s, i, ranges[i]));
        }
        assert_int_equal(ranges[s.stages - 1].end, s.layer_count);
        assert_true(fabs(found - best) < 1e-6 && fabs(slowest - best) < 1e-6);
    }
    assert_true(fitting > 500 && refused > 100);
}

// The head weighs as many layers as it takes times a layer's time; what is left over is even.
static void a_head_counts_as_layers(void **state)
{
    double layer_us[30];
    struct plan_split s = {.layer_us = layer_us, .layer_count = 30, .head_us = 8, .stages = 2};
    struct plan_range ranges[PLAN_STAGES_MAX];
    struct error error;
    double slowest;

    for (int i = 0; i < 30; i++)
        layer_us[i] = 1;
    assert_int_equal(plan_split_layers(&s, ranges, &slowest, &error), STATUS_OK);
    assert_int_equal(ranges[0].end, 19);
    assert_true(fabs(slowest - 19) < 1e-9);
    s.head_us = 1000; // it is alone with one layer, and the others share the rest evenly
    s.stages = 4;
    assert_int_equal(plan_split_layers(&s, ranges, &slowest, &error), STATUS_OK);
    assert_int_equal(ranges[3].first, 29);
    for (int i = 0; i < 3; i++)
        assert_in_range(ranges[i].end - ranges[i].first, 9, 10);
}

static void what_does_not_fit_is_refused_with_numbers(void **state)
{
    double layer_us[4] = {1, 1, 1, 1};
    uint64_t bytes[4] = {1 << 30, 1 << 30, 1 << 30, 1 << 30}, memory[2] = {1u << 30, 1u << 31};
    struct plan_split s = {.layer_us = layer_us, .layer_bytes = bytes, .layer_count = 4, .stages = 2, .memory_bytes = memory};
    struct plan_range ranges[PLAN_STAGES_MAX];
    struct error error;
    double slowest;

    assert_int_equal(plan_split_layers(&s, ranges, &slowest, &error), STATUS_RESOURCE_EXHAUSTED);
    assert_non_null(strstr(error.text, "3.00 GiB"));
    assert_non_null(strstr(error.text, "4.00 GiB"));
    s.stages = 5;
    assert_int_equal(plan_split_layers(&s, ranges, &slowest, &error), STATUS_INVALID_ARGUMENT);
    s.stages = 0;
    assert_int_equal(plan_split_layers(&s, ranges, &slowest, &error), STATUS_INVALID_ARGUMENT);
}

static void a_split_is_read(void **state)
{
    static const char *const wrong[] = {
        "", "19,", ",11", "0,30", "19 11", "19;11", "x", "19,11x", "99999999999999999999,1", "-1,31", "19,,11", "+19,11"};
    static const struct {
        const char *text;
        uint32_t stages;
        const char *says;
    } others[] = {
        {"19,12", 2, "--split 19,12 has 31 layers in all, the model has 30"},
        {"1", 1, "--split 1 has 1 layer in all, the model has 30"},
        {"10,10", 0, "--split 10,10 has 20 layers in all, the model has 30"},
        {"19,10,1", 2, "--split 19,10,1 has 3 stages, 2 are wanted"},
        {"30", 2, "--split 30 has 1 stage, 2 are wanted"},
        {"19,11", 1, "--split 19,11 has 2 stages, 1 is wanted"},
        {"1,1,1,1,1,1,1,1,22", 0, "--split 1,1,1,1,1,1,1,1,22 has more than 8 stages"},
    };
    struct plan_range ranges[PLAN_STAGES_MAX];
    struct error error;
    uint32_t stages = 2;

    assert_int_equal(plan_split_read("19,11", 30, &stages, ranges, &error), STATUS_OK);
    assert_true(ranges[0].first == 0 && ranges[0].end == 19 && ranges[1].first == 19 && ranges[1].end == 30);
    stages = 0;
    assert_int_equal(plan_split_read("1,2,1,1,1,1,1,22", 30, &stages, ranges, &error), STATUS_OK);
    assert_true(stages == 8 && ranges[7].first == 8 && ranges[7].end == 30);
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        assert_int_equal(plan_split_read(wrong[i], 30, &stages, ranges, &error), STATUS_INVALID_ARGUMENT);
        assert_non_null(strstr(error.text, "want the layers of each stage, such as 19,11"));
    }
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        stages = others[i].stages;
        assert_int_equal(plan_split_read(others[i].text, 30, &stages, ranges, &error), STATUS_INVALID_ARGUMENT);
        assert_string_equal(error.text, others[i].says);
        assert_int_equal(stages, others[i].stages);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_split_is_read),
        cmocka_unit_test(it_is_the_best_of_all_splits),
        cmocka_unit_test(a_head_counts_as_layers),
        cmocka_unit_test(what_does_not_fit_is_refused_with_numbers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
