// chat.c: `fastdecode chat`: a conversation in a terminal, over the HTTP API as any client would use it.
//
// A line is a message; the answer streams as it comes. Ctrl-C stops an answer, Ctrl-D ends. /new forgets the
// conversation, /help lists the commands. With text on standard input (a pipe) each line is one message.
#include <curl/curl.h>
#include <errno.h>
#include <jansson.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/base/checked.h"
#include "common/base/clock.h"
#include "common/base/options.h"
#include "common/base/text.h"
#include "services/fastdecode/client/commands.h"

enum { EVENT_BYTES_MAX = 1 << 20 };

struct chat {
    const char *url, *model, *api_key, *system;
    double temperature, min_p;
    uint32_t max_tokens;
    json_t *messages;
    CURL *curl;
    int exit_code; // of the latest question that got no answer
};

// One answer as it streams: bytes of the body are cut into lines, `data:` lines hold JSON.
struct answer {
    struct text line; // not yet ended
    struct text said; // the answer so far
    bool thinks;      // what came last was thought
    json_int_t tokens;
    char error[512];
};

static volatile sig_atomic_t interrupted;

static void on_interrupt(int number)
{
    (void)number;
    interrupted = 1;
}

static void take_error(struct answer *answer, json_t *root)
{
    const char *message = json_string_value(json_object_get(json_object_get(root, "error"), "message"));
    if (message)
        snprintf(answer->error, sizeof answer->error, "%s", message);
}

static void take_event(struct answer *answer, const char *json, size_t length)
{
    json_t *root = json_loadb(json, length, 0, NULL);
    const json_t *delta = json_object_get(json_array_get(json_object_get(root, "choices"), 0), "delta");
    const char *content = json_string_value(json_object_get(delta, "content"));
    const char *thought = json_string_value(json_object_get(delta, "reasoning_content"));
    json_t *usage = json_object_get(root, "usage");

    if (thought && *thought) { // shown, but no part of what was said
        fputs(thought, stdout);
        fflush(stdout);
        answer->thinks = true;
    }
    if (content && *content) {
        if (answer->thinks)
            fputs("\n\n", stdout);
        answer->thinks = false;
        fputs(content, stdout);
        fflush(stdout);
        text_string(&answer->said, content);
    }
    if (json_is_object(usage))
        answer->tokens = json_integer_value(json_object_get(usage, "completion_tokens"));
    take_error(answer, root);
    json_decref(root);
}

static size_t on_body(char *data, size_t size, size_t count, void *user)
{
    struct answer *answer = user;
    size_t bytes = size * count;

    text_append(&answer->line, data, bytes);
    if (interrupted || answer->line.failed || answer->line.bytes > EVENT_BYTES_MAX)
        return 0; // aborts the transfer, which cancels the request
    for (char *end; answer->line.bytes && (end = memchr(answer->line.data, '\n', answer->line.bytes));) {
        const char *line = answer->line.data;
        size_t length = (size_t)(end - line);
        if (length > 6 && !memcmp(line, "data: ", 6) && line[6] == '{')
            take_event(answer, line + 6, length - 6);
        else if (length && line[0] == '{') // an error's body is one line of JSON, not an event
            take_event(answer, line, length);
        text_consume(&answer->line, length + 1);
    }
    return bytes;
}

static char *request_body(const struct chat *chat)
{
    json_t *body = json_pack("{s:s, s:O, s:b, s:{s:b}}", "model", chat->model, "messages", chat->messages, "stream", 1,
                             "stream_options", "include_usage", 1);
    if (chat->temperature >= 0)
        json_object_set_new(body, "temperature", json_real(chat->temperature));
    if (chat->min_p >= 0)
        json_object_set_new(body, "min_p", json_real(chat->min_p));
    if (chat->max_tokens)
        json_object_set_new(body, "max_tokens", json_integer(chat->max_tokens));
    char *text = json_dumps(body, JSON_COMPACT);
    json_decref(body);
    return text;
}

static struct curl_slist *request_headers(const struct chat *chat)
{
    char line[512];
    struct curl_slist *headers = curl_slist_append(NULL, "Content-Type: application/json");
    if (chat->api_key) {
        snprintf(line, sizeof line, "Authorization: Bearer %s", chat->api_key);
        headers = curl_slist_append(headers, line);
    }
    return headers;
}

// Sends the conversation, prints the answer as it comes, adds it to the conversation.
static bool ask(struct chat *chat, bool verbose)
{
    char url[1024];
    struct answer answer = {0};
    struct curl_slist *headers = request_headers(chat);
    char *body = request_body(chat);
    uint64_t began_us = clock_now_us();
    long code = 0;

    snprintf(url, sizeof url, "%s/v1/chat/completions", chat->url);
    interrupted = 0;
    curl_easy_reset(chat->curl);
    curl_easy_setopt(chat->curl, CURLOPT_URL, url);
    curl_easy_setopt(chat->curl, CURLOPT_HTTPHEADER, headers);
    curl_easy_setopt(chat->curl, CURLOPT_POSTFIELDS, body);
    curl_easy_setopt(chat->curl, CURLOPT_WRITEFUNCTION, on_body);
    curl_easy_setopt(chat->curl, CURLOPT_WRITEDATA, &answer);
    CURLcode result = curl_easy_perform(chat->curl);
    curl_easy_getinfo(chat->curl, CURLINFO_RESPONSE_CODE, &code);
    if (code != 200 && answer.line.bytes) { // an error body without a line feed at its end
        json_t *root = json_loadb(answer.line.data, answer.line.bytes, 0, NULL);
        take_error(&answer, root);
        json_decref(root);
    }
    putchar('\n');
    bool ok = (result == CURLE_OK && code == 200 && !answer.error[0]) || (interrupted && answer.said.bytes);
    if (ok && answer.said.bytes) {
        json_array_append_new(chat->messages,
                              json_pack("{s:s, s:s%}", "role", "assistant", "content", answer.said.data, answer.said.bytes));
    } else if (!interrupted) {
        chat->exit_code = code >= 400 && code < 500 && code != 429 ? EXIT_CODE_SETTINGS : EXIT_CODE_ENVIRONMENT;
        fprintf(stderr, "no answer from %s: %s\n", chat->url,
                answer.error[0]      ? answer.error
                : result != CURLE_OK ? curl_easy_strerror(result)
                                     : "unexpected reply");
    }
    if (ok && verbose && answer.tokens)
        printf("(%lld tokens, %.1f a second)\n", (long long)answer.tokens,
               (double)answer.tokens * 1e6 / (double)(clock_now_us() - began_us));
    text_free(&answer.line);
    text_free(&answer.said);
    free(body);
    curl_slist_free_all(headers);
    return ok;
}

static void start_conversation(struct chat *chat)
{
    json_array_clear(chat->messages);
    if (chat->system)
        json_array_append_new(chat->messages, json_pack("{s:s, s:s}", "role", "system", "content", chat->system));
}

static void converse(struct chat *chat)
{
    char *line = NULL;
    size_t capacity = 0;
    bool terminal = isatty(STDIN_FILENO);

    if (terminal)
        printf("talking to %s; an empty line is ignored, /new starts over, Ctrl-D ends\n", chat->url);
    for (;;) {
        if (terminal)
            fputs("> ", stdout);
        fflush(stdout);
        errno = 0;
        ssize_t length = getline(&line, &capacity, stdin);
        if (length < 0) {
            if (errno == EINTR) {
                clearerr(stdin);
                putchar('\n');
                continue;
            }
            break;
        }
        line[strcspn(line, "\n")] = '\0';
        if (!*line)
            continue;
        if (!strcmp(line, "/new")) {
            start_conversation(chat);
            continue;
        }
        if (line[0] == '/') {
            printf("/new starts over; Ctrl-C stops an answer; Ctrl-D ends\n");
            continue;
        }
        json_t *message = json_pack("{s:s, s:s}", "role", "user", "content", line);
        if (!message) {
            fprintf(stderr, "that line is not valid UTF-8\n");
            continue;
        }
        json_array_append_new(chat->messages, message);
        if (!ask(chat, terminal))
            json_array_remove(chat->messages, json_array_size(chat->messages) - 1);
    }
    free(line);
}

int chat_main(int argc, char **argv)
{
    struct chat chat = {.url = "http://127.0.0.1:8080", .model = "default", .temperature = -1, .min_p = -1, .max_tokens = 1024};
    const struct option options[] = {
        {"url", OPTION_STRING, &chat.url, "URL", "address of the gateway", 0, 0},
        {"model", OPTION_STRING, &chat.model, "NAME", "model to ask for", 0, 0},
        {"api-key", OPTION_STRING, &chat.api_key, "KEY", "API key, if the gateway needs one", 0, 0},
        {"system", OPTION_STRING, &chat.system, "TEXT", "system message", 0, 0},
        {"temperature", OPTION_F64, &chat.temperature, "T", "0: always the likeliest token; -1: the server's default", -1, 100},
        {"min-p", OPTION_F64, &chat.min_p, "P",
         "ignore tokens less likely than this fraction of the likeliest one; -1: the server's default", -1, 1},
        {"max-tokens", OPTION_U32, &chat.max_tokens, "N", "longest answer; 0: as long as the context allows", 0, 1 << 24},
    };
    struct program program = {.name = "fastdecode chat",
                              .purpose = "talks to a running mesh in this terminal",
                              .options = options,
                              .option_count = ARRAY_COUNT(options)};
    struct sigaction on_int = {.sa_handler = on_interrupt}; // no SA_RESTART: it ends the wait for a line too
    struct error error;

    if (options_parse(&program, argc, argv, &error)) {
        fprintf(stderr, "fastdecode chat: %s\n", error.text);
        return error_exit_code(&error);
    }
    if (program.check_only)
        return 0;
    chat.messages = json_array();
    chat.curl = curl_easy_init();
    if (!chat.messages || !chat.curl) {
        fprintf(stderr, "fastdecode chat: no memory\n");
        return EXIT_CODE_ENVIRONMENT;
    }
    start_conversation(&chat);
    sigaction(SIGINT, &on_int, NULL);
    converse(&chat);
    curl_easy_cleanup(chat.curl);
    json_decref(chat.messages);
    return chat.exit_code;
}
