// cpu_load.c: weights from the model file into the layouts that the kernels read.
//
// They come in sections: section 0 is what every step needs besides the layers, the embedding, the output matrix and its norm; section
// 1 + s is what segment s reads, in the order in which it does: the end of layer s - 1, then the beginning of layer s. A section is in
// one piece, wherever that is (cpu_weights.c), and is walked in one order: to add up sizes, to convert, or only to point into what has
// been converted before.
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/checked.h"
#include "kernels/backend/backend.h"
#include "kernels/backend/cpu_internal.h"
#include "kernels/backend/packed_file.h"
#include "kernels/quant/dequant.h"

// --- rows of the model file into tiles, or into f32 ---
//
// Matrices of 16 or 32 bits may be made into 4 or 8 on their way (--quantize), by the encoder of `fastdecode quantize`, so that both give
// the same numbers; those that lie in another order are put into GGUF's. A tile is converted by itself: what is needed beside the result
// is a tile for each thread.

static uint64_t row_bytes_of(enum tensor_type type, uint32_t columns)
{
    const struct tensor_type_info *info = tensor_type_info((uint32_t)type);
    return (uint64_t)columns / info->block_values * info->block_bytes;
}

// Room for some rows on their way: as the file would have them, if they lie in another order, and in the type that they are loaded in, if it
// is another.
struct room {
    unsigned char *read, *encoded; // NULL: not needed
    bool failed;
};

static struct room make_room(const struct tensor_view *view, enum tensor_type type, uint32_t rows)
{
    struct room room = {0};

    if (view->stored)
        room.failed = !(room.read = malloc(rows * (view->bytes / view->rows)));
    if (type != view->type)
        room.failed |= !(room.encoded = malloc(rows * row_bytes_of(type, view->columns)));
    return room;
}

static void free_room(struct room *room)
{
    free(room->read);
    free(room->encoded);
}

// Rows of a view as blocks of `type`, wherever they are then. NULL: a value is not finite, or there is no room.
static const void *rows_as(enum tensor_type type, const struct tensor_view *view, uint32_t row, uint32_t count,
                           const struct room *room)
{
    const void *rows = room->failed ? NULL : model_view_rows(view, row, count, room->read);

    if (!rows || type == view->type)
        return rows;
    return encode_blocks(view->type, rows, (uint64_t)count * view->columns, type, room->encoded) ? room->encoded : NULL;
}

// Converts tiles or rows of a matrix. Its type may be another than the file's (loaded_type_of). false: a value is not finite, or there is no
// memory for a tile. Threads may convert parts of one matrix at the same time.
static bool cpu_pack_tiles(const struct packed_matrix *matrix, const struct tensor_view *view, uint32_t tile_begin,
                           uint32_t tile_count)
{
    enum tensor_type type = (enum tensor_type)matrix->source_type;
    struct room room = make_room(view, type, PACK_TILE_OUTPUTS);
    bool ok = true;

    for (uint32_t tile = tile_begin; tile < tile_begin + tile_count && ok; tile++) {
        uint32_t first = tile * PACK_TILE_OUTPUTS, count = MIN(PACK_TILE_OUTPUTS, view->rows - first);
        const void *rows = rows_as(type, view, first, count, &room);
        struct packed_matrix one = *matrix;
        one.data += tile * matrix->tile_bytes;
        one.output_count = count;
        one.tile_count = 1;
        if ((ok = rows != NULL))
            pack_tiles(&one, rows, 0, 1);
    }
    free_room(&room);
    return ok;
}

static bool cpu_dequantize_rows(enum tensor_type type, const struct tensor_view *view, uint32_t row_begin, uint32_t row_count,
                                float *out)
{
    struct room room = make_room(view, type, PACK_TILE_OUTPUTS);
    bool ok = true;

    for (uint32_t done = 0, count; done < row_count && ok; done += count) {
        count = MIN(PACK_TILE_OUTPUTS, row_count - done);
        const void *rows = rows_as(type, view, row_begin + done, count, &room);
        if ((ok = rows != NULL))
            dequantize(type, rows, (uint64_t)count * view->columns, out + (uint64_t)done * view->columns);
    }
    free_room(&room);
    return ok;
}

enum { ALIGN = 64 };
#define LAYOUT_VERSION 1u // grows when the bytes of a section change and nothing that is mixed in below does

// Walks one section.
struct loader {
    const struct model *model;
    struct backend *backend;
    unsigned char *base; // NULL while sizes are added up
    bool convert;        // else what is there has been converted
    uint64_t used;
    uint64_t largest; // tensor of the file
    uint64_t layout;  // a number made of what the bytes depend on
    bool quantized;   // a matrix has groups
    struct error *error;
    enum status status;
};

static void mix(struct loader *loader, uint64_t value) { packed_layout_mix(&loader->layout, value); }

static void *take(struct loader *loader, uint64_t bytes)
{
    uint64_t at = loader->used;
    loader->used += (bytes + ALIGN - 1) / ALIGN * ALIGN;
    return loader->base ? loader->base + at : NULL;
}

static void load_vector(struct loader *loader, const struct tensor_view *view, const float **out)
{
    *out = NULL;
    if (!view->data || loader->status)
        return;
    uint64_t count = (uint64_t)view->rows * view->columns;
    float *values = take(loader, count * sizeof *values);
    mix(loader, count);
    if (values && loader->convert && !cpu_dequantize_rows(view->type, view, 0, view->rows, values))
        loader->status = error_set(loader->error, STATUS_RESOURCE_EXHAUSTED, "tensor '%.*s': no memory for a row of it",
                                   (int)view->name_length, view->name);
    *out = values;
}

static void load_norm(struct loader *loader, const struct tensor_view *weight, const struct tensor_view *bias, struct cpu_norm *out)
{
    load_vector(loader, weight, &out->weight);
    out->bias = NULL;
    if (bias)
        load_vector(loader, bias, &out->bias);
    out->size = weight->columns;
    for (uint32_t i = 0; out->weight && loader->convert && loader->model->shape.norm_plus_one && i < weight->columns; i++)
        ((float *)out->weight)[i] += 1;
}

struct convert_job {
    struct thread_pool *pool;
    struct cpu_linear *linear;
    const struct tensor_view *view;
    enum tensor_type type; // as it is loaded; another than the view's: quantized
    float *dense;
    atomic_bool bad; // relaxed: read when the threads have ended
};

// How many pieces a matrix is converted in: those of several experts that the file has apart, or in another order, so that of the latter one is in
// memory at a time.
static uint32_t piece_count_of(const struct tensor_view *view)
{
    return view->stored ? view->stored->matrix_count : view->piece_count;
}

// Bytes of the file that are mapped while one is converted.
static uint64_t read_at_once(const struct tensor_view *view)
{
    const struct stored_rows *stored = view->stored;
    return stored ? (stored->values_bytes + stored->scales_bytes) / stored->matrix_count : view->bytes;
}

// One of them as a view, and as what it is loaded into.
struct piece {
    struct tensor_view view;
    struct stored_rows stored;
    struct cpu_linear linear;
};

static void point_to_piece(struct convert_job *job, const struct tensor_view *view, uint32_t index, struct piece *one)
{
    const uint32_t pieces = piece_count_of(view), rows = view->rows / pieces;

    one->view = *view;
    one->view.rows = rows;
    one->view.bytes = view->bytes / pieces;
    if (view->stored) {
        one->stored = stored_rows_matrix(view->stored, index);
        one->view.stored = &one->stored;
    } else {
        one->view.data = view->pieces[index];
    }
    one->linear = cpu_linear_part(job->linear, index, pieces);
    job->view = &one->view;
    job->linear = &one->linear;
    job->dense += job->dense ? (uint64_t)index * rows * view->columns : 0;
}

static void convert_thread(void *arg, uint32_t thread_index, uint32_t thread_count)
{
    enum { GRAIN = 16 };
    struct convert_job *job = arg;
    uint32_t items = job->dense ? job->linear->outputs : job->linear->packed.tile_count;

    (void)thread_index, (void)thread_count;
    for (uint64_t begin; (begin = (uint64_t)thread_pool_claim(job->pool) * GRAIN) < items;) {
        uint32_t count = (uint32_t)MIN((uint64_t)GRAIN, items - begin), first = (uint32_t)begin;
        bool ok = job->dense ? cpu_dequantize_rows(job->type, job->view, first, count, job->dense + begin * job->linear->inputs)
                             : cpu_pack_tiles(&job->linear->packed, job->view, first, count);
        if (!ok)
            atomic_store_explicit(&job->bad, true, memory_order_relaxed);
    }
}

static void mix_matrix(struct loader *loader, const struct packed_matrix *m)
{
    const uint64_t parts[] = {m->layout,       m->super,        m->minimum,          m->source_type,  m->k,
                              m->tile_count,   m->super_offset, m->super_min_offset, m->scale_offset, m->min_offset,
                              m->quant_offset, m->tile_bytes};
    for (size_t i = 0; i < ARRAY_COUNT(parts); i++)
        mix(loader, parts[i]);
}

// type: as which it is loaded, the view's own or another float's.
static void load_as(struct loader *loader, const struct tensor_view *view, enum tensor_type type, struct cpu_linear *out)
{
    *out = (struct cpu_linear){0};
    if (loader->status || !view->data)
        return;
    *out = (struct cpu_linear){.outputs = view->rows, .inputs = view->columns};
    struct convert_job job = {.linear = out, .view = view, .type = type};
    mix(loader, job.type);
    if (loader->backend->dense) {
        out->dense = job.dense = take(loader, (uint64_t)view->rows * view->columns * sizeof(float));
        mix(loader, view->rows);
        mix(loader, view->columns);
    } else {
        loader->status = pack_plan((uint32_t)job.type, view->rows, view->columns, &out->packed, loader->error);
        if (loader->status) {
            error_prefix(loader->error, "tensor '%.*s'", (int)view->name_length, view->name);
            return;
        }
        out->packed.data = take(loader, out->packed.bytes);
        mix_matrix(loader, &out->packed);
        loader->quantized |= out->packed.group_count != 0;
    }
    loader->largest = MAX(loader->largest, read_at_once(view));
    if (loader->base && loader->convert) {
        job.pool = loader->backend->config.pool;
        for (uint32_t i = 0; i < MAX(piece_count_of(view), 1u); i++) {
            struct convert_job own = job;
            struct piece piece;
            if (piece_count_of(view))
                point_to_piece(&own, view, i, &piece);
            thread_pool_run(job.pool, convert_thread, &own);
            model_release_tensor(loader->model, own.view); // so that the file is never in memory twice as a whole
            if (atomic_load_explicit(&own.bad, memory_order_relaxed))
                atomic_store_explicit(&job.bad, true, memory_order_relaxed);
        }
        if (atomic_load_explicit(&job.bad, memory_order_relaxed))
            loader->status =
                error_set(loader->error, STATUS_DATA_LOSS, "tensor '%.*s' cannot be %s: %s, or no memory is left",
                          (int)view->name_length, view->name, type == view->type ? "converted" : "quantized",
                          view->stored && view->stored->scales ? "a scale is 255, not a number" : "a value is not finite");
    }
}

static void load_linear(struct loader *loader, const struct tensor_view *view, struct cpu_linear *out)
{
    load_as(loader, view, loaded_type_of(&loader->backend->config, view), out);
}

static void load_biased(struct loader *loader, const struct tensor_view *weight, const struct tensor_view *bias,
                        struct cpu_linear *out)
{
    load_linear(loader, weight, out);
    load_vector(loader, bias, &out->bias);
}

static void load_resident(struct loader *loader)
{
    const struct model *model = loader->model;
    struct backend *backend = loader->backend;
    const struct layer_range *range = &backend->range;

    if (range->is_first)
        load_linear(loader, &model->embedding, &backend->embedding);
    if (range->is_last && range->is_first && model->tied)
        backend->output = backend->embedding;
    else if (range->is_last)
        load_linear(loader, &model->output, &backend->output);
    if (range->is_last)
        load_norm(loader, &model->output_norm, &model->output_norm_bias, &backend->output_norm);
    if (range->is_first)
        load_vector(loader, &model->positions, &backend->positions);
}

static void load_segment(struct loader *loader, uint32_t s)
{
    const struct layer_range *range = &loader->backend->range;
    struct cpu_layer unused = {0}, *layers = loader->backend->layers;

    if (s > 0) {
        const struct model_layer *from = &loader->model->layers[range->first + s - 1];
        struct cpu_layer *to = loader->base ? &layers[s - 1] : &unused;
        load_biased(loader, &from->o, &from->o_bias, &to->o);
        load_norm(loader, &from->post_attn_norm, NULL, &to->post_attn);
        load_norm(loader, &from->ffn_norm, &from->ffn_norm_bias, &to->ffn);
        load_as(loader, &from->router, from->router.type, &to->router); // small, and a step aside chooses another expert
        load_vector(loader, &from->router_bias, &to->router.bias);
        load_biased(loader, &from->gate, &from->gate_bias, &to->gate);
        load_biased(loader, &from->up, &from->up_bias, &to->up);
        load_biased(loader, &from->down, &from->down_bias, &to->down);
        load_norm(loader, &from->post_ffn_norm, NULL, &to->post_ffn);
    }
    if (s < range->count) {
        const struct model_layer *from = &loader->model->layers[range->first + s];
        struct cpu_layer *to = loader->base ? &layers[s] : &unused;
        to->rope = from->rope;
        to->roped = from->roped;
        load_norm(loader, &from->attn_norm, &from->attn_norm_bias, &to->attn);
        load_biased(loader, &from->q, &from->q_bias, &to->q);
        load_biased(loader, &from->k, &from->k_bias, &to->k);
        load_biased(loader, &from->v, &from->v_bias, &to->v);
        load_norm(loader, &from->q_norm, NULL, &to->q_norm);
        load_norm(loader, &from->k_norm, NULL, &to->k_norm);
    }
}

static void load_section(struct loader *loader, uint32_t section)
{
    loader->used = 0;
    if (section == 0)
        load_resident(loader);
    else
        load_segment(loader, section - 1);
}

bool cpu_wants_dense(const struct backend_config *config) { return config->compute == COMPUTE_F32; }

const char *cpu_class_name(const struct backend_config *config)
{
    if (cpu_wants_dense(config))
        return "f32";
    switch (loaded_type_of(config, &config->model->layers[0].q)) {
    case TENSOR_F16: return "f16w";
    case TENSOR_BF16: return "bf16w";
    case TENSOR_F32: return "f32w";
    default: return "int8";
    }
}

enum status cpu_size_sections(const struct backend_config *config, const struct layer_range *range, struct cpu_sections *out,
                              struct error *error)
{
    struct backend sizes = {.config = *config, .dense = cpu_wants_dense(config), .range = *range};
    struct loader loader = {.model = config->model, .backend = &sizes, .error = error};

    out->count = range->count + 2;
    mix(&loader, LAYOUT_VERSION);
    mix(&loader, sizes.dense);
    mix(&loader, range->first);
    for (uint32_t i = 0; i < out->count; i++) {
        load_section(&loader, i);
        out->bytes[i] = packed_file_align(loader.used);
    }
    out->largest_tensor = loader.largest;
    out->layout = loader.layout;
    out->quantized = loader.quantized;
    return loader.status;
}

enum status cpu_fill_section(struct backend *backend, uint32_t section, unsigned char *base, struct error *error)
{
    struct loader loader = {.model = backend->config.model, .backend = backend, .base = base, .convert = true, .error = error};

    load_section(&loader, section);
    if (loader.status)
        return loader.status;
    assert_always(packed_file_align(loader.used) == backend->sections.bytes[section]);
    memset(base + loader.used, 0, backend->sections.bytes[section] - loader.used);
    return STATUS_OK;
}

void cpu_place_section(struct backend *backend, uint32_t section, unsigned char *base)
{
    struct loader loader = {.model = backend->config.model, .backend = backend, .base = base};

    load_section(&loader, section);
    assert_always(!loader.status);
}
