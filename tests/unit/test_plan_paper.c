// test_plan_paper.c: with the hardware of the FastDecode paper (He & Zhai, arXiv 2403.11421: an A10, eight EPYC 7452 sockets,
// InfiniBand) and its two mini-batches the planner gives the rates that the paper measured within 12 %, and its scaling within 25 %. The
// descriptions are those of deploy/hardware.
//
// What is known of the paper here, and what is not: the six measured figures below; the hardware's names; its model (R-part in
// proportion to context, load B·S/2 under the load-stabilizing schedule). Its text was not at hand, so these are readings:
//  - sockets of the four rates: 8, all there are; sequences: 1,024 generated after short prompts, 528 tokens of context on average;
//  - which of the two scaling figures is which model's: each is asked of each model;
//  - the batch of the scaling: 1,024;
//  - its microbenchmarks of T(B) and R: data sheets and a published STREAM figure stand for them, each named in its file.
//
// Two figures are fitted to the four rates. What a layer occupies a worker for beside attention, 1,350 us, holds what a layer cost that mesh
// besides bytes and operations: launches, copies between device and host, threads woken, small messages. No factor on a rate can stand for
// it: 8 times the batch took only 3.7 times as long in both models. And the share of a worker's bandwidth that the paper's attention
// reached, 0.8, where this project's reaches 0.87. Everything else is predicted.
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "common/base/checked.h"
#include "common/plan/plan.h"
#include "tests/cmocka.h"

#define FOLDER "deploy/hardware" // tests run in the repository's root
#define RATE_LIMIT 0.12
#define SCALING_LIMIT 0.25
#define ATTENTION_SHARE 0.8

static struct hardware a10, epyc, infiniband;

static int read_files(void **state)
{
    struct error error;

    if (hardware_read("a10", FOLDER, "gpu", &a10, &error) || hardware_read("epyc-7452", FOLDER, "worker", &epyc, &error) ||
        hardware_read("infiniband", FOLDER, "link", &infiniband, &error) || hardware_check_s_part(&a10, "a10", &error) ||
        hardware_check_worker(&epyc, "epyc-7452", &error) || hardware_check_link(&infiniband, "infiniband", &error)) {
        fprintf(stderr, "%s\n", error.text);
        return -1;
    }
    epyc.attention_share = ATTENTION_SHARE;
    return 0;
}

static struct plan_request request(const struct plan_shape *shape, uint32_t batch, uint32_t workers)
{
    return (struct plan_request){.shape = shape,
                                 .s_part = &a10,
                                 .worker = &epyc,
                                 .link = &infiniband,
                                 .kv_type = KV_F16,
                                 .prompt_tokens = 16,
                                 .generated_tokens = 1024,
                                 .batch = batch,
                                 .mini_batches = 2,
                                 .workers = workers};
}

static double tokens_per_second(const char *name, uint32_t batch, uint32_t workers)
{
    struct plan_shape shape;
    struct plan_request r = request(&shape, batch, workers);
    struct plan plan;
    struct error error;

    assert_int_equal(shape_named(name, "f16", &shape, &error), STATUS_OK);
    r.ignore_capacity = true; // 13B and 175B in f16 do not fit the device
    assert_int_equal(plan_make(&r, &plan, &error), STATUS_OK);
    return plan.tokens_per_second;
}

static bool near(const char *what, double predicted, double measured, double limit)
{
    printf("    %-34s predicted %8.1f, measured %8.1f: %+5.1f %%\n", what, predicted, measured, 100 * (predicted / measured - 1));
    return fabs(predicted / measured - 1) <= limit;
}

static void rates(void **state)
{
    assert_true(near("Llama-7B, B = 128", tokens_per_second("llama-7b", 128, 8), 1052, RATE_LIMIT));
    assert_true(near("Llama-7B, B = 1,024", tokens_per_second("llama-7b", 1024, 8), 2279, RATE_LIMIT));
    assert_true(near("Llama-13B, B = 128", tokens_per_second("llama-13b", 128, 8), 660, RATE_LIMIT));
    assert_true(near("Llama-13B, B = 1,024", tokens_per_second("llama-13b", 1024, 8), 1441, RATE_LIMIT));
}

static void scaling(void **state)
{
    static const char *const models[] = {"llama-7b", "llama-13b", "opt-175b"};

    for (size_t i = 0; i < ARRAY_COUNT(models); i++) {
        double share = 100 * tokens_per_second(models[i], 1024, 8) / (8 * tokens_per_second(models[i], 1024, 1));
        char what[64];
        snprintf(what, sizeof what, "%s, 1 to 8 sockets, %% of linear", models[i]);
        assert_true(near(what, share, 72.8, SCALING_LIMIT));
        assert_true(near(what, share, 84.1, SCALING_LIMIT));
    }
}

// 13B values of two bytes are 24.2 GiB.
static void weights_that_do_not_fit_are_refused(void **state)
{
    struct plan_shape shape;
    struct plan_request r = request(&shape, 128, 8);
    struct plan plan;
    struct error error;

    assert_int_equal(shape_named("llama-13b", "f16", &shape, &error), STATUS_OK);
    assert_int_equal(plan_make(&r, &plan, &error), STATUS_RESOURCE_EXHAUSTED);
    assert_non_null(strstr(error.text, "llama-13b F16 takes 24."));
    assert_non_null(strstr(error.text, "NVIDIA A10 has 23.3 GiB"));
    assert_int_equal(shape_named("llama-13b", "q8_0", &shape, &error), STATUS_OK);
    assert_int_equal(plan_make(&r, &plan, &error), STATUS_OK);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rates),
        cmocka_unit_test(scaling),
        cmocka_unit_test(weights_that_do_not_fit_are_refused),
    };
    return cmocka_run_group_tests(tests, read_files, NULL);
}
