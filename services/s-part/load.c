// load.c: the model, the device, and what both take of memory: planned and checked before anything is loaded.
#include <stdio.h>
#include <string.h>

#include "common/base/checked.h"
#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/base/memory.h"
#include "common/model/compute.h"
#include "common/plan/split.h"
#include "kernels/backend/backend.h"
#include "services/s-part/s_part.h"

// On a thread of the disk's queue.
static void wake_engine(void *loop) { rpc_loop_wake(loop); }

// Returns whether a segment is computed at once, and all layers are here.
static bool could_take_aside(const struct s_part *s_part)
{
    const struct s_part_settings *s = &s_part->settings;

    return s_part->loaded.device.ops == &backend_cpu && s->stages <= 1 && s->layer_count == s_part->loaded.model->shape.layers &&
           s->mini_batches == 1;
}

// Weights that are read in each step come in one order.
bool s_part_takes_aside(const struct s_part *s_part) { return could_take_aside(s_part) && !s_part->loaded.plan.streamed_bytes; }

static uint32_t s_part_batches(const struct s_part *s_part) { return s_part->settings.mini_batches + could_take_aside(s_part); }

static struct backend_config backend_config(const struct s_part *s_part)
{
    return (struct backend_config){
        .model = s_part->loaded.model,
        .first_layer = s_part->settings.first_layer,
        .layer_count = s_part->settings.layer_count,
        .compute = !strcmp(s_part->settings.compute, "f32")    ? COMPUTE_F32
                   : !strcmp(s_part->settings.compute, "int8") ? COMPUTE_INT8
                                                               : COMPUTE_AUTO,
        .quantize_bits = QUANTIZE_BITS(s_part->settings.quantize),
        .pool = s_part->pool,
        .max_rows = s_part->settings.max_rows,
        .max_batches = s_part_batches(s_part),
        .context_tokens = s_part->settings.context,
        .kv_type = s_part->settings.kv_type,
        .page_tokens = S_PART_PAGE_TOKENS,
        .sparse_percent = s_part->settings.sparse_percent,
        .max_sequences = ENGINE_SEQUENCES_MAX,
        .local_pool_bytes = s_part->settings.local_pool,
        .device = s_part->loaded.device.index,
        .disk = s_part->settings.disk,
        .weights_memory = s_part->settings.weights_memory,
        .weights_host_memory = s_part->settings.weights_host_memory,
        .on_weights = wake_engine,
        .on_weights_user = s_part->engine.loop,
        .trace = s_part->settings.trace,
        .batch_invariant = s_part->settings.batch_invariant,
    };
}

static bool is_last(const struct s_part *s_part)
{
    return s_part->settings.first_layer + s_part->settings.layer_count == s_part->loaded.model->shape.layers;
}

// Returns the memory that the stage with the last layer needs to pool.
static uint64_t pooling_bytes(const struct s_part *s_part)
{
    const struct s_part_settings *s = &s_part->settings;

    if (s_part->loaded.pooling.kind == MODEL_POOL_NONE || !is_last(s_part))
        return 0;
    return pooler_planned_bytes(s_part->loaded.model, &s_part->loaded.pooling, s->max_batch) +
           engine_hidden_bytes(s->max_rows, s_part->loaded.model->shape.hidden, s_part_batches(s_part));
}

// Finds what --pooling means, once the device is known.
static enum status choose_pooling(struct s_part *s_part, struct error *error)
{
    const char *name = s_part->settings.pooling;
    enum status status = model_pooling_choose(s_part->loaded.model, name, &s_part->loaded.pooling, error);

    if (status || s_part->loaded.pooling.kind == MODEL_POOL_NONE || s_part->loaded.device.ops->hidden)
        return status;
    if (strcmp(name, "auto"))
        return error_set(error, STATUS_UNIMPLEMENTED, "--pooling %s: %s does not give hidden states", name,
                         s_part->loaded.device.line);
    log_warn("POOLING-OFF", "why=\"%s does not give hidden states\"", s_part->loaded.device.line);
    s_part->loaded.pooling.kind = MODEL_POOL_NONE;
    return STATUS_OK;
}

static enum status open_pooler(struct s_part *s_part, struct error *error)
{
    if (s_part->loaded.pooling.kind == MODEL_POOL_NONE)
        return STATUS_OK;
    log_info("POOLING", "kind=%s outputs=%u", model_pool_name(s_part->loaded.pooling.kind), s_part->loaded.pooling.outputs);
    return is_last(s_part) ? pooler_open(s_part->loaded.model, &s_part->loaded.pooling, &s_part->loaded.pooler, error) : STATUS_OK;
}

static enum status check_plan(const struct s_part *s_part, struct error *error)
{
    const struct backend_plan *plan = &s_part->loaded.plan;
    // taken when the first grammar comes, if ever: then it is looked whether it is there
    const uint64_t grammars = masker_planned_bytes(s_part->loaded.model->shape.vocab, s_part->settings.max_batch);
    const uint64_t pooling = pooling_bytes(s_part);
    char parts[320];
    const struct memory_plan memory = {
        .fixed_bytes = plan->weight_bytes + plan->activation_bytes + plan->pool_fixed_bytes + pooling,
        .start_bytes = s_part_start_bytes(s_part),
        .page_bytes = (plan->pool_on_device ? 0 : plan->pool_page_bytes) +
                      (plan->pool_pages ? plan->pool_table_bytes / plan->pool_pages : 0),
        .pool_bytes = plan->pool_on_device ? 0 : s_part->settings.local_pool,
    };
    int written =
        snprintf(parts, sizeof parts, "weights_mib=%.1f activations_mib=%.1f pool_fixed_mib=%.1f grammars_mib=%.1f pages=%llu",
                 (double)plan->weight_bytes / 1048576, (double)plan->activation_bytes / 1048576,
                 (double)plan->pool_fixed_bytes / 1048576, (double)grammars / 1048576, (unsigned long long)plan->pool_pages);
    if (pooling)
        written += snprintf(parts + written, sizeof parts - (size_t)written, " pooling_mib=%.1f", (double)pooling / 1048576);
    if (plan->streamed_bytes)
        written += snprintf(parts + written, sizeof parts - (size_t)written, " streamed_mib=%.1f weight_slots=%u",
                            (double)plan->streamed_bytes / 1048576, plan->weight_slots);
    if (plan->pool_on_device && plan->disk_bytes)
        snprintf(parts + written, sizeof parts - (size_t)written, " device_weights_mib=%.1f disk_mib=%.1f disk_slots=%u",
                 (double)plan->device_weight_bytes / 1048576, (double)plan->disk_bytes / 1048576, plan->disk_slots);
    return memory_plan_check(&memory, parts, error);
}

// --pool-fills-device: the pool is what weights and activations leave, less a twentieth; none where the device cannot hold this KV type,
// or attend to a part of it.
static enum status fill_device(struct s_part *s_part, struct backend_config *config, struct error *error)
{
    struct backend_plan plan;

    if (s_part->loaded.device.ops == &backend_cpu || !s_part->settings.pool_fills_device)
        return STATUS_OK;
    if (config->kv_type != KV_F16 || config->sparse_percent)
        config->local_pool_bytes = 0;
    enum status status = s_part->loaded.device.ops->plan(config, &plan, error);
    uint64_t used = status ? 0 : plan.device_weight_bytes + plan.device_activation_bytes;
    if (!status && config->local_pool_bytes)
        config->local_pool_bytes = plan.device_free_bytes > used ? (plan.device_free_bytes - used) / 20 * 19 : 0;
    if (!status && config->local_pool_bytes < plan.pool_page_bytes)
        config->local_pool_bytes = 0;
    if (!status && s_part->settings.local_pool && !config->local_pool_bytes)
        log_warn("POOL-LEFT-OUT", "why=\"%s\"",
                 config->kv_type != KV_F16 ? "on a GPU the local pool is f16: KV is on workers only"
                 : config->sparse_percent  ? "on a GPU the local pool has no sparse attention: KV is on workers only"
                                           : "weights and activations leave less than a page of the GPU's memory");
    s_part->settings.local_pool = config->local_pool_bytes;
    return status;
}

// Checks and logs the memory of a device that has its own.
static enum status check_device(const struct s_part *s_part, struct error *error)
{
    const struct backend_plan *plan = &s_part->loaded.plan;
    uint64_t pool = plan->pool_pages * plan->pool_page_bytes;
    uint64_t sum = plan->device_weight_bytes + plan->device_activation_bytes + pool;
    const double mib = 1048576;

    if (!plan->pool_on_device)
        return STATUS_OK;
    log_info("DEVICE-MEMORY", "weights_mib=%.1f activations_mib=%.1f pool_mib=%.1f pages=%llu free_mib=%.1f",
             (double)plan->device_weight_bytes / mib, (double)plan->device_activation_bytes / mib, (double)pool / mib,
             (unsigned long long)plan->pool_pages, (double)plan->device_free_bytes / mib);
    if (sum <= plan->device_free_bytes)
        return STATUS_OK;
    return error_set(
        error, STATUS_RESOURCE_EXHAUSTED,
        "%s: %.0f MiB are needed and %.0f are free: weights %.0f, activations %.0f (--max-rows, --mini-batches), local "
        "pool %.0f (--local-pool; KV workers hold the rest)",
        s_part->loaded.device.line, (double)sum / mib, (double)plan->device_free_bytes / mib,
        (double)plan->device_weight_bytes / mib, (double)plan->device_activation_bytes / mib, (double)pool / mib);
}

// Has messages lie where the device reads and writes them itself.
static enum status lend_memory(const struct engine *engine, struct error *error)
{
    uint64_t bytes;
    void *lent;

    if (!engine->ops->host_memory)
        return STATUS_OK;
    engine->ops->host_memory(engine->backend, &lent, &bytes);
    return lent && rpc_lend_memory(lent, bytes) ? error_set(error, STATUS_RESOURCE_EXHAUSTED, "no memory for messages") : STATUS_OK;
}

// Finds the layers that --layers means, and checks that the model has them.
static enum status choose_layers(struct s_part_settings *s, const struct model *model, struct error *error)
{
    const uint32_t layers = model->shape.layers;
    struct plan_range ranges[PLAN_STAGES_MAX];
    _Static_assert((int)PLAN_STAGES_MAX == (int)SCHED_STAGES_MAX, "as many stages as there may be");

    if (s->stages > 1) {
        if (plan_split_model(model, s->stages, ranges, error)) {
            error_prefix(error, "--layers %s", s->layers);
            return error->status;
        }
        s->first_layer = ranges[s->stage].first;
        s->layer_count = ranges[s->stage].end - ranges[s->stage].first;
    }
    if (!s->layer_count)
        s->layer_count = layers;
    if (s->first_layer < layers && s->layer_count <= layers - s->first_layer)
        return STATUS_OK;
    return error_set(error, STATUS_INVALID_ARGUMENT, "--layers %s: the model has %u", s->layers, layers);
}

// Whether --kv-type auto can read its text here: with all layers, in memory.
static enum status check_kv_choice(const struct s_part *s_part, struct error *error)
{
    const struct s_part_settings *s = &s_part->settings;
    const uint32_t tokens = kv_choice_tokens(s_part->loaded.model);
    static const char end[] = "name a type, such as f16 or int8";

    if (!s->chooses_kv_type)
        return STATUS_OK;
    if (s->layer_count < s_part->loaded.model->shape.layers)
        return error_set(error, STATUS_INVALID_ARGUMENT,
                         "--kv-type auto reads a text with all layers, and --layers %s has %u of %u: %s", s->layers, s->layer_count,
                         s_part->loaded.model->shape.layers, end);
    if (!s_part->loaded.device.ops->pool_retype)
        return STATUS_OK;
    if (s_part->loaded.plan.streamed_bytes)
        return error_set(error, STATUS_INVALID_ARGUMENT,
                         "--kv-type auto wants all weights in memory, and %.1f MiB of them are read in each step: %s",
                         (double)s_part->loaded.plan.streamed_bytes / 1048576, end);
    if (s->context < tokens)
        return error_set(error, STATUS_INVALID_ARGUMENT, "--kv-type auto reads a text of up to %u tokens, and --context is %u: %s",
                         tokens, s->context, end);
    return STATUS_OK;
}

// Reads the text, and gives the pool the type.
static enum status choose_kv_type(struct s_part *s_part, struct backend_config *config, struct error *error)
{
    const uint64_t began_us = clock_now_us();
    const struct kv_choice_config how = {.ops = s_part->engine.ops,
                                         .backend = s_part->engine.backend,
                                         .model = s_part->loaded.model,
                                         .pool = s_part->pool,
                                         .step_rows = config->max_rows};
    struct kv_choice choice;

    if (!s_part->settings.chooses_kv_type)
        return STATUS_OK;
    if (!s_part->engine.ops->pool_retype) {
        log_info("KV-TYPE", "chosen=f16 why=\"on a GPU the local pool is f16\"");
        return STATUS_OK;
    }
    if (kv_choice_make(&how, &choice, error)) {
        error_prefix(error, "--kv-type auto, which a named type spares");
        return error->status;
    }
    config->kv_type = s_part->settings.kv_type = choice.type;
    if (choice.type != KV_F16 && (s_part->engine.ops->pool_retype(s_part->engine.backend, choice.type, error) ||
                                  s_part->engine.ops->plan(config, &s_part->loaded.plan, error)))
        return error->status;
    log_info("KV-TYPE", "chosen=%s int8_kl=%.2e least_kl=%.2e limit=%.0e positions=%u pages=%llu page_kib=%.1f ms=%llu",
             kv_type_name(choice.type), choice.kl - choice.floor, choice.floor, KV_CHOICE_KL_MOST, choice.positions,
             (unsigned long long)s_part->loaded.plan.pool_pages, (double)s_part->loaded.plan.pool_page_bytes / 1024,
             (unsigned long long)(clock_now_us() - began_us) / 1000);
    return STATUS_OK;
}

enum status load_plan(struct s_part *s_part, struct backend_config *config, struct error *error)
{
    struct engine *engine = &s_part->engine;
    enum status status;

    if (model_open(s_part->settings.model_path, &s_part->loaded.model, error))
        return error_prefix(error, "--model");
    if (!s_part->settings.context || s_part->settings.context > s_part->loaded.model->shape.context_length)
        s_part->settings.context = s_part->loaded.model->shape.context_length;
    if ((status = choose_layers(&s_part->settings, s_part->loaded.model, error)))
        return status;
    model_release_file(s_part->loaded.model); // the pages that were read to check it: the plan counts from here
    if ((status = device_choose(s_part->settings.device_name, &s_part->loaded.device, error)))
        return status;
    if ((status = choose_pooling(s_part, error)))
        return status;
    *config = backend_config(s_part);
    engine->ops = s_part->loaded.device.ops;
    if (!strcmp(s_part->settings.device_name, "auto") && engine->ops == &backend_cpu) // a warning: the device may have been lost
        log_warn("DEVICE", "chosen=\"%s\"", s_part->loaded.device.line);
    else
        log_info("DEVICE", "chosen=\"%s\"", s_part->loaded.device.line);
    if ((status = fill_device(s_part, config, error)) || (status = weights_choose_memory(s_part, config, error)) ||
        (status = weights_choose_path(s_part, config, error)))
        return status;
    if ((status = check_kv_choice(s_part, error)) || (status = check_device(s_part, error)) || (status = check_plan(s_part, error)))
        return status;
    if (s_part->settings.local_pool && s_part->loaded.plan.pool_pages == 0)
        return error_set(error, STATUS_INVALID_ARGUMENT, "--local-pool %llu bytes is less than one page (%llu)",
                         (unsigned long long)s_part->settings.local_pool, (unsigned long long)s_part->loaded.plan.pool_page_bytes);
    return STATUS_OK;
}

enum status load_model(struct s_part *s_part, struct error *error)
{
    struct engine *engine = &s_part->engine;
    uint64_t began_us = clock_now_us();
    struct backend_config config;
    struct backend_info info;
    enum status status;

    if ((status = load_plan(s_part, &config, error)) || (status = engine->ops->open(&config, &engine->backend, error)))
        return status;
    engine->ops->info(engine->backend, &info);
    if ((status = choose_kv_type(s_part, &config, error)))
        return status;
    if ((status = open_pooler(s_part, error)))
        return status;
    model_release_file(s_part->loaded.model);
    if ((status = lend_memory(engine, error)))
        return status;
    snprintf(s_part->loaded.level, sizeof s_part->loaded.level, "%s", info.level);
    log_info("MODEL-LOADED", "file=%s layers=%u:%u device=%s level=%s context=%u max_rows=%u threads=%u cpus=%s load_ms=%llu",
             s_part->settings.model_path, s_part->settings.first_layer, s_part->settings.first_layer + s_part->settings.layer_count,
             info.device, info.level, s_part->settings.context, s_part->settings.max_rows, thread_pool_threads(s_part->pool),
             thread_pool_cpus(s_part->pool), (unsigned long long)(clock_now_us() - began_us) / 1000);
    return STATUS_OK;
}

struct kv_shape load_kv_shape(const struct s_part *s_part)
{
    struct kv_shape shape = kv_shape_of_model(s_part->loaded.model, 0, s_part->loaded.model->shape.layers);
    shape.page_tokens = S_PART_PAGE_TOKENS;
    shape.type = s_part->settings.kv_type;
    shape.max_sequences = 1;
    shape.max_context = s_part->settings.context;
    shape.sparse_percent = s_part->settings.sparse_percent;
    return shape;
}

void load_measure(struct s_part *s_part)
{
    struct engine *engine = &s_part->engine;
    struct model_shape shape = engine->model.shape;
    const struct kv_shape kv = load_kv_shape(s_part);
    const struct attend_measure what = {.ops = engine->ops,
                                        .backend = engine->backend,
                                        .batch = engine->batches.of[0].backend,
                                        .shape = &shape,
                                        .pages = s_part->loaded.plan.pool_on_device ? s_part->loaded.plan.pool_pages : 0,
                                        .page_tokens = S_PART_PAGE_TOKENS,
                                        .max_rows = s_part->settings.max_rows,
                                        .context_tokens = s_part->settings.context};
    struct error error;

    if (!s_part->settings.calibrate)
        return;
    shape.layers = engine->model.range.count; // passes run through those that are here
    if (calibrate(&what, &kv, s_part->pool, engine->model.range.is_last ? s_part->settings.max_batch : 0,
                  &s_part->loaded.calibration, &error))
        log_warn("NOT-CALIBRATED", "why=\"%s\"", error.text);
    else
        engine->links.costs = s_part->loaded.calibration.host_kv;
}
