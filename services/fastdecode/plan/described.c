// described.c: see commands.h.
#include "services/fastdecode/plan/commands.h"

#include <stdio.h>
#include <string.h>

#include "services/fastdecode/capacity/report.h"

enum { NAME_BYTES = 256 };

typedef enum status check_fn(const struct hardware *hardware, const char *name, struct error *error);

// One name, or several with commas between.
static enum status read_list(const char *names, const char *folder, const char *option_name, check_fn *check,
                             struct hardware list[PLAN_MIX_KINDS], uint32_t *count, struct error *error)
{
    char name[NAME_BYTES];
    enum status status = STATUS_OK;

    for (*count = 0; !status && (*count == 0 || *names == ','); ++*count) {
        names += *count > 0;
        size_t length = strcspn(names, ",");
        if (*count == PLAN_MIX_KINDS || length >= sizeof name)
            return error_set(error, STATUS_INVALID_ARGUMENT, "--%s: at most %d names of less than %d characters", option_name,
                             PLAN_MIX_KINDS, NAME_BYTES);
        snprintf(name, sizeof name, "%.*s", (int)length, names);
        names += length;
        if (!(status = hardware_read(name, folder, option_name, &list[*count], error)))
            status = check(&list[*count], name, error);
    }
    return status;
}

static enum status read_hardware(struct described *d, struct error *error)
{
    enum status status;

    if (!d->gpu)
        return error_set(error, STATUS_INVALID_ARGUMENT,
                         "--gpu is missing: a name of deploy/hardware (rtx-4090, l4, h100-sxm, cpu), or a file");
    if ((status = read_list(d->gpu, d->folder, "gpu", hardware_check_s_part, d->s_parts, &d->s_part_count, error)) ||
        (status = read_list(d->worker, d->folder, "worker", hardware_check_worker, d->workers, &d->worker_count, error)))
        return status;
    for (uint32_t i = 0; i < d->worker_count; i++)
        d->worker_nodes[i] = hardware_take_node(&d->workers[i]);
    if (!d->link && d->workers[0].link_gb_per_second != 0) { // a measured host says what its own link does
        d->link_hardware = d->workers[0];
        return STATUS_OK;
    }
    d->link = d->link ? d->link : "eth25";
    status = hardware_read(d->link, d->folder, "link", &d->link_hardware, error);
    return status ? status : hardware_check_link(&d->link_hardware, d->link, error);
}

static enum status refuse_run(const char *what, const char *why, struct error *error)
{
    return error_set(error, STATUS_UNIMPLEMENTED, "%s: %s; --hypothetical answers all the same", what, why);
}

// Checks what the CUDA backend needs of a device, and what it has no kernels for (kernels/cuda).
static enum status check_gpu(const struct hardware *gpu, const struct plan_shape *shape, struct error *error)
{
    char why[160];

    if (gpu->compute_capability > 0 && gpu->compute_capability < HARDWARE_CAPABILITY_LEAST) {
        snprintf(why, sizeof why, "its compute capability is %.1f, and the kernels need %.1f or more", gpu->compute_capability,
                 HARDWARE_CAPABILITY_LEAST);
        return refuse_run(gpu->name, why, error);
    }
    if (shape->experts || shape->windowed_layers) {
        snprintf(why, sizeof why, "%s %s, which only the CPU backend computes (--gpu cpu)", shape->name,
                 shape->experts ? "has experts" : "has windows of attention");
        return refuse_run(gpu->name, why, error);
    }
    return STATUS_OK;
}

static enum status check_runs(const struct described *d, struct error *error)
{
    enum status status = STATUS_OK;
    char why[160];

    if (d->hypothetical)
        return STATUS_OK;
    if (d->shape.unknown_class[0]) {
        snprintf(why, sizeof why, "this release does not serve models of class %s", d->shape.unknown_class);
        return refuse_run(d->shape.name, why, error);
    }
    if (d->shape.latent)
        return refuse_run(d->shape.name, "this release has no latent attention", error);
    for (uint32_t i = 0; i < d->worker_count; i++)
        if (hardware_is_gpu(&d->workers[i]))
            return refuse_run(d->workers[i].name, "a KV worker computes on a CPU (--worker epyc-9554)", error);
    for (uint32_t i = 0; i < d->s_part_count && !status; i++)
        status = hardware_is_gpu(&d->s_parts[i]) ? check_gpu(&d->s_parts[i], &d->shape, error) : STATUS_OK;
    return status;
}

enum status described_check_context(const struct described *d, uint64_t tokens, struct error *error)
{
    char why[160];

    if (d->hypothetical || !d->shape.context_tokens || tokens <= d->shape.context_tokens)
        return STATUS_OK;
    snprintf(why, sizeof why, "its context is %u tokens, and a sequence has %llu", d->shape.context_tokens,
             (unsigned long long)tokens);
    return refuse_run(d->shape.name, why, error);
}

enum status described_read(struct described *d, struct plan_request *request, struct error *error)
{
    enum status status;

    if (!d->model == !d->shape_name)
        return error_set(error, STATUS_INVALID_ARGUMENT, "want --model FILE, or --shape NAME such as llama-3.1-8b");
    status = d->model ? shape_read(d->model, &d->shape, error) : shape_named(d->shape_name, d->weights, &d->shape, error);
    if (status || (status = kv_type_parse(d->kv_type_name, &request->kv_type, error)) || (status = read_hardware(d, error)))
        return status;
    for (uint32_t i = 0; i < d->s_part_count + d->worker_count; i++) {
        const struct hardware *h = i < d->s_part_count ? &d->s_parts[i] : &d->workers[i - d->s_part_count];
        if (h->model.name && strcmp(h->model.name, d->shape.name))
            return error_set(error, STATUS_INVALID_ARGUMENT,
                             "%s was measured with %s, not with %s: measure it again (plan --measure --model)", h->name,
                             h->model.name, d->shape.name);
    }
    if ((status = check_runs(d, error)))
        return status;
    request->shape = &d->shape;
    request->s_part = &d->s_parts[0];
    request->worker = &d->workers[0];
    request->link = &d->link_hardware;
    return STATUS_OK;
}

json_t *described_json(const struct described *d)
{
    return json_pack("{s:s,s:s,s:s,s:i,s:s,s:s}", "model", d->shape.name, "gpu", d->s_parts[0].name, "worker", d->workers[0].name,
                     "worker_nodes", (int)d->worker_nodes[0], "link", d->link_hardware.name, "kv_type", d->kv_type_name);
}

int described_fail(const struct described *d, const char *program, const struct error *error)
{
    fprintf(stderr, "%s: %s\n", program, error->text);
    if (d->json)
        report_json_print(json_pack("{s:{s:s,s:s}}", "error", "status", status_name(error->status), "message", error->text));
    return error->status == STATUS_RESOURCE_EXHAUSTED ? EXIT_CODE_SETTINGS : (int)error_exit_code(error);
}
