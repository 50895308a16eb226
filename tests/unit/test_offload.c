// test_offload.c: the offload planner against values worked out by hand on hardware with round numbers, and against random
// policies.
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/checked.h"
#include "common/plan/offload_internal.h"
#include "tests/cmocka.h"

#define assert_near(value, wanted) assert_true(fabs((value) - (wanted)) <= 1e-6 * fabs((double)(wanted)))

// A layer has 1,000,000 values in 2 MB: read in 20 us, computed in 2 us a row. KV of a token in one layer is 8 heads of 2 * 16
// values of 2 bytes: 512 bytes; a row over the link is 2,048. A row's activations are 256 bytes.
static const struct plan_shape shape = {
    .name = "round",
    .layers = 4,
    .hidden = 128,
    .heads = 8,
    .kv_heads = 8,
    .head_dim = 16,
    .ffn = 3651,
    .layer_values = 1000000,
    .in = {{.layer_bytes = 2000000}, {.layer_bytes = 2000000}},
};
static const struct hardware device = {
    .name = "device",
    .memory_bytes = 20000000,
    .memory_gb_per_second = 100,
    .f16_tflops = 1,
    .weights_share = 1,
    .products_share = 1,
    .attention_share = 0.5,
    .offload = {
        .copy_in_gb_per_second = 2, .disk_read_gb_per_second = 0.5, .host_attention_gb_per_second = 5, .usable_share = 0.5}};
static const struct hardware worker = {.name = "worker",
                                       .memory_bytes = 1 << 20,
                                       .memory_gb_per_second = 20,
                                       .f32_tflops = 0.1,
                                       .products_share = 1,
                                       .attention_share = 0.5};
static const struct hardware wire = {.name = "wire", .link_gb_per_second = 1, .link_round_trip_us = 10};

static struct offload_request request(void)
{
    return (struct offload_request){.shape = &shape,
                                    .device = &device,
                                    .worker = &worker,
                                    .link = &wire,
                                    .kv_type = KV_F16,
                                    .prompt_tokens = 8,
                                    .generated_tokens = 17,
                                    .gpu_batch = 2,
                                    .gpu_batches = 1,
                                    .paper = true,
                                    .block_tokens = OFFLOAD_BLOCK_TOKENS};
}

static struct offload_plan made(const struct offload_request *r)
{
    struct offload_plan plan;
    struct error error;
    enum status status = offload_plan_make(r, &plan, &error);

    if (status)
        fprintf(stderr, "%s\n", error.text);
    assert_int_equal(status, STATUS_OK);
    return plan;
}

// Prompts: 16 rows in 32 us and 2·8·8 pairs of 4·128 operations. A token: 20 us for the weights; 2 rows read 16.5 tokens of KV.
static void all_on_the_device(void **state)
{
    struct offload_request r = request();
    struct offload_plan plan = made(&r);
    double prompts = 32e-6 + 2 * 64 * 512 / 1e12, token = 20e-6 + 2 * 16.5 * 512 / 50e9;

    assert_true(plan.weights.device == 1 && plan.kv.device == 1 && plan.activations.device == 1);
    assert_near(plan.prompts.seconds, prompts);
    assert_near(plan.decode.seconds, token);
    assert_near(plan.tokens_per_second, 2 * 17 / (4 * (prompts + 16 * token)));
    assert_string_equal(offload_bound_name(&plan), "compute");
    assert_near(plan.device_bytes, 8e6 + 2 * 25 * 4 * 512 + 16 * 256 + 2 * 16 * (128 + 3651));
}

// 10 MB of 20 are usable. With 4 MB a layer, half of it less two layers' slots stay; the rest comes over the link at 2 GB/s.
static void weights_on_the_host(void **state)
{
    struct plan_shape twice = shape;
    struct offload_request r = request();
    struct offload_plan plan;

    twice.in[SHAPE_HOST].layer_bytes *= 2;
    twice.in[SHAPE_GPU].layer_bytes *= 2;
    r.shape = &twice;
    r.host_bytes = 100000000;
    plan = made(&r);
    assert_true(plan.weights.device > 0 && plan.weights.host > 0 && plan.weights.disk == 0);
    assert_near(plan.device_bytes, 10e6);
    assert_near(plan.decode.lanes[OFFLOAD_COPY_IN], (plan.weights.host * 4e6 + plan.activations.host * 2 * 256) / 2e9);
    assert_string_equal(offload_bound_name(&plan), "copy in");
    r.host_bytes = 0;
    r.disk_bytes = 1000000000;
    struct error error;
    assert_int_equal(offload_plan_make(&r, &plan, &error), STATUS_INVALID_ARGUMENT);
    assert_non_null(strstr(error.text, "--host-memory"));
}

// The device is the host: memory and disk alone, and nothing is copied.
static void a_cpu_streams_from_disk(void **state)
{
    struct hardware cpu = device;
    struct offload_request r = request();
    struct offload_plan plan;
    struct error error;

    cpu.offload.copy_in_gb_per_second = 0;
    r.device = &cpu;
    r.host_bytes = 14000000; // 7 MB usable for 8 MB of weights
    assert_int_equal(offload_plan_make(&r, &plan, &error), STATUS_RESOURCE_EXHAUSTED);
    assert_non_null(strstr(error.text, "--disk-memory"));
    r.disk_bytes = 1000000000;
    plan = made(&r);
    assert_true(plan.weights.host == 0 && plan.kv.host == 0 && plan.weights.disk > 0);
    assert_near(plan.decode.lanes[OFFLOAD_DISK_READ], (plan.weights.disk * 2e6 / 0.95 + plan.kv.disk * 2 * 16.5 * 512) / 0.5e9);
    assert_true(plan.decode.lanes[OFFLOAD_COPY_IN] == 0);
    r.disk_read_mb_per_second = 1000;
    assert_true(made(&r).tokens_per_second > plan.tokens_per_second);
    cpu.offload.disk_read_gb_per_second = 0;
    r.disk_read_mb_per_second = 0;
    assert_int_equal(offload_plan_make(&r, &plan, &error), STATUS_INVALID_ARGUMENT);
    assert_non_null(strstr(error.text, "--disk-read-mbs"));
}

// A worker reads 10 GB/s; one batch waits for it, two compute beside it.
static void attention_is_delegated(void **state)
{
    struct offload_request r = request();
    struct offload_plan plan;
    struct error error;
    double away = 16.5 * 512 / 10e9 + 10e-6 + 2 * 2048 / 1e9;

    r.workers = 2;
    plan = made(&r);
    assert_near(plan.decode.seconds, 20e-6 + away);
    assert_near(plan.prompts.seconds, 32e-6 + 36 * 512 / 0.1e12 + 10e-6 + 16 * 2048 / 1e9); // each of 16 rows with half of 9
    assert_near(plan.worker_bytes, (25 + 8) * 4 * 512);
    assert_true(plan.kv.device == 0 && plan.kv.host == 0 && plan.kv.disk == 0);
    r.gpu_batches = 2;
    away = 2 * 16.5 * 512 / 10e9 + 20e-6 + 4 * 2048 / 1e9;
    assert_near(made(&r).decode.seconds, MAX(40e-6, away));
    r.gpu_batch = 32;
    assert_int_equal(offload_plan_make(&r, &plan, &error), STATUS_RESOURCE_EXHAUSTED);
    assert_non_null(strstr(error.text, "more --workers"));
}

static void compressed(void **state)
{
    struct offload_request r = request();
    struct offload_plan plain = made(&r);

    r.compress = true;
    struct offload_plan plan = made(&r);
    double working = 16 * 256 + 2 * 16 * (128 + 3651);
    assert_near((plan.device_bytes - working) / (plain.device_bytes - working), 4.5 / 16);
}

// Among the programs of the T4's middle row many have the same rate, with weights or KV on disk; none of it is what is taken.
static void ties_go_to_the_least_on_disk(void **state)
{
    struct hardware t4;
    struct plan_shape opt;
    struct offload_model model;
    struct offload_plan plain, thrifty;
    struct offload_request r = request();
    struct error error;

    assert_int_equal(hardware_read("t4", "deploy/hardware", "gpu", &t4, &error), STATUS_OK);
    assert_int_equal(shape_named("opt-30b", "f16", &opt, &error), STATUS_OK);
    r.device = &t4;
    r.shape = &opt;
    r.host_bytes = 208ull << 30;
    r.disk_bytes = 1500ull << 30;
    r.prompt_tokens = 512;
    r.generated_tokens = 32;
    offload_model_make(&r, 48, 3, &model);
    assert_true(offload_solve(&model, OFFLOAD_DISK, false, &plain) && offload_solve(&model, OFFLOAD_DISK, true, &thrifty));
    assert_true(fabs(thrifty.tokens_per_second / plain.tokens_per_second - 1) < 1e-6);
    assert_true(plain.disk_bytes > 1e9);
    assert_true(thrifty.disk_bytes < 1);
}

// --- properties -------------------------------------------------------------------------------------------------------

static double random_in(double low, double high) { return low + (high - low) * (rand() / (double)RAND_MAX); }

static struct hardware random_device(void)
{
    struct hardware h = device;

    h.memory_bytes = (uint64_t)random_in(4e6, 60e6);
    h.offload = (struct hardware_offload){.copy_in_gb_per_second = random_in(0.5, 20),
                                          .copy_out_gb_per_second = random_in(0.5, 20),
                                          .disk_read_gb_per_second = random_in(0.1, 5),
                                          .disk_write_gb_per_second = random_in(0.1, 5),
                                          .host_attention_gb_per_second = rand() % 2 ? random_in(0.1, 20) : 0,
                                          .usable_share = random_in(0.5, 1),
                                          .copies_wait = rand() % 2};
    return h;
}

// Returns a layer's time by the definition in offload.h, worked out apart from the program.
static double phase_time(const struct offload_model *m, int phase, const double *x)
{
    double l[OFFLOAD_LANES];

    for (int lane = 0; lane < OFFLOAD_LANES; lane++)
        l[lane] = offload_linear_at(&m->lanes[phase][lane], x);
    double rest = fmax(fmax(l[OFFLOAD_COMPUTE], l[OFFLOAD_COPY_OUT]), fmax(l[OFFLOAD_DISK_READ], l[OFFLOAD_DISK_WRITE]));
    if (!m->copies_wait)
        return fmax(rest, l[OFFLOAD_COPY_IN]);
    if (phase == OFFLOAD_DECODE)
        return l[OFFLOAD_COPY_IN] + rest;
    return fmax(l[OFFLOAD_COMPUTE], fmax(l[OFFLOAD_COPY_IN] + l[OFFLOAD_DISK_READ], l[OFFLOAD_COPY_OUT] + l[OFFLOAD_DISK_WRITE]));
}

static bool fits(const struct offload_model *m, const double *x)
{
    for (int tier = 0; tier < OFFLOAD_TIERS; tier++)
        for (int phase = 0; phase < OFFLOAD_PHASES; phase++)
            if (offload_linear_at(&m->memory[tier][phase], x) > m->limits[tier])
                return false;
    return true;
}

static void random_policy(double *x)
{
    for (int tensor = 0; tensor < OFFLOAD_SPLITS; tensor += OFFLOAD_TIERS) {
        double a = random_in(0, 1), b = rand() % 3 ? random_in(0, 1) : 1;
        x[tensor] = a;
        x[tensor + 1] = (1 - a) * b;
        x[tensor + 2] = (1 - a) * (1 - b);
    }
    x[OFFLOAD_HC] += x[OFFLOAD_HD];
    x[OFFLOAD_HD] = 0;
}

// The policy that is found keeps to memory and is as fast as it says, and no other that fits is faster.
static void no_policy_is_faster(void **state)
{
    int feasible = 0, solved = 0;

    srand(1);
    for (int round = 0; round < 200; round++) {
        struct hardware h = random_device();
        struct offload_request r = request();
        struct offload_model m;
        struct offload_plan plan;
        r.device = &h;
        r.host_bytes = (uint64_t)random_in(4e6, 60e6);
        r.disk_bytes = (uint64_t)random_in(1e6, 60e6);
        r.prompt_tokens = 1 + (uint32_t)rand() % 64;
        offload_model_make(&r, 1 + (uint32_t)rand() % 32, 1 + (uint32_t)rand() % 4, &m);
        bool found = offload_solve(&m, OFFLOAD_DISK, true, &plan);
        double x[] = {plan.weights.device,     plan.weights.host,     plan.weights.disk,
                      plan.activations.device, plan.activations.host, plan.activations.disk,
                      plan.kv.device,          plan.kv.host,          plan.kv.disk};
        if (found) {
            solved++;
            for (int tensor = 0; tensor < OFFLOAD_SPLITS; tensor += OFFLOAD_TIERS)
                assert_true(fabs(x[tensor] + x[tensor + 1] + x[tensor + 2] - 1) < 1e-3);
            assert_true(fabs(phase_time(&m, OFFLOAD_DECODE, x) / plan.decode.seconds - 1) < 1e-3);
            assert_true(plan.device_bytes <= plan.device_limit * (1 + 1e-6) && plan.host_bytes <= plan.host_limit * (1 + 1e-6) &&
                        plan.disk_bytes <= plan.disk_limit * (1 + 1e-6));
        }
        for (int i = 0; i < 500; i++) {
            random_policy(x);
            if (!fits(&m, x))
                continue;
            feasible++;
            assert_true(found);
            double seconds = m.layers * (phase_time(&m, OFFLOAD_PROMPTS, x) + m.decode_steps * phase_time(&m, OFFLOAD_DECODE, x));
            assert_true(seconds >= plan.block_seconds * (1 - 1e-6));
        }
    }
    assert_true(solved > 50 && feasible > 1000);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(all_on_the_device),
        cmocka_unit_test(weights_on_the_host),
        cmocka_unit_test(a_cpu_streams_from_disk),
        cmocka_unit_test(attention_is_delegated),
        cmocka_unit_test(compressed),
        cmocka_unit_test(ties_go_to_the_least_on_disk),
        cmocka_unit_test(no_policy_is_faster),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
