// offload.c: `fastdecode plan --offload`; common/plan/offload.h has the linear program.
#include <stdio.h>

#include "services/fastdecode/capacity/report.h"
#include "services/fastdecode/plan/commands.h"

#define GIB (1024.0 * 1024.0 * 1024.0)

// --- JSON -------------------------------------------------------------------------------------------------------------

static json_t *split_json(const struct offload_split *split)
{
    return json_pack("{s:f, s:f, s:f}", "device", split->device, "host", split->host, "disk", split->disk);
}

static json_t *phase_json(const struct offload_phase *phase)
{
    return json_pack("{s:f, s:s, s:f, s:f, s:f, s:f, s:f}", "layer_seconds", phase->seconds, "bound_by",
                     offload_phase_bound_name(phase), "compute", phase->lanes[OFFLOAD_COMPUTE], "copy_in",
                     phase->lanes[OFFLOAD_COPY_IN], "copy_out", phase->lanes[OFFLOAD_COPY_OUT], "disk_read",
                     phase->lanes[OFFLOAD_DISK_READ], "disk_write", phase->lanes[OFFLOAD_DISK_WRITE]);
}

static void print_json(const struct offload_request *r, const struct offload_plan *plan, double hours)
{
    json_t *object = json_pack("{s:s, s:s, s:I, s:I, s:I, s:b}", "model", r->shape->name, "gpu", r->device->name, "prompt_tokens",
                               (json_int_t)r->prompt_tokens, "generated_tokens", (json_int_t)r->generated_tokens, "workers",
                               (json_int_t)r->workers, "compress", r->compress);

    json_object_set_new(object, "tokens_per_second", json_real(plan->tokens_per_second));
    if (hours > 0)
        json_object_set_new(object, "hours", json_real(hours));
    json_object_set_new(object, "policy", json_string(r->paper ? "paper" : "mesh"));
    json_object_set_new(object, "gpu_batch", json_integer(plan->gpu_batch));
    json_object_set_new(object, "gpu_batches", json_integer(plan->gpu_batches));
    json_object_set_new(object, "weights", split_json(&plan->weights));
    json_object_set_new(object, "activations", split_json(&plan->activations));
    json_object_set_new(object, "kv", split_json(&plan->kv));
    json_object_set_new(object, "bound_by", json_string(offload_bound_name(plan)));
    json_object_set_new(object, "block_seconds", json_real(plan->block_seconds));
    json_object_set_new(object, "prompts", phase_json(&plan->prompts));
    json_object_set_new(object, "decode", phase_json(&plan->decode));
    json_object_set_new(object, "device_bytes", json_integer((json_int_t)plan->device_bytes));
    json_object_set_new(object, "host_bytes", json_integer((json_int_t)plan->host_bytes));
    json_object_set_new(object, "disk_bytes", json_integer((json_int_t)plan->disk_bytes));
    json_object_set_new(object, "device_limit_bytes", json_integer((json_int_t)plan->device_limit));
    json_object_set_new(object, "host_limit_bytes", json_integer((json_int_t)plan->host_limit));
    json_object_set_new(object, "disk_limit_bytes", json_integer((json_int_t)plan->disk_limit));
    json_object_set_new(object, "kv_bytes_per_worker", json_integer((json_int_t)plan->worker_bytes));
    report_json_print(object);
}

// --- text -------------------------------------------------------------------------------------------------------------

static void print_split(const char *name, const struct offload_split *split)
{
    printf("  %-14s %6.1f %% %6.1f %% %6.1f %%\n", name, 100 * split->device, 100 * split->host, 100 * split->disk);
}

static void print_phase(const char *name, double layers, const struct offload_phase *phase)
{
    printf(
        "  %-14s %9.3f s: a layer takes %.4g s (compute %.3g, copy in %.3g, copy out %.3g, disk read %.3g, disk write %.3g); bound by %s\n",
        name, layers * phase->seconds, phase->seconds, phase->lanes[OFFLOAD_COMPUTE], phase->lanes[OFFLOAD_COPY_IN],
        phase->lanes[OFFLOAD_COPY_OUT], phase->lanes[OFFLOAD_DISK_READ], phase->lanes[OFFLOAD_DISK_WRITE],
        offload_phase_bound_name(phase));
}

static void print_text(const struct offload_request *r, const struct offload_plan *plan, uint64_t requests, double hours)
{
    uint32_t sequences = plan->gpu_batch * plan->gpu_batches;

    printf("model       %s: %u layers of %.1f M weights%s\n", r->shape->name, r->shape->layers,
           (double)r->shape->layer_values / 1e6, r->compress ? ", weights and KV in 4.5 bits" : "");
    printf("load        prompt %u, %u generated\n", r->prompt_tokens, r->generated_tokens);
    printf("hardware    %s", r->device->name);
    if (r->workers)
        printf("; %u of %s; link: %s", r->workers, r->worker->name, r->link->name);
    printf("\n\n  block          %u x %u: %u sequences, %.0f s\n", plan->gpu_batch, plan->gpu_batches, sequences,
           plan->block_seconds);
    printf("  tokens/s       %.3f\n  bound by       %s\n", plan->tokens_per_second, offload_bound_name(plan));
    if (requests)
        printf("  %llu requests  %.1f hours\n", (unsigned long long)requests, hours);
    printf("\n");
    printf("                   device     host     disk\n");
    print_split("weights", &plan->weights);
    print_split("activations", &plan->activations);
    if (r->workers)
        printf("  KV                on the workers, %.1f GiB each\n", plan->worker_bytes / GIB);
    else
        print_split("KV", &plan->kv);
    printf("  memory, GiB    %8.1f %8.1f %8.1f\n  of             %8.1f %8.1f %8.1f\n\n", plan->device_bytes / GIB,
           plan->host_bytes / GIB, plan->disk_bytes / GIB, plan->device_limit / GIB, plan->host_limit / GIB,
           plan->disk_limit / GIB);
    print_phase("prompts", r->shape->layers, &plan->prompts);
    print_phase("each token", r->shape->layers, &plan->decode);
}

// --- the run ----------------------------------------------------------------------------------------------------------

enum status plan_offload(const struct described *described, const struct plan_request *load, struct offload_request *r,
                         uint64_t requests, struct error *error)
{
    struct offload_plan made;
    enum status status;

    if (described->s_part_count > 1 || described->worker_count > 1)
        return error_set(error, STATUS_INVALID_ARGUMENT, "--offload plans for one --gpu and one --worker");
    r->shape = &described->shape;
    r->device = &described->s_parts[0];
    r->worker = &described->workers[0];
    r->link = &described->link_hardware;
    r->kv_type = load->kv_type;
    r->prompt_tokens = load->prompt_tokens;
    r->generated_tokens = load->generated_tokens;
    r->workers = load->workers == PLAN_CHOOSE ? 0 : load->workers;
    if ((status = offload_plan_make(r, &made, error)))
        return status;
    const double hours = plan_hours(load, requests, made.tokens_per_second);
    if (described->json)
        print_json(r, &made, hours);
    else
        print_text(r, &made, requests, hours);
    return STATUS_OK;
}
