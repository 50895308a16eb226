/* test_cuda_wire.c: q, k, v and o of the workers' rows, in messages that the device reaches, in others, and half and half: what workers
 * are sent and what the step gives are the same bytes. Attention of the local rows is queued before the messages are there, as the
 * engine does. */
#include "common/base/clock.h"
#include "tests/cuda/backend_rig.h"

enum { MAX_ROWS = 40, PLACES = 3, PAGES = 12, STEPS = 4, ODD_FLOATS = 3 };

/* Rows of a step: those of a place side by side. Place 0 is the local pool. */
struct layout {
    struct backend_row rows[MAX_ROWS];
    uint32_t place[MAX_ROWS], count;
};

static void add(struct layout *layout, uint32_t place, uint64_t sequence, uint32_t first, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        layout->place[layout->count] = place;
        layout->rows[layout->count++] = (struct backend_row){.needs_output = true,
                                                             .sequence = sequence,
                                                             .token = (uint32_t)(sequence * 31 + (first + i) * 7) % 300 + 5,
                                                             .position = first + i,
                                                             .local = place == 0};
    }
}

static struct layout layout_of(uint32_t step)
{
    struct layout layout = {.count = 0};
    add(&layout, 1, 21, step * 3, 3);
    add(&layout, 1, 22, step, 1);
    add(&layout, 0, 11, step * 7, 7);
    add(&layout, 0, 12, step, 1);
    add(&layout, 2, 23, step, 1);
    add(&layout, 2, 24, step * 9, 9);
    return layout;
}

/* The memory in which a place's messages lie. */
enum memory { HEAP, REACHED, GONE };

struct messages {
    enum memory of[PLACES];
    float *request[PLACES], *reply[PLACES]; /* q of all its rows, k, v; o */
};

static void open_messages(struct messages *messages, const struct rig *rig)
{
    const size_t floats = MAX_ROWS * (rig->q_width + 2 * (size_t)rig->kv_width) + ODD_FLOATS;
    void *memory;
    uint64_t bytes;

    fastdecode_device.ops->host_memory(rig->backend, &memory, &bytes);
    assert_true(bytes >= 2 * PLACES * floats * sizeof(float));
    for (uint32_t p = 0; p < PLACES; p++) {
        float *reached = (float *)memory + 2 * p * floats;
        messages->request[p] = messages->of[p] == REACHED ? reached + ODD_FLOATS : calloc(floats, sizeof(float));
        messages->reply[p] = messages->of[p] == REACHED ? reached + floats + ODD_FLOATS : calloc(floats, sizeof(float));
    }
}

static void close_messages(struct messages *messages)
{
    for (uint32_t p = 0; p < PLACES; p++)
        if (messages->of[p] != REACHED)
            free(messages->request[p]), free(messages->reply[p]);
}

/* As the engine does for a layer. `o` are those of the layer before. */
static void point(struct rig *rig, const struct layout *layout, const struct messages *messages, uint32_t *rows_of)
{
    uint32_t counts[PLACES] = {0};

    for (uint32_t row = 0; row < layout->count; row++)
        counts[layout->place[row]]++;
    memset(rows_of, 0, PLACES * sizeof *rows_of);
    for (uint32_t row = 0; row < layout->count; row++) {
        const uint32_t p = layout->place[row], at = rows_of[p]++;
        float *request = messages->request[p];
        rig->q[row] = request + at * (size_t)rig->q_width;
        rig->k[row] = request + counts[p] * (size_t)rig->q_width + at * (size_t)rig->kv_width;
        rig->v[row] = request + counts[p] * (size_t)(rig->q_width + rig->kv_width) + at * (size_t)rig->kv_width;
        rig->o[row] = messages->reply[p] + at * (size_t)rig->q_width;
        if (messages->of[p] == GONE)
            rig->q[row] = rig->k[row] = rig->v[row] = NULL;
    }
}

static void put_sent(struct rig *rig, const float *from, size_t floats)
{
    memcpy(rig->sent + rig->sent_bytes, from, floats * sizeof *from);
    rig->sent_bytes += floats * sizeof *from;
}

static void run_step(struct rig *rig, const struct layout *layout, const struct messages *messages)
{
    const struct backend_ops *ops = fastdecode_device.ops;
    const struct backend_links links = {rig->o, rig->q, rig->k, rig->v};
    const uint32_t layers = rig_model->shape.layers, vocab = rig_model->shape.vocab;
    struct backend_sample samples[MAX_ROWS];
    struct sampler_result results[MAX_ROWS];
    uint32_t index[MAX_ROWS], rows_of[PLACES], bad;
    struct error error;

    assert_int_equal(ops->begin(rig->batch, layout->rows, layout->count, &bad, &error), STATUS_OK);
    point(rig, layout, messages, rows_of);
    rig->sent_bytes = 0;
    for (uint32_t s = 0; s < layers; s++) {
        ops->segment(rig->batch, s, &links);
        ops->attend(rig->batch, s);
        while (!ops->qkv_ready(rig->batch)) {}
        for (uint32_t row = 0; row < layout->count; row++)
            if (layout->place[row] && rig->q[row]) {
                put_sent(rig, rig->q[row], rig->q_width);
                put_sent(rig, rig->k[row], rig->kv_width);
                put_sent(rig, rig->v[row], rig->kv_width);
            }
        for (uint32_t p = 1; p < PLACES; p++) /* workers answer with q */
            if (messages->of[p] != GONE)
                memcpy(messages->reply[p], messages->request[p], rows_of[p] * rig->q_width * sizeof(float));
    }
    ops->segment(rig->batch, layers, &links);
    for (uint32_t row = 0; row < layout->count; row++) {
        index[row] = row;
        samples[row] = (struct backend_sample){
            .token = 7, .top_count = 2, .result = &results[row], .logits = rig->logits + (size_t)row * vocab};
    }
    ops->head(rig->batch, index, samples, layout->count);
    rig_wait(rig);
}

/* Nothing is read that was not written: memory begins as NaN. */
static void all_written(const struct rig *rig, uint32_t rows)
{
    const float *sent = (const float *)(const void *)rig->sent;
    for (size_t i = 0; i < rig->sent_bytes / sizeof *sent; i++)
        assert_true(sent[i] == sent[i]);
    for (size_t i = 0; i < (size_t)rows * rig_model->shape.vocab; i++)
        assert_true(rig->logits[i] == rig->logits[i]);
}

/* All steps with messages of a kind, beside those on the heap. Rows of a place that is gone are compared with nothing. */
static void same_bytes(const enum memory kinds[PLACES])
{
    struct rig rigs[2];
    struct messages messages[2] = {{.of = {HEAP, HEAP, HEAP}}, {.of = {kinds[0], kinds[1], kinds[2]}}};
    const size_t vocab = rig_model->shape.vocab;

    for (uint32_t i = 0; i < 2; i++) {
        rig_open(&rigs[i], fastdecode_device.ops, rig_config(MAX_ROWS), PAGES);
        open_messages(&messages[i], &rigs[i]);
    }
    for (uint32_t step = 0; step < STEPS; step++) {
        const struct layout layout = layout_of(step);
        run_step(&rigs[0], &layout, &messages[0]);
        run_step(&rigs[1], &layout, &messages[1]);
        all_written(&rigs[0], layout.count);
        bool gone = false;
        for (uint32_t row = 0; row < layout.count; row++) {
            gone |= messages[1].of[layout.place[row]] == GONE;
            if (messages[1].of[layout.place[row]] != GONE)
                assert_memory_equal(rigs[1].logits + row * vocab, rigs[0].logits + row * vocab, vocab * sizeof(float));
        }
        if (!gone) {
            assert_int_equal(rigs[1].sent_bytes, rigs[0].sent_bytes);
            assert_memory_equal(rigs[1].sent, rigs[0].sent, rigs[0].sent_bytes);
        }
        for (uint32_t row = 0; row < layout.count; row++)
            assert_int_equal(rigs[1].batch->wire.detour[row],
                             layout.place[row] && messages[1].of[layout.place[row]] != REACHED); /* of the last layer's o */
    }
    for (uint32_t i = 0; i < 2; i++) {
        close_messages(&messages[i]);
        rig_close(&rigs[i]);
    }
}

static void the_same_bytes_wherever_messages_lie(void **unused)
{
    same_bytes((const enum memory[PLACES]){HEAP, REACHED, REACHED});
    same_bytes((const enum memory[PLACES]){HEAP, REACHED, HEAP});
    same_bytes((const enum memory[PLACES]){HEAP, HEAP, REACHED});
}

static void rows_of_a_lost_place_go_nowhere(void **unused)
{
    same_bytes((const enum memory[PLACES]){HEAP, GONE, REACHED});
    same_bytes((const enum memory[PLACES]){HEAP, REACHED, GONE});
}

/* A trace has every layer of a step, in the order in which they ran, ending with the head. */
static void a_trace_shows_every_layer(void **unused)
{
    const uint32_t layers = rig_model->shape.layers;
    struct backend_config config = rig_config(MAX_ROWS);
    struct messages messages = {.of = {HEAP, REACHED, REACHED}};
    const struct layout layout = layout_of(0);
    struct backend_span spans[64];
    uint32_t counts[BACKEND_TRACKS] = {0};
    uint64_t last_ended_ns[BACKEND_TRACKS] = {0};
    struct backend_step_times times;
    struct rig rig;

    config.trace = true;
    rig_open(&rig, fastdecode_device.ops, config, PAGES);
    open_messages(&messages, &rig);
    run_step(&rig, &layout, &messages);
    fastdecode_device.ops->times(rig.batch, &times);
    assert_true(times.segments_us > 0 && times.attend_us > 0);
    const uint32_t count = fastdecode_device.ops->spans(rig.batch, spans, ARRAY_COUNT(spans));
    assert_int_equal(fastdecode_device.ops->spans(rig.batch, spans, 5), 5);
    assert_int_equal(fastdecode_device.ops->spans(rig.batch, spans, ARRAY_COUNT(spans)), count);
    for (uint32_t i = 0; i < count; i++) {
        const struct backend_span *span = &spans[i];
        assert_true(span->layer <= layers && span->began_ns <= span->ended_ns && span->ended_ns <= clock_now_ns());
        if (span->track == BACKEND_R_PART)
            assert_true(span->layer < layers);
        if (span->track != BACKEND_TRANSFER) /* emulated streams overtake each other: its two kinds come in no order */
            assert_true(span->began_ns + 1000 >= last_ended_ns[span->track]); /* events are read in microseconds */
        last_ended_ns[span->track] = span->ended_ns;
        counts[span->track]++;
    }
    assert_int_equal(counts[BACKEND_S_PART], layers + 2);
    assert_int_equal(counts[BACKEND_R_PART], layers);
    assert_int_equal(counts[BACKEND_TRANSFER], 2 * layers);
    close_messages(&messages);
    rig_close(&rig);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(the_same_bytes_wherever_messages_lie),
                                       cmocka_unit_test(rows_of_a_lost_place_go_nowhere),
                                       cmocka_unit_test(a_trace_shows_every_layer)};
    const struct tiny_llama tiny = TINY_LLAMA;
    setenv("FD_CUDA_TRIAL_MS", "0", 1); /* two backends choose the same algorithms: their bytes are compared */
    return rig_begin(&tiny) ? rig_end(cmocka_run_group_tests_name("messages to workers", tests, NULL, NULL)) : 0;
}
