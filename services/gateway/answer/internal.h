// internal.h: what the files of this room share: the parser's state, and how a notation reads the body of a call.
#ifndef FD_GATEWAY_ANSWER_INTERNAL_H
#define FD_GATEWAY_ANSWER_INTERNAL_H

#include "common/base/text.h"
#include "services/gateway/answer/answer.h"

enum { NESTING_MAX = 64 }; // brackets within arguments that are translated

enum marker_role {
    MARKER_NONE,
    MARKER_OPEN,  // a call's body follows
    MARKER_CLOSE, // after a call: left out
    MARKER_DROP,  // around calls: left out
    MARKER_PART,  // means something inside of a body only
};

struct marker {
    const char *text;
    uint8_t role;
};

// A body's verdict on a byte.
enum verdict {
    BODY_MORE,
    BODY_DONE,        // the call ended with this byte
    BODY_DONE_BEFORE, // the call ended before this byte, which is text
    BODY_FAILED,      // no call: what was held is content, and this byte is text
};

// How calls are written between markers.
struct body {
    void (*begin)(struct answer_parser *parser, uint32_t marker); // after the opening marker; UINT32_MAX: without one
    enum verdict (*take)(struct answer_parser *parser, char byte);
    // A control token or marker; index of the family's marker, or UINT32_MAX. NULL: only a closing marker ends the call.
    enum verdict (*unit)(struct answer_parser *parser, uint32_t marker);
    void (*end)(struct answer_parser *parser); // the answer ends inside; NULL: nothing is held by the body
    bool markers_in_body;                      // markers are looked for in the text of the body, too
    uint8_t style;                             // of those that one file reads, which
};

struct answer_family {
    const char *name;
    const struct body *body;
    struct marker markers[ANSWER_MAX_MARKERS];
    bool unmarked;  // an answer that begins with { may be a call
    bool channels;  // the notation says of each byte what it is: no text outside of bodies
    bool short_ids; // nine letters and digits
};

struct answer_reasoning {
    const char *name;
    const char *open, *close;
    const char *wrap_open, *wrap_close; // around what is said, left out; NULL: none
    const char *sign;                   // a template of this kind has it beside `close`; NULL: no more
};

// Follows one JSON value, without judging more than where it ends.
struct scan {
    uint32_t depth;
    bool started, string, escaped, scalar;
};
enum scan_end { SCAN_MORE, SCAN_END, SCAN_END_BEFORE };
enum scan_end scan_take(struct scan *scan, char byte);

// The state of a body that is JSON: {"name": ..., "arguments": ...}, or a list of such. (json.c)
struct json_body {
    uint8_t state;
    bool in_list, strict; // strict: without a marker, so that only what is a call for sure counts
    bool nested;          // inside of "function": {...}
    bool escaped;
    bool has_name, has_arguments, begun;
    char key[16];
    uint32_t key_bytes;
    struct scan scan;
};

// Bodies that begin with the plain name of the function. (named.c)
struct named_body {
    uint8_t state, style;
    bool is_json; // json.c reads it after all
    uint32_t skipped;
    struct scan scan;
};

// Messages with channels. (harmony.c)
struct harmony_body {
    bool in_message, any_marker, any_argument, any_reasoning;
    uint8_t kind; // enum answer_kind of the message
    struct scan scan;
};

// <function=f><parameter=a>1</parameter></function>, and the like. (xml.c)
struct xml_body {
    uint8_t state;
    bool any_parameter, is_string, is_other; // is_other: the parameter's type is none of text
    bool ended;                              // a call has been read
    const char *close;                       // ends the value that is being read
};

// call:f{a:<escape>text<escape>,b:[1,2]}. (gemma.c)
struct gemma_body {
    uint8_t state;
    uint32_t depth;
    uint64_t objects; // bit d: depth d is an object, not a list
};

enum mode {
    MODE_START,     // white space, then what opens reasoning, or not
    MODE_REASONING, // up to what closes it
    MODE_TEXT,
    MODE_BODY,
    MODE_DONE,
};

struct answer_parser {
    struct answer_options options;
    const struct answer_family *family;
    uint8_t mode;
    bool failed;
    bool fresh;    // no content yet since the start, the reasoning, or a call: white space does not count
    bool any_text; // content has come out
    uint32_t calls;
    bool in_call; // its name is out
    // Read, but it may still become something else: white space (gap_bytes of it), then a part of a marker or of a call.
    struct text held;
    size_t gap_bytes;
    struct text part; // in a body with markers: what may be one
    // Events of one kind, joined until the push ends.
    struct text run;
    uint8_t run_kind;
    // Scratch of bodies: a name, a value.
    struct text name, value, parameter;
    bool raw; // in a body: markers do not count now
    struct json_body json;
    union {
        struct named_body named;
        struct harmony_body harmony;
        struct xml_body xml;
        struct gemma_body gemma;
    };
};

// answer.c: for bodies.
void answer_emit(struct answer_parser *parser, enum answer_kind kind, const char *bytes, size_t count);
// Starts a call: from here on there is no way back. Returns false if there are too many.
bool answer_begin_call(struct answer_parser *parser, const char *name, size_t count);
void answer_end_call(struct answer_parser *parser);
// Returns whether a name can be one of a function: letters, digits and _ - . / only.
bool answer_is_name(const char *name, size_t count);
bool answer_is_space(char byte);

// Adds to the arguments: text as it is, and text as the inside of a JSON string, or as a whole one.
void answer_put(struct answer_parser *parser, const char *text);
void answer_put_string(struct answer_parser *parser, const struct text *text);
void answer_quote(struct answer_parser *parser, const char *bytes, size_t count);
void json_body_begin(struct answer_parser *parser, bool strict);
// Appends one byte of a value to *value, at most ANSWER_MAX_HELD. False: too long.
bool answer_hold(struct text *value, char byte);

extern const struct body answer_json, answer_mistral, answer_deepseek, answer_kimi, answer_harmony, answer_coder, answer_glm,
    answer_gemma;

#endif
