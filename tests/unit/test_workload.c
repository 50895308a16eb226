// test_workload.c: files of requests, good and bad; requests made alike; and the drawing of a run.
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/checked.h"
#include "common/sim/figures.h"
#include "common/sim/workload.h"
#include "tests/cmocka.h"

static enum status parse(const char *text, struct workload *out, struct error *error)
{
    return workload_parse(text, strlen(text), "w.csv", out, error);
}

static void a_file_of_requests(void **state)
{
    struct workload w;
    struct error error;

    assert_int_equal(parse("arrival_s,prompt,generated\r\n# comment\n\n 1.5 , 10 , 20 \n0,30,4,100", &w, &error), STATUS_OK);
    assert_int_equal(w.count, 2);
    assert_int_equal(w.requests[0].arrival_us, 0); // by arrival
    assert_int_equal(w.requests[0].max_new_tokens, 100);
    assert_int_equal(w.requests[1].arrival_us, 1500000);
    assert_int_equal(w.requests[1].prompt_tokens, 10);
    assert_int_equal(w.requests[1].generated_tokens, 20);
    assert_int_equal(w.requests[1].max_new_tokens, 20);
    assert_int_equal(w.context_tokens, 130);
    workload_free(&w);
    workload_free(&w);
}

static void what_is_wrong_is_named(void **state)
{
    static const struct {
        const char *text, *says;
    } cases[] = {
        {"", "no requests"},
        {"a,b,c\n", "no requests"},
        {"0,1,1\n0,1\n", "w.csv:2: generated_tokens is missing"},
        {"0,1,1,1,1", "max_tokens]"},
        {"0,1,1;", "want arrival_s"},
        {"0,1,,", "generated_tokens is ''"},
        {"-1,1,1", "arrival_s is '-1'"},
        {"0,1,1\nnan,1,1", "w.csv:2: arrival_s is 'nan'"},
        {"0,1,1\ninf,1,1", "w.csv:2: arrival_s is 'inf'"},
        {"1e300,1,1", "arrival_s"},
        {"0,0,1", "prompt_tokens is '0', want a whole number from 1"},
        {"0,1.5,1", "prompt_tokens is '1.5'"},
        {"0,1,99999999999", "generated_tokens"},
        {"0,1,5,4", "max_tokens is 4, less than the 5"},
        {"0,1,1\nx,1,1", "arrival_s is 'x'"},
    };
    char line[1000];
    struct workload w;
    struct error error;

    for (size_t i = 0; i < ARRAY_COUNT(cases); i++) {
        assert_int_equal(parse(cases[i].text, &w, &error), STATUS_INVALID_ARGUMENT);
        if (!strstr(error.text, cases[i].says))
            fail_msg("'%s' says: %s", cases[i].text, error.text);
        assert_null(w.requests);
    }
    memset(line, '1', sizeof line);
    assert_int_equal(workload_parse(line, sizeof line, "w.csv", &w, &error), STATUS_INVALID_ARGUMENT);
    assert_int_equal(workload_parse("0,1,\0001", 6, "w.csv", &w, &error), STATUS_INVALID_ARGUMENT);
    assert_int_equal(workload_read("no/such/file", &w, &error), STATUS_NOT_FOUND);
}

static void arrivals_at_a_rate(void **state)
{
    struct workload w;
    struct error error;

    assert_int_equal(workload_make(20000, 50, 7, 8, 0, 3, &w, &error), STATUS_OK);
    assert_true(fabs((double)w.requests[19999].arrival_us / 1e6 - 400) < 12); // 20,000 at 50 a second, 4 standard deviations
    double below_mean = 0;                                                    // of exponential gaps 1 - 1/e are below the mean
    for (int i = 1; i < 20000; i++) {
        assert_true(w.requests[i].arrival_us >= w.requests[i - 1].arrival_us);
        below_mean += w.requests[i].arrival_us - w.requests[i - 1].arrival_us < 20000;
    }
    assert_true(fabs(below_mean / 20000 - 0.632) < 0.02);
    assert_int_equal(w.requests[5].max_new_tokens, 8);
    assert_int_equal(w.context_tokens, 15);
    workload_free(&w);
    assert_int_equal(workload_make(3, 0, 7, 8, 100, 3, &w, &error), STATUS_OK);
    assert_int_equal(w.requests[2].arrival_us, 0);
    assert_int_equal(w.context_tokens, 107);
    workload_free(&w);
    assert_int_equal(workload_make(0, 0, 7, 8, 0, 3, &w, &error), STATUS_RESOURCE_EXHAUSTED);
}

static void a_plot_keeps_every_peak(void **state)
{
    static struct load_plot plot;
    char *text = NULL;
    size_t bytes = 0;
    FILE *file = open_memstream(&text, &bytes);

    load_plot_init(&plot);
    for (int i = 0; i < 100000; i++) // 100 s of steps of 1 ms, one of them a peak
        load_plot_add(&plot, &(struct sim_step){
                                 .begin_us = i * 1e3, .end_us = (i + 1) * 1e3, .load = i == 31415 ? 999 : 100, .decode_rows = 5});
    double largest = 0;
    for (uint32_t i = 0; i < plot.used; i++) {
        largest = MAX(largest, plot.columns[i].load);
        assert_true(plot.columns[i].load >= 100);
    }
    assert_true(largest == 999 && plot.used > LOAD_PLOT_COLUMNS / 2 && plot.used <= LOAD_PLOT_COLUMNS);
    assert_int_equal(load_plot_write(&plot, "a < b & c", file), 0);
    fclose(file);
    assert_non_null(strstr(text, "a &#60; b &#38; c"));
    assert_null(strstr(text, "nan"));
    free(text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_file_of_requests),
        cmocka_unit_test(what_is_wrong_is_named),
        cmocka_unit_test(arrivals_at_a_rate),
        cmocka_unit_test(a_plot_keeps_every_peak),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
