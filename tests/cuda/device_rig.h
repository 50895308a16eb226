/* device_rig.h: what the tests of a device have in common, of the emulated one (emulate.h) or, as `make check-gpu`, a real one: the device
 * and a stream on it, memory there, which is touched through copies alone, values to fill it with, a tiny model, and attention in
 * double.
 *
 *     int main(void)
 *     {
 *         const struct CMUnitTest tests[] = {...};
 *         return rig_begin(NULL) ? rig_end(cmocka_run_group_tests_name("...", tests, NULL, NULL)) : 0;
 *     }
 */
#ifndef FD_TESTS_CUDA_DEVICE_RIG_H
#define FD_TESTS_CUDA_DEVICE_RIG_H

#include "tests/kernels/kernel_test.h"

#include "kernels/backend/device.h"
#include "kernels/cuda/cuda.h"
#include "tests/unit/gguf_build.h"
#include "tests/unit/sample.h"

extern const struct device_library fastdecode_device;

static cudaStream_t rig_stream; /* of what the tests launch and copy themselves */
static struct thread_pool *rig_pool;
static struct model *rig_model; /* NULL: none; one at a time */
static unsigned char *rig_model_bytes;

static inline void rig_must(cudaError_t error)
{
    if (error != cudaSuccess)
        fail_msg("%s", cudaGetErrorString(error));
}

/* Whether case `index` is one of this run's: on the emulated device, which is slow, one in `parts` (sample.h). A real one has all. */
static inline bool rig_sample(uint32_t index, uint32_t parts)
{
#ifdef FD_TESTS_CUDA_RUNTIME_API_H
    return in_sample(index, parts, parts);
#else
    return index < UINT32_MAX && parts > 0;
#endif
}

/* --- a model, and the device -------------------------------------------------------------------------------------------- */

/* Finishes the build and opens it. */
static inline void rig_model_open(struct gguf_build *build)
{
    struct error error;
    size_t count;

    assert_null(rig_model);
    rig_model_bytes = gguf_build_finish(build, &count);
    if (model_open_memory("tiny.gguf", rig_model_bytes, count, &rig_model, &error))
        fail_msg("%s", error.text);
}

static inline void rig_model_close(void)
{
    model_close(rig_model);
    free(rig_model_bytes);
    rig_model = NULL, rig_model_bytes = NULL;
}

/* Opens the device, the host's kernels, threads, and a model unless `tiny` is NULL. False: there is no device, and it says so. */
static inline bool rig_begin(const struct tiny_llama *tiny)
{
    struct gguf_build build = {0};
    struct error error;
    char name[200];

    if (fastdecode_device.probe(0, name, sizeof name, &error)) {
        printf("%s: skipped\n", error.text);
        return false;
    }
    assert_int_equal(kernels_init(NULL, &error), STATUS_OK);
    assert_int_equal(thread_pool_open(2, &rig_pool), STATUS_OK);
    rig_must(cudaStreamCreateWithFlags(&rig_stream, cudaStreamNonBlocking));
    if (tiny) {
        gguf_build_llama(&build, tiny);
        rig_model_open(&build);
    }
    return true;
}

/* Returns what it is given: how many tests have failed. */
static inline int rig_end(int failed)
{
    if (rig_model)
        rig_model_close();
    thread_pool_close(rig_pool);
    cudaStreamDestroy(rig_stream);
    return failed;
}

/* --- its memory --------------------------------------------------------------------------------------------------------- */

static inline void to_device(void *to, const void *from, size_t bytes)
{
    rig_must(cudaMemcpyAsync(to, from, bytes, cudaMemcpyHostToDevice, rig_stream));
    rig_must(cudaStreamSynchronize(rig_stream));
}

static inline void to_host(void *to, const void *from, size_t bytes)
{
    rig_must(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToHost, rig_stream));
    rig_must(cudaStreamSynchronize(rig_stream));
    rig_must(cudaGetLastError());
}

/* A copy on the device, or, of NULL, room for it; cudaFree() it. */
static inline void *on_device(const void *from, size_t bytes)
{
    void *at = NULL;
    rig_must(cudaMalloc(&at, bytes + 64));
    if (from)
        to_device(at, from, bytes);
    return at;
}

/* A copy on the host; free() it. */
static inline void *on_host(const void *from, size_t bytes)
{
    void *to = malloc(bytes);
    assert_non_null(to);
    to_host(to, from, bytes);
    return to;
}

/* --- values --------------------------------------------------------------------------------------------------------------- */

static inline uint16_t narrowed(enum gpu_type type, float x) { return type == GPU_F16 ? f16_from_float(x) : bf16_from_float(x); }
static inline float widened(enum gpu_type type, uint16_t x) { return type == GPU_F16 ? f16_to_float(x) : bf16_to_float(x); }

/* free() them. */
static inline float *random_values(size_t count, uint64_t seed)
{
    float *values = malloc((count + 1) * sizeof *values);
    assert_non_null(values);
    for (size_t i = 0; i < count; i++)
        values[i] = random_normal(&seed);
    return values;
}

/* free() them. */
static inline uint16_t *narrowed_values(enum gpu_type type, const float *values, size_t count)
{
    uint16_t *out = malloc((count + 1) * sizeof *out);
    assert_non_null(out);
    for (size_t i = 0; i < count; i++)
        out[i] = narrowed(type, values[i]);
    return out;
}

/* Such, rounded to f16. */
static inline float *random_halves(size_t count, uint64_t seed)
{
    float *values = random_values(count, seed);
    for (size_t i = 0; i < count; i++)
        values[i] = f16_to_float(f16_from_float(values[i]));
    return values;
}

/* The numbers below `count`, shuffled. */
static inline void random_order(uint32_t *out, uint32_t count, uint64_t seed)
{
    for (uint32_t i = 0; i < count; i++) {
        uint32_t other = (uint32_t)(random_next(&seed) % (i + 1));
        out[i] = out[other];
        out[other] = i;
    }
}

/* cmocka's would let NaN pass. */
static inline void near(float got, double want, double limit)
{
    if (!(fabs((double)got - want) <= limit))
        fail_msg("%.9g for %.9g", (double)got, want);
}

/* --- attention -------------------------------------------------------------------------------------------------------------- */

static inline uint32_t pages_for(uint32_t positions) { return (positions + GPU_PAGE_TOKENS - 1) / GPU_PAGE_TOKENS; }

/* One head's attention over `count` positions in double. Scores are exponents of 2, log2(e) / sqrt(head_dim) being in q; K and V of
 * positions that follow each other lie `stride` floats apart. Returns the largest score. */
static inline double attend_in_double(const double *q /* [head_dim] */, const float *k, const float *v, size_t stride,
                                      uint32_t count, uint32_t head_dim, double *out /* [head_dim] */)
{
    double most = -INFINITY, all = 0, *score = calloc(count, sizeof *score);

    assert_non_null(score);
    for (uint32_t t = 0; t < count; t++) {
        for (uint32_t i = 0; i < head_dim; i++)
            score[t] += q[i] * (double)k[t * stride + i];
        most = fmax(most, score[t]);
    }
    memset(out, 0, head_dim * sizeof *out);
    for (uint32_t t = 0; t < count; t++) {
        double p = exp2(score[t] - most);
        all += p;
        for (uint32_t i = 0; i < head_dim; i++)
            out[i] += p * (double)v[t * stride + i];
    }
    for (uint32_t i = 0; i < head_dim; i++)
        out[i] /= all;
    free(score);
    return most;
}

/* Returns the factor by which q is scaled so that scores are exponents of 2. */
static inline double attend_scale(uint32_t head_dim) { return 1.4426950408889634 / sqrt(head_dim); }

#endif
