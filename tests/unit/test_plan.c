// test_plan.c: the planner's arithmetic against values worked out by hand, on hardware with round numbers.
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/base/checked.h"
#include "common/plan/plan.h"
#include "tests/cmocka.h"

#define assert_near(value, wanted) assert_true(fabs((value) - (wanted)) <= 1e-6 * fabs((double)(wanted)))

// A layer is read in 20 us and computed in 2 us a row, the head in 40 and 4. A token's KV in one layer is 8 heads of 2 * 16 values
// of 2 bytes: 512 bytes; a row over the link is 4 * 8 heads of 16 values of 4 bytes: 2,048.
static const struct plan_shape shape = {
    .name = "round",
    .layers = 4,
    .hidden = 128,
    .heads = 8,
    .kv_heads = 8,
    .head_dim = 16,
    .ffn = 512,
    .vocab = 1000,
    .layer_values = 1000000,
    .head_values = 2000000,
    .in = {{.layer_bytes = 2000000, .head_bytes = 4000000}, {.layer_bytes = 2000000, .head_bytes = 4000000}},
};
static const struct hardware s_part = {.name = "device",
                                       .memory_bytes = 20000000,
                                       .memory_gb_per_second = 100,
                                       .f16_tflops = 1,
                                       .weights_share = 1,
                                       .products_share = 1,
                                       .attention_share = 0.5,
                                       .step_us = 5,
                                       .price_per_hour = 2};
static const struct hardware worker = {.name = "host",
                                       .memory_bytes = 500000,
                                       .memory_gb_per_second = 20,
                                       .f32_tflops = 0.1,
                                       .weights_share = 1,
                                       .products_share = 1,
                                       .attention_share = 0.5,
                                       .price_per_hour = 0.5};
static const struct hardware wire = {.name = "wire", .link_gb_per_second = 1, .link_round_trip_us = 10};

// 31 tokens generated, one start a step: 16 tokens of context a sequence.
static struct plan_request request(void)
{
    return (struct plan_request){.shape = &shape,
                                 .s_part = &s_part,
                                 .worker = &worker,
                                 .link = &wire,
                                 .kv_type = KV_F16,
                                 .generated_tokens = 31,
                                 .workers = PLAN_CHOOSE};
}

static void the_parts_of_a_layer(void **state)
{
    struct plan_request r = request();
    struct cost_s_part s;
    struct cost_r_part place;

    plan_s_part(&r, &s);
    assert_near(cost_curve_at(&s.layer, 1), 20);
    assert_near(cost_curve_at(&s.layer, 10), 20);
    assert_near(cost_curve_at(&s.layer, 25), 50);
    assert_near(cost_curve_at(&s.layer, 1000), 2000);
    assert_near(cost_curve_at(&s.head, 8), 40);
    assert_near(s.first_share, 24 * 16 * 128 / 1e6);
    plan_r_part(&r, 2, &place);
    assert_near(place.token_us, 0.0512);
    assert_near(place.prefill_us, 4 * 8 * 16 / 1e5); // 8 heads of 16, at the worker's rate of products
    assert_near(place.link_us, 10);
    assert_near(place.link_row_us, 2 * 2.048); // two workers share the S-part's link
    plan_r_part(&r, 0, &place);
    assert_near(place.token_us, 512 / 50e3);
    assert_near(place.prefill_us, 4 * 8 * 16 / 1e6); // and at the S-part's
    assert_true(place.link_us == 0 && place.link_row_us == 0);
}

static void one_mini_batch_and_two(void **state)
{
    struct plan_request r = request();
    struct plan plan;

    plan_predict(&r, 8, 2, 2, &plan);
    assert_near(plan.s_part_layer_us, 20);
    assert_near(plan.r_part_layer_us, 2 * 16 * 0.0512);
    assert_near(plan.link_layer_us, 10 + 4 * 2.048);
    assert_near(plan.step_ms, 2 * (3 * 20 + 20 + 40 + 5) / 1e3);
    assert_near(plan.tokens_per_second, 8 / 250e-6);
    assert_near(plan.s_part_busy, 1);
    assert_int_equal(plan.bound_by, PLAN_S_PART);
    assert_near(plan.kv_tokens, 8 * 16);
    assert_near(plan.kv_bytes_per_worker, 4 * 24 * 4 * 512); // with half a page each
    assert_near(plan.price_per_hour, 3);
    assert_near(plan.cost_per_million, 3.0 / 3600 * 250e-6 / 8 * 1e6);

    plan_predict(&r, 8, 2, 1, &plan);
    double wait_us = 4 * 16 * 0.0512 + 10 + 8 * 2.048;
    assert_near(plan.step_ms, (4 * (20 + wait_us) + 45) / 1e3);
    plan_predict(&r, 8, 2, 0, &plan); // 243.6 us against 250
    assert_int_equal(plan.mini_batches, 1);

    plan_predict(&r, 32, 2, 2, &plan); // b = 16: T 32, R 6.55, link 42.8
    assert_int_equal(plan.bound_by, PLAN_NETWORK);
    wait_us = 8 * 16 * 0.0512 + 10 + 16 * 2.048;
    assert_near(plan.step_ms, (4 * (32 + wait_us) + 64 + 5) / 1e3); // one waits for its own answers
    assert_near(plan.network_gbit_per_second, 32 * 4 * 2048 * 8 / (plan.step_ms * 1e6));
}

// Latency is hidden by more mini-batches, what an exchange occupies a worker for is not.
static void what_occupies_a_worker_is_not_hidden(void **state)
{
    struct plan_request r = request();
    struct hardware far = wire;
    struct plan plan;

    r.link = &far;
    far.link_round_trip_us = 100;
    plan_predict(&r, 24, 2, 3, &plan); // b = 8: T 20, S = 4 T + 45
    assert_near(plan.step_ms, (125 + 4 * (4 * 16 * 0.0512 + 100 + 8 * 2.048)) / 1e3);
    far.link_round_trip_us = 0;
    far.link_exchange_us = 100;
    plan_predict(&r, 24, 2, 3, &plan);
    assert_near(plan.step_ms, 3 * 4 * (100 + 4 * 16 * 0.0512) / 1e3);
    assert_int_equal(plan.bound_by, PLAN_R_PART);
    plan_predict(&r, 24, 2, 0, &plan);
    assert_int_equal(plan.mini_batches, 2); // a third would be one exchange more
}

// 1,031 tokens of 2,048 bytes are four times what a worker has: 3 ranges at 5 workers are 3 partial results of (2 + 16) * 8 floats.
static void a_sequence_larger_than_a_worker(void **state)
{
    struct plan_request r = request();
    struct plan_extents e;
    struct plan plan;

    assert_false(plan_extents(&r, 8, &e));
    r.prompt_tokens = 1000;
    assert_false(plan_extents(&r, 4, &e));
    assert_true(plan_extents(&r, 5, &e));
    assert_int_equal(e.workers, 3);
    assert_int_equal(e.spans, 1);
    assert_int_equal(e.partials, 1 + 1 + 1); // of a span from its start; single ranges
    assert_near(e.whole_bytes, 2048);
    assert_near(e.layer_bytes, 2048 - 512 + 2 * 512 + 3 * 18 * 8 * 4);
    plan_predict(&r, 1, 5, 1, &plan);
    assert_near(plan.kv_bytes_per_worker, (1000 + 16 + 8) * 4 * 512 / 5.0); // dealt out evenly
}

static void prompts_cost_rows_and_pairs(void **state)
{
    struct plan_request r = request();
    struct plan plan;

    r.prompt_tokens = 62; // two prefill rows a decode row, 31.5 tokens of context each
    plan_predict(&r, 8, 2, 2, &plan);
    // Each decode row needs 2 / 512 of a chunk, so of four sequences 1 / 257 of each is in prefill. The chunk attends at one worker.
    const double light_us = 4 * 20 + 45, pairs_us = 31.5 * 4 * 128 / 1e5, share = 4 / 257.0;
    const double s_part_us = 4 * 2 * 515 + 45, away_us = 4 * (2 * 78 * 0.0512 + 512 * pairs_us + 10 + 515 * 2.048);
    assert_near(plan.s_part_layer_us, 20 + share * (2 * 515 - 20));
    assert_near(plan.r_part_layer_us, 2 * 78 * 0.0512 + share * 512 * pairs_us);
    assert_near(plan.link_layer_us, 10 + 4 * 2.048 + share * 511 * 2.048);
    const double chunk_rounds = 2 * share, long_us = s_part_us + away_us; // rounds with a chunk, beside which seven decode
    assert_near(plan.tokens_per_second, 8 * 256 / 257.0 / (2 * light_us + chunk_rounds * (long_us - 2 * light_us)) * 1e6);
    assert_near(plan.step_ms, ((1 - chunk_rounds) * 8 * 2 * light_us + chunk_rounds * 7 * long_us) / (8 - chunk_rounds) / 1e3);
    assert_near(plan.network_gbit_per_second, plan.tokens_per_second * 3 * 4 * 2048 * 8 / 1e9);
    r.chunk_tokens = 8; // 1.6 chunks a round, which wait at the same time, each at a worker of its own
    plan_predict(&r, 8, 2, 2, &plan);
    double chunk_us = MAX(2 * (4 * (0.2 * 20 + 0.8 * 22) + 45), 4 * (22 + 2 * 78 * 0.0512 + 8 * pairs_us + 10 + 11 * 2.048) + 45);
    assert_near(plan.step_ms, chunk_us / 1e3);
    assert_near(plan.tokens_per_second, 2 * 3.2 / chunk_us * 1e6);
    assert_near(plan.r_part_layer_us, 2 * 78 * 0.0512 + 8 * pairs_us / 2);
    r.chunk_tokens = 2; // each step has one, and feeds one sequence that decodes
    plan_predict(&r, 8, 2, 2, &plan);
    chunk_us = MAX(2 * light_us, 4 * (20 + 78 * 0.0512 + 2 * pairs_us + 10 + 3 * 2.048) + 45);
    assert_near(plan.step_ms, chunk_us / 1e3);
    assert_near(plan.tokens_per_second, 2 / chunk_us * 1e6);
    r.chunk_tokens = 16;
    plan_predict(&r, 8, 0, 1, &plan); // without workers they attend at the S-part
    const double usual_us = 8 * (62 + 16) * 0.01024, heavy_us = 7 * (62 + 16) * 0.01024 + 16 * 31.5 * 4 * 128 / 1e6;
    assert_near(plan.s_part_layer_us, 20 + 8 / 9.0 * (2 * 23 - 20));
    assert_near(plan.r_part_layer_us, usual_us + 8 / 9.0 * (heavy_us - usual_us));
    r.pool_bytes = 4 * 4 * 512 * (62 + 16 + 8); // and half here, half there
    plan_predict(&r, 8, 2, 1, &plan);
    assert_int_equal(plan.pool_sequences, 4);
    assert_near(plan.pool_layer_us, usual_us / 2 + 4 / 9.0 * (16 * 31.5 * 4 * 128 / 1e6 - 2 * 0.5 * 78 * 0.01024));
    assert_near(plan.link_layer_us, 10 + 4 * 2.048 + 4 / 9.0 * (16 - 2 * 0.5) * 2.048);
    r.pool_bytes = 0;
    r.chunk_tokens = 0;
    plan_predict(&r, 1, 0, 1, &plan); // a single sequence has no row beside its chunks
    const double row_us = 4 * (20 + 78 * 0.01024) + 45, chunk_alone_us = 4 * (1024 + 512 * 31.5 * 4 * 128 / 1e6) + 45;
    assert_near(plan.tokens_per_second, 1e6 / (row_us + 2 / 512.0 * chunk_alone_us));
    assert_near(plan.step_ms, row_us / 1e3);
}

// Points take the place of rates: between them a line, attention by call, row and token, and the rest of a step by its rows.
static void what_was_measured_goes_before_rates(void **state)
{
    struct plan_request r = request();
    struct hardware measured = s_part, host = worker;
    struct plan plan;

    measured.model.name = host.model.name = "round";
    cost_curve_add(&measured.model.layer, 1, 30);
    cost_curve_add(&measured.model.layer, 16, 60);
    cost_curve_add(&measured.model.layer, 512, 2044);
    cost_curve_add(&measured.model.head, 1, 50);
    cost_curve_add(&measured.model.rest, 1, 10);
    cost_curve_add(&measured.model.rest, 16, 25);
    host.model.attention = measured.model.attention =
        (struct kv_costs){.call_us = 3, .row_us = 0.5, .token_us = 0.02, .prefill_row_us = 1, .pair_us = 0.01};
    r.s_part = &measured;
    r.worker = &host;
    plan_predict(&r, 16, 0, 0, &plan);
    assert_near(plan.step_ms, (4 * (60 + 3 + 16 * (0.5 + 16 * 0.02)) + 50 + 25) / 1e3);
    r.mini_batches = 1;
    plan_predict(&r, 16, 2, 0, &plan);
    assert_int_equal(plan.mini_batches, 1);
    assert_near(plan.r_part_layer_us, 3 + 8 * (0.5 + 16 * 0.02));

    r.prompt_tokens = 62; // two prefill rows a decode row: steps of their own, of all 512 since that takes less than the target
    plan_predict(&r, 16, 0, 0, &plan);
    double chunk_us = 4 * (2044 + 3) + 10 + 50 * 1.0, row_us = chunk_us / 512 + 4 * (1 + 31.5 * 0.01);
    double decode_us = 4 * (60 + 3 + 16 * (0.5 + (62 + 16) * 0.02)) + 50 + 25;
    assert_near(plan.step_ms, (decode_us + 32 * row_us) / 1e3);
    r.chunk_tokens = 16; // more steps for the same rows
    plan_predict(&r, 16, 0, 0, &plan);
    row_us = (4 * (60 + 3) + 10 + 50 * 16 / 62.0) / 16 + 4 * (1 + 31.5 * 0.01);
    assert_near(plan.step_ms, (decode_us + 32 * row_us) / 1e3);
}

static void without_workers_nothing_travels(void **state)
{
    struct plan_request r = request();
    struct plan plan;

    plan_predict(&r, 8, 0, 0, &plan);
    assert_int_equal(plan.mini_batches, 1);
    assert_near(plan.step_ms, (4 * (20 + 8 * 16 * 0.01024) + 45) / 1e3);
    assert_true(plan.link_layer_us == 0 && plan.network_gbit_per_second == 0);
    assert_near(plan.price_per_hour, 2);
    r.batch = 8;
    r.mini_batches = 2; // as asked for, whether workers are asked for or none are chosen
    assert_int_equal(plan_make(&r, &plan, NULL), STATUS_OK);
    assert_true(plan.workers == 0 && plan.mini_batches == 2);
}

// A sequence's KV is (16 + 8) * 4 * 512 = 49,152 bytes.
static void a_pool_beside_workers(void **state)
{
    struct plan_request r = request();
    struct plan plan;
    struct error error;

    r.pool_bytes = 3 * 49152 + 49151;
    plan_predict(&r, 8, 2, 2, &plan); // of 8 sequences 3, of 4 rows 1.5
    assert_int_equal(plan.pool_sequences, 3);
    assert_near(plan.pool_layer_us, 1.5 * 16 * 512 / 50e3);
    assert_near(plan.r_part_layer_us, 2 * 16 * 0.0512); // the fuller of two workers has 2 of 2.5 rows
    assert_near(plan.link_layer_us, 10 + 2.5 / 2 * 2 * 2.048);
    assert_near(plan.step_ms, 2 * (4 * (20 + 1.5 * 16 * 0.01024) + 45) / 1e3);
    assert_near(plan.s_part_busy, 1);
    assert_near(plan.kv_bytes_per_worker, 3 * 49152);
    assert_near(plan.s_part_bytes, 12089344 + 3 * 49152);
    plan_predict(&r, 8, 2, 1, &plan); // the pool's attention is done while the workers have theirs
    assert_near(plan.step_ms, (4 * (20 + 3 * 16 * 0.0512 + 10 + 5 * 2.048) + 45) / 1e3);
    plan_predict(&r, 2, 2, 1, &plan); // nothing is left for workers
    assert_true(plan.pool_sequences == 2 && plan.r_part_layer_us == 0 && plan.link_layer_us == 0);
    assert_near(plan.step_ms, (4 * (20 + 2 * 16 * 0.01024) + 45) / 1e3);
    plan_predict(&r, 3, 2, 2, &plan); // the mini-batch of two, not one and a half
    assert_true(plan.pool_sequences == 3 && plan.r_part_layer_us == 0 && plan.link_layer_us == 0);
    assert_near(plan.pool_layer_us, 2 * 16 * 512 / 50e3);

    r.workers = 0; // and without workers it is a limit
    r.batch = 4;
    assert_int_equal(plan_make(&r, &plan, &error), STATUS_RESOURCE_EXHAUSTED);
    assert_non_null(strstr(error.text, "and --local-pool is 0.0 GiB"));
    r.batch = 3;
    assert_int_equal(plan_make(&r, &plan, &error), STATUS_OK);
}

// Memory that the S-part has left is used beside workers where that is faster, and only then.
static void a_pool_is_chosen(void **state)
{
    struct plan_request r = request(), none = r;
    struct hardware slow = s_part, thin = wire;
    struct plan plan, without;

    thin.link_gb_per_second = 0.1;
    r.link = none.link = &thin;
    r.pool_bytes = PLAN_POOL_CHOOSE;
    plan_predict(&r, 32, 2, 2, &plan); // the link binds, so what does not travel is a gain
    plan_predict(&none, 32, 2, 2, &without);
    assert_true(plan.pool_sequences > 0 && plan.tokens_per_second > without.tokens_per_second);
    assert_near(plan.pool_bytes, plan.pool_sequences * 49152.0);
    none.pool_bytes = 32 * 49152; // all of them there are no faster than some
    plan_predict(&none, 32, 2, 2, &without);
    assert_true(without.pool_sequences == 32 && plan.tokens_per_second >= without.tokens_per_second);
    none.pool_bytes = 0;
    slow.attention_share = 0.0001;
    r.s_part = none.s_part = &slow;
    plan_predict(&r, 32, 2, 2, &plan);
    plan_predict(&none, 32, 2, 2, &without);
    assert_int_equal(plan.pool_sequences, 0);
    assert_near(plan.tokens_per_second, without.tokens_per_second);
    slow = s_part; // a GPU's pool has f16 alone
    slow.compute_capability = 9;
    slow.memory_bytes += HARDWARE_GPU_RESERVE;
    assert_true(plan_pool_computes(&r));
    r.kv_type = KV_INT8;
    assert_false(plan_pool_computes(&r));
    plan_predict(&r, 32, 2, 2, &plan);
    assert_int_equal(plan.pool_sequences, 0);
}

// A step's weights take 4 * 20 + 40 = 120 us, in which two workers read 4.8 MB; a GPU of 100 GB/s is as fast as five.
static void what_workers_can_gain_at_most(void **state)
{
    struct plan_request r = request();
    struct hardware same = worker, tight = s_part;
    struct plan plan;

    plan_predict(&r, 8, 2, 2, &plan); // 12 MB of weights and 4 * 8 * (1,792 + 1,000) bytes of activations of 20 MB
    assert_near(plan.hybrid_pool_bytes, 20000000 - 12089344);
    assert_near(plan.hybrid_gain_bound, 1 + 4.8e6 / (20000000 - 12089344) + 0.4);
    r.pool_bytes = 1200000;
    plan_predict(&r, 8, 2, 2, &plan);
    assert_near(plan.hybrid_pool_bytes, 1200000);
    assert_near(plan.hybrid_gain_bound, 5.4);
    plan_predict(&r, 8, 0, 1, &plan);
    assert_near(plan.hybrid_gain_bound, 1);
    same.shares_cores = true; // two on the same cores read what one does
    r.worker = &same;
    plan_predict(&r, 8, 2, 1, &plan);
    assert_near(plan.hybrid_gain_bound, 1 + 2 + 0.2);
    r.pool_bytes = 0;
    r.s_part = &tight;
    tight.memory_bytes = 12000000;
    plan_predict(&r, 8, 2, 1, &plan);
    assert_true(plan.hybrid_gain_bound == 0);
}

static void workers_by_rate_and_by_memory(void **state)
{
    struct plan_request r = request();
    struct hardware quick = wire, large = worker;
    struct plan plan;
    struct error error;

    quick.link_gb_per_second = 1000;
    quick.link_round_trip_us = 0;
    large.memory_bytes = 1u << 30;
    r.link = &quick;
    r.worker = &large;
    r.batch = 32;
    r.generated_tokens = 319; // F = 9: 164 tokens. b = 16: T = 32 us; 3 sequences are read in 25.2 us, 4 in 33.6
    struct hardware tight = s_part;
    r.s_part = &tight;
    tight.memory_bytes = 12357375; // 12 MB of weights; 32 rows of 1,792 and 1,000 values of 4 bytes
    assert_int_equal(plan_make(&r, &plan, &error), STATUS_RESOURCE_EXHAUSTED);
    assert_non_null(strstr(error.text, "for weights and activations of batch 32, and device has"));
    tight.memory_bytes++;
    assert_int_equal(plan_make(&r, &plan, &error), STATUS_OK);
    assert_int_equal(plan.workers, 3); // 6 of 16 sequences are read in 50.4 us: 0.98 of what any number reaches
    assert_int_equal(plan.bound_by, PLAN_R_PART);
    const struct {
        double rate;
        uint32_t workers;
    } wanted[] = {{29e3, 1}, {59e3, 2}, {79e3, 3}, {81e3, 4}};
    for (size_t i = 0; i < ARRAY_COUNT(wanted); i++) {
        r.tokens_per_second = wanted[i].rate;
        assert_int_equal(plan_make(&r, &plan, &error), STATUS_OK);
        assert_int_equal(plan.workers, wanted[i].workers);
    }
    r.tokens_per_second = 82e3;
    assert_int_equal(plan_make(&r, &plan, &error), STATUS_FAILED_PRECONDITION);
    r.tokens_per_second = 0;
    r.latency_ms = 2 * (4 * 50.381 + 1) / 1e3; // the time of three
    assert_int_equal(plan_make(&r, &plan, &error), STATUS_OK);
    assert_int_equal(plan.workers, 3);
    r.latency_ms = 2 * (4 * 50.381 - 1) / 1e3;
    assert_int_equal(plan_make(&r, &plan, &error), STATUS_OK);
    assert_int_equal(plan.workers, 4);
    r.latency_ms = 0;
    struct plan_more more;
    plan_one_more(&r, &plan, &more);
    assert_near(more.worker, plan.tokens_per_second); // the S-part binds
    assert_near(more.link, plan.tokens_per_second);
    assert_true(more.batch == 0 && more.s_part > plan.tokens_per_second); // memory is full
    large.memory_bytes = 2 * 172 * 4 * 512;                               // two sequences with their half pages
    assert_int_equal(plan_make(&r, &plan, &error), STATUS_OK);
    assert_int_equal(plan.workers, 16);
    assert_int_equal(plan.bound_by, PLAN_CAPACITY);
    r.workers = 15;
    assert_int_equal(plan_make(&r, &plan, &error), STATUS_RESOURCE_EXHAUSTED);
    assert_non_null(strstr(error.text, "on each of 15 workers, and host has"));
    r.ignore_capacity = true;
    assert_int_equal(plan_make(&r, &plan, &error), STATUS_OK);
}

// A hardware file that is written is read back; a mistake in one is reported with its line.
static void a_hardware_file(void **state)
{
    char folder[] = "/tmp/fd-hardware-XXXXXX", path[64], line[256];
    const struct {
        const char *text, *wrong;
    } bad[] = {{"name = x\nmemry = 3G\n", ":2: unknown setting 'memry'"},
               {"name = x\nmemory = much # GB\n", "x.conf:2: memory is \"much\", want bytes"},
               {"name = x\nattention_share = 0\n", "x.conf:2: attention_share is \"0\", want a number from 0.001 to 2"},
               {"name = x\nwatts = 3\nwatts = 4\n", "x.conf:3: watts is there twice"},
               {"memory = 3G\n", "x.conf: no `name`"}};
    struct hardware read;
    struct error error;
    FILE *file;

    assert_non_null(mkdtemp(folder));
    snprintf(path, sizeof path, "%s/x.conf", folder);
    file = fopen(path, "w");
    hardware_write(file, &s_part, "two lines\nof comment");
    fclose(file);
    assert_int_equal(hardware_read("x", folder, "gpu", &read, &error), STATUS_OK);
    assert_string_equal(read.name, "device");
    assert_int_equal(read.memory_bytes, s_part.memory_bytes >> 20 << 20);
    assert_near(read.memory_gb_per_second, 100);
    assert_near(read.attention_share, 0.5);
    assert_near(read.step_us, 5);
    assert_int_equal(hardware_check_s_part(&read, "x", &error), STATUS_OK);
    assert_int_equal(hardware_check_link(&read, "x", &error), STATUS_INVALID_ARGUMENT);
    assert_string_equal(error.text, "x (device) cannot be a link: it says no link_gb_per_second");
    assert_false(read.shares_cores);
    struct hardware measured = s_part;
    measured.weights_share = hardware_share(900, 20); // as a machine says that was busy while it was measured
    measured.attention_share = hardware_share(0, 20);
    measured.shares_cores = true;
    measured.model = (struct hardware_model){.name = "m.gguf", .attention = {.token_us = 0.0167, .prefill_row_us = 0.37}};
    cost_curve_add(&measured.model.layer, 1, 66.5);
    cost_curve_add(&measured.model.layer, 512, 8835.4);
    cost_curve_add(&measured.model.head, 1, 1020);
    file = fopen(path, "w");
    hardware_write(file, &measured, NULL);
    fclose(file);
    assert_int_equal(hardware_read(path, NULL, "gpu", &read, &error), STATUS_OK);
    assert_near(read.weights_share, 1);
    assert_near(read.attention_share, HARDWARE_SHARE_LEAST);
    assert_string_equal(read.model.name, "m.gguf");
    assert_near(cost_curve_at(&read.model.layer, 512), 8835.4);
    assert_near(cost_curve_at(&read.model.head, 9), 1020);
    assert_near(read.model.attention.token_us, 0.0167);
    assert_int_equal(read.model.rest.count, 0);
    assert_true(read.shares_cores);
    file = fopen(path, "r");
    while (fgets(line, sizeof line, file) && strncmp(line, "shares_cores", 12)) {}
    fclose(file);
    assert_string_equal(line, "shares_cores = on\n"); // in the words of --help
    file = fopen(path, "w");
    fputs("name = x\nshares_cores = true\n", file); // and as such files had it once
    fclose(file);
    assert_int_equal(hardware_read(path, NULL, "gpu", &read, &error), STATUS_OK);
    assert_true(read.shares_cores);
    for (size_t i = 0; i < ARRAY_COUNT(bad); i++) {
        file = fopen(path, "w");
        fputs(bad[i].text, file);
        fclose(file);
        assert_int_equal(hardware_read(path, NULL, "gpu", &read, &error), STATUS_INVALID_ARGUMENT);
        assert_non_null(strstr(error.text, bad[i].wrong));
    }
    unlink(path);
    rmdir(folder);
}

static void a_wrong_name_lists_what_there_is(void **state)
{
    char folder[] = "/tmp/test_plan.XXXXXX", path[64];
    static const struct {
        const char *option, *text;
    } kinds[] = {
        {"gpu", "memory = 8G\ncompute_capability = 8.6\n"}, {"link", "link_gb_per_second = 3\n"}, {"worker", "memory = 8G\n"}};
    char wanted[128];
    struct hardware read;
    struct error error;
    FILE *file;

    assert_non_null(mkdtemp(folder));
    for (size_t i = 0; i < ARRAY_COUNT(kinds); i++) {
        snprintf(path, sizeof path, "%s/a-%s.conf", folder, kinds[i].option);
        file = fopen(path, "w");
        fprintf(file, "name = x\n%s", kinds[i].text);
        fclose(file);
    }
    for (size_t i = 0; i < ARRAY_COUNT(kinds); i++) { // each lists what it is for; a host can be --gpu, too
        assert_int_equal(hardware_read("y", folder, kinds[i].option, &read, &error), STATUS_NOT_FOUND);
        snprintf(wanted, sizeof wanted, "--%s y: no such description; there are: a-%s%s. ", kinds[i].option, kinds[i].option,
                 i == 0 ? ", a-worker" : "");
        assert_non_null(strstr(error.text, wanted));
    }
    for (size_t i = 0; i < ARRAY_COUNT(kinds); i++) {
        snprintf(path, sizeof path, "%s/a-%s.conf", folder, kinds[i].option);
        unlink(path);
    }
    rmdir(folder);
}

static void the_knee_of_a_sweep(void **state)
{
    struct plan_request r = request();
    struct plan_need needs[20];

    assert_int_equal(plan_sweep(&r, needs, 20), 14); // 2 to 16,384
    assert_int_equal(needs[2].batch, 8);             // b = 4
    assert_near(needs[2].tokens_per_second, 8 / 250e-6);
    assert_near(needs[2].worker_gb_per_second, 4 * 16 * 512 / 20e-6 / 1e9);
    assert_near(needs[2].network_gbit_per_second, 4 * 2048 * 8 / 20e-6 / 1e9);
    assert_near(needs[2].kv_bytes, 8 * 24 * 4 * 512);
    for (size_t i = 0; i < 14; i++) // a row takes 4 * 2 + 4 us at least: 83,333 a second; 16 rows take 4 * 32 + 64 + 5
        assert_int_equal(needs[i].knee, needs[i].batch == 32);
}

// A mix costs what its meshes cost and reaches the rate that was asked for, and no whole number of one kind of mesh is cheaper.
static void the_cheapest_of_several(void **state)
{
    struct plan_request r = request();
    struct hardware s_parts[2] = {s_part, s_part}, workers[1] = {worker};
    struct plan_mix mix;
    struct plan plan;
    struct error error;

    s_parts[1].name = "dear";
    s_parts[1].price_per_hour = 2.5; // twice the memory's rate for a quarter more
    s_parts[1].memory_gb_per_second = 200;
    s_parts[1].f16_tflops = 2;
    r.workers = PLAN_CHOOSE;
    assert_int_equal(plan_cheapest(&r, s_parts, 2, workers, 1, &mix, &error), STATUS_INVALID_ARGUMENT);
    assert_non_null(strstr(error.text, "--tokens-per-second is missing"));
    for (r.tokens_per_second = 20e3; r.tokens_per_second < 3e6; r.tokens_per_second *= 1.7) {
        assert_int_equal(plan_cheapest(&r, s_parts, 2, workers, 1, &mix, &error), STATUS_OK);
        double price = 0, rate = 0;
        for (uint32_t i = 0; i < mix.part_count; i++) {
            price += mix.parts[i].count * mix.parts[i].plan.price_per_hour;
            rate += mix.parts[i].count * mix.parts[i].plan.tokens_per_second;
        }
        assert_near(mix.price_per_hour, price);
        assert_near(mix.tokens_per_second, rate);
        assert_true(rate >= r.tokens_per_second);
        assert_near(mix.cost_per_million, price / 3600 / rate * 1e6);
        for (uint32_t i = 0; i < 2; i++)
            for (uint32_t n = 0; n <= 8; n++) {
                struct plan_request one = r;
                one.s_part = &s_parts[i];
                one.workers = n;
                if (plan_fastest(&one, &plan))
                    assert_true(price <= ceil(r.tokens_per_second / plan.tokens_per_second) * plan.price_per_hour * (1 + 1e-9));
            }
    }
    workers[0].price_per_hour = 0;
    assert_int_equal(plan_cheapest(&r, s_parts, 2, workers, 1, &mix, &error), STATUS_INVALID_ARGUMENT);
    assert_string_equal(error.text, "host has no price_per_hour: the cheapest mix needs one of each");
}

// Workers too small for their share are never answered, nor is a sequence that several must hold refused.
static void what_is_chosen_fits(void **state)
{
    struct plan_request r = request();
    struct hardware small = worker;
    struct plan plan;
    struct error error;

    r.worker = &small;
    for (uint32_t i = 0; i < 160; i++) {
        small.memory_bytes = 60000u * (1 + i / 8) * (1 + i / 8);
        r.batch = i / 2 % 4 * 33;
        r.pool_bytes = i % 2 ? PLAN_POOL_CHOOSE : 0;
        if (!plan_make(&r, &plan, &error))
            assert_true(plan.workers == 0 || plan.kv_bytes_per_worker <= (double)small.memory_bytes);
    }
    small.memory_bytes = 2000000;
    r.pool_bytes = 0, r.batch = 1, r.prompt_tokens = 5000; // 10 MB of KV; the S-part has room for 8 and a worker for 2
    assert_int_equal(plan_make(&r, &plan, &error), STATUS_OK);
    assert_true(plan.workers >= 5 && plan.kv_bytes_per_worker <= 2e6);
}

// Machines that are added reach the rate, one worker less does not, and nothing cheaper is listed behind it.
static void what_to_add(void **state)
{
    struct plan_request r = request();
    struct hardware large = worker;
    struct plan_addition additions[PLAN_STAGES_MAX];
    struct plan now, less;
    struct error error;
    uint32_t count;

    large.memory_bytes = 1u << 30;
    r.worker = &large;
    r.workers = 1;
    r.stages = 1;
    assert_int_equal(plan_add(&r, &now, additions, &count, &error), STATUS_INVALID_ARGUMENT);
    r.tokens_per_second = 1;
    assert_int_equal(plan_add(&r, &now, additions, &count, &error), STATUS_OK);
    assert_true(count == 1 && additions[0].workers == 0 && additions[0].s_parts == 0);
    const double most = now.tokens_per_second;
    for (double times = 1.05; times < 4; times *= 1.3) {
        double before = 0;
        r.tokens_per_second = times * most;
        if (plan_add(&r, &now, additions, &count, &error))
            break;
        for (uint32_t i = 0; i < count; i++) {
            const struct plan_addition *a = &additions[i];
            struct plan_request one = r;
            double cost = a->s_parts * s_part.price_per_hour + a->workers * worker.price_per_hour;
            assert_true(a->plan.tokens_per_second >= r.tokens_per_second && a->plan.workers == 1 + a->workers && cost >= before);
            assert_int_equal(a->plan.stages, 1 + a->s_parts);
            before = cost;
            one.stages = a->plan.stages;
            one.workers = a->plan.workers - 1;
            assert_true(a->workers == 0 || !plan_fastest(&one, &less) || less.tokens_per_second < r.tokens_per_second);
        }
    }
    r.tokens_per_second = 1e9;
    assert_int_equal(plan_add(&r, &now, additions, &count, &error), STATUS_FAILED_PRECONDITION);
    assert_non_null(strstr(error.text, "any number of workers such a mesh reaches"));
}

// In three of four layers a row reads 4 of its 16 tokens, 7 a layer on average; pages are kept for all. If all four are windowed a
// sequence has at most 6 pages, 96 tokens: a window, 64 rows and a page.
static void windows_shorten_what_is_read(void **state)
{
    struct plan_shape windowed = shape;
    struct plan_request r = request();

    r.generated_tokens = 31;
    double context = plan_mean_context(&r);
    assert_near(plan_mean_read(&r), context);
    windowed.window = 4;
    windowed.windowed_layers = 3;
    r.shape = &windowed;
    assert_near(plan_mean_context(&r), context);
    assert_near(plan_mean_read(&r), context / 4 + 3);
    double kept = plan_sequence_kv_bytes(&r), token = kept / (context + PLAN_PAGE_TOKENS / 2.0);
    windowed.windowed_layers = 4;
    assert_near(plan_sequence_kv_bytes(&r), kept); // shorter than that
    r.prompt_tokens = 100;
    assert_near(plan_sequence_kv_bytes(&r), (96 + 8) * token);
    r.prompt_tokens = 64; // half of its life, of 64 tokens, it grows from 64 to 96; then it has 96
    r.generated_tokens = 63;
    r.spacing = 1;
    assert_near(plan_sequence_kv_bytes(&r), ((80 + 96) / 2.0 + 8) * token);
    windowed.windowed_layers = 3;
    r = request();
    r.generated_tokens = 31;
    r.shape = &windowed;
    windowed.window = 1000;
    assert_near(plan_mean_read(&r), context);
}

// 8 experts of 0.8 of the layer, 2 used by a row: 0.4 MB are read for all, and of the other 1.6 MB what the rows have chosen.
static void experts_are_read_as_rows_choose_them(void **state)
{
    struct plan_shape experts = shape;
    struct plan_request r = request();
    struct cost_s_part s, dense;

    plan_s_part(&r, &dense);
    experts.experts = 8;
    experts.experts_used = 2;
    experts.expert_values = 800000;
    experts.in[SHAPE_HOST].expert_bytes = 1600000;
    r.shape = &experts;
    plan_s_part(&r, &s);
    assert_near(cost_curve_at(&s.layer, 1), 4 + 16 * 0.25);
    assert_near(cost_curve_at(&s.layer, 2), 4 + 16 * (1 - 0.75 * 0.75));
    assert_near(cost_curve_at(&s.layer, 16), 4 + 16 * (1 - pow(0.75, 16)));
    // A row multiplies by 0.4 of the values: 0.8 us.
    assert_near(cost_curve_at(&s.layer, 256), 0.8 * 256);
    assert_true(cost_curve_at(&s.layer, 4) < cost_curve_at(&dense.layer, 4));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(experts_are_read_as_rows_choose_them),
        cmocka_unit_test(windows_shorten_what_is_read),
        cmocka_unit_test(the_parts_of_a_layer),
        cmocka_unit_test(one_mini_batch_and_two),
        cmocka_unit_test(what_occupies_a_worker_is_not_hidden),
        cmocka_unit_test(prompts_cost_rows_and_pairs),
        cmocka_unit_test(what_was_measured_goes_before_rates),
        cmocka_unit_test(without_workers_nothing_travels),
        cmocka_unit_test(a_pool_beside_workers),
        cmocka_unit_test(a_pool_is_chosen),
        cmocka_unit_test(what_workers_can_gain_at_most),
        cmocka_unit_test(workers_by_rate_and_by_memory),
        cmocka_unit_test(a_sequence_larger_than_a_worker),
        cmocka_unit_test(the_knee_of_a_sweep),
        cmocka_unit_test(the_cheapest_of_several),
        cmocka_unit_test(what_to_add),
        cmocka_unit_test(what_is_chosen_fits),
        cmocka_unit_test(a_hardware_file),
        cmocka_unit_test(a_wrong_name_lists_what_there_is),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
