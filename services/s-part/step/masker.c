// masker.c: see masker.h.
#include "services/s-part/step/masker.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/checked.h"
#include "common/base/log.h"
#include "services/s-part/step/masker_trackers.h"

struct masker {
    struct masker_config config;
    uint32_t mask_words;
    pthread_t thread;
    bool started; // engine's thread
    pthread_mutex_t mutex;
    pthread_cond_t work, done;
    // under the mutex
    bool stop;
    struct mask_job *first, *last;   // posted, in order
    struct masked_sequence *closing; // to be closed by the masker's thread
    // the masker's thread
    struct masker_trackers trackers;
};

uint64_t masker_planned_bytes(uint32_t vocab, uint32_t max_batch)
{
    const uint64_t mask_bytes = (uint64_t)((vocab + 31) / 32) * sizeof(uint32_t);

    return (uint64_t)vocab * MASKER_VOCAB_TOKEN_BYTES + MASKER_TRACKERS_KEPT * (uint64_t)masker_tracker_bytes(vocab) +
           (uint64_t)max_batch * mask_bytes;
}

// --- the masker's thread

static void fail(struct masked_sequence *sequence, const char *what, const char *why)
{
    snprintf(sequence->error, sizeof sequence->error, "%s%.200s", what, why);
    sequence->failed = true;
}

// Fails for a reason that the request can do something about.
static void refuse(struct masked_sequence *sequence, const char *why)
{
    fail(sequence, why, "");
    sequence->request_fault = true;
}

static bool is_end(const struct masked_sequence *sequence, uint32_t token)
{
    bool is = false;
    for (uint32_t i = 0; i < sequence->end_count; i++)
        is |= sequence->end_tokens[i] == token;
    return is;
}

static void take(struct masked_sequence *sequence, const uint32_t *tokens, uint32_t count)
{
    for (uint32_t i = 0; i < count && !sequence->failed && !sequence->is_over; i++) {
        if (is_end(sequence, tokens[i]) && grammar_cursor_may_end(sequence->cursor))
            sequence->is_over = true;
        else if (!grammar_cursor_take(sequence->cursor, tokens[i]))
            fail(sequence, "the text that was generated does not follow its grammar", "");
    }
}

// Takes what was generated before. It may cost so much and no more, since the sequences of other grammars wait.
static void replay(struct masked_sequence *sequence)
{
    const struct grammar_tracker *tracker = sequence->tracker->tracker;
    const uint64_t end = grammar_tracker_work(tracker) + MASKER_REPLAY_WORK;

    for (uint32_t i = 0; i < sequence->replay_count && !sequence->failed; i++) {
        take(sequence, &sequence->replay[i], 1);
        if (!sequence->failed && grammar_tracker_work(tracker) > end)
            refuse(sequence, "the grammar is too ambiguous: to follow what was generated once more takes too long");
    }
}

static void free_sequence(struct masker *masker, struct masked_sequence *sequence)
{
    grammar_cursor_close(sequence->cursor);
    if (sequence->tracker)
        masker_trackers_put_back(&masker->trackers, sequence->tracker);
    free(sequence->packed);
    free(sequence->replay);
    free(sequence);
}

static void close_all(struct masker *masker, struct masked_sequence *closing)
{
    while (closing) {
        struct masked_sequence *next = closing->next;
        free_sequence(masker, closing);
        closing = next;
    }
}

static void open_sequence(struct masker *masker, struct masked_sequence *sequence)
{
    struct masked_sequence *closing;
    struct error error;

    // A sequence that is to be closed may use the tracker that is lacking.
    pthread_mutex_lock(&masker->mutex);
    closing = masker->closing;
    masker->closing = NULL;
    pthread_mutex_unlock(&masker->mutex);
    close_all(masker, closing);
    if (masker_trackers_get(&masker->trackers, sequence->packed, sequence->packed_bytes, &sequence->tracker, &error))
        fail(sequence, "the grammar cannot be used: ", error.text);
    else if (!(sequence->cursor = grammar_cursor_open(sequence->tracker->tracker)))
        fail(sequence, "no memory for the grammar's cursor", "");
    else
        replay(sequence);
    free(sequence->packed);
    free(sequence->replay);
    sequence->packed = NULL;
    sequence->replay = NULL;
}

static void set_ends(const struct masked_sequence *sequence, bool allowed, uint32_t *mask)
{
    for (uint32_t i = 0; i < sequence->end_count; i++) {
        const uint32_t token = sequence->end_tokens[i], bit = 1u << token % 32;
        mask[token / 32] = allowed ? mask[token / 32] | bit : mask[token / 32] & ~bit;
    }
}

static bool is_empty(const uint32_t *mask, uint32_t words)
{
    uint32_t any = 0;
    for (uint32_t i = 0; i < words; i++)
        any |= mask[i];
    return any == 0;
}

// Writes what may come where the cursor is. Returns why there is no mask, or NULL; without one nothing is allowed.
static const char *write_mask(const struct masker *masker, const struct masked_sequence *sequence, struct grammar_cursor *cursor,
                              bool is_over, uint32_t *mask)
{
    bool is_found = true;
    if (!is_over && grammar_cursor_is_dead(cursor)) // of one that has taken nothing wrong
        return "too many rules of the grammar can begin in the same place";
    const bool must_end = is_over || grammar_cursor_must_end(cursor), may_end = must_end || grammar_cursor_may_end(cursor);

    if (must_end)
        memset(mask, 0, masker->mask_words * sizeof *mask);
    else
        is_found = grammar_cursor_mask(cursor, mask);
    set_ends(sequence, is_found && may_end && !sequence->ends_late, mask);
    if (is_found && may_end && is_empty(mask, masker->mask_words))
        set_ends(sequence, true, mask);
    if (!is_found)
        return "the grammar is too ambiguous here: which tokens may follow takes too long to find out";
    return is_empty(mask, masker->mask_words)
               ? "no token of the model can go on with the text as its grammar wants, or too many of its rules begin here"
               : NULL;
}

// Writes the masks behind the guesses, for as long as the grammar allows them. Behind a wrong guess, which is not drawn, or where there is no mask,
// nothing is allowed: no sample counts there, and what is wrong shows in the next step, as without guesses.
static void write_drafts(const struct masker *masker, const struct mask_item *item, uint32_t *masks)
{
    struct masked_sequence *sequence = item->sequence;
    struct grammar_cursor *ahead = sequence->tracker->drafts;
    bool good = true, is_over = sequence->is_over;

    grammar_cursor_copy(ahead, sequence->cursor);
    for (uint32_t k = 1; k < item->count; k++) {
        uint32_t *mask = masks + (size_t)k * masker->mask_words;
        is_over |= is_end(sequence, item->drafts[k - 1]);
        good = good && (is_over || grammar_cursor_take(ahead, item->drafts[k - 1])) &&
               !write_mask(masker, sequence, ahead, is_over, mask);
        if (!good)
            memset(mask, 0, masker->mask_words * sizeof *mask);
    }
}

static void do_item(struct masker *masker, const struct mask_job *job, const struct mask_item *item)
{
    struct masked_sequence *sequence = item->sequence;
    uint32_t *masks = job->words + (size_t)item->first * masker->mask_words;

    if (!sequence->failed && !sequence->cursor)
        open_sequence(masker, sequence);
    if (!sequence->failed)
        take(sequence, sequence->taken, sequence->taken_count);
    sequence->taken_count = 0;
    const char *why = sequence->failed ? NULL : write_mask(masker, sequence, sequence->cursor, sequence->is_over, masks);
    if (why)
        refuse(sequence, why);
    if (sequence->failed)
        memset(masks, 0xFF, (size_t)item->count * masker->mask_words * sizeof *masks);
    else if (item->count > 1)
        write_drafts(masker, item, masks);
}

// Under the lock, which it releases meanwhile. False: nothing waits.
static bool do_next(struct masker *masker)
{
    struct mask_job *job = masker->first;
    struct masked_sequence *closing = job ? NULL : masker->closing;

    if (!job && !closing)
        return false;
    if (job)
        masker->first = job->next;
    else
        masker->closing = NULL;
    pthread_mutex_unlock(&masker->mutex);
    close_all(masker, closing);
    for (uint32_t i = 0; job && i < job->item_count; i++)
        do_item(masker, job, &job->items[i]);
    pthread_mutex_lock(&masker->mutex);
    if (!job)
        return true;
    job->done = true;
    pthread_cond_broadcast(&masker->done);
    pthread_mutex_unlock(&masker->mutex);
    masker->config.on_done(masker->config.user); // not under the lock
    pthread_mutex_lock(&masker->mutex);
    return true;
}

static void *masker_main(void *arg)
{
    struct masker *masker = arg;

    pthread_mutex_lock(&masker->mutex);
    while (do_next(masker) || !masker->stop)
        if (!masker->first && !masker->closing && !masker->stop)
            pthread_cond_wait(&masker->work, &masker->mutex);
    pthread_mutex_unlock(&masker->mutex);
    return NULL;
}

// --- the engine's thread

enum status masker_open(const struct masker_config *config, struct masker **out)
{
    struct masker *masker = calloc(1, sizeof *masker);

    if (!masker)
        return STATUS_RESOURCE_EXHAUSTED;
    masker->config = *config;
    masker->mask_words = (config->vocab + 31) / 32;
    masker->trackers.model = config->model;
    masker->trackers.vocab_tokens = config->vocab;
    pthread_mutex_init(&masker->mutex, NULL);
    pthread_cond_init(&masker->work, NULL);
    pthread_cond_init(&masker->done, NULL);
    *out = masker;
    return STATUS_OK;
}

void masker_close(struct masker *masker)
{
    if (!masker)
        return;
    if (masker->started) {
        pthread_mutex_lock(&masker->mutex);
        masker->stop = true;
        pthread_cond_signal(&masker->work);
        pthread_mutex_unlock(&masker->mutex);
        pthread_join(masker->thread, NULL);
    }
    masker_trackers_close(&masker->trackers);
    pthread_cond_destroy(&masker->done);
    pthread_cond_destroy(&masker->work);
    pthread_mutex_destroy(&masker->mutex);
    free(masker);
}

// Something waits under the lock: wakes the thread, or does it here if there is none.
static void go_on(struct masker *masker)
{
    pthread_cond_signal(&masker->work);
    while (!masker->started && do_next(masker)) {}
}

static void *copy_of(const void *from, size_t bytes)
{
    void *copy = malloc(MAX(bytes, (size_t)1));
    if (copy && bytes)
        memcpy(copy, from, bytes);
    return copy;
}

struct masked_sequence *masker_sequence_open(struct masker *masker, const struct masked_sequence_config *config)
{
    struct masked_sequence *sequence = calloc(1, sizeof *sequence);

    if (!sequence)
        return NULL;
    if (!masker->started && !(masker->started = pthread_create(&masker->thread, NULL, masker_main, masker) == 0))
        log_warn("MASKER-NO-THREAD", "what=\"the masks of grammars are written on the engine's thread\"");
    *sequence = (struct masked_sequence){.masker = masker,
                                         .packed_bytes = config->packed_bytes,
                                         .replay_count = config->generated_count,
                                         .generated = config->generated_count,
                                         .ends_late = config->ends_late,
                                         .end_count = MIN(config->end_count, (uint32_t)SAMPLER_END_TOKENS_MAX)};
    sequence->packed = copy_of(config->packed, config->packed_bytes);
    sequence->replay = copy_of(config->generated, config->generated_count * sizeof *config->generated);
    if (sequence->end_count)
        memcpy(sequence->end_tokens, config->end_tokens, sequence->end_count * sizeof *sequence->end_tokens);
    if (sequence->packed && sequence->replay)
        return sequence;
    free(sequence->packed);
    free(sequence->replay);
    free(sequence);
    return NULL;
}

void masker_sequence_close(struct masked_sequence *sequence)
{
    if (!sequence)
        return;
    struct masker *masker = sequence->masker;
    pthread_mutex_lock(&masker->mutex);
    sequence->next = masker->closing;
    masker->closing = sequence;
    go_on(masker);
    pthread_mutex_unlock(&masker->mutex);
}

void masker_sequence_took(struct masked_sequence *sequence, uint32_t token)
{
    assert_always(sequence->taken_count < ARRAY_COUNT(sequence->taken));
    sequence->taken[sequence->taken_count++] = token;
    sequence->generated++;
}

// --- jobs

bool mask_job_reserve(struct mask_job *job, const struct masker *masker, uint32_t masks)
{
    uint32_t capacity = MAX(job->capacity, 4u);

    while (capacity < masks)
        capacity *= 2;
    if (capacity == job->capacity)
        return true;
    free(job->items);
    free(job->words);
    job->mask_words = masker->mask_words;
    job->items = malloc(capacity * sizeof *job->items);
    job->words = malloc((size_t)capacity * masker->mask_words * sizeof *job->words);
    job->capacity = job->items && job->words ? capacity : 0;
    return job->capacity > 0;
}

void mask_job_free(struct mask_job *job)
{
    free(job->items);
    free(job->words);
    *job = (struct mask_job){0};
}

uint32_t mask_job_add(struct mask_job *job, struct masked_sequence *sequence, const uint32_t *drafts, uint32_t count)
{
    count = MIN(count, job->capacity - job->mask_count);
    if (!count)
        return 0;
    job->items[job->item_count++] =
        (struct mask_item){.sequence = sequence, .drafts = drafts, .first = job->mask_count, .count = count};
    job->mask_count += count;
    return count;
}

const uint32_t *mask_job_mask(const struct mask_job *job, uint32_t index) { return job->words + (size_t)index * job->mask_words; }

void mask_job_post(struct mask_job *job, struct masker *masker)
{
    job->masker = masker;
    job->posted = true;
    pthread_mutex_lock(&masker->mutex);
    job->done = false;
    job->next = NULL;
    if (masker->first)
        masker->last->next = job;
    else
        masker->first = job;
    masker->last = job;
    go_on(masker);
    pthread_mutex_unlock(&masker->mutex);
}

bool mask_job_done(struct mask_job *job)
{
    bool done = true;

    if (!job->posted)
        return true;
    pthread_mutex_lock(&job->masker->mutex);
    done = job->done;
    pthread_mutex_unlock(&job->masker->mutex);
    job->posted = !done;
    return done;
}

void mask_job_wait(struct mask_job *job)
{
    if (!job->posted)
        return;
    pthread_mutex_lock(&job->masker->mutex);
    while (!job->done)
        pthread_cond_wait(&job->masker->done, &job->masker->mutex);
    pthread_mutex_unlock(&job->masker->mutex);
    job->posted = false;
}

void mask_job_clear(struct mask_job *job) { job->item_count = job->mask_count = 0; }
