// weights.c: how much of the weights stays in memory, and the file of packed weights that belongs to the model and to what the device makes of it.
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "common/base/checked.h"
#include "common/base/log.h"
#include "common/base/memory.h"
#include "services/s-part/s_part.h"

// Returns how much of the host's memory all but the weights takes: with the pool in full use, for weights that took its memory could not give it back.
static uint64_t rest_bytes(const struct s_part *s_part)
{
    const struct backend_plan *plan = &s_part->loaded.plan;
    const uint64_t pool = plan->pool_on_device ? 0 : s_part->settings.local_pool + plan->pool_table_bytes;
    return plan->activation_bytes + plan->pool_fixed_bytes + MAX(s_part_start_bytes(s_part), pool);
}

static double mib(uint64_t bytes) { return (double)bytes / 1048576; }

// Beside a device: of the weights that it has no room for, the host takes what the settings name; else, if they do not fit, what the rest
// leaves.
static enum status choose_beside_device(struct s_part *s_part, struct backend_config *config, struct error *error)
{
    const struct backend_plan *plan = &s_part->loaded.plan;
    const uint64_t available = memory_available_bytes(), named = s_part->settings.weights_host_memory;
    enum status status;

    if (named ? plan->weight_bytes <= named
              : plan->weight_bytes + plan->activation_bytes + plan->pool_fixed_bytes + s_part_start_bytes(s_part) <= available)
        return STATUS_OK;
    if (named) {
        config->weights_host_memory = named;
        status = s_part->loaded.device.ops->plan(config, &s_part->loaded.plan, error);
        return status ? error_prefix(error, "--weights-host-memory %s", s_part->settings.weights_host_memory_text) : STATUS_OK;
    }
    for (int i = 0; i < 2; i++) { // again with what a packed file takes at start
        const uint64_t rest = rest_bytes(s_part);
        config->weights_host_memory = MAX(available > rest ? available - rest : 0, 1);
        if ((status = s_part->loaded.device.ops->plan(config, &s_part->loaded.plan, error)))
            return error_prefix(error, "%.0f MiB of memory are available, and all but the weights takes up to %.0f (--max-rows)",
                                mib(available), mib(rest));
    }
    return STATUS_OK;
}

// On a device with memory of its own: weights take the room that the settings name; else, if they do not fit, what the rest leaves.
static enum status choose_on_device(struct s_part *s_part, struct backend_config *config, struct error *error)
{
    const struct backend_plan *plan = &s_part->loaded.plan;
    const uint64_t rest = plan->device_activation_bytes + plan->pool_pages * plan->pool_page_bytes;
    struct error why;
    enum status status;

    if (!config->weights_memory && plan->device_weight_bytes + rest > plan->device_free_bytes) {
        config->weights_memory = MAX(plan->device_free_bytes > rest ? plan->device_free_bytes - rest : 0, 1);
        if (s_part->loaded.device.ops->plan(config, &s_part->loaded.plan, &why))
            return error_set(
                error, STATUS_RESOURCE_EXHAUSTED,
                "%s: %.0f MiB are needed and %.0f are free: weights %.0f, activations %.0f (--max-rows, --mini-batches), local pool %.0f "
                "(--local-pool; KV workers hold the rest); %s",
                s_part->loaded.device.line, mib(plan->device_weight_bytes + rest), mib(plan->device_free_bytes),
                mib(plan->device_weight_bytes), mib(plan->device_activation_bytes), mib(rest - plan->device_activation_bytes),
                why.text);
    }
    if ((status = choose_beside_device(s_part, config, error)))
        return status;
    if (plan->streamed_bytes)
        log_info("WEIGHTS-STREAMED",
                 "from=host each_step_mib=%.1f what=\"they do not fit the device: each step copies them there\"",
                 mib(plan->streamed_bytes));
    return STATUS_OK;
}

// On the host: what the settings name; else, if they do not fit, what the rest leaves.
static enum status choose_on_host(struct s_part *s_part, struct backend_config *config, struct error *error)
{
    const struct backend_plan *plan = &s_part->loaded.plan;
    const uint64_t available = memory_available_bytes();
    enum status status;

    if (config->weights_memory ||
        plan->weight_bytes + plan->activation_bytes + plan->pool_fixed_bytes + s_part_start_bytes(s_part) <= available)
        return STATUS_OK;
    const uint64_t rest = rest_bytes(s_part);
    config->weights_memory = MAX(available > rest ? available - rest : 0, 1);
    if ((status = s_part->loaded.device.ops->plan(config, &s_part->loaded.plan, error)))
        error_prefix(error, "%.0f MiB of memory are available, and all but the weights takes up to %.0f (--local-pool, --max-rows)",
                     mib(available), mib(rest));
    return status;
}

enum status weights_choose_memory(struct s_part *s_part, struct backend_config *config, struct error *error)
{
    enum status status;

    config->weights_host_memory = 0; // until it is known what does not fit the device
    if ((status = s_part->loaded.device.ops->plan(config, &s_part->loaded.plan, error))) {
        if (config->weights_memory)
            error_prefix(error, "--weights-memory %s", s_part->settings.weights_memory_text);
        return status;
    }
    return (s_part->loaded.plan.pool_on_device ? choose_on_device : choose_on_host)(s_part, config, error);
}

// The model's file name without ".gguf", then the kind of its packed weights: model-Q4_1.gguf gives model-Q4_1-int8.fdw. A stage of a
// pipeline has a file of its own: model-Q4_1-int8-layers-0-19.fdw.
static enum status name_file(struct s_part *s_part, const char *folder, int folder_length, struct error *error)
{
    size_t length;
    const char *name = model_stem(s_part->settings.model_path, &length);
    const uint32_t first_layer = s_part->settings.first_layer, layers = s_part->settings.layer_count;
    char range[40] = "";

    if (layers < s_part->loaded.model->shape.layers)
        snprintf(range, sizeof range, "-layers-%u-%u", first_layer, first_layer + layers);
    int written = snprintf(s_part->loaded.packed_path, sizeof s_part->loaded.packed_path, "%.*s/%.*s-%s%s.fdw", folder_length,
                           folder, (int)length, name, s_part->loaded.plan.weights_kind, range);
    if (written < 0 || (size_t)written >= sizeof s_part->loaded.packed_path)
        return error_set(error, STATUS_INVALID_ARGUMENT, "--cache-dir %.*s: the path is too long", folder_length, folder);
    return STATUS_OK;
}

enum status weights_choose_path(struct s_part *s_part, struct backend_config *config, struct error *error)
{
    const struct backend_plan *plan = &s_part->loaded.plan;
    const char *folder = s_part->settings.cache_dir, *model = s_part->settings.model_path, *slash = strrchr(model, '/');
    const bool none = !strcmp(folder, "none");
    struct stat info;
    enum status status;

    if (!*plan->weights_kind || (none && !plan->disk_bytes))
        return STATUS_OK;
    if (!none && (stat(folder, &info) || !S_ISDIR(info.st_mode)))
        return error_set(error, STATUS_INVALID_ARGUMENT, "--cache-dir %s: %s", folder,
                         errno == ENOENT ? "there is no such folder" : "it is no folder");
    if (!none)
        status = name_file(s_part, folder, (int)strlen(folder), error);
    else
        status = name_file(s_part, slash ? model : ".", slash ? (int)(slash - model) : 1, error);
    config->packed_path = s_part->loaded.packed_path;
    if (!status && plan->disk_bytes)
        log_info("WEIGHTS-STREAMED", "file=%s each_step_mib=%.1f what=\"they do not fit memory: each step reads them from disk\"",
                 s_part->loaded.packed_path, mib(plan->disk_bytes));
    return status;
}
