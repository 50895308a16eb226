// pages.c: pages of the store for those that take sequences over, and from those that give them.
#include "services/kv-worker/worker.h"

static uint64_t page_bytes(void *user)
{
    const struct worker *worker = user;
    return worker->attend.store ? kv_page_bytes(&worker->attend.shape) : 0;
}

static const struct kv_shape *shape_of(void *user)
{
    const struct worker *worker = user;
    return &worker->attend.shape;
}

static enum status export_page(void *user, uint64_t sequence, uint32_t page_index, void *page, uint32_t *positions,
                               struct error *error)
{
    const struct worker *worker = user;

    if (!kv_store_export_page(worker->attend.store, sequence, page_index, page, positions))
        return STATUS_OK;
    return error_set(error, STATUS_NOT_FOUND, "page %u of sequence %llx is not held", page_index, (unsigned long long)sequence);
}

static enum status import_page(void *user, uint64_t sequence, uint32_t page_index, const void *page, uint32_t positions,
                               struct error *error)
{
    struct worker *worker = user;
    return kv_store_import_page(worker->attend.store, sequence, page_index, page, positions, error);
}

static void free_pages(void *user, uint64_t sequence) { attend_free(user, sequence); }

static enum status make_way(void *user, uint64_t sequence, struct error *error)
{
    (void)error;
    attend_free(user, sequence);
    return STATUS_OK;
}

static void publish(void *user) { attend_publish(user); }

const struct handover_pages worker_pages = {
    .page_bytes = page_bytes,
    .shape = shape_of,
    .export_page = export_page,
    .import_page = import_page,
    .make_way = make_way,
    .free_pages = free_pages,
    .publish = publish,
};
