// masker_trackers.c: see masker_trackers.h.
#include "services/s-part/step/masker_trackers.h"

#include <string.h>

#include "common/base/checked.h"
#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/base/memory.h"
#include "common/model/vocabulary.h"

enum { CONTROL_BYTE = 0xFF }; // before the name of a control token (common/grammar/grammar.h)

struct naming {
    const struct model *model;
    const struct tokenizer *tokenizer;
};

// Returns a token as grammars see it. Text with the byte that marks control tokens is none: no UTF-8 has it.
static size_t token_bytes(void *arg, uint32_t token, char *scratch, const char **bytes)
{
    const struct naming *naming = arg;
    const struct gguf_array *types = &naming->model->tokenizer.token_types;
    const struct text_span span = tokenizer_token_bytes(naming->tokenizer, token);

    if (span.length == 0 || span.length >= GRAMMAR_TOKEN_BYTES ||
        (token < types->count && gguf_array_integer(types, token) == TOKEN_UNUSED))
        return 0;
    if (tokenizer_is_control(naming->tokenizer, token) || tokenizer_is_end(naming->tokenizer, token)) {
        scratch[0] = (char)CONTROL_BYTE;
        memcpy(scratch + 1, span.bytes, span.length);
        *bytes = scratch;
        return span.length + 1;
    }
    *bytes = span.bytes;
    return memchr(span.bytes, CONTROL_BYTE, span.length) ? 0 : span.length;
}

static enum status open_vocab(struct masker_trackers *trackers, struct error *error)
{
    struct naming naming = {.model = trackers->model};
    struct tokenizer *tokenizer;
    uint64_t began_us = clock_now_us();
    enum status status = vocabulary_open_decoder(trackers->model, &tokenizer, error);

    if (status)
        return status;
    naming.tokenizer = tokenizer;
    status = grammar_vocab_open(trackers->vocab_tokens, token_bytes, &naming, &trackers->vocab, error);
    tokenizer_close(tokenizer);
    if (!status)
        log_info("GRAMMARS", "tokens=%u ms=%llu", trackers->vocab_tokens, (unsigned long long)(clock_now_us() - began_us) / 1000);
    return status;
}

size_t masker_tracker_bytes(uint32_t vocab)
{
    return GRAMMAR_TRACKER_MIN_BYTES + MASKER_TRACKER_MASKS * (size_t)((vocab + 31) / 32) * sizeof(uint32_t);
}

static void close_entry(struct masker_tracker *entry)
{
    grammar_cursor_close(entry->drafts);
    grammar_tracker_close(entry->tracker);
    *entry = (struct masker_tracker){0};
}

static bool is_of(const struct masker_tracker *entry, uint64_t hash, const void *packed, size_t bytes)
{
    size_t own_bytes;
    const void *own = entry->tracker && entry->hash == hash ? grammar_packed(grammar_tracker_grammar(entry->tracker), &own_bytes)
                                                            : NULL;

    return own && own_bytes == bytes && memcmp(own, packed, bytes) == 0;
}

// Returns an entry for another tracker: a free one while few are kept, otherwise the one that was unused for longest. NULL: all are in use.
static struct masker_tracker *make_room(struct masker_trackers *trackers)
{
    struct masker_tracker *unused = NULL, *oldest = NULL;
    uint32_t kept = 0;

    for (uint32_t i = 0; i < MASKER_TRACKERS_MAX; i++) {
        struct masker_tracker *entry = &trackers->entries[i];
        if (!entry->tracker)
            unused = unused ? unused : entry;
        else if (!entry->users && (kept++, !oldest || entry->used_at < oldest->used_at))
            oldest = entry;
    }
    if (!oldest || (unused && kept < MASKER_TRACKERS_KEPT))
        return unused;
    close_entry(oldest);
    return oldest;
}

static enum status open_tracker(struct masker_trackers *trackers, struct grammar *grammar, struct masker_tracker **out,
                                struct error *error)
{
    struct masker_tracker *entry = make_room(trackers);
    const size_t bytes = masker_tracker_bytes(trackers->vocab_tokens);
    enum status status = STATUS_RESOURCE_EXHAUSTED;

    if (entry && memory_available_bytes() < bytes)
        error_set(error, STATUS_RESOURCE_EXHAUSTED, "another grammar takes %zu KiB, more than is available", bytes >> 10);
    else if (entry)
        status = grammar_tracker_open(grammar, trackers->vocab, bytes, &entry->tracker, error);
    else
        error_set(error, STATUS_RESOURCE_EXHAUSTED, "%d different grammars are in use, the limit", MASKER_TRACKERS_MAX);
    if (status) { // an entry without a tracker stays free
        grammar_free(grammar);
        return status;
    }
    entry->hash = grammar_hash(grammar);
    entry->drafts = grammar_cursor_open(entry->tracker);
    if (!entry->drafts) {
        close_entry(entry);
        return error_set(error, STATUS_RESOURCE_EXHAUSTED, "no memory for a grammar's cursor");
    }
    *out = entry;
    return STATUS_OK;
}

enum status masker_trackers_get(struct masker_trackers *trackers, const void *packed, size_t bytes, struct masker_tracker **out,
                                struct error *error)
{
    const uint64_t hash = grammar_packed_hash(packed, bytes);
    struct grammar *grammar;
    enum status status = STATUS_OK;

    *out = NULL;
    for (uint32_t i = 0; i < MASKER_TRACKERS_MAX && !*out; i++)
        if (is_of(&trackers->entries[i], hash, packed, bytes))
            *out = &trackers->entries[i];
    if (!*out && !trackers->vocab)
        status = open_vocab(trackers, error);
    if (!*out && !status)
        status = grammar_unpack(packed, bytes, &grammar, error);
    if (!*out && !status)
        status = open_tracker(trackers, grammar, out, error);
    if (status)
        return status;
    (*out)->users++;
    (*out)->used_at = ++trackers->uses;
    return STATUS_OK;
}

void masker_trackers_put_back(struct masker_trackers *trackers, struct masker_tracker *tracker)
{
    tracker->used_at = ++trackers->uses;
    tracker->users--;
}

void masker_trackers_close(struct masker_trackers *trackers)
{
    for (uint32_t i = 0; i < MASKER_TRACKERS_MAX; i++)
        if (trackers->entries[i].tracker)
            close_entry(&trackers->entries[i]);
    grammar_vocab_close(trackers->vocab);
}
