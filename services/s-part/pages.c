// pages.c: pages of the local pool for workers that take sequences over, and from those that give them. On the engine's thread.
#include "services/s-part/engine_state.h"

static uint64_t page_bytes(void *user)
{
    const struct engine *engine = user;
    return engine_page_bytes(engine);
}

static uint32_t max_context(void *user)
{
    const struct engine *engine = user;
    return engine->context_tokens;
}

static uint32_t page_tokens(void *user)
{
    const struct engine *engine = user;
    return engine->kv_shape.page_tokens;
}

static uint32_t first_page(void *user, uint32_t positions)
{
    const struct engine *engine = user;
    return kv_first_page(&engine->kv_shape, positions);
}

static enum status export_page(void *user, uint64_t sequence, uint32_t page_index, void *page, uint32_t *positions,
                               struct error *error)
{
    const struct engine *engine = user;
    return engine->ops->pool_export(engine->backend, sequence, page_index, page, positions, error);
}

static enum status import_page(void *user, uint64_t sequence, uint32_t page_index, const void *page, uint32_t positions,
                               struct error *error)
{
    const struct engine *engine = user;
    return engine->ops->pool_import(engine->backend, sequence, page_index, page, positions, error);
}

static bool copied(void *user)
{
    const struct engine *engine = user;
    return engine->ops->pool_copied(engine->backend);
}

static void stop_copy(void *user)
{
    const struct engine *engine = user;
    engine->ops->pool_stop_copy(engine->backend);
}

static void free_pages(void *user, uint64_t sequence) { engine_release_pages(user, sequence); }

// A device may still write to pages of a sequence that a step has. Of one that no step has, no release is deferred.
static enum status make_way(void *user, uint64_t sequence, struct error *error)
{
    struct engine *engine = user;

    if (engine_in_use(engine, sequence, NULL))
        return error_set(error, STATUS_UNAVAILABLE, "a step uses sequence %llx", (unsigned long long)sequence);
    engine->ops->pool_release(engine->backend, sequence);
    return STATUS_OK;
}

uint64_t engine_page_bytes(const struct engine *engine)
{
    return engine->ops->pool_page_bytes ? engine->ops->pool_page_bytes(engine->backend) : 0;
}

void engine_pages_open(struct engine *engine)
{
    static const struct handover_pages pages = {
        .page_bytes = page_bytes,
        .max_context = max_context,
        .page_tokens = page_tokens,
        .first_page = first_page,
        .export_page = export_page,
        .import_page = import_page,
        .copied = copied,
        .stop_copy = stop_copy,
        .make_way = make_way,
        .free_pages = free_pages,
    };
    engine->handover = (struct handover){.pages = &pages,
                                         .user = engine,
                                         .control_loop = engine->loop,
                                         .tensor_loop = engine->loop,
                                         .hello = {.service = "s-part", .incarnation = engine->incarnation}};
}
