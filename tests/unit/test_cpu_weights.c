// test_cpu_weights.c: weights of the CPU backend from a packed file: the bytes are those of weights that were converted just now, the file is written
// once and read from then on, and one that cannot be used is written anew.
#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>

#include "tests/unit/cpu_weights_rig.h"

static const enum disk_method methods[] = {DISK_AUTO, DISK_THREADS};

static ino_t inode(const char *path)
{
    struct stat info;
    return stat(path, &info) ? 0 : info.st_ino;
}

static void same_from_the_file(enum tensor_type type, enum compute_mode compute, bool biases)
{
    static struct rig_output plain, packed;
    struct rig rig;

    rig_open(&rig, type, biases, 3);
    struct backend_config config = rig_config(&rig);
    config.compute = compute;
    rig_open_and_run(&config, 2, &plain);
    config.packed_path = rig.path;
    rig_open_and_run(&config, 2, &packed); // writes it
    assert_memory_equal(&plain, &packed, sizeof plain);
    ino_t first = inode(rig.path);
    assert_int_not_equal(first, 0);
    for (size_t m = 0; m < ARRAY_COUNT(methods); m++) {
        config.disk = methods[m];
        rig_open_and_run(&config, 2, &packed);
        assert_memory_equal(&plain, &packed, sizeof plain);
        assert_int_equal(inode(rig.path), first); // it was read, not written again
    }
    rig_close(&rig);
}

static void the_file_gives_the_same_bytes(void **state)
{
    same_from_the_file(TENSOR_Q4_0, COMPUTE_AUTO, false);
    same_from_the_file(TENSOR_Q4_1, COMPUTE_INT8, true);
    same_from_the_file(TENSOR_IQ4_NL, COMPUTE_INT8, false);
    same_from_the_file(TENSOR_MXFP4, COMPUTE_AUTO, true);
    same_from_the_file(TENSOR_F16, COMPUTE_INT8, false);
    same_from_the_file(TENSOR_F16, COMPUTE_AUTO, false);
    same_from_the_file(TENSOR_BF16, COMPUTE_AUTO, true);
    same_from_the_file(TENSOR_F32, COMPUTE_AUTO, false);
    same_from_the_file(TENSOR_F32, COMPUTE_F32, true);
}

// The file is really what is computed with: a model whose file is exchanged behind its back gives the other's numbers.
static void the_file_is_what_counts(void **state)
{
    static struct rig_output one, two, mixed;
    struct rig first, second;

    rig_open(&first, TENSOR_Q4_0, false, 3);
    rig_open(&second, TENSOR_Q4_0, false, 4);
    struct backend_config config = rig_config(&first), other = rig_config(&second);
    config.packed_path = first.path, other.packed_path = second.path;
    rig_open_and_run(&config, 1, &one);
    rig_open_and_run(&other, 1, &two);
    assert_memory_not_equal(&one, &two, sizeof one);
    first.model->fingerprint = second.model->fingerprint;
    config.packed_path = second.path;
    rig_open_and_run(&config, 1, &mixed);
    assert_memory_equal(&mixed, &two, sizeof two);
    rig_close(&first);
    rig_close(&second);
}

static void damage_flip(const char *path)
{
    unsigned char byte;
    int file = open(path, O_RDWR | O_CLOEXEC);
    off_t at = lseek(file, 0, SEEK_END) / 2;
    assert_int_equal(pread(file, &byte, 1, at), 1);
    byte ^= 4;
    assert_int_equal(pwrite(file, &byte, 1, at), 1);
    close(file);
}

static void damage_cut(const char *path)
{
    struct stat info;
    assert_int_equal(stat(path, &info), 0);
    assert_int_equal(truncate(path, info.st_size - 4096), 0);
}

static void damage_empty(const char *path) { assert_int_equal(truncate(path, 0), 0); }

static void a_file_that_cannot_be_used_is_written_anew(void **state)
{
    static void (*const damages[])(const char *path) = {damage_flip, damage_cut, damage_empty};
    static struct rig_output plain, packed;
    struct rig rig, other;

    rig_open(&rig, TENSOR_Q4_0, false, 3);
    rig_open(&other, TENSOR_Q4_0, false, 4);
    struct backend_config config = rig_config(&rig), wrong = rig_config(&other);
    rig_open_and_run(&config, 1, &plain);
    config.packed_path = wrong.packed_path = rig.path;
    for (size_t i = 0; i < ARRAY_COUNT(damages) + 1; i++) {
        rig_open_and_run(&config, 1, &packed);
        if (i < ARRAY_COUNT(damages))
            damages[i](rig.path);
        else
            rig_open_and_run(&wrong, 1, &packed); // of another model
        rig_open_and_run(&config, 1, &packed);
        assert_memory_equal(&plain, &packed, sizeof plain);
        ino_t anew = inode(rig.path);
        rig_open_and_run(&config, 1, &packed); // and then it is whole
        assert_memory_equal(&plain, &packed, sizeof plain);
        assert_int_equal(inode(rig.path), anew);
    }
    rig_close(&rig);
    rig_close(&other);
}

static void a_full_disk_is_no_obstacle(void **state)
{
    static struct rig_output plain, packed;
    struct rlimit before, limit;
    struct rig rig;

    rig_open(&rig, TENSOR_Q4_0, false, 3);
    struct backend_config config = rig_config(&rig);
    rig_open_and_run(&config, 1, &plain);
    config.packed_path = rig.path;
    signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
    limit = before, limit.rlim_cur = 8192;
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &limit), 0);
    rig_open_and_run(&config, 1, &packed);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
    signal(SIGXFSZ, SIG_DFL);
    assert_memory_equal(&plain, &packed, sizeof plain);
    assert_int_equal(inode(rig.path), 0);
    rig_close(&rig); // fails if a part was left
}

// --- weights that do not fit ---

// From the least memory that will do up to all, for one to four mini-batches that go through the layers together.
static void streamed(enum tensor_type type, enum compute_mode compute, enum disk_method method)
{
    static struct rig_output plain, out;
    struct backend_plan plan;
    struct backend_info info;
    struct error error;
    struct rig rig;
    uint32_t settings = 0;

    rig_open(&rig, type, true, 3);
    struct backend_config config = rig_config(&rig);
    config.compute = compute, config.disk = method;
    assert_int_equal(backend_cpu.plan(&config, &plan, &error), STATUS_OK);
    assert_int_equal(plan.streamed_bytes, 0);
    const uint64_t all = plan.weight_bytes;
    for (uint32_t batches = 1; batches <= RIG_BATCHES_MAX; batches++) {
        config.packed_path = NULL, config.weights_memory = 0;
        rig_open_and_run(&config, batches, &plain);
        config.packed_path = rig.path;
        for (uint64_t memory = all - 4096; memory > 0; memory -= MIN(memory, 9 * 4096ull)) {
            struct backend *backend;
            config.weights_memory = memory;
            if (backend_cpu.plan(&config, &plan, &error)) {
                assert_int_equal(backend_cpu.open(&config, &backend, &error), STATUS_RESOURCE_EXHAUSTED);
                continue;
            }
            assert_true(plan.weight_bytes <= memory && plan.streamed_bytes > 0);
            assert_int_equal(backend_cpu.open(&config, &backend, &error), STATUS_OK);
            rig_run(backend, batches, &out);
            assert_memory_equal(&plain, &out, sizeof plain);
            backend_cpu.info(backend, &info);
            assert_in_range(info.streamed_bytes, RIG_STEPS * plan.streamed_bytes,
                            RIG_STEPS * plan.streamed_bytes +
                                3 * (plan.streamed_bytes / 3)); // what was read ahead; mini-batches share
            backend_cpu.close(backend);
            settings++;
        }
    }
    assert_true(settings >= 2 * RIG_BATCHES_MAX);
    rig_close(&rig);
}

static void streamed_weights_give_the_same_bytes(void **state)
{
    streamed(TENSOR_Q4_1, COMPUTE_INT8, DISK_AUTO);
    streamed(TENSOR_Q8_0, COMPUTE_INT8, DISK_THREADS);
    streamed(TENSOR_F32, COMPUTE_F32, DISK_AUTO);
    streamed(TENSOR_F16, COMPUTE_AUTO, DISK_AUTO);
    streamed(TENSOR_BF16, COMPUTE_AUTO, DISK_THREADS);
}

// Mini-batches that are far apart, each waiting for weights while the other's are there.
static void mini_batches_that_are_apart_get_theirs(void **state)
{
    static struct rig_output plain, out;
    struct backend_batch *batches[2];
    struct backend *backend;
    struct backend_plan plan;
    struct error error;
    struct rig rig;

    rig_open(&rig, TENSOR_Q4_1, false, 3);
    struct backend_config config = rig_config(&rig);
    rig_open_and_run(&config, 2, &plain);
    assert_int_equal(backend_cpu.plan(&config, &plan, &error), STATUS_OK);
    config.packed_path = rig.path, config.weights_memory = plan.weight_bytes * 6 / 10;
    assert_int_equal(backend_cpu.open(&config, &backend, &error), STATUS_OK);
    memset(&out, 0, sizeof out);
    for (uint32_t b = 0; b < 2; b++)
        assert_int_equal(backend_cpu.batch_open(backend, &batches[b], &error), STATUS_OK);
    for (uint32_t number = 0; number < RIG_STEPS; number++) {
        rig_begin(batches[0], 0, number);
        for (uint32_t s = 0; s <= RIG_LAYERS / 2; s++)
            rig_segment(batches[0], s);
        rig_begin(batches[1], 1, number);
        for (uint32_t s = 0; s <= RIG_LAYERS; s++) {
            rig_segment(batches[1], s);
            if (s + RIG_LAYERS / 2 + 1 <= RIG_LAYERS)
                rig_segment(batches[0], s + RIG_LAYERS / 2 + 1);
        }
        for (uint32_t b = 0; b < 2; b++)
            rig_head(batches[b], out.logits[b]);
    }
    assert_memory_equal(&plain, &out, sizeof plain);
    for (uint32_t b = 0; b < 2; b++)
        backend_cpu.batch_close(batches[b]);
    backend_cpu.close(backend);
    rig_close(&rig);
}

// Measuring runs the first segments over and over. While weights are held these are read only once.
static void held_weights_are_not_read_again(void **state)
{
    struct backend_batch *batch;
    struct backend *backend;
    struct backend_plan plan;
    struct backend_info info;
    struct error error;
    struct rig rig;

    rig_open(&rig, TENSOR_Q4_1, false, 3);
    struct backend_config config = rig_config(&rig);
    assert_int_equal(backend_cpu.plan(&config, &plan, &error), STATUS_OK);
    config.packed_path = rig.path, config.weights_memory = plan.weight_bytes * 6 / 10;
    assert_int_equal(backend_cpu.plan(&config, &plan, &error), STATUS_OK);
    assert_int_equal(backend_cpu.open(&config, &backend, &error), STATUS_OK);
    assert_int_equal(backend_cpu.batch_open(backend, &batch, &error), STATUS_OK);
    backend_cpu.hold(backend, true);
    for (uint32_t number = 0; number < 8; number++) {
        rig_begin(batch, 0, 0);
        rig_segment(batch, 0);
        rig_segment(batch, 1);
    }
    backend_cpu.info(backend, &info);
    assert_int_equal(info.streamed_segments, plan.weight_slots);
    backend_cpu.hold(backend, false);
    backend_cpu.end(batch);
    backend_cpu.batch_close(batch);
    backend_cpu.close(backend);
    rig_close(&rig);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(the_file_gives_the_same_bytes),
                                       cmocka_unit_test(the_file_is_what_counts),
                                       cmocka_unit_test(a_file_that_cannot_be_used_is_written_anew),
                                       cmocka_unit_test(a_full_disk_is_no_obstacle),
                                       cmocka_unit_test(streamed_weights_give_the_same_bytes),
                                       cmocka_unit_test(mini_batches_that_are_apart_get_theirs),
                                       cmocka_unit_test(held_weights_are_not_read_again)};
    struct error error;

    assert_always(kernels_init(NULL, &error) == STATUS_OK);
    return cmocka_run_group_tests_name("cpu weights", tests, NULL, NULL);
}
