/* test_gemm_choice.c: which algorithm a product gets, from made-up candidates, times and clocks (kernels/cuda/gemm_choice.h). No device. */
#include <string.h>

#include "common/base/checked.h"
#include "kernels/cuda/gemm_choice.h"
#include "tests/cmocka.h"

enum { SHAPES = 3 };

/* A library and a device. */
struct made_up {
    uint32_t count, asked, timed;
    double us[GPU_CANDIDATES_MAX];          /* negative: it fails */
    uint32_t unfit_for[GPU_CANDIDATES_MAX]; /* rows; 0: none */
    uint64_t now_us, us_a_trial;
    uint32_t shape, rows;
    uint32_t kept[SHAPES][GPU_CLASSES_MAX]; /* candidate + 1 */
    uint32_t order[SHAPES * GPU_CLASSES_MAX], keeps;
    uint32_t checked;
};

static uint32_t candidates(void *user, uint32_t shape, uint32_t rows)
{
    struct made_up *m = user;
    m->shape = shape, m->rows = rows;
    m->asked++;
    return m->count;
}

static double time_us(void *user, uint32_t candidate, double best_us)
{
    struct made_up *m = user;
    assert_true(candidate < m->count);
    m->timed++;
    m->now_us += m->us_a_trial;
    assert_true(candidate > 0 || best_us == 0);
    return m->us[candidate];
}

static bool fits(void *user, uint32_t candidate, uint32_t rows)
{
    struct made_up *m = user;
    m->checked++;
    return rows != m->unfit_for[candidate];
}

static uint64_t now_us(void *user) { return ((struct made_up *)user)->now_us; }

static void keep(void *user, uint32_t shape, uint32_t row_class, uint32_t candidate)
{
    struct made_up *m = user;
    assert_int_equal(m->shape, shape);
    m->kept[shape][row_class] = candidate + 1;
    m->order[m->keeps++] = row_class;
}

static struct gpu_choices choose(struct made_up *m, const struct gpu_run_rows *run_rows, uint32_t shapes, uint32_t max_rows,
                                 uint64_t budget_us)
{
    const struct gpu_trial_calls calls = {candidates, time_us, fits, now_us, m};
    struct gpu_choices out;
    gpu_choose(&calls, run_rows, shapes, max_rows, budget_us, keep, &out);
    return out;
}

static void test_the_fastest(void **state)
{
    static const struct {
        double us[4];
        uint32_t unfit_for[4], want; /* of the class of 5 to 8 rows */
    } cases[] = {
        {{10, 9, 8, 12}, {0}, 2},          {{10, 9.9, 9.85, 12}, {0}, 0},  /* hardly faster: the library's order */
        {{10, 9.9, 9.7, 12}, {0}, 2},                                      /* than the best before, by more than a fiftieth */
        {{10, -1, 8, -1}, {0}, 2},                                         /* some do not start */
        {{-1, -1, -1, 30}, {0}, 3},        {{10, 9, 8, 12}, {0, 0, 6}, 1}, /* the fastest does not fit all counts of the class */
        {{10, 9, 8, 12}, {0, 0, 9}, 2},                                    /* another class's count */
        {{10, 9, 8, 12}, {5, 6, 7, 0}, 3},
    };
    const struct gpu_run_rows most[] = {{1, 64}};
    for (size_t i = 0; i < ARRAY_COUNT(cases); i++) {
        struct made_up m = {.count = 4};
        memcpy(m.us, cases[i].us, sizeof cases[i].us);
        memcpy(m.unfit_for, cases[i].unfit_for, sizeof cases[i].unfit_for);
        struct gpu_choices made = choose(&m, most, 1, 64, 1000);
        assert_int_equal(m.kept[0][gpu_class_of(made.class_rows, made.classes, 7)], cases[i].want + 1);
        assert_int_equal(made.timed, made.classes);
    }
}

/* Nothing that can be used: the product is looked up when it is asked for. */
static void test_none(void **state)
{
    const struct gpu_run_rows most[] = {{1, 8}};
    struct made_up m = {.count = 2, .us = {-1, -1}};
    struct gpu_choices made = choose(&m, most, 1, 8, 1000);
    assert_int_equal(made.missing, 4); /* 1 2 4 8 */
    assert_int_equal(m.keeps, 0);
    m = (struct made_up){.count = 2, .us = {1, 2}, .unfit_for = {3, 4}};
    made = choose(&m, most, 1, 8, 1000);
    assert_int_equal(made.missing, 1); /* 3 and 4 rows */
    m = (struct made_up){.count = 0};
    made = choose(&m, most, 1, 8, 1000);
    assert_int_equal(made.missing, 4);
    assert_int_equal(m.timed, 0);
}

/* Classes in the order of rows; when the time is over the library's first is taken, unless it does not fit. */
static void test_budget(void **state)
{
    const struct gpu_run_rows most[] = {{1, 512}, {1, 512}, {1, 512}};
    struct made_up m = {.count = 4, .us = {10, 5, 8, 12}, .us_a_trial = 100, .unfit_for = {192}};
    struct gpu_choices made = choose(&m, most, SHAPES, 512, 5000);
    assert_int_equal(made.timed, 13); /* 400 us each: the last begins at 4,800 */
    assert_int_equal(made.timed + made.untimed, made.classes * SHAPES);
    assert_int_equal(made.took_us, 13 * 400);
    for (uint32_t i = 1; i < m.keeps; i++)
        assert_true(m.order[i] >= m.order[i - 1]);
    for (uint32_t c = 0; c < made.classes; c++)
        for (uint32_t shape = 0; shape < SHAPES; shape++) {
            bool timed = c * SHAPES + shape < 13, unfit = made.class_rows[c] == 192;
            assert_int_equal(m.kept[shape][c], (timed || unfit) ? 2 : 1);
        }
    m = (struct made_up){.count = 1, .us = {10}};
    made = choose(&m, most, SHAPES, 512, 5000);
    assert_int_equal(m.timed, 0); /* one candidate is no choice */
    assert_int_equal(made.untimed, made.classes * SHAPES);
}

/* A shape is tried up to the rows it is ever run with, at just those. */
static void test_most_rows(void **state)
{
    const struct gpu_run_rows most[] = {{1, 1000}, {1, 100}};
    struct made_up m = {.count = 2, .us = {10, 5}};
    struct gpu_choices made = choose(&m, most, 2, 1000, UINT64_MAX);
    const uint32_t of_100 = gpu_class_of(made.class_rows, made.classes, 100);
    assert_int_equal(made.class_rows[made.classes - 1], 1000);
    for (uint32_t c = 0; c < made.classes; c++) {
        assert_true(m.kept[0][c] > 0);
        assert_int_equal(m.kept[1][c] > 0, c <= of_100);
    }
    assert_int_equal(m.asked, made.classes + of_100 + 1);
    /* all counts to 256 and multiples of 64 to 1,000, and that; of the other all to 100 */
    assert_int_equal(m.checked, 256 + (1000 / 64 - 4) + 1 + 100);
}

/* And from the rows on that it is ever run with. */
static void test_least_rows(void **state)
{
    const struct gpu_run_rows some[] = {{33, 1000}, {1, 1000}};
    struct made_up m = {.count = 2, .us = {10, 5}};
    struct gpu_choices made = choose(&m, some, 2, 1000, UINT64_MAX);
    const uint32_t of_33 = gpu_class_of(made.class_rows, made.classes, 33);
    for (uint32_t c = 0; c < made.classes; c++) {
        assert_int_equal(m.kept[0][c] > 0, c >= of_33);
        assert_true(m.kept[1][c] > 0);
    }
    assert_int_equal(m.checked, 2 * (256 + (1000 / 64 - 4) + 1) - 32);
}

/* Every number of rows that a step may ask for has been checked. */
static void test_padded_rows_are_checked(void **state)
{
    for (uint32_t max_rows = 1; max_rows < 1100; max_rows += 7)
        for (uint32_t rows = 1; rows <= max_rows; rows++)
            assert_true(gpu_rows_checked(gpu_padded_rows(rows, max_rows), max_rows));
    assert_false(gpu_rows_checked(300, 1000));
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_the_fastest), cmocka_unit_test(test_none),
                                       cmocka_unit_test(test_budget),      cmocka_unit_test(test_most_rows),
                                       cmocka_unit_test(test_least_rows),  cmocka_unit_test(test_padded_rows_are_checked)};
    return cmocka_run_group_tests_name("algorithms of products", tests, NULL, NULL);
}
