// cpu_weights.c: where the weights lie, and where they come from: the packed file if there is one, else the model file, and then the
// packed file is written for the next start.
//
//     weights: │ sections that stay │ slots, for those that are read each step (weight_stream.h) │
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "common/base/checked.h"
#include "common/base/clock.h"
#include "common/base/log.h"
#include "kernels/backend/cpu_internal.h"
#include "kernels/backend/packed_file.h"

// --- weights that do not stay in memory ---
//
// A segment's tables are pointed to the slot that its weights were read into, before it runs. Weights that cannot be read are a device that
// is lost: the process ends, and goes on with the sequences when it is started again.

enum { HOLDER = WEIGHT_USERS_MAX - 1 };

// Weights that cannot be read are a device that is lost: the process ends, and goes on with the sequences when it is started again.
static void die(const struct error *error)
{
    log_error("DEVICE-FAILED", "why=\"%s\" what=\"this s-part ends, and goes on when it is started again\"", error->text);
    _exit(EXIT_CODE_ENVIRONMENT);
}

// Opens what streams, once the file has been checked.
static enum status cpu_stream_open(struct backend *backend, struct error *error)
{
    const struct disk_config disk = {
        .method = backend->config.disk, .on_done = backend->config.on_weights, .user = backend->config.on_weights_user};
    enum status status = disk_queue_open(&disk, &backend->disk, error);
    const struct weight_stream_config config = {
        .file = backend->packed,
        .queue = backend->disk,
        .tiers = &backend->tiers,
        .memory = backend->weights + backend->tiers.resident_bytes,
        .us_per_byte = 1 / backend->disk_bytes_per_us,
    };

    return status ? status : weight_stream_open(&config, &backend->stream, error);
}

void cpu_stream_close(struct backend *backend)
{
    weight_stream_close(backend->stream);
    disk_queue_close(backend->disk);
    packed_file_close(backend->packed);
}

void cpu_stream_join(struct backend_batch *batch)
{
    struct backend *backend = batch->backend;

    while (batch->user < HOLDER && backend->users >> batch->user & 1)
        batch->user++;
    assert_always(batch->user < HOLDER);
    backend->users |= 1u << batch->user;
}

void cpu_stream_leave(struct backend_batch *batch)
{
    cpu_stream_end(batch);
    batch->backend->users &= ~(1u << batch->user);
}

void cpu_stream_enter(struct backend_batch *batch, uint32_t s)
{
    struct backend *backend = batch->backend;
    struct error error;

    if (!backend->stream)
        return;
    weight_stream_want(backend->stream, batch->user, s);
    if (!weight_tiers_streams(&backend->tiers, s))
        return;
    unsigned char *memory = (unsigned char *)weight_stream_wait(backend->stream, s, &error);
    if (!memory)
        die(&error);
    if (backend->section_at[1 + s] == memory)
        return;
    backend->section_at[1 + s] = memory;
    cpu_place_section(backend, 1 + s, memory);
}

void cpu_stream_want(struct backend_batch *batch, uint32_t s)
{
    if (batch->backend->stream)
        weight_stream_want(batch->backend->stream, batch->user, s);
}

uint32_t cpu_stream_turn(struct backend_batch *batch, uint32_t s)
{
    struct backend *backend = batch->backend;
    struct error error;

    if (!backend->stream)
        return 0;
    if (weight_stream_failed(backend->stream, &error))
        die(&error);
    if (weight_tiers_streams(&backend->tiers, s) && !weight_stream_get(backend->stream, s))
        return BACKEND_NOT_YET;
    return weight_stream_age(backend->stream, s);
}

// A user beside the mini-batches, who never goes on.
void cpu_stream_hold(struct backend *backend, bool hold)
{
    if (backend->stream)
        weight_stream_want(backend->stream, HOLDER, hold ? 0 : WEIGHT_NONE);
}

void cpu_stream_end(struct backend_batch *batch)
{
    if (batch->backend->stream)
        weight_stream_want(batch->backend->stream, batch->user, WEIGHT_NONE);
}

void cpu_stream_info(const struct backend *backend, struct backend_info *info)
{
    struct weight_stream_counts counts;

    if (!backend->stream)
        return;
    weight_stream_count(backend->stream, &counts);
    info->streamed_segments = counts.segments;
    info->streamed_bytes = counts.bytes;
    info->stream_pieces = disk_queue_pieces(backend->disk);
    info->stream_step_us = counts.step_us;
}

enum { READ_AHEAD = WEIGHT_SLOTS_MIN, TRIES = 5 };

// Section 0 always stays in memory; the others are segments.
static enum status choose_tiers(const struct backend_config *config, const struct cpu_sections *sections, struct weight_tiers *out,
                                struct error *error)
{
    const uint64_t memory = config->weights_memory ? config->weights_memory : UINT64_MAX;
    return weight_tiers_choose(sections->bytes + 1, sections->count - 1, sections->bytes[0], memory, out, error);
}

enum status cpu_plan_weights(const struct backend_config *config, const struct layer_range *range, struct backend_plan *plan,
                             struct error *error)
{
    struct cpu_sections sections;
    struct weight_tiers tiers;
    enum status status = cpu_size_sections(config, range, &sections, error);

    if (status || (status = choose_tiers(config, &sections, &tiers, error)))
        return status;
    plan->weight_bytes = weight_tiers_bytes(&tiers);
    plan->streamed_bytes = plan->disk_bytes = tiers.streamed_bytes;
    plan->weight_slots = tiers.slots;
    plan->start_bytes = sections.largest_tensor;
    int written = snprintf(plan->weights_kind, sizeof plan->weights_kind, "%s", cpu_class_name(config));
    if (config->quantize_bits)
        snprintf(plan->weights_kind + written, sizeof plan->weights_kind - (size_t)written, "-%ubit", config->quantize_bits);
    return STATUS_OK;
}

static struct packed_layout layout_of(const struct backend *backend)
{
    return (struct packed_layout){.model = backend->config.model->fingerprint,
                                  .layout = backend->sections.layout,
                                  .blob_count = backend->sections.count,
                                  .blob_bytes = backend->sections.bytes};
}

// Returns where a section is put while the weights are loaded: one that streams into a slot, READ_AHEAD in turn.
static unsigned char *place_of(const struct backend *backend, uint32_t section)
{
    if (backend->section_at[section])
        return backend->section_at[section];
    return backend->weights + backend->tiers.resident_bytes + section % READ_AHEAD * backend->tiers.slot_bytes;
}

// --- reading ---

static void ask(const struct backend *backend, const struct packed_file *file, struct disk_queue *queue, uint32_t section,
                struct disk_read *read)
{
    const struct packed_blob *blob = packed_file_blob(file, section);
    *read = (struct disk_read){.descriptor = packed_file_descriptor(file),
                               .offset = blob->offset,
                               .bytes = blob->bytes,
                               .memory = place_of(backend, section)};
    if (blob->bytes)
        disk_queue_read(queue, read);
}

// Reads and checks all sections, the next one while one is checked; those that stay are then where they belong.
static enum status read_sections(struct backend *backend, const struct packed_file *file, struct error *error)
{
    const struct disk_config config = {.method = backend->config.disk};
    struct disk_read reads[READ_AHEAD];
    struct disk_queue *queue;
    enum status status = disk_queue_open(&config, &queue, error);

    if (status)
        return status;
    for (uint32_t i = 0; i < READ_AHEAD - 1 && i < backend->sections.count; i++)
        ask(backend, file, queue, i, &reads[i]);
    for (uint32_t i = 0; i < backend->sections.count && !status; i++) {
        if (i + READ_AHEAD - 1 < backend->sections.count)
            ask(backend, file, queue, i + READ_AHEAD - 1, &reads[(i + READ_AHEAD - 1) % READ_AHEAD]);
        if (!backend->sections.bytes[i])
            continue;
        disk_queue_wait(queue, &reads[i % READ_AHEAD]);
        status = disk_read_status(&reads[i % READ_AHEAD], packed_file_path(file), error);
        if (!status)
            status = packed_file_check(file, i, place_of(backend, i), error);
        if (!status && backend->section_at[i])
            cpu_place_section(backend, i, backend->section_at[i]);
    }
    disk_queue_close(queue);
    return status;
}

// Fills the weights that stay from the packed file, and checks the others. NOT_FOUND: there is none. Any other failure: it cannot be used.
static enum status read_packed(struct backend *backend, struct error *error)
{
    const struct packed_layout layout = layout_of(backend);
    const uint64_t began_us = clock_now_us();
    const uint64_t bytes = packed_layout_bytes(&layout);
    struct packed_file *file;
    enum status status = packed_file_open(backend->config.packed_path, &layout, &file, error);

    if (status)
        return status;
    if ((status = read_sections(backend, file, error))) {
        packed_file_close(file);
        return status;
    }
    backend->disk_bytes_per_us = (double)bytes / packed_log_read(backend->config.packed_path, bytes, began_us);
    if (backend->tiers.streamed_count)
        backend->packed = file;
    else
        packed_file_close(file);
    return STATUS_OK;
}

// --- converting and writing ---

// Converts the weights and, with a writer, writes them. A writer that fails is given up: *writer is NULL then, *not_written says why, and
// the weights that stay are converted all the same.
static enum status convert_sections(struct backend *backend, struct packed_writer **writer, struct error *not_written,
                                    struct error *error)
{
    const struct packed_layout layout = layout_of(backend);
    const uint64_t total = packed_layout_bytes(&layout);
    uint64_t said_us = clock_now_us(), done = 0;
    enum status status = STATUS_OK;

    for (uint32_t i = 0; i < backend->sections.count && !status; i++) {
        if (!*writer && !backend->section_at[i])
            continue;
        status = cpu_fill_section(backend, i, place_of(backend, i), error);
        if (!status && *writer && packed_writer_put(*writer, place_of(backend, i), not_written)) {
            packed_writer_abort(*writer);
            *writer = NULL;
        }
        done += backend->sections.bytes[i];
        packed_log_writing(&said_us, done, total);
    }
    return status;
}

// Converts the weights and writes the packed file, if there is to be one. ALREADY_EXISTS: another process has written it meanwhile, nothing
// was converted. Without weights that stream, a file that cannot be written is only logged.
static enum status convert(struct backend *backend, struct error *error)
{
    const struct packed_layout layout = layout_of(backend);
    const bool streams = backend->tiers.streamed_count > 0;
    const char *path = backend->config.packed_path;
    const uint64_t began_us = clock_now_us();
    struct packed_writer *writer = NULL;
    struct error not_written = {.status = STATUS_OK};
    enum status status;

    if (path && packed_writer_open(path, &layout, streams, &writer, &not_written) == STATUS_ALREADY_EXISTS)
        return STATUS_ALREADY_EXISTS;
    if ((status = convert_sections(backend, &writer, &not_written, error))) {
        packed_writer_abort(writer);
        return status;
    }
    if (writer && !packed_writer_commit(writer, &not_written))
        packed_log_written(path, packed_layout_bytes(&layout), began_us);
    if (!not_written.status)
        return STATUS_OK;
    if (!streams) {
        log_warn("WEIGHTS-NOT-PACKED", "why=\"%s\" what=\"the next start converts them again\"", not_written.text);
        return STATUS_OK;
    }
    *error = not_written;
    return not_written.status;
}

// --- both ---

static enum status load(struct backend *backend, struct error *error)
{
    const bool streams = backend->tiers.streamed_count > 0;
    enum status status = STATUS_OK;

    if (!backend->config.packed_path)
        return streams
                   ? error_set(error, STATUS_INVALID_ARGUMENT, "weights that do not fit memory need a packed file (--cache-dir)")
                   : convert(backend, error);
    for (uint32_t i = 0; i < TRIES; i++) {
        status = read_packed(backend, error);
        if (!status)
            return STATUS_OK;
        if (status != STATUS_NOT_FOUND)
            log_warn("WEIGHTS-PACKED-ANEW", "why=\"%s\"", error->text);
        status = convert(backend, error);
        if (status ? status != STATUS_ALREADY_EXISTS : !streams)
            return status;
    }
    return status ? status : error_set(error, STATUS_UNAVAILABLE, "%s: cannot be read", backend->config.packed_path);
}

static enum status map_weights(struct backend *backend, struct error *error)
{
    uint64_t at = 0;

    backend->weights_bytes = weight_tiers_bytes(&backend->tiers);
    backend->weights = mmap(NULL, backend->weights_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (backend->weights == MAP_FAILED) {
        backend->weights = NULL;
        return error_set(error, STATUS_RESOURCE_EXHAUSTED, "cannot allocate %llu MiB for the weights",
                         (unsigned long long)(backend->weights_bytes >> 20));
    }
    madvise(backend->weights, backend->weights_bytes, MADV_HUGEPAGE); // fewer TLB misses; a kernel without them is fine
    for (uint32_t i = 0; i < backend->sections.count; i++) {
        if (i > 0 && weight_tiers_streams(&backend->tiers, i - 1))
            continue;
        backend->section_at[i] = backend->weights + at;
        at += backend->sections.bytes[i];
    }
    assert_always(at == backend->tiers.resident_bytes);
    return STATUS_OK;
}

enum status cpu_load_weights(struct backend *backend, struct error *error)
{
    enum status status = cpu_size_sections(&backend->config, &backend->range, &backend->sections, error);

    if (!status)
        status = choose_tiers(&backend->config, &backend->sections, &backend->tiers, error);
    if (!status)
        status = map_weights(backend, error);
    if (!status)
        status = load(backend, error);
    if (!status && backend->tiers.streamed_count)
        status = cpu_stream_open(backend, error);
    return status;
}
