/* test_cuda_prompt.c: a prompt of 1,300 tokens through the backends in chunks, beside the CPU: pieces of 64 keys, windows of pages, and
 * contexts that the plan of a step cuts into spans because a chunk has few tiles. Another sequence decodes in the same steps.
 */
#include "tests/cuda/backend_rig.h"

enum { CONTEXT = 2048, PROMPT = 1300, ROWS = 160, LAST_ROWS = 21, SIDES = 2, CPU = 0, CUDA = 1 };

/* As in test_cuda_backend.c. */
#define LIMIT 0.04f

/* The rows at both, and the logits of the last row of each sequence; returns their largest difference. */
static float near_step(struct rig *sides, const struct backend_row *rows, uint32_t count)
{
    const uint32_t last[] = {0, count - 1};

    for (uint32_t s = 0; s < SIDES; s++) {
        rig_layers(&sides[s], rows, count);
        rig_head(&sides[s], last, ARRAY_COUNT(last));
        rig_wait(&sides[s]);
    }
    return rig_near(&sides[CUDA], &sides[CPU], ARRAY_COUNT(last), LIMIT);
}

static void test_prompt(void **state)
{
    struct backend_config config = rig_config(ROWS);
    struct backend_row rows[ROWS];
    struct rig sides[SIDES];
    float largest = 0;
    uint32_t steps = 0;

    config.max_sequences = 4;
    rig_open(&sides[CPU], &backend_cpu, config, 100);
    rig_open(&sides[CUDA], fastdecode_device.ops, config, 100);
    for (uint32_t first = 0, count; first < PROMPT; first += count, steps++) {
        const uint32_t left = PROMPT - first;
        count = left > LAST_ROWS ? MIN((uint32_t)ROWS - 1, left - LAST_ROWS) : left;
        largest =
            fmaxf(largest, near_step(sides, rows, rig_rows(rows, rig_rows(rows, 0, 1, steps, 1, true), 2, first, count, true)));
    }
    print_message("%u steps, largest difference %.3g\n", steps, (double)largest);
    for (uint32_t s = 0; s < SIDES; s++)
        rig_close(&sides[s]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_prompt)};
    struct tiny_llama tiny = TINY_LLAMA;
    tiny.context = CONTEXT;
    return rig_begin(&tiny) ? rig_end(cmocka_run_group_tests_name("cuda prompt", tests, NULL, NULL)) : 0;
}
