// test_length_trace.c: shapes have the percentiles that they are fitted to; files, good and bad; what is drawn, and when it arrives.
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/checked.h"
#include "services/fastdecode/capacity/capacity.h"
#include "tests/cmocka.h"

static void assert_near(double value, double wanted, double share)
{
    if (!(fabs(value - wanted) <= share * wanted))
        fail_msg("%g, want %g", value, wanted);
}

static int ascending(const void *a, const void *b)
{
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return (x > y) - (x < y);
}

// A percentile of what was drawn. second: of the answers.
static double percentile(const struct load_request *requests, uint32_t count, bool second, double share)
{
    uint32_t *sorted = malloc(count * sizeof *sorted);

    assert_non_null(sorted);
    for (uint32_t i = 0; i < count; i++)
        sorted[i] = second ? requests[i].length.answer_tokens : requests[i].length.prompt_tokens;
    qsort(sorted, count, sizeof *sorted, ascending);
    double found = sorted[(uint32_t)(share * count)];
    free(sorted);
    return found;
}

static struct load_request *draw(const struct length_trace *trace, uint32_t count, double seconds, uint64_t seed)
{
    struct load_request *requests;
    struct error error;
    uint32_t limited;

    if (length_trace_draw(trace, count, seconds, seed, &requests, &limited, &error) != STATUS_OK)
        fail_msg("%s", error.text);
    return requests;
}

static void shapes_have_the_published_percentiles(void **state)
{
    static const struct {
        const char *name;
        double prompt_p50, prompt_p90, answer_p50, answer_p90;
    } published[] = {{"sharegpt", 1730, 5696, 415, 834}, {"arxiv", 7059, 12985, 208, 371}};

    for (size_t i = 0; i < ARRAY_COUNT(published); i++)
        for (uint32_t count = 100; count <= 20000; count *= 200) {
            struct length_trace trace;
            assert_true(length_trace_named(published[i].name, &trace));
            struct load_request *requests = draw(&trace, count, 1, 7);
            double share = count == 100 ? 0.04 : 0.001; // a hundred strata are that wide
            assert_near(percentile(requests, count, false, 0.5), published[i].prompt_p50, share);
            assert_near(percentile(requests, count, false, 0.9), published[i].prompt_p90, share);
            assert_near(percentile(requests, count, true, 0.5), published[i].answer_p50, share);
            assert_near(percentile(requests, count, true, 0.9), published[i].answer_p90, share);
            assert_near(length_trace_prompt_at(&trace, 0.5), published[i].prompt_p50, 0.001);
            assert_near(length_trace_answer_at(&trace, 0.9), published[i].answer_p90, 0.001);
            free(requests);
        }
    struct length_trace none;
    assert_false(length_trace_named("alpaca", &none));
}

static void draws_carry_the_same_work(void **state)
{
    double tokens[2] = {0}, products[2] = {0};
    struct load_request *drawn[2];
    struct length_trace trace;

    assert_true(length_trace_named("sharegpt", &trace));
    for (int k = 0; k < 2; k++) {
        drawn[k] = draw(&trace, 1000, 1, (uint64_t)k);
        for (uint32_t i = 0; i < 1000; i++) {
            tokens[k] += drawn[k][i].length.prompt_tokens + drawn[k][i].length.answer_tokens;
            products[k] += (double)drawn[k][i].length.prompt_tokens * drawn[k][i].length.answer_tokens;
        }
    }
    assert_true(tokens[0] == tokens[1]);
    assert_true(products[0] != products[1]); // other pairs
    assert_memory_not_equal(drawn[0], drawn[1], 1000 * sizeof *drawn[0]);
    free(drawn[1]);
    drawn[1] = draw(&trace, 1000, 1, 0);
    assert_memory_equal(drawn[0], drawn[1], 1000 * sizeof *drawn[0]); // by the seed
    free(drawn[0]);
    free(drawn[1]);
}

// Gaps between arrivals are exponential: 1 - 1/e of them below their mean, and each second's count has its mean as variance.
static void arrivals_are_poisson(void **state)
{
    enum { COUNT = 20000, SECONDS = 400 };
    double below_mean = 0, variance = 0;
    uint32_t a_second[SECONDS] = {0};
    struct length_trace trace;

    assert_true(length_trace_named("arxiv", &trace));
    struct load_request *requests = draw(&trace, COUNT, SECONDS, 3);
    for (uint32_t i = 0; i < COUNT; i++) {
        assert_true(requests[i].due_us < SECONDS * 1000000ull);
        assert_true(i == 0 || requests[i].due_us >= requests[i - 1].due_us);
        below_mean += i > 0 && requests[i].due_us - requests[i - 1].due_us < 20000;
        a_second[requests[i].due_us / 1000000]++;
    }
    assert_near(below_mean / COUNT, 0.632, 0.03);
    for (uint32_t i = 0; i < SECONDS; i++)
        variance += (a_second[i] - 50.0) * (a_second[i] - 50.0) / SECONDS;
    assert_near(variance, 50, 0.25);
    free(requests);
}

static void lengths_are_scaled_and_fit_the_context(void **state)
{
    struct length_trace trace;
    struct load_request *requests;
    struct error error;
    uint32_t limited;

    assert_true(length_trace_named("sharegpt", &trace));
    trace.scale = 0.1;
    assert_near(length_trace_prompt_at(&trace, 0.5), 173, 0.001);
    trace.context_tokens = 400;
    assert_int_equal(length_trace_draw(&trace, 1000, 1, 1, &requests, &limited, &error), STATUS_OK);
    uint32_t full = 0;
    for (uint32_t i = 0; i < 1000; i++) {
        uint32_t sum = requests[i].length.prompt_tokens + requests[i].length.answer_tokens;
        assert_true(sum <= 400 && requests[i].length.answer_tokens <= 200);
        full += sum == 400;
    }
    assert_true(limited > 50 && limited < 500 && full <= limited + 5 && full + 5 >= limited);
    free(requests);
}

static void files_of_lengths(void **state)
{
    static const char text[] = "prompt,answer\r\n# comment\n\n 300 , 20 \n10,4\n10,3";
    struct length_trace trace;
    struct error error;

    assert_int_equal(length_trace_parse(text, sizeof text - 1, "t.csv", &trace, &error), STATUS_OK);
    assert_int_equal(trace.count, 3);
    assert_int_equal(trace.pairs[2].prompt_tokens, 300); // by prompt
    assert_int_equal(trace.pairs[2].answer_tokens, 20);
    assert_int_equal(length_trace_answer_at(&trace, 0.5), 4);
    struct load_request *requests = draw(&trace, 300, 1, 1);
    uint32_t of[3] = {0};
    for (uint32_t i = 0; i < 300; i++) {
        uint32_t answer = requests[i].length.answer_tokens;
        assert_int_equal(requests[i].length.prompt_tokens, answer == 20 ? 300 : 10); // pairs stay pairs
        of[answer == 20 ? 2 : answer - 3]++;
    }
    assert_true(of[0] == 100 && of[1] == 100 && of[2] == 100);
    free(requests);
    length_trace_free(&trace);
    length_trace_free(&trace);
}

static void what_is_wrong_is_named(void **state)
{
    static const struct {
        const char *text, *says;
    } cases[] = {
        {"", "no lengths"},
        {"a,b\n", "no lengths"},
        {"1,1\n1\n", "t.csv:2: want prompt_tokens,answer_tokens"},
        {"1,1,1", "want prompt_tokens,answer_tokens"},
        {"1;1", "want prompt_tokens,answer_tokens"},
        {"0,1", "prompt_tokens is '0', want a whole number from 1"},
        {"1,1.5", "answer_tokens is '1.5'"},
        {"1,", "answer_tokens is ''"},
        {"1,nan", "answer_tokens is 'nan'"},
        {"1,99999999999", "answer_tokens"},
        {"1,1\nx,1", "t.csv:2: prompt_tokens is 'x'"},
    };
    char line[200];
    struct length_trace trace;
    struct error error;

    for (size_t i = 0; i < ARRAY_COUNT(cases); i++) {
        assert_int_equal(length_trace_parse(cases[i].text, strlen(cases[i].text), "t.csv", &trace, &error),
                         STATUS_INVALID_ARGUMENT);
        if (!strstr(error.text, cases[i].says))
            fail_msg("'%s' says: %s", cases[i].text, error.text);
        assert_null(trace.pairs);
    }
    memset(line, '1', sizeof line);
    assert_int_equal(length_trace_parse(line, sizeof line, "t.csv", &trace, &error), STATUS_INVALID_ARGUMENT);
    assert_int_equal(length_trace_parse("1,\0001", 4, "t.csv", &trace, &error), STATUS_INVALID_ARGUMENT);
    assert_int_equal(length_trace_read("no/such/file", &trace, &error), STATUS_NOT_FOUND);
    assert_non_null(strstr(error.text, "sharegpt, arxiv"));
    assert_int_equal(length_trace_read("/", &trace, &error), STATUS_INVALID_ARGUMENT);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(shapes_have_the_published_percentiles),
        cmocka_unit_test(draws_carry_the_same_work),
        cmocka_unit_test(arrivals_are_poisson),
        cmocka_unit_test(lengths_are_scaled_and_fit_the_context),
        cmocka_unit_test(files_of_lengths),
        cmocka_unit_test(what_is_wrong_is_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
