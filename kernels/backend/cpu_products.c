// cpu_products.c: matrix products inside a job of the thread pool: threads claim tiles of 16 outputs.
//
// Dense f32 products are left to OpenBLAS: each thread calls it for a part of the outputs. Threads of OpenBLAS's own would compete for the
// processors with ours, which wait for them at the barrier.
#include <cblas.h>

#include "common/base/checked.h"
#include "kernels/backend/cpu_claim.h"
#include "kernels/backend/cpu_internal.h"

enum { PRODUCTS_MAX = 3 /* q, k, v */ };

// Returns tile number `tile` of some matrices, one after the other.
static const void *tile_of(const struct cpu_linear *const *linears, uint32_t tile)
{
    for (; tile >= (*linears)->packed.tile_count; linears++)
        tile -= (*linears)->packed.tile_count;
    return (*linears)->packed.data + tile * (*linears)->packed.tile_bytes;
}

const void *cpu_first_read(const struct backend *backend, const struct cpu_linear *const *linears, uint32_t linear_count,
                           uint32_t rows, uint32_t thread_index)
{
    uint32_t tile_total = 0, begin, count;
    for (uint32_t i = 0; i < linear_count; i++)
        tile_total += linears[i]->packed.tile_count;
    struct claim claim = claim_begin(backend->config.pool, thread_index, tile_total, rows <= CLAIM_FEW_ROWS);
    return claim_range(&claim, &begin, &count) ? tile_of(linears, begin) : NULL;
}

struct cpu_linear cpu_linear_part(const struct cpu_linear *whole, uint32_t part, uint32_t parts)
{
    struct cpu_linear own = *whole;
    const uint64_t outputs = whole->outputs / parts, before = part * outputs;

    own.outputs = own.packed.output_count = (uint32_t)outputs;
    own.packed.tile_count = own.outputs / PACK_TILE_OUTPUTS;
    if (whole->packed.data)
        own.packed.data += before / PACK_TILE_OUTPUTS * whole->packed.tile_bytes;
    if (whole->dense)
        own.dense += before * whole->inputs;
    if (whole->bias)
        own.bias += before;
    return own;
}

static void add_bias(const struct cpu_product *p, uint32_t first_row, uint32_t rows, uint32_t column, uint32_t columns)
{
    for (uint32_t row = first_row; p->linear->bias && row < first_row + rows; row++)
        kernels->add(p->out + row * p->out_stride + column, p->linear->bias + column, columns);
}

struct cpu_columns cpu_columns_of(const struct backend *backend, uint32_t outputs, uint32_t thread_index)
{
    const uint32_t threads = thread_pool_threads(backend->config.pool);
    const uint32_t each = (outputs + threads * PACK_TILE_OUTPUTS - 1) / (threads * PACK_TILE_OUTPUTS) * PACK_TILE_OUTPUTS;
    const uint32_t first = MIN(thread_index * each, outputs);

    return (struct cpu_columns){first, MIN(each, outputs - first)};
}

void cpu_product_dense(const struct cpu_product *p, uint32_t rows, struct cpu_columns columns)
{
    const struct cpu_linear *w = p->linear;

    if (columns.count == 0)
        return;
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, (int)rows, (int)columns.count, (int)w->inputs, 1.0f, p->in,
                (int)p->in_stride, w->dense + (size_t)columns.first * w->inputs, (int)w->inputs, p->store == GEMM_ADD ? 1.0f : 0.0f,
                p->out + columns.first, (int)p->out_stride);
    add_bias(p, 0, rows, columns.first, columns.count);
}

void cpu_product_tiles(const struct cpu_product *p, const struct quantized_rows *x, uint32_t first_row, uint32_t rows,
                       uint32_t tile, uint32_t tiles, const void *next)
{
    const struct packed_matrix *w = &p->linear->packed;
    const uint32_t column = tile * PACK_TILE_OUTPUTS;

    kernels->gemm(w, x, first_row, rows, tile, tiles, next, p->out, p->out_stride, p->store);
    add_bias(p, first_row, rows, column, MIN(tiles * PACK_TILE_OUTPUTS, w->output_count - column));
}

void cpu_activate(struct backend_batch *batch, uint32_t first_row, uint32_t rows, uint32_t column, uint32_t columns)
{
    const struct backend *backend = batch->backend;
    const size_t ffn = backend->shape.ffn;

    for (uint32_t row = first_row; row < first_row + rows; row++) {
        float *gate = batch->gate + row * ffn + column;
        backend->pieces.activation(gate, batch->up + row * ffn + column, columns, gate);
    }
}

// A claimed range of tiles of some products, matrix by matrix. next: what this thread reads afterwards.
static void products_range(const struct cpu_product *products, uint32_t rows, void *quant, uint32_t row_capacity, uint32_t begin,
                           uint32_t count, const void *next)
{
    for (uint32_t i = 0; count; i++) {
        const struct cpu_product *p = &products[i];
        const struct packed_matrix *w = &p->linear->packed;
        if (begin >= w->tile_count) { // the range lies in a later matrix
            begin -= w->tile_count;
            continue;
        }
        uint32_t take = MIN(count, w->tile_count - begin);
        struct quantized_rows x;
        quantized_rows_init(&x, quant, row_capacity, w->k);
        quantized_rows_source(&x, p->in, p->in_stride);
        cpu_product_tiles(p, &x, 0, rows, begin, take, take < count ? products[i + 1].linear->packed.data : next);
        begin = 0;
        count -= take;
    }
}

void cpu_products(struct backend *backend, const struct cpu_product *products, uint32_t product_count, uint32_t rows, void *quant,
                  uint32_t row_capacity, uint32_t thread_index, const void *next)
{
    struct thread_pool *pool = backend->config.pool;
    uint32_t tile_total = 0, begin, count, next_begin = 0, next_count = 0;

    if (backend->dense) {
        for (uint32_t i = 0; i < product_count; i++)
            cpu_product_dense(&products[i], rows, cpu_columns_of(backend, products[i].linear->outputs, thread_index));
        thread_pool_barrier(pool);
        return;
    }
    const struct cpu_linear *linears[PRODUCTS_MAX];
    assert_always(product_count <= PRODUCTS_MAX);
    for (uint32_t i = 0; i < product_count; i++) {
        linears[i] = products[i].linear;
        tile_total += linears[i]->packed.tile_count;
    }
    struct claim claim = claim_begin(pool, thread_index, tile_total, rows <= CLAIM_FEW_ROWS);
    for (bool more = claim_range(&claim, &begin, &count); more; begin = next_begin, count = next_count) {
        more = claim_range(&claim, &next_begin, &next_count); // so that its weights can be asked for
        products_range(products, rows, quant, row_capacity, begin, count, more ? tile_of(linears, next_begin) : next);
    }
    thread_pool_barrier(pool);
}
