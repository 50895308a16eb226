// described.c: see described.h.
#include "services/fastdecode/plan/described.h"

#include <stdio.h>
#include <string.h>

#include "common/service/service.h"

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
        return error_set(error, STATUS_INVALID_ARGUMENT, "--gpu is missing: a10, h200, t4, cpu, or a file");
    if ((status = read_list(d->gpu, d->folder, "gpu", hardware_check_s_part, d->s_parts, &d->s_part_count, error)) ||
        (status = read_list(d->worker, d->folder, "worker", hardware_check_worker, d->workers, &d->worker_count, error)))
        return status;
    for (uint32_t i = 0; i < d->worker_count; i++)
        d->worker_nodes[i] = hardware_take_node(&d->workers[i]);
    if (!d->link && d->workers[0].link_gb_per_second != 0) { // a measured host says what its own link does
        d->link_hardware = d->workers[0];
        return STATUS_OK;
    }
    d->link = d->link ? d->link : "infiniband";
    status = hardware_read(d->link, d->folder, "link", &d->link_hardware, error);
    return status ? status : hardware_check_link(&d->link_hardware, d->link, error);
}

enum status described_read(struct described *d, struct plan_request *request, struct error *error)
{
    enum status status;

    if (!d->model == !d->shape_name)
        return error_set(error, STATUS_INVALID_ARGUMENT, "want --model FILE or --shape NAME (" SHAPE_NAMES ")");
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
    request->shape = &d->shape;
    request->s_part = &d->s_parts[0];
    request->worker = &d->workers[0];
    request->link = &d->link_hardware;
    return STATUS_OK;
}

int described_exit(const struct error *error)
{
    return error->status == STATUS_RESOURCE_EXHAUSTED ? SERVICE_EXIT_SETTINGS : (int)service_exit_of(error);
}
