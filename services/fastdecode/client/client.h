// client.h: thousands of streamed completions at a time on one thread, each token's time noted as it arrives.
//
//     load_client_start() ─▶ libcurl's multi interface ◀─▶ sockets, watched by one epoll
//                                     │
//        token(), ended() ◀── load_client_run()
//
// What a wait costs does not depend on how many streams are open, only on how many have something to say.
// An answer is never asked for again: whoever measures wants to know that it was refused.
#ifndef FD_FASTDECODE_CLIENT_CLIENT_H
#define FD_FASTDECODE_CLIENT_CLIENT_H

#include <curl/curl.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/status.h"
#include "common/base/text.h"

// --- shared by all requests to a server of OpenAI's API (batch.c, client.c) -------------------------------------

// Returns how much of a URL is the server's: users of OpenAI's clients end it in "/v1".
int api_server_length(const char *url);

// Returns the headers of a request with a body in JSON; api_key: NULL: none. The caller frees them. NULL: no memory.
struct curl_slist *api_headers_make(const char *api_key);

// Returns a handle that sends these headers, which are borrowed, and gives the answer's bytes to take_body. The caller cleans it up. NULL: no
// memory.
CURL *api_handle_open(struct curl_slist *headers, size_t (*on_body)(char *data, size_t size, size_t count, void *user), void *user);

// Prompts of about so many tokens, each unlike all others within its first few words, so that no prefix cache has any of it.
//
// Words are common English ones, of a token each in most vocabularies. How many tokens a word really takes is learned from what the server
// counts. Plain; one thread.

// tokens = fixed + a_word * words. {0, 1} before anything is known.
struct prompt_fit {
    double fixed, a_word;
};

// The line through two prompts that the server has counted; counts that cannot be leave the fit as it is.
void prompt_fit_learn(struct prompt_fit *fit, uint32_t words, uint32_t tokens, uint32_t more_words, uint32_t more_tokens);
// Words for so many tokens; at least 1.
uint32_t prompt_fit_words(const struct prompt_fit *fit, uint32_t tokens);

// Appends `words` words with blanks between, drawn by `serial`. Letters only: it needs no escapes in JSON.
void prompt_words_append(struct text *out, uint32_t words, uint64_t serial);

struct load_client;

struct load_stream {
    uint32_t index;                     // as given
    uint64_t due_us, first_us, last_us; // clock_now_us() at which it was to begin; of the first and last piece of text, 0: none
    uint32_t event_count;               // pieces of text
    // once it has ended
    int status;                            // of HTTP; 0: no answer
    bool ok;                               // it was answered to its end
    uint32_t prompt_tokens, answer_tokens; // as the server counts them; 0: it has not said
    const char *error;                     // "": none
};

struct load_callbacks {
    // A piece of text. gap_us: since the one before; 0 at the first.
    void (*token)(void *arg, const struct load_stream *stream, uint64_t gap_us);
    // Valid for the call. Not called for streams that are cancelled.
    void (*ended)(void *arg, const struct load_stream *stream);
    void *arg;
};

struct load_client_config {
    const char *url; // "http://host:port", with or without "/v1"
    const char *api_key;
    const char *model; // NULL: none is named
    bool ignore_eos;   // ask the server to go on to max_tokens
    bool usage;        // ask the server for its counts
    uint32_t streams_max;
    double timeout_s; // of a stream
};

// config's strings are borrowed; they, ignore_eos and usage may change between streams. The caller closes *out.
enum status load_client_open(const struct load_client_config *config, struct load_client **out, struct error *error) MUST_CHECK;
// Streams in flight are dropped. NULL is allowed.
void load_client_close(struct load_client *client);

// Sets who is told from now on.
void load_client_listen(struct load_client *client, const struct load_callbacks *callbacks);
// Changes what is asked for.
void load_client_set(struct load_client *client, const char *model, bool ignore_eos, bool usage);
// Begins a stream. prompt: words that need no escapes. RESOURCE_EXHAUSTED: streams_max are open, or no memory.
enum status load_client_start(struct load_client *client, uint32_t index, uint64_t due_us, const char *prompt, size_t prompt_bytes,
                              uint32_t answer_tokens, struct error *error) MUST_CHECK;
uint32_t load_client_open_count(const struct load_client *client);
// Goes on until until_us, or a signal.
void load_client_run(struct load_client *client, uint64_t until_us);
// Closes the connections of all open streams, which cancels them at the server.
void load_client_cancel(struct load_client *client);

// Fetches a path of the server, such as "/v1/models". *status 0: no answer, *error says why. *body is terminated and freed by the caller.
enum status load_client_get(const struct load_client_config *config, const char *path, long *status, char **body,
                            struct error *error) MUST_CHECK;

#endif
