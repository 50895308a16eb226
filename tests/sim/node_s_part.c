// node_s_part.c: an s-part as a node: both of its threads take their turns in one.
//
// Its backend is the CPU's, on a model of two layers and some kilobytes. Only its draw differs, in nine of ten seeds: a token is a hash of all bits of
// the row's logits, which every K and V of its context has a part in. So KV that is stale, missing or another's changes the text.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/backend/backend.h"
#include "services/s-part/s_part.h"
#include "tests/sim/check.h"
#include "tests/sim/services.h"

enum { LETTERS_FROM = 100, LETTERS = 3 };

static struct backend_ops ops; // backend_cpu's, with some replaced
static float logits_of_step[SIM_ROWS * 2][SIM_VOCAB];

static void sim_release(struct backend *backend, uint64_t sequence)
{
    if (mesh_settings.stages == 1)
        check_free("", sequence);
    backend_cpu.pool_release(backend, sequence);
}

// Few tokens, so that guesses from earlier text are often right.
static uint32_t draw(const struct backend_sample *sample, const float *logits)
{
    uint64_t hash = 1469598103934665603u;
    uint32_t allowed = 0;

    for (uint32_t i = 0; i < SIM_VOCAB; i++) {
        uint32_t bits;
        memcpy(&bits, &logits[i], sizeof bits);
        hash = (hash ^ bits) * 1099511628211u;
    }
    hash ^= hash >> 32;
    if (!sample->allowed)
        return hash % 251 == 0 ? 0 : LETTERS_FROM + (uint32_t)(hash >> 8) % LETTERS;
    for (uint32_t i = 0; i < SIM_VOCAB; i++)
        allowed += sample->allowed[i / 32] >> i % 32 & 1;
    uint32_t chosen = allowed ? (uint32_t)(hash % allowed) : 0;
    for (uint32_t i = 0; allowed && i < SIM_VOCAB; i++)
        if ((sample->allowed[i / 32] >> i % 32 & 1) && !chosen--)
            return i;
    return 0;
}

static void sim_head(struct backend_batch *batch, const uint32_t *row_index, const struct backend_sample *samples, uint32_t count)
{
    static struct backend_sample with_logits[SIM_ROWS * 2];

    assert_always(count <= ARRAY_COUNT(with_logits));
    for (uint32_t i = 0; i < count; i++) {
        with_logits[i] = samples[i];
        with_logits[i].logits = logits_of_step[i];
    }
    backend_cpu.head(batch, row_index, with_logits, count);
    for (uint32_t i = 0; i < count; i++) {
        if (samples[i].logits)
            memcpy(samples[i].logits, logits_of_step[i], sizeof logits_of_step[i]);
        if (samples[i].sampler && !samples[i].result->all_banned && !mesh_settings.real_draw)
            samples[i].result->token = draw(&samples[i], logits_of_step[i]);
    }
    world.current->now_ns += mesh_settings.segment_ns;
}

static void sim_segment(struct backend_batch *batch, uint32_t s, const struct backend_links *links)
{
    backend_cpu.segment(batch, s, links);
    world.current->now_ns += mesh_settings.segment_ns;
}

static enum status start(struct node *node, struct error *error)
{
    struct s_part *s_part = calloc(1, sizeof *s_part);
    const bool is_stage = mesh_settings.stages > 1;

    if (!s_part)
        return error_set(error, STATUS_RESOURCE_EXHAUSTED, "no memory");
    node->service = s_part;
    s_part->settings = (struct s_part_settings){
        .name = node->name,
        .model_path = sim_files.model,
        .scheduler = "inproc://sched",
        .listen = node->address,
        .device_timeout_s = 60,
        .compute = "auto",
        .quantize = "none",
        .pooling = "auto",
        .device_name = "cpu",
        .layers = is_stage ? "STAGE/STAGES" : "all",
        .stage = is_stage ? (uint32_t)(node->name[1] - '1') : 0,
        .stages = is_stage ? mesh_settings.stages : 0,
        .numa = "none",
        .cache_dir = "none",
        .otlp_endpoint = "none",
        .kv_type_name = "f16",
        .kv_type = KV_F16,
        .sparse_attention = "off",
        .weights_memory = 1 << 30,
        .local_pool = mesh_settings.pool_bytes,
        .max_batch = mesh_settings.max_batch,
        .max_rows = SIM_ROWS,
        .mini_batches = mesh_settings.batches,
        .threads = 1,
    };
    enum status status = s_part_open(s_part, error);
    ops = backend_cpu;
    ops.head = sim_head;
    ops.segment = sim_segment;
    ops.pool_release = sim_release;
    if (!status)
        s_part->engine.ops = &ops;
    return status;
}

static enum status turn(struct node *node, bool *ends, struct error *error)
{
    (void)ends;
    s_part_turn_engine(node->service);
    return s_part_turn_control(node->service, error);
}

static void finish(struct node *node)
{
    s_part_close_engine(node->service);
    s_part_close(node->service);
    free(node->service);
}

static bool rests(const struct node *node, char *out, size_t out_bytes)
{
    const struct s_part *s_part = node->service;

    REST(member_is_registered(s_part->control.member), "%s is not registered", node->name);
    REST(!sequence_table_count(s_part->engine.sequences), "%s has %u samplers", node->name,
         sequence_table_count(s_part->engine.sequences));
    REST(!s_part->engine.pool.call_count && !s_part->engine.pool.deferred_ids.count, "%s has pages to release", node->name);
    REST(!s_part->engine.pool.handover.fetches && !s_part->engine.pool.handover.copies, "%s hands pages over", node->name);
    for (uint32_t i = 0; i < s_part->engine.batches.count; i++)
        REST(s_part->engine.batches.of[i].state == BATCH_IDLE && !s_part->engine.batches.of[i].queue.count, "%s has a step",
             node->name);
    return true;
}

const struct service_kind s_part_kind = {.loops = 2, .start = start, .turn = turn, .close = finish, .rests = rests};

uint32_t s_part_pages_used(const struct node *node)
{
    const struct s_part *s_part = node->service;
    struct backend_info info;

    s_part->engine.ops->info(s_part->engine.backend, &info);
    return (uint32_t)info.pages_used;
}
