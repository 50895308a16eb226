// ollama.c: Ollama's answers: lines of JSON, each with a piece of the text, the last with what it took.
//
// A call of a tool is one piece: its arguments are an object, which is whole at the end only.
#include "services/gateway/api/dialects/ollama_ask.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

#include "common/base/clock.h"
#include "services/gateway/api/dialects/pieces.h"

static const struct dialect_rename renamed[] = {{"max_tokens", "options.num_predict"},
                                                {"repetition_penalty", "options.repeat_penalty"},
                                                {"response_format.json_schema.schema", "format"},
                                                {"response_format", "format"},
                                                {"chat_template_kwargs", "think"},
                                                {"reasoning_effort", "think"},
                                                {NULL, NULL}};

// {"model":…,"created_at":…
static void head(const struct dialect_run *run, struct text *out)
{
    const uint64_t now_us = clock_wall_us();
    const time_t seconds = (time_t)(now_us / 1000000);
    struct tm parts = {0};
    char date[32];

    gmtime_r(&seconds, &parts);
    strftime(date, sizeof date, "%Y-%m-%dT%H:%M:%S", &parts);
    text_string(out, "{\"model\":");
    text_json_string(out, run->model);
    text_format(out, ",\"created_at\":\"%s.%06lluZ\"", date, (unsigned long long)(now_us % 1000000));
}

static void call_json(const struct dialect_item *item, struct text *out)
{
    text_string(out, "{\"function\":{\"name\":");
    text_json(out, item->name.data, item->name.bytes);
    text_string(out, ",\"arguments\":");
    dialect_append_arguments(item->data.data, item->data.bytes, out);
    text_string(out, "}}");
}

// A message of a chat, or the text of a generation: one item's, or a part of it. data: NULL: a call, or nothing.
static void body_json(bool chat, const struct dialect_item *item, const char *data, size_t bytes, struct text *out)
{
    const bool thinks = item && item->part == DIALECT_REASONING;

    text_string(out, chat ? ",\"message\":{\"role\":\"assistant\",\"content\":" : ",\"response\":");
    text_json(out, data, thinks ? 0 : bytes);
    if (thinks) {
        text_string(out, ",\"thinking\":");
        text_json(out, data, bytes);
    }
    if (chat && item && item->part == DIALECT_CALL) {
        text_string(out, ",\"tool_calls\":[");
        call_json(item, out);
        text_append(out, "]", 1);
    }
    if (chat)
        text_append(out, "}", 1);
}

static void end_json(const struct dialect_end *end, struct text *out)
{
    const uint64_t eval_us = end->total_us > end->prompt_us ? end->total_us - end->prompt_us : 0;

    text_format(out,
                ",\"done\":true,\"done_reason\":\"%s\",\"total_duration\":%llu,\"load_duration\":0,\"prompt_eval_count\":%llu,"
                "\"prompt_eval_duration\":%llu,\"eval_count\":%llu,\"eval_duration\":%llu}\n",
                strcmp(end->finish_reason, "tool_calls") == 0 ? "stop" : end->finish_reason,
                (unsigned long long)end->total_us * 1000, (unsigned long long)end->prompt_tokens,
                (unsigned long long)end->prompt_us * 1000, (unsigned long long)end->completion_tokens,
                (unsigned long long)eval_us * 1000);
}

static void logprobs_json(const struct text *logprobs, struct text *out)
{
    if (logprobs->bytes == 0)
        return;
    text_string(out, ",\"logprobs\":[");
    text_append(out, logprobs->data, logprobs->bytes);
    text_append(out, "]", 1);
}

static void line(struct dialect_run *run, bool chat, const struct dialect_item *item, const char *data, size_t bytes,
                 struct text *out)
{
    head(run, out);
    body_json(chat, item, data, bytes, out);
    if (item->part == DIALECT_TEXT)
        logprobs_json(&run->logprobs, out);
    text_string(out, ",\"done\":false}\n");
}

static void end_line(struct dialect_run *run, bool chat, const struct dialect_end *end, struct text *out)
{
    head(run, out);
    body_json(chat, NULL, "", 0, out);
    end_json(end, out);
}

// All texts joined, and the calls in a list.
static void whole_json(struct dialect_run *run, bool chat, const struct dialect_end *end, struct text *out)
{
    struct text parts[3] = {{0}}, logprobs = {0};
    uint32_t calls = 0, i;

    for (i = 0; i < run->item_count; i++) {
        const struct dialect_item *item = &run->items[i];
        if (item->part == DIALECT_CALL) {
            dialect_comma(&parts[DIALECT_CALL], calls++ == 0);
            call_json(item, &parts[DIALECT_CALL]);
        } else {
            text_append(&parts[item->part], item->data.data, item->data.bytes);
        }
        if (item->logprobs.bytes)
            dialect_comma(&logprobs, logprobs.bytes == 0);
        text_append(&logprobs, item->logprobs.data, item->logprobs.bytes);
    }
    head(run, out);
    text_string(out, chat ? ",\"message\":{\"role\":\"assistant\",\"content\":" : ",\"response\":");
    text_json(out, parts[DIALECT_TEXT].data, parts[DIALECT_TEXT].bytes);
    if (parts[DIALECT_REASONING].bytes) {
        text_string(out, ",\"thinking\":");
        text_json(out, parts[DIALECT_REASONING].data, parts[DIALECT_REASONING].bytes);
    }
    if (chat && calls) {
        text_string(out, ",\"tool_calls\":[");
        text_append(out, parts[DIALECT_CALL].data, parts[DIALECT_CALL].bytes);
        text_append(out, "]", 1);
    }
    if (chat)
        text_append(out, "}", 1);
    logprobs_json(&logprobs, out);
    end_json(end, out);
    out->failed |= logprobs.failed;
    text_free(&logprobs);
    for (i = 0; i < 3; i++) {
        out->failed |= parts[i].failed;
        text_free(&parts[i]);
    }
}

static void chat_delta(struct dialect_run *run, const struct dialect_item *item, const char *data, size_t bytes, struct text *out)
{
    if (item->part != DIALECT_CALL)
        line(run, true, item, data, bytes, out);
}

static void chat_item_end(struct dialect_run *run, const struct dialect_item *item, struct text *out)
{
    if (item->part == DIALECT_CALL)
        line(run, true, item, "", 0, out);
}

static void chat_end(struct dialect_run *run, const struct dialect_end *end, struct text *out) { end_line(run, true, end, out); }
static void chat_whole(struct dialect_run *run, const struct dialect_end *end, struct text *out)
{
    whole_json(run, true, end, out);
}

static void generate_delta(struct dialect_run *run, const struct dialect_item *item, const char *data, size_t bytes,
                           struct text *out)
{
    if (item->part != DIALECT_CALL)
        line(run, false, item, data, bytes, out);
}

static void generate_end(struct dialect_run *run, const struct dialect_end *end, struct text *out)
{
    end_line(run, false, end, out);
}
static void generate_whole(struct dialect_run *run, const struct dialect_end *end, struct text *out)
{
    whole_json(run, false, end, out);
}

// Clients look for these words of Ollama's: some pull a model that is not found.
static void refuse(const struct api_error *error, struct text *out)
{
    char own[sizeof error->message];

    if (error->model[0])
        snprintf(own, sizeof own, "model '%s' not found", error->model);
    else if (error->length.context && !error->length.answer)
        snprintf(own, sizeof own, "the input length exceeds the context length: %u tokens, and %u fit", error->length.prompt,
                 error->length.context);
    else
        snprintf(own, sizeof own, "%s", error->message);
    text_string(out, "{\"error\":");
    text_json_string(out, own);
    text_append(out, "}", 1);
}

static void fail_stream(struct dialect_run *run, const struct api_error *error, struct text *out)
{
    (void)run;
    refuse(error, out);
    text_append(out, "\n", 1);
}

#define STREAM_TYPE "application/x-ndjson"

const struct dialect dialect_ollama_chat = {.id_prefix = "ollama-",
                                            .stream_type = STREAM_TYPE,
                                            .renamed = renamed,
                                            .translate = dialect_ollama_translate_chat,
                                            .delta = chat_delta,
                                            .item_end = chat_item_end,
                                            .end = chat_end,
                                            .error = fail_stream,
                                            .whole = chat_whole,
                                            .refuse = refuse};

const struct dialect dialect_ollama_generate = {.id_prefix = "ollama-",
                                                .stream_type = STREAM_TYPE,
                                                .renamed = renamed,
                                                .translate = dialect_ollama_translate_generate,
                                                .delta = generate_delta,
                                                .end = generate_end,
                                                .error = fail_stream,
                                                .whole = generate_whole,
                                                .refuse = refuse};

// --- vectors ------------------------------------------------------------------------------------------------------
static const struct dialect_rename renamed_prompt[] = {{"input", "prompt"}, {NULL, NULL}};

static void embed(struct dialect_run *run, const struct dialect_end *end, const struct text *vectors, struct text *out)
{
    text_string(out, "{\"model\":");
    text_json_string(out, run->model);
    text_string(out, ",\"embeddings\":[");
    text_append(out, vectors->data, vectors->bytes);
    text_format(out, "],\"total_duration\":%llu,\"load_duration\":0,\"prompt_eval_count\":%llu}\n",
                (unsigned long long)end->total_us * 1000, (unsigned long long)end->prompt_tokens);
}

static void embed_nothing(struct dialect_run *run, const struct dialect_end *end, struct text *out)
{
    embed(run, end, &(struct text){0}, out);
}

static void embeddings(struct dialect_run *run, const struct dialect_end *end, const struct text *vectors, struct text *out)
{
    (void)run, (void)end;
    text_string(out, "{\"embedding\":");
    text_append(out, vectors->data, vectors->bytes);
    text_string(out, "}\n");
}

static void embeddings_of_nothing(struct dialect_run *run, const struct dialect_end *end, struct text *out)
{
    (void)run, (void)end;
    text_string(out, "{\"embedding\":[]}\n");
}

const struct dialect dialect_ollama_embed = {.id_prefix = "ollama-",
                                             .translate = dialect_ollama_translate_embed,
                                             .whole = embed_nothing,
                                             .vectors = embed,
                                             .refuse = refuse};

const struct dialect dialect_ollama_embeddings = {.id_prefix = "ollama-",
                                                  .renamed = renamed_prompt,
                                                  .translate = dialect_ollama_translate_embeddings,
                                                  .whole = embeddings_of_nothing,
                                                  .vectors = embeddings,
                                                  .refuse = refuse};

// The other paths: only their errors have a form of their own here.
const struct dialect dialect_ollama_other = {.refuse = refuse};
