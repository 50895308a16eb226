// batch.h: a line of a batch's input file, and a line of its results, in OpenAI's format:
//
//   {"custom_id": "a", "method": "POST", "url": "/v1/chat/completions", "body": {...}}
//   {"id": "batch_req_1", "custom_id": "a", "response": {"status_code": 200, "request_id": "...", "body": {...}}, "error": null}
//
// A line that cannot be asked has a result as well: "response" is null, and "error" has a code and a message. Its custom_id is null if the
// line has none, or one that another line has used, so that each custom_id is there exactly once.
//
// Pure. Safe from any thread.
#ifndef FD_API_BATCH_H
#define FD_API_BATCH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/status.h"
#include "common/base/text.h"

enum {
    BATCH_CUSTOM_ID_BYTES_MAX = 512,
    BATCH_DEPTH_MAX = 64,       // of nesting in a line
    BATCH_VALUES_MAX = 1 << 20, // values in a line
};

enum batch_endpoint {
    BATCH_ENDPOINT_NONE,
    BATCH_ENDPOINT_COMPLETIONS,
    BATCH_ENDPOINT_CHAT,
    BATCH_ENDPOINT_EMBEDDINGS,
    BATCH_ENDPOINT_COUNT
};

// The endpoint of a path, as in "url"; NONE: not one of a batch.
enum batch_endpoint batch_endpoint_named(const char *path);
const char *batch_endpoint_path(enum batch_endpoint endpoint); // "" of NONE

struct batch_line {
    char *custom_id; // owned; not empty; NULL: not known, on failure only
    enum batch_endpoint endpoint;
    char *body; // owned, terminated: the JSON of "body"
    size_t body_bytes;
};

// Why a line has no answer. code is static.
struct batch_error {
    const char *code;
    char message[256];
};

// Parses a line, without its line end. flex: a body that names no service_tier gets "flex". On failure *error says why; the custom_id is
// there if it could be read. The caller frees *out either way.
bool batch_line_parse(const char *line, size_t bytes, bool flex, struct batch_line *out, struct batch_error *error);
void batch_line_free(struct batch_line *line);

// A line without anything in it is no request.
bool batch_line_is_blank(const char *line, size_t bytes);

struct batch_result {
    const char *id;
    const char *custom_id; // NULL: null
    // a response: body is JSON, or any text, which becomes a JSON string
    int status; // 0: none, see error
    const char *request_id;
    const char *body;
    size_t body_bytes;
    const struct batch_error *error; // NULL: null
};

// Appends the line with its end.
void batch_result_write(struct text *out, const struct batch_result *result);

// A line of results, without its body.
struct batch_result_about {
    char *id, *custom_id; // owned; custom_id NULL: null
    bool failed;          // no response, or one with another status than 200
};
// False: it is not a line of results. The caller frees *out either way.
bool batch_result_read(const char *line, size_t bytes, struct batch_result_about *out);
void batch_result_about_free(struct batch_result_about *about);

// --- the lines of a file, one after the other, in bounded memory whatever the file holds ---

struct line_reader {
    int fd; // borrowed
    size_t max_bytes;
    char *buffer;
    size_t capacity, begin, end;
    bool at_end;       // of the file
    uint64_t number;   // of the line read last; the first is 1
    uint64_t position; // in the file, behind the line read last
};

enum line_kind {
    LINE_WHOLE,
    LINE_UNENDED,  // the last one, without a line end
    LINE_TOO_LONG, // more than max_bytes: nothing is given
    LINE_NONE,     // the end
    LINE_FAILED,   // the file cannot be read, or no memory: errno
};

// Reads from the descriptor's position, which is taken for the beginning. fd is borrowed.
void line_reader_open(int fd, size_t max_bytes, struct line_reader *out);
void line_reader_close(struct line_reader *reader);

// The next line, without its end; valid until the next call.
enum line_kind line_reader_next(struct line_reader *reader, const char **line, size_t *bytes);

// --- a set of texts that keeps 16 bytes of each: which custom_ids were seen ---
//
// Two texts count as the same if a hash of 128 bits under a secret is: of a million texts, some two are with probability 2^-89.

struct text_set {
    uint64_t secret[2];
    uint64_t (*slots)[2]; // [capacity] open addressing; zeros: free
    size_t capacity, count;
};

void text_set_open(struct text_set *out);
void text_set_close(struct text_set *set);
// OK, ALREADY_EXISTS, or RESOURCE_EXHAUSTED.
enum status text_set_add(struct text_set *set, const char *text) MUST_CHECK;
bool text_set_has(const struct text_set *set, const char *text);

#endif
