// answer.c: see answer.h: text outside of calls: what is thought, what is said, and where a call begins.
//
// It works byte by byte, so that how the text is cut cannot matter. `held` is what may still become something else:
//
//   MODE_TEXT    white space (gap_bytes), then the first bytes of what may be a marker:   " \n" "<tool_"
//   MODE_BODY    the same with the whole marker and what has been read of the call, until answer_begin_call() drops it
//
// A byte that fits no marker lets the first byte held go, and the rest is looked at again: markers are short.
#include <stdlib.h>
#include <string.h>

#include "common/base/checked.h"
#include "services/gateway/answer/internal.h"

enum { NO_MARKER = UINT32_MAX, WRAP_OPEN = ANSWER_MAX_MARKERS, WRAP_CLOSE };

static void feed(struct answer_parser *parser, char byte);

// --- events -------------------------------------------------------------------------------------------------------------
static void flush_run(struct answer_parser *parser)
{
    if (parser->run.bytes > 0) {
        const struct answer_event event = {.kind = parser->run_kind,
                                           .call = parser->calls - (parser->run_kind >= ANSWER_CALL),
                                           .bytes = parser->run.data,
                                           .count = parser->run.bytes};
        parser->options.take(parser->options.arg, &event);
    }
    parser->failed |= parser->run.failed;
    text_clear(&parser->run);
}

void answer_emit(struct answer_parser *parser, enum answer_kind kind, const char *bytes, size_t count)
{
    if (kind != parser->run_kind || kind == ANSWER_CALL)
        flush_run(parser);
    parser->run_kind = (uint8_t)kind;
    text_append(&parser->run, bytes, count);
    if (kind == ANSWER_CALL)
        flush_run(parser);
}

static void drop_held(struct answer_parser *parser)
{
    parser->failed |= parser->held.failed;
    text_clear(&parser->held);
    parser->gap_bytes = 0;
}

// Lets the first `count` bytes held out as content or reasoning, but for the white space at the start of either.
static void release_held(struct answer_parser *parser, size_t count, enum answer_kind kind)
{
    const size_t skip = parser->fresh ? MIN(parser->gap_bytes, count) : 0;

    if (count > skip) {
        answer_emit(parser, kind, parser->held.data + skip, count - skip);
        parser->fresh = false;
        parser->any_text |= kind == ANSWER_CONTENT;
    }
    text_consume(&parser->held, count);
    parser->gap_bytes -= MIN(parser->gap_bytes, count);
}

bool answer_is_space(char byte) { return byte == ' ' || byte == '\n' || byte == '\r' || byte == '\t'; }

bool answer_is_name(const char *name, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (!((name[i] >= 'a' && name[i] <= 'z') || (name[i] >= 'A' && name[i] <= 'Z') || (name[i] >= '0' && name[i] <= '9') ||
              (name[i] && strchr("_-./", name[i]))))
            return false;
    return count > 0 && count <= ANSWER_MAX_NAME_BYTES;
}

// --- calls --------------------------------------------------------------------------------------------------------------
bool answer_begin_call(struct answer_parser *parser, const char *name, size_t count)
{
    if (parser->calls >= ANSWER_MAX_CALLS || count == 0 || count > ANSWER_MAX_NAME_BYTES)
        return false;
    flush_run(parser);
    drop_held(parser);
    parser->calls++;
    parser->in_call = true;
    answer_emit(parser, ANSWER_CALL, name, count);
    return true;
}

void answer_end_call(struct answer_parser *parser)
{
    parser->in_call = false;
    parser->fresh = true;
    drop_held(parser);
    if (parser->options.one_call)
        parser->mode = MODE_DONE;
}

static void end_body(struct answer_parser *parser, enum verdict verdict)
{
    if (verdict == BODY_FAILED && !parser->in_call) {
        release_held(parser, parser->held.bytes, ANSWER_CONTENT);
    } else if (parser->in_call) {
        answer_end_call(parser);
    }
    drop_held(parser);
    if (parser->mode != MODE_DONE)
        parser->mode = MODE_TEXT;
}

static void begin_body(struct answer_parser *parser, uint32_t marker)
{
    parser->mode = MODE_BODY;
    parser->raw = false;
    text_clear(&parser->part);
    parser->family->body->begin(parser, marker);
}

// --- markers ------------------------------------------------------------------------------------------------------------
// Returns the index of the family's marker with this text, or UINT32_MAX.
static uint32_t answer_marker(const struct answer_parser *parser, const char *text, size_t count)
{
    for (uint32_t i = 0; parser->family && i < ANSWER_MAX_MARKERS && parser->family->markers[i].text; i++)
        if (strlen(parser->family->markers[i].text) == count && !memcmp(parser->family->markers[i].text, text, count))
            return i;
    return NO_MARKER;
}

// Compares text with what a marker begins with. Returns 1: it is the marker, 0: it may become it, -1: it cannot.
static int compare_marker(const char *marker, const char *text, size_t count)
{
    const size_t length = marker ? strlen(marker) : 0;

    if (count > length || memcmp(marker, text, count) != 0)
        return -1;
    return count == length;
}

// Looks for a marker at the start of text. *partial: a marker may come.
static uint32_t match_marker(const struct answer_parser *parser, const char *text, size_t count, bool in_body, bool *partial)
{
    const struct answer_family *family = parser->family;
    const struct answer_reasoning *reasoning = parser->options.reasoning;
    int found;

    *partial = false;
    for (uint32_t i = 0; family && i < ANSWER_MAX_MARKERS && family->markers[i].text; i++) {
        const uint8_t role = family->markers[i].role;
        if ((parser->options.unit_markers >> i & 1) || (!in_body && role == MARKER_PART) ||
            (!in_body && role == MARKER_CLOSE && parser->calls == 0))
            continue;
        if ((found = compare_marker(family->markers[i].text, text, count)) > 0)
            return i;
        *partial |= found == 0;
    }
    for (uint32_t i = WRAP_OPEN; !in_body && reasoning && i <= WRAP_CLOSE; i++) {
        if ((found = compare_marker(i == WRAP_OPEN ? reasoning->wrap_open : reasoning->wrap_close, text, count)) > 0)
            return i;
        *partial |= found == 0;
    }
    return NO_MARKER;
}

// Takes a marker in text. Its own text is held if it was written as text.
static void take_marker(struct answer_parser *parser, uint32_t marker)
{
    if (marker < ANSWER_MAX_MARKERS && parser->family->markers[marker].role == MARKER_OPEN) {
        begin_body(parser, marker);
        return;
    }
    const uint8_t role = marker < ANSWER_MAX_MARKERS ? parser->family->markers[marker].role : MARKER_DROP;
    if (role == MARKER_PART || (role == MARKER_CLOSE && parser->calls == 0))
        return; // a part of a call, and there is none
    drop_held(parser);
    parser->fresh = true;
}

// --- modes --------------------------------------------------------------------------------------------------------------
// White space, and between calls what some models put there.
static bool is_gap(const struct answer_parser *parser, char byte)
{
    return answer_is_space(byte) ||
           (parser->mode == MODE_TEXT && parser->calls > 0 && parser->fresh && (byte == ';' || byte == ','));
}

static void feed_text(struct answer_parser *parser, char byte)
{
    const struct answer_family *family = parser->family;
    bool partial;

    text_append(&parser->held, &byte, 1);
    while (parser->held.bytes > parser->gap_bytes) {
        const char *part = parser->held.data + parser->gap_bytes;
        const size_t count = parser->held.bytes - parser->gap_bytes;
        const uint32_t marker = match_marker(parser, part, count, false, &partial);
        if (marker != NO_MARKER) {
            take_marker(parser, marker);
            return;
        }
        if (partial)
            return;
        if (family && family->unmarked && *part == '{' && !parser->any_text) {
            begin_body(parser, NO_MARKER); // nothing but this byte is held: no marker begins with it
            return;
        }
        if (!is_gap(parser, *part))
            release_held(parser, parser->gap_bytes + 1, ANSWER_CONTENT);
        else if (++parser->gap_bytes > ANSWER_MAX_GAP)
            release_held(parser, parser->gap_bytes, ANSWER_CONTENT);
    }
}

static void feed_reasoning(struct answer_parser *parser, char byte)
{
    text_append(&parser->held, &byte, 1);
    while (parser->held.bytes > parser->gap_bytes) {
        const char *part = parser->held.data + parser->gap_bytes;
        const int found = compare_marker(parser->options.reasoning->close, part, parser->held.bytes - parser->gap_bytes);
        if (found > 0) {
            drop_held(parser);
            parser->mode = MODE_TEXT;
            parser->fresh = true;
            return;
        }
        if (found == 0)
            return;
        if (!answer_is_space(*part))
            release_held(parser, parser->gap_bytes + 1, ANSWER_REASONING);
        else if (++parser->gap_bytes > ANSWER_MAX_GAP)
            release_held(parser, parser->gap_bytes, ANSWER_REASONING);
    }
}

// Reads what is held again, in another mode.
static void feed_again(struct answer_parser *parser)
{
    struct text held = parser->held;

    parser->held = (struct text){0};
    parser->gap_bytes = 0;
    for (size_t i = 0; i < held.bytes; i++)
        feed(parser, held.data[i]);
    parser->failed |= held.failed;
    text_free(&held);
}

static void open_reasoning(struct answer_parser *parser)
{
    drop_held(parser);
    parser->mode = MODE_REASONING;
    parser->fresh = true;
}

static void feed_start(struct answer_parser *parser, char byte)
{
    text_append(&parser->held, &byte, 1);
    if (parser->held.bytes == parser->gap_bytes + 1 && answer_is_space(byte) && parser->gap_bytes < ANSWER_MAX_GAP) {
        parser->gap_bytes++;
        return;
    }
    const int found = compare_marker(parser->options.reasoning->open, parser->held.data + parser->gap_bytes,
                                     parser->held.bytes - parser->gap_bytes);
    if (found > 0) {
        open_reasoning(parser);
    } else if (found < 0) {
        parser->mode = MODE_TEXT;
        feed_again(parser);
    }
}

static void feed_body(struct answer_parser *parser, char byte)
{
    const enum verdict verdict = parser->family->body->take(parser, byte);

    if (parser->mode == MODE_DONE)
        return;
    if (verdict == BODY_MORE) {
        if (!parser->in_call && !parser->family->channels) {
            text_append(&parser->held, &byte, 1);
            if (parser->held.bytes > ANSWER_MAX_HELD)
                end_body(parser, BODY_FAILED);
        }
        return;
    }
    end_body(parser, verdict);
    if (verdict != BODY_DONE)
        feed(parser, byte);
}

// text: what the marker was written as; NULL: a control token.
static void take_unit_in_body(struct answer_parser *parser, uint32_t marker, const char *text)
{
    const struct body *body = parser->family->body;
    const uint8_t role = marker == NO_MARKER ? MARKER_NONE : parser->family->markers[marker].role;
    const enum verdict verdict = body->unit(parser, marker);
    const bool begins = role == MARKER_OPEN && (verdict == BODY_FAILED || verdict == BODY_DONE_BEFORE);

    if (parser->mode == MODE_DONE)
        return;
    if (verdict != BODY_MORE)
        end_body(parser, verdict);
    if (parser->mode == MODE_DONE)
        return;
    if (begins)
        begin_body(parser, marker);
    else if (verdict == BODY_FAILED && text)
        answer_emit(parser, ANSWER_CONTENT, text, strlen(text));
    if (text && parser->mode == MODE_BODY && !parser->in_call && !parser->family->channels)
        text_append(&parser->held, text, strlen(text));
}

// Feeds a body in which markers count, as in text. Bytes that are no marker are the body's.
static void feed_marked_body(struct answer_parser *parser, char byte)
{
    bool partial;

    text_append(&parser->part, &byte, 1);
    while (parser->part.bytes > 0 && parser->mode == MODE_BODY) {
        const uint32_t marker = parser->raw ? NO_MARKER
                                            : match_marker(parser, parser->part.data, parser->part.bytes, true, &partial);
        if (marker != NO_MARKER) {
            text_clear(&parser->part);
            take_unit_in_body(parser, marker, parser->family->markers[marker].text);
            return;
        }
        if (!parser->raw && partial)
            return;
        const char first = parser->part.data[0];
        text_consume(&parser->part, 1);
        feed_body(parser, first);
    }
    if (parser->part.bytes > 0) { // the body ended before all of it was read
        struct text rest = parser->part;
        parser->part = (struct text){0};
        for (size_t i = 0; i < rest.bytes; i++)
            feed(parser, rest.data[i]);
        text_free(&rest);
    }
}

static void feed(struct answer_parser *parser, char byte)
{
    switch (parser->mode) {
    case MODE_START: feed_start(parser, byte); break;
    case MODE_REASONING: feed_reasoning(parser, byte); break;
    case MODE_TEXT: feed_text(parser, byte); break;
    case MODE_BODY: (parser->family->body->markers_in_body ? feed_marked_body : feed_body)(parser, byte); break;
    default: break;
    }
}

// --- the interface ------------------------------------------------------------------------------------------------------
struct answer_parser *answer_open(const struct answer_options *options)
{
    struct answer_parser *parser = calloc(1, sizeof *parser);

    if (!parser)
        return NULL;
    parser->options = *options;
    parser->family = options->family;
    if (parser->family && parser->family->channels)
        begin_body(parser, NO_MARKER);
    else if (options->reasoning && options->reasoning_is_open)
        open_reasoning(parser);
    else
        parser->mode = options->reasoning ? MODE_START : MODE_TEXT;
    return parser;
}

void answer_close(struct answer_parser *parser)
{
    if (!parser)
        return;
    text_free(&parser->held);
    text_free(&parser->part);
    text_free(&parser->run);
    text_free(&parser->name);
    text_free(&parser->value);
    text_free(&parser->parameter);
    free(parser);
}

void answer_push(struct answer_parser *parser, const char *bytes, size_t count)
{
    for (size_t i = 0; i < count && parser->mode != MODE_DONE; i++)
        feed(parser, bytes[i]);
    flush_run(parser);
}

// Lets text out that only began like a marker, now that a control token follows.
static void settle_held(struct answer_parser *parser)
{
    if (parser->mode == MODE_TEXT && parser->held.bytes > parser->gap_bytes)
        release_held(parser, parser->held.bytes, ANSWER_CONTENT);
    else if (parser->mode == MODE_REASONING && parser->held.bytes > parser->gap_bytes)
        release_held(parser, parser->held.bytes, ANSWER_REASONING);
    while (parser->mode == MODE_BODY && parser->part.bytes > 0) {
        const char first = parser->part.data[0];
        text_consume(&parser->part, 1);
        feed_body(parser, first);
    }
}

void answer_push_unit(struct answer_parser *parser, const char *name, size_t count)
{
    const struct answer_reasoning *reasoning = parser->options.reasoning;
    const uint32_t marker = answer_marker(parser, name, count);

    if (parser->mode == MODE_DONE)
        return;
    if (parser->mode == MODE_START && parser->held.bytes > parser->gap_bytes) { // no opening after all
        parser->mode = MODE_TEXT;
        feed_again(parser);
    }
    settle_held(parser);
    if (parser->mode == MODE_START && compare_marker(reasoning->open, name, count) > 0) {
        open_reasoning(parser);
    } else if (parser->mode == MODE_REASONING && compare_marker(reasoning->close, name, count) > 0) {
        drop_held(parser);
        parser->mode = MODE_TEXT;
        parser->fresh = true;
    } else if (parser->mode == MODE_BODY) {
        take_unit_in_body(parser, marker, NULL);
    } else if (parser->mode != MODE_REASONING && marker != NO_MARKER) {
        if (parser->mode == MODE_START) {
            parser->mode = MODE_TEXT;
            feed_again(parser);
        }
        take_marker(parser, marker);
    }
    flush_run(parser);
}

void answer_finish(struct answer_parser *parser)
{
    if (parser->mode == MODE_START) {
        parser->mode = MODE_TEXT;
        feed_again(parser);
    }
    settle_held(parser);
    if (parser->mode == MODE_BODY) {
        if (parser->family->body->end)
            parser->family->body->end(parser);
        if (!parser->in_call && !parser->family->channels)
            release_held(parser, parser->held.bytes, ANSWER_CONTENT);
    } else if (parser->mode == MODE_TEXT && parser->calls == 0) {
        release_held(parser, parser->held.bytes, ANSWER_CONTENT);
    }
    flush_run(parser);
    parser->mode = MODE_DONE;
}

bool answer_is_done(const struct answer_parser *parser) { return parser->mode == MODE_DONE; }
uint32_t answer_calls(const struct answer_parser *parser) { return parser->calls; }

bool answer_may_be_content(const struct answer_parser *parser)
{
    if (parser->mode == MODE_BODY && parser->family->channels)
        return parser->run_kind == ANSWER_CONTENT;
    return parser->mode == MODE_TEXT || parser->mode == MODE_START;
}

bool answer_is_reasoning(const struct answer_parser *parser)
{
    if (parser->mode == MODE_BODY && parser->family->channels)
        return parser->run_kind == ANSWER_REASONING;
    return parser->mode == MODE_REASONING;
}

bool answer_failed(const struct answer_parser *parser)
{
    return parser->failed || parser->held.failed || parser->part.failed || parser->run.failed || parser->name.failed ||
           parser->value.failed || parser->parameter.failed;
}
