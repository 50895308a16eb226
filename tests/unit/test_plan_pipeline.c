// test_plan_pipeline.c: what the plan says of several s-parts: against the simulator, and what it chooses.
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "common/base/checked.h"
#include "common/plan/plan.h"
#include "common/sim/sim.h"
#include "tests/cmocka.h"

enum { B = 128, REQUESTS = 5 * B, WORKERS = 8 };

static struct plan_shape shape;
static struct hardware gpu, host, link;
static struct sim_request requests[REQUESTS];
static struct sim_place places[WORKERS];

static void read_hardware(void)
{
    struct error error;
    if (shape_named("llama-7b", "f16", &shape, &error) || hardware_read("a10", "deploy/hardware", "gpu", &gpu, &error) ||
        hardware_read("epyc-7452", "deploy/hardware", "worker", &host, &error) ||
        hardware_read("infiniband", "deploy/hardware", "link", &link, &error))
        fail_msg("%s", error.text);
}

static struct plan_request request_of(uint32_t stages, uint32_t workers)
{
    return (struct plan_request){.shape = &shape,
                                 .s_part = &gpu,
                                 .worker = &host,
                                 .link = &link,
                                 .kv_type = KV_F16,
                                 .prompt_tokens = workers ? 16 : 200,
                                 .generated_tokens = 200,
                                 .batch = B,
                                 .workers = workers,
                                 .stages = stages,
                                 .ignore_capacity = true};
}

// Tokens between a quarter and three quarters of all, so that neither the slow start nor the end counts.
struct window {
    double tokens, begin_us, end_us, begin_tokens, end_tokens;
};

static void on_step(void *user, const struct sim_step *step)
{
    struct window *w = user;
    const double all = (double)REQUESTS * requests[0].generated_tokens;

    w->tokens += step->decode_rows;
    if (w->tokens > 0.75 * all)
        return;
    w->end_us = step->end_us;
    w->end_tokens = w->tokens;
    if (w->tokens < 0.25 * all) {
        w->begin_us = step->end_us;
        w->begin_tokens = w->tokens;
    }
}

static double simulated(const struct plan_request *r, const struct plan *plan)
{
    struct cost_s_part stages[PLAN_STAGES_MAX];
    struct plan_range ranges[PLAN_STAGES_MAX];
    struct window window = {0};
    struct sim_result result;
    struct error error;
    struct sim_config config = {
        .sched = {.max_sequences = REQUESTS + 2 * B,
                  .max_running = B,
                  .max_waiting = REQUESTS,
                  .max_batch_rows = B + 512,
                  .mini_batches = plan->mini_batches,
                  .stages = r->stages,
                  .balance = true,
                  .page_tokens = PLAN_PAGE_TOKENS,
                  .context_tokens = r->prompt_tokens + r->generated_tokens,
                  .max_places = WORKERS,
                  .layers = shape.layers,
                  .kv_bytes_per_token = (uint64_t)(shape.layers * shape_kv_bytes(&shape, r->kv_type))},
        .stages = stages,
        .hop_us = plan_hop_us(r, 0),
        .hop_row_us = plan_hop_us(r, 1) - plan_hop_us(r, 0),
        .places = places,
        .place_count = MAX(r->workers, 1u),
        .requests = requests,
        .request_count = REQUESTS,
        .backlog = true,
        .calibrated = true,
        .seed = 1,
        .on_step = on_step,
        .user = &window,
    };
    for (uint32_t i = 0; i < REQUESTS; i++)
        requests[i] = (struct sim_request){
            .prompt_tokens = r->prompt_tokens, .generated_tokens = r->generated_tokens, .max_new_tokens = r->generated_tokens};
    for (uint32_t i = 0; i < config.place_count; i++) {
        places[i] = (struct sim_place){.local = r->workers == 0, .pages_total = 1 << 20};
        plan_r_part(r, r->workers, &places[i].cost);
        config.link_row_us = places[i].cost.link_row_us / MAX(r->workers, 1u);
        places[i].cost.link_row_us = 0;
    }
    plan_s_part(r, &config.s_part);
    if (plan_stages(r, B, r->workers, stages, ranges, &error) || sim_run(&config, &result, &error))
        fail_msg("%s", error.text);
    assert_int_equal(result.finished, REQUESTS);
    return (window.end_tokens - window.begin_tokens) / (window.end_us - window.begin_us) * 1e6;
}

static void plan_and_simulation_agree(void **state)
{
    read_hardware();
    for (uint32_t workers = 0; workers <= WORKERS; workers += WORKERS) {
        for (uint32_t stages = 1; stages <= PLAN_STAGES_MAX; stages++) {
            struct plan_request r = request_of(stages, workers);
            struct plan plan;
            struct error error;
            if (plan_make(&r, &plan, &error))
                fail_msg("%s", error.text);
            assert_int_equal(plan.stages, stages);
            double got = simulated(&r, &plan);
            printf("%u s-parts, %u workers, %2u mini-batches: plan %5.0f tokens/s, simulation %5.0f\n", stages, workers,
                   plan.mini_batches, plan.tokens_per_second, got);
            assert_true(fabs(got / plan.tokens_per_second - 1) < 0.1);
        }
    }
}

// As few as hold the model, or reach the rate.
static void as_few_stages_as_will_do(void **state)
{
    struct plan_request r;
    struct plan plan, one;
    struct error error;

    read_hardware();
    link.link_exchange_us = 0; // more stages mean more mini-batches, each with its own exchanges
    r = request_of(PLAN_CHOOSE, 8);
    r.ignore_capacity = false;
    assert_int_equal(plan_make(&r, &plan, &error), STATUS_OK);
    assert_int_equal(plan.stages, 1); // 13.5 GB of 24
    one = plan;
    r.tokens_per_second = 1.15 * plan.tokens_per_second;
    r.batch = 0;
    assert_int_equal(plan_make(&r, &plan, &error), STATUS_OK);
    r.tokens_per_second = 1e6;
    assert_int_equal(plan_make(&r, &plan, &error), STATUS_FAILED_PRECONDITION);
    r = request_of(PLAN_CHOOSE, 8);
    r.ignore_capacity = false;
    r.tokens_per_second = 1.1 * one.tokens_per_second;
    assert_int_equal(plan_make(&r, &plan, &error), STATUS_OK);
    assert_int_equal(plan.stages, 2); // with that batch one is too slow

    assert_int_equal(shape_named("llama-13b", "f16", &shape, &error), STATUS_OK); // 26 GB
    r = request_of(1, 8);
    r.ignore_capacity = false;
    r.batch = 16;
    assert_int_equal(plan_make(&r, &plan, &error), STATUS_RESOURCE_EXHAUSTED);
    assert_non_null(strstr(error.text, "--s-parts"));
    r.stages = PLAN_CHOOSE;
    assert_int_equal(plan_make(&r, &plan, &error), STATUS_OK);
    assert_int_equal(plan.stages, 2);
    assert_int_equal(plan.stage[0].layers.end, plan.stage[1].layers.first);
    assert_int_equal(plan.stage[1].layers.end, shape.layers);
    double bytes = 0;
    for (uint32_t i = 0; i < plan.stages; i++) {
        assert_true(plan.stage[i].bytes <= (double)gpu.memory_bytes && plan.stage[i].bytes <= plan.s_part_bytes);
        bytes += plan.stage[i].bytes;
    }
    assert_true(bytes > (double)shape.layers * (double)shape.in[SHAPE_GPU].layer_bytes);
    assert_true(plan.price_per_hour == 0 || plan.price_per_hour > 2 * gpu.price_per_hour);
    r.stages = shape.layers + 1;
    assert_int_equal(plan_make(&r, &plan, &error), STATUS_INVALID_ARGUMENT);
}

static void assert_near(double a, double b) { assert_true(fabs(a - b) <= 1e-9 * fabs(b)); }

// Each of P s-parts attends for its own layers with N = 0, so their R-part is P places. Workers attend for all of them.
static void busy_is_a_share(void **state)
{
    struct plan plan, one;

    read_hardware();
    for (uint32_t workers = 0; workers <= WORKERS; workers += WORKERS) {
        struct plan_request r = request_of(1, workers);
        r.prompt_tokens = 0;
        plan_predict(&r, B, workers, 1, &one);
        plan_predict_pipeline(&r, B, workers, 1, &plan);
        assert_near(plan.step_ms, one.step_ms);
        assert_near(plan.s_part_busy, one.s_part_busy);
        assert_near(plan.r_part_busy, one.r_part_busy);
        for (r.stages = 1; r.stages <= PLAN_STAGES_MAX; r.stages++) {
            const uint32_t sides = workers ? 1 : r.stages; // that attend at the same time
            plan_predict_pipeline(&r, B, workers, 1, &plan);
            assert_near(plan.r_part_busy * sides * plan.step_ms * 1e3, plan.mini_batches * shape.layers * plan.r_part_layer_us);
            assert_true(plan.s_part_busy < 1 + 1e-9 && plan.r_part_busy < 1 + 1e-9);
            assert_true(workers || plan.s_part_busy + plan.r_part_busy < 1 + 1e-9); // the same device does both
            r.prompt_tokens = 8000;
            plan_predict_pipeline(&r, B, workers, 2, &plan);
            assert_true(plan.s_part_busy < 1 + 1e-9 && plan.r_part_busy < 1 + 1e-9);
            const double rows = plan.tokens_per_second * (1 + 8000.0 / r.generated_tokens); // one in prefill does not decode
            assert_near(plan.network_gbit_per_second, workers ? rows * shape.layers * shape_link_bytes(&shape) * 8 / 1e9 : 0);
            r.prompt_tokens = 0;
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(plan_and_simulation_agree),
        cmocka_unit_test(as_few_stages_as_will_do),
        cmocka_unit_test(busy_is_a_share),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
