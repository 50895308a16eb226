// node_worker.c: a kv-worker as a node: both of its threads take their turns in one.
#include <stdio.h>
#include <stdlib.h>

#include "services/kv-worker/worker.h"
#include "tests/sim/check.h"
#include "tests/sim/services.h"

static enum status start(struct node *node, struct error *error)
{
    struct worker *worker = calloc(1, sizeof *worker);

    if (!worker)
        return error_set(error, STATUS_RESOURCE_EXHAUSTED, "no memory");
    node->service = worker;
    worker->settings = (struct worker_settings){.name = node->name,
                                                .scheduler = "inproc://sched",
                                                .otlp_endpoint = "none",
                                                .listen = node->address,
                                                .listen_tensors = node->tensor_address,
                                                .kv_memory = mesh_settings.worker_bytes,
                                                .numa_node = "none",
                                                .threads = 1};
    return worker_open(worker, error);
}

static enum status turn(struct node *node, bool *ends, struct error *error)
{
    struct worker *worker = node->service;

    worker_turn_tensors(worker);
    const enum status status = worker_turn_control(worker, error);
    *ends = worker->control.drained;
    return status;
}

static void finish(struct node *node)
{
    worker_close_tensors(node->service);
    worker_close(node->service);
    free(node->service);
}

static bool rests(const struct node *node, char *out, size_t out_bytes)
{
    const struct worker *worker = node->service;

    REST(member_is_registered(worker->control.member), "%s is not registered", node->name);
    REST(!worker->handover.fetches && !worker->handover.copies, "%s hands pages over", node->name);
    return true;
}

const struct service_kind worker_kind = {.loops = 2, .start = start, .turn = turn, .close = finish, .rests = rests};

uint32_t worker_pages_used(const struct node *node)
{
    const struct worker *worker = node->service;
    return worker->attend.store ? kv_store_pages_used(worker->attend.store) : 0;
}

bool worker_drain(struct node *node)
{
    struct worker *worker = node->service;

    if (worker->control.draining)
        return false;
    control_drain(worker);
    return true;
}

// The linker puts it before the worker's own.
void __real_attend_free(struct worker *worker, uint64_t sequence);
void __wrap_attend_free(struct worker *worker, uint64_t sequence);
void __wrap_attend_free(struct worker *worker, uint64_t sequence)
{
    check_free(worker->settings.name, sequence);
    __real_attend_free(worker, sequence);
}
