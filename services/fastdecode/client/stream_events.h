// stream_events.h: a streamed answer of an OpenAI server, cut into events as its bytes come.
//
// Takes the events of completions ("text") and of chats ("delta": {"content"}), the usage at the end, errors in the middle, "[DONE]" and
// comments. Lines end in LF or CRLF; a line is at most 1 MiB. Plain; one thread.
#ifndef FD_FASTDECODE_CLIENT_STREAM_EVENTS_H
#define FD_FASTDECODE_CLIENT_STREAM_EVENTS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/text.h"

enum { STREAM_LINE_BYTES_MAX = 1 << 20, STREAM_ERROR_BYTES = 200 };

struct stream_event {
    bool has_token; // it brings a piece of the answer; an empty one counts unless it only says how the answer ended
    bool has_usage; // and these:
    uint32_t prompt_tokens, answer_tokens;
    bool is_end;                    // "[DONE]"
    char error[STREAM_ERROR_BYTES]; // "": none
};

// An unfinished line. A struct of zeros has none.
struct stream_reader {
    struct text line;
    bool failed; // a line was too long, or memory ran out: what follows is dropped
};

// Calls on_event for each event that the bytes end.
void stream_reader_take(struct stream_reader *reader, const char *data, size_t bytes,
                        void (*on_event)(void *arg, const struct stream_event *event), void *arg);
// Forgets an unfinished line, keeps the memory.
void stream_reader_clear(struct stream_reader *reader);
void stream_reader_free(struct stream_reader *reader);

// Reads the payload of one event: JSON or "[DONE]". False: neither.
bool stream_event_parse(const char *payload, size_t bytes, struct stream_event *out);

#endif
