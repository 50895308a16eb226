// cpu_weights_rig.h: a tiny model on the CPU backend, stepped through some mini-batches; what comes out, for tests that want the same bytes wherever the
// weights are.
#ifndef FD_TESTS_CPU_WEIGHTS_RIG_H
#define FD_TESTS_CPU_WEIGHTS_RIG_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/checked.h"
#include "common/model/model.h"
#include "kernels/backend/backend.h"
#include "kernels/dispatch/kernels.h"
#include "tests/cmocka.h"
#include "tests/unit/gguf_build.h"

enum { RIG_LAYERS = 9, RIG_ROWS = 8, RIG_VOCAB = 320, RIG_BATCHES_MAX = 4, RIG_STEPS = 3 };

struct rig {
    unsigned char *bytes;
    struct model *model;
    struct thread_pool *pool;
    char folder[40], path[60];
};

// The logits of each row of each mini-batch's last step.
struct rig_output {
    float logits[RIG_BATCHES_MAX][RIG_ROWS][RIG_VOCAB];
};

static inline void rig_open(struct rig *rig, enum tensor_type type, bool biases, uint64_t seed)
{
    struct gguf_build build = {0};
    struct tiny_llama tiny = TINY_LLAMA;
    struct error error;
    size_t size;

    tiny.type = tiny.embedding_type = type;
    tiny.layers = RIG_LAYERS, tiny.biases = biases, tiny.seed = seed;
    gguf_build_llama(&build, &tiny);
    rig->bytes = gguf_build_finish(&build, &size);
    assert_int_equal(model_open_memory("tiny.gguf", rig->bytes, size, &rig->model, &error), STATUS_OK);
    assert_int_equal(thread_pool_open(2, &rig->pool), STATUS_OK);
    strcpy(rig->folder, "/var/tmp/fd-test-weights-XXXXXX");
    assert_non_null(mkdtemp(rig->folder));
    snprintf(rig->path, sizeof rig->path, "%s/tiny.fdw", rig->folder);
}

static inline void rig_close(struct rig *rig)
{
    thread_pool_close(rig->pool);
    model_close(rig->model);
    free(rig->bytes);
    unlink(rig->path);
    assert_int_equal(rmdir(rig->folder), 0); // nothing else was left
}

static inline struct backend_config rig_config(const struct rig *rig)
{
    return (struct backend_config){.model = rig->model,
                                   .pool = rig->pool,
                                   .max_rows = RIG_ROWS,
                                   .max_batches = RIG_BATCHES_MAX,
                                   .context_tokens = 256,
                                   .kv_type = 1,
                                   .page_tokens = 16,
                                   .max_sequences = RIG_BATCHES_MAX,
                                   .local_pool_bytes = 1 << 20};
}

static inline void rig_begin(struct backend_batch *batch, uint32_t index, uint32_t number)
{
    struct backend_row rows[RIG_ROWS];
    struct error error;
    uint32_t bad;

    for (uint32_t row = 0; row < RIG_ROWS; row++)
        rows[row] = (struct backend_row){.sequence = index + 1,
                                         .token = (index * 101 + number * 37 + row * 13) % RIG_VOCAB,
                                         .position = number * RIG_ROWS + row,
                                         .local = true,
                                         .needs_output = true};
    assert_int_equal(backend_cpu.begin(batch, rows, RIG_ROWS, &bad, &error), STATUS_OK);
}

static inline void rig_head(struct backend_batch *batch, float logits[RIG_ROWS][RIG_VOCAB])
{
    struct backend_sample samples[RIG_ROWS];
    struct sampler_result results[RIG_ROWS];
    uint32_t index[RIG_ROWS];

    for (uint32_t row = 0; row < RIG_ROWS; row++) {
        samples[row] = (struct backend_sample){.token = 7, .result = &results[row], .logits = logits[row]};
        index[row] = row;
    }
    backend_cpu.head(batch, index, samples, RIG_ROWS);
}

static inline void rig_segment(struct backend_batch *batch, uint32_t s)
{
    static const struct backend_links none;
    backend_cpu.segment(batch, s, &none);
    if (s < RIG_LAYERS)
        backend_cpu.attend(batch, s);
}

// Steps some mini-batches side by side, segment by segment, and gives what their last steps came to. The backend is the caller's to
// close; RIG_STEPS steps each.
static inline void rig_run(struct backend *backend, uint32_t batch_count, struct rig_output *out)
{
    struct backend_batch *batches[RIG_BATCHES_MAX];
    struct error error;

    memset(out, 0, sizeof *out);
    for (uint32_t b = 0; b < batch_count; b++)
        assert_int_equal(backend_cpu.batch_open(backend, &batches[b], &error), STATUS_OK);
    for (uint32_t number = 0; number < RIG_STEPS; number++) {
        for (uint32_t b = 0; b < batch_count; b++)
            rig_begin(batches[b], b, number);
        for (uint32_t s = 0; s <= RIG_LAYERS; s++)
            for (uint32_t b = 0; b < batch_count; b++)
                rig_segment(batches[b], s);
        for (uint32_t b = 0; b < batch_count; b++)
            rig_head(batches[b], out->logits[b]);
    }
    for (uint32_t b = 0; b < batch_count; b++)
        backend_cpu.batch_close(batches[b]);
}

static inline void rig_open_and_run(const struct backend_config *config, uint32_t batch_count, struct rig_output *out)
{
    struct backend *backend;
    struct error error;
    enum status status = backend_cpu.open(config, &backend, &error);

    if (status)
        fail_msg("%s", error.text);
    rig_run(backend, batch_count, out);
    backend_cpu.close(backend);
}

#endif
