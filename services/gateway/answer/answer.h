// answer.h: reads what a model wrote: what it thinks, what it says, which functions it calls.
//
//   text and control tokens ──answer_push()──▶ parser ──▶ events: content, reasoning, a call's name, pieces of its arguments
//
// Each family of models has a notation of its own, which its chat template shows; answer_detect_family() and answer_detect_reasoning() know it
// from there. Example, family "hermes", in pieces of any length:
//
//   "Let me see.\n<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": 1}}\n</tool_call>"
//   content "Let me see."    call "f"    arguments "{\"a\": 1}"
//
// However the text is cut, the events of a kind joined are the same. A call begins once its name is known and its arguments begin. Text that
// looked like a call until then and is none comes out as content, unchanged; from then on what the model writes is the arguments, as it is: an
// answer that was cut off leaves arguments that are not valid JSON.
//
// White space before a call, after one, and around what is thought belongs to the notation and is left out; other content is passed on byte
// by byte.
//
// A pure room: no I/O, no clock. Memory is bounded by the text of one call's head. One thread a parser; the tables may be read by all.
#ifndef FD_GATEWAY_ANSWER_ANSWER_H
#define FD_GATEWAY_ANSWER_ANSWER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/status.h"

enum {
    ANSWER_MAX_CALLS = 128,       // calls of one answer; what follows is content
    ANSWER_MAX_NAME_BYTES = 256,  // a function's
    ANSWER_MAX_HELD = 64 << 10,   // bytes of a call whose name is not known yet; beyond, they are content
    ANSWER_MAX_GAP = 4096,        // bytes of white space that are held because a call may follow
    ANSWER_MAX_MARKERS = 12,      // a family's
    ANSWER_MAX_MARKER_BYTES = 64, // a marker's
};

struct answer_family;    // a notation of calls
struct answer_reasoning; // a notation of reasoning
struct answer_parser;

// --- the tables ---------------------------------------------------------------------------------------------------------
// Returns a row by its name ("hermes", "think"), or NULL.
const struct answer_family *answer_find_family(const char *name);
const struct answer_reasoning *answer_find_reasoning(const char *name);
// Returns the row that a template's text speaks of, or NULL.
const struct answer_family *answer_detect_family(const char *source, size_t length);
const struct answer_reasoning *answer_detect_reasoning(const char *source, size_t length);
const char *answer_family_name(const struct answer_family *family);
const char *answer_reasoning_name(const struct answer_reasoning *reasoning);
// Writes "a, b, c" of a table, and returns out.
const char *answer_family_names(char *out, size_t out_bytes);
const char *answer_reasoning_names(char *out, size_t out_bytes);
// Returns whether the notation wants ids of nine letters and digits.
bool answer_has_short_ids(const struct answer_family *family);
// Returns whether the family has channels: it says itself what is reasoning.
bool answer_has_channels(const struct answer_family *family);
// Returns marker `index` of a family, or NULL beyond the last. They are what an answer's control tokens may be.
const char *answer_family_marker(const struct answer_family *family, uint32_t index);
// Returns the text that opens what is thought.
const char *answer_reasoning_open(const struct answer_reasoning *reasoning);

// --- a parser -----------------------------------------------------------------------------------------------------------
enum answer_kind { ANSWER_CONTENT, ANSWER_REASONING, ANSWER_CALL, ANSWER_ARGUMENTS };

struct answer_event {
    enum answer_kind kind;
    uint32_t call;     // the number of ANSWER_CALL's and ANSWER_ARGUMENTS' call, from 0
    const char *bytes; // text; the function's name
    size_t count;
};

typedef void answer_take_fn(void *arg, const struct answer_event *event);

enum answer_type { ANSWER_UNKNOWN, ANSWER_STRING, ANSWER_OTHER };

struct answer_options {
    const struct answer_family *family;       // NULL: no calls
    const struct answer_reasoning *reasoning; // NULL: none is split off
    bool reasoning_is_open;                   // the prompt has opened it
    bool one_call;                            // the answer ends after the first call
    uint32_t unit_markers; // bit i: marker i of the family is a control token here, so that its text is only text
    answer_take_fn *take;
    // Says whether a function of this name exists; notations without a marker ask. NULL: any does.
    bool (*knows)(void *arg, const char *name, size_t name_bytes);
    // Says what type a parameter has, for notations that do not tell. NULL: unknown.
    enum answer_type (*type_of)(void *arg, const char *name, size_t name_bytes, const char *parameter, size_t parameter_bytes);
    void *arg;
};

// Opens a parser; NULL: no memory. The caller closes it.
struct answer_parser *answer_open(const struct answer_options *options);
void answer_close(struct answer_parser *parser);

// Takes text. Events come during the call.
void answer_push(struct answer_parser *parser, const char *bytes, size_t count);
// Takes a control token by its name: never shown, but it may be a marker.
void answer_push_unit(struct answer_parser *parser, const char *name, size_t count);
// Ends the answer: what was held back comes out. Nothing may be pushed afterwards.
void answer_finish(struct answer_parser *parser);

// Returns whether the last byte pushed may still become content.
bool answer_may_be_content(const struct answer_parser *parser);
// Returns whether the last byte pushed was thought.
bool answer_is_reasoning(const struct answer_parser *parser);
// Returns whether nothing more can come (one_call, and the call is over).
bool answer_is_done(const struct answer_parser *parser);
// Returns how many calls have begun.
uint32_t answer_calls(const struct answer_parser *parser);
// Returns whether memory ran out: events are missing.
bool answer_failed(const struct answer_parser *parser);

#endif
