/* test_cuda_disk.c: weights that neither the device nor the host has memory for, and come from disk each step: the same bytes as with all of
 * them on the device, one read and one copy of each for all mini-batches, and a file that is right, or written anew, or refused.
 */
#include <fcntl.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/cuda/walk_rig.h"

static char folder[] = "/var/tmp/fd-test-cuda-disk-XXXXXX", path[64];
static atomic_uint woken; /* times that on_weights was called */

static void wake(void *user) { atomic_fetch_add(&woken, 1); }

/* `streamed` blobs come from the host, `on_disk` of them from disk. */
static struct backend_config disk_config(uint32_t streamed, uint32_t on_disk)
{
    struct backend_config config = tier_config(room_for(streamed));

    config.weights_host_memory = host_room_for(config.weights_memory, on_disk);
    config.packed_path = path;
    config.on_weights = wake;
    return config;
}

static uint64_t reads_of(const struct rig *rig)
{
    struct weight_stream_counts counts;
    weight_stream_count(rig->backend->tier.disk.stream, &counts);
    return counts.segments;
}

static ino_t inode(void)
{
    struct stat info;
    return stat(path, &info) ? 0 : info.st_ino;
}

/* --- the plan ---------------------------------------------------------------------------------------------------------------- */

static void test_plan(void **state)
{
    struct backend_config config = disk_config(LAYERS + 1, 3);
    struct backend_plan plan;
    struct error error;
    uint64_t on_disk = 0;

    while (fastdecode_device.ops->plan(&config, &plan, &error) == STATUS_OK) {
        assert_true(plan.weight_bytes <= config.weights_host_memory && plan.device_weight_bytes <= config.weights_memory);
        assert_true(plan.disk_slots >= WEIGHT_SLOTS_MIN && plan.disk_bytes > 0);
        assert_string_equal(plan.weights_kind, "cuda");
        on_disk = MAX(on_disk, plan.disk_bytes);
        config.weights_host_memory -= PACKED_FILE_ALIGN;
    }
    assert_int_equal(error.status, STATUS_RESOURCE_EXHAUSTED);
    assert_non_null(strstr(error.text, "on the host: the weights need"));
    config.weights_host_memory = 0;
    assert_int_equal(fastdecode_device.ops->plan(&config, &plan, &error), STATUS_OK);
    assert_true(plan.disk_bytes == 0 && plan.disk_slots == 0 && !*plan.weights_kind);
    assert_int_equal(plan.weight_bytes, on_disk); /* all of them were on disk at last */
}

/* --- the same bytes ---------------------------------------------------------------------------------------------------------- */

static void steps(struct rig *resident, struct rig *tiered, uint64_t sequence)
{
    struct backend_row rows[ROWS];

    for (uint32_t step = 0; step < STEPS; step++) {
        const uint32_t count = fill(rows, sequence, step);
        rig_step(resident, rows, count);
        rig_step(tiered, rows, count);
        same(resident, tiered, count);
    }
}

static void test_same_bytes(void **state)
{
    static const enum disk_method methods[] = {DISK_AUTO, DISK_THREADS};
    struct rig resident, tiered;
    uint64_t sequence = 1;
    ino_t written = 0;

    open_with(&resident, tier_config(0));
    for (uint32_t streamed = 6; streamed <= LAYERS + 1; streamed += 6)
        for (uint32_t on_disk = 3; on_disk <= streamed; on_disk *= 2) {
            struct backend_config config = disk_config(streamed, on_disk);
            config.disk = methods[on_disk % 2];
            open_with(&tiered, config);
            const struct cuda_tier *tier = &tiered.backend->tier;
            assert_true(tier->tiers.streamed_count >= streamed && tier->disk.tiers.streamed_count >= on_disk);
            if (on_disk < streamed) /* without graphs */
                cuda_graphs_close(tiered.batch);
            steps(&resident, &tiered, sequence);
            const uint64_t reads = (uint64_t)STEPS * tier->disk.tiers.streamed_count;
            assert_in_range(reads_of(&tiered), reads, reads + tier->disk.tiers.slots + tier->tiers.slots);
            rig_close(&tiered);
            assert_true(inode() && (!written || inode() == written)); /* one file, however the weights are split */
            written = inode();
            sequence += 200;
        }
    assert_true(atomic_load(&woken) > 0);
    rig_close(&resident);
}

static void test_mini_batches(void **state)
{
    struct walk tiered[BATCHES];
    float *resident = resident_walks();
    uint64_t seed = 9;

    for (uint32_t batches = 1; batches <= BATCHES; batches *= 2)
        for (enum order order = IN_TURN; order <= (batches == BATCHES ? DISORDER : IN_TURN); order++) {
            open_walks(tiered, batches, disk_config(8, 4));
            const struct cuda_tier *tier = &tiered[0].rig.backend->tier;
            const uint64_t reads = STEPS * (uint64_t)tier->disk.tiers.streamed_count,
                           copies = STEPS * (uint64_t)tier->tiers.streamed_count;
            for (uint32_t step = 0; step < STEPS; step++) {
                walk_all(tiered, batches, step, order, &seed);
                same_as_resident(tiered, batches, step, resident);
            }
            if (order != DISORDER) { /* one read and one copy for all, and what the next step begins with */
                assert_in_range(reads_of(&tiered[0].rig), reads, reads + tier->disk.tiers.slots + tier->tiers.slots);
                assert_in_range(tier->copies, copies, copies + tier->tiers.slots);
            }
            close_walks(tiered, batches);
        }
    free(resident);
}

/* One that begins when the others are half way waits for the weights to come round; a step that is given up holds nothing. */
static void test_late_and_given_up(void **state)
{
    struct walk walks[2];
    struct backend_row rows[ROWS];
    uint64_t seed = 3;

    open_walks(walks, 2, disk_config(LAYERS + 1, LAYERS + 1));
    const struct cuda_tier *tier = &walks[0].rig.backend->tier;
    walk_all(walks, 1, 0, IN_TURN, &seed);
    rig_begin_step(&walks[0].rig, rows, rig_rows(rows, 0, 77, 0, 1, true));
    walks[0].s = 0;
    while (walks[0].s < LAYERS / 2)
        if (walks[0].rig.ops->turn(walks[0].rig.batch, walks[0].s) != BACKEND_NOT_YET)
            next_segment(&walks[0]);
    rig_wait(&walks[0].rig);
    rig_begin_step(&walks[1].rig, rows, rig_rows(rows, 0, 78, 0, 1, true));
    for (int i = 0; i < 1000; i++)
        assert_int_equal(walks[1].rig.ops->turn(walks[1].rig.batch, 0), BACKEND_NOT_YET);
    walks[0].rig.ops->end(walks[0].rig.batch);
    while (walks[1].rig.ops->turn(walks[1].rig.batch, 0) == BACKEND_NOT_YET) {}
    walks[1].rig.ops->end(walks[1].rig.batch);
    const uint64_t before = tier->copies;
    walk_all(walks, 1, 1, IN_TURN, &seed);
    /* what a step begins with may have been copied before, or for the next one */
    const uint64_t copies = tier->copies - before, slots = tier->tiers.slots;
    assert_in_range(copies, tier->tiers.streamed_count - slots, tier->tiers.streamed_count + slots);
    close_walks(walks, 2);
}

/* Measuring runs the first segments over and over. While weights are held these are read and copied only once. */
static void test_hold(void **state)
{
    struct backend_row rows[ROWS];
    struct backend_info info;
    struct walk walk;

    open_walks(&walk, 1, disk_config(LAYERS + 1, LAYERS + 1));
    struct rig *rig = &walk.rig;
    rig->ops->info(rig->backend, &info);
    assert_true(info.stream_step_us > 0); /* of the disk, known from the start */
    rig->ops->hold(rig->backend, true);
    for (uint32_t i = 0; i < 8; i++) {
        rig_begin_step(rig, rows, rig_rows(rows, 0, 1, 0, 1, true));
        for (walk.s = 0; walk.s < 2;)
            next_segment(&walk);
        rig_wait(rig);
    }
    assert_int_equal(reads_of(rig), rig->backend->tier.disk.tiers.slots + rig->backend->tier.tiers.slots);
    assert_int_equal(rig->backend->tier.copies, rig->backend->tier.tiers.slots);
    rig->ops->hold(rig->backend, false);
    rig->ops->end(rig->batch);
    close_walks(&walk, 1);
}

/* --- the file ---------------------------------------------------------------------------------------------------------------- */

static void damage_flip(void)
{
    int file = open(path, O_RDWR);
    unsigned char byte;
    const off_t at = 3 * PACKED_FILE_ALIGN + 5;

    assert_true(file >= 0 && pread(file, &byte, 1, at) == 1);
    byte ^= 4;
    assert_int_equal(pwrite(file, &byte, 1, at), 1);
    close(file);
}

static void damage_cut(void) { assert_int_equal(truncate(path, 3 * PACKED_FILE_ALIGN), 0); }

static void damage_empty(void) { assert_int_equal(truncate(path, 0), 0); }

static void test_damaged(void **state)
{
    static void (*const damages[])(void) = {damage_flip, damage_cut, damage_empty};
    struct rig resident, tiered;

    open_with(&resident, tier_config(0));
    for (size_t i = 0; i < ARRAY_COUNT(damages); i++) {
        damages[i]();
        open_with(&tiered, disk_config(8, 4));
        steps(&resident, &tiered, 1 + 200 * i);
        rig_close(&tiered);
    }
    rig_close(&resident);
}

static void test_refusals(void **state)
{
    struct backend_config config = disk_config(8, 4);
    struct rlimit before, limit;
    struct backend *backend;
    struct error error;

    config.packed_path = NULL;
    assert_int_equal(fastdecode_device.ops->open(&config, &backend, &error), STATUS_INVALID_ARGUMENT);
    assert_non_null(strstr(error.text, "need a packed file (--cache-dir)"));
    config.packed_path = path;
    assert_int_equal(unlink(path), 0);
    signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
    limit = before, limit.rlim_cur = 8192;
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &limit), 0);
    assert_int_equal(fastdecode_device.ops->open(&config, &backend, &error), STATUS_RESOURCE_EXHAUSTED);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
    signal(SIGXFSZ, SIG_DFL);
    assert_non_null(strstr(error.text, "no room for it"));
    assert_int_equal(inode(), 0); /* nor is a part left: the folder is empty at the end */
}

int main(void)
{
    const struct tiny_llama tiny = tiny_model();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_plan),         cmocka_unit_test(test_same_bytes),
        cmocka_unit_test(test_mini_batches), cmocka_unit_test(test_late_and_given_up),
        cmocka_unit_test(test_hold),         cmocka_unit_test(test_damaged),
        cmocka_unit_test(test_refusals),
    };
    setenv("FD_CUDA_TRIAL_MS", "0", 1); /* two backends choose the same algorithms: their bytes are compared */
    if (!rig_begin(&tiny))
        return 0;
    assert_non_null(mkdtemp(folder));
    snprintf(path, sizeof path, "%s/tiny.fdw", folder);
    const int failed = rig_end(cmocka_run_group_tests_name("cuda disk", tests, NULL, NULL));
    unlink(path);
    return failed || rmdir(folder);
}
