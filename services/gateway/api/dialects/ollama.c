// ollama.c: Ollama's API: requests as those of chats, completions and vectors; answers as lines of JSON, each with a piece of the text, the
// last with what it took.
//
// A call of a tool is one piece: its arguments are an object, which is whole at the end only.
#include "services/gateway/api/dialects/dialect.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "common/base/checked.h"
#include "common/base/clock.h"
#include "common/json/json_text.h"
#include "services/gateway/api/dialects/pieces.h"
#include "services/gateway/api/schema/value.h"

// --- from Ollama's requests to one for a chat, a completion or vectors -----------------------------------------------
//
// /api/chat is a chat. /api/generate is a chat, too, of the system's and the user's message; with "raw" or a suffix it is a completion.
// Both stream unless told otherwise. The options are fields of their own in a chat; those that size or place the model are this
// server's business and ignored.

enum {
    RAW_TOKENS = 128, // of a completion whose length is not given
    CHAT_TEMPERATURE_MAX = 2,
    TEMPERATURE_MAX = 100, // of the sampler
};

static const char *const read_fields[] = {"model", "messages", "prompt", "suffix",   "system",       "template",   "context",
                                          "raw",   "images",   "stream", "format",   "options",      "keep_alive", "tools",
                                          "think", "truncate", "shift",  "logprobs", "top_logprobs", NULL};

// Options that are fields of a chat, under another name or the same.
static const struct {
    const char *option, *field;
} options[] = {
    {"top_k", "top_k"},
    {"top_p", "top_p"},
    {"min_p", "min_p"},
    {"typical_p", "typical_p"},
    {"tfs_z", "tfs_z"},
    {"mirostat", "mirostat"},
    {"seed", "seed"},
    {"stop", "stop"},
    {"repeat_penalty", "repetition_penalty"},
    {"presence_penalty", "presence_penalty"},
    {"frequency_penalty", "frequency_penalty"},
};

static const char *const ignored_options[] = {"num_predict", "num_ctx",       "num_keep",         "num_batch",  "num_gpu",
                                              "main_gpu",    "num_thread",    "use_mmap",         "use_mlock",  "low_vram",
                                              "numa",        "repeat_last_n", "penalize_newline", "vocab_only", "f16_kv",
                                              "logits_all",  "mirostat_tau",  "mirostat_eta",     NULL};

// As Ollama reads numbers: an integer's is cut off behind the point, and a seed of -1 draws one. Others are as they are.
static bool take_option(json_t *chat, const char *name, const char *field, const json_t *value)
{
    const bool is_integer = strcmp(name, "top_k") == 0 || strcmp(name, "seed") == 0 || strcmp(name, "num_predict") == 0;
    const double number = json_number_value(value);

    if (strcmp(name, "seed") == 0 && number == -1)
        return true;
    if (strcmp(name, "repeat_penalty") == 0 && json_is_number(value) && number == 0)
        return true; // off, as 1 is
    if (is_integer && json_is_real(value) && fabs(number) < 1e15)
        return dialect_set_new(chat, field, json_integer((json_int_t)number));
    return dialect_set(chat, field, value);
}

// Below 0 it is 0, as Ollama's sampler has it (sample/samplers.go), and above what a chat takes it is what the sampler can compute with.
static bool take_temperature(struct dialect_ask *ask, json_t *chat, const json_t *value, struct api_error *error)
{
    const double number = json_text_number(value);

    if (!value || !json_text_is_number(value) || (number >= 0 && number <= CHAT_TEMPERATURE_MAX))
        return dialect_set(chat, "temperature", value);
    if (number > TEMPERATURE_MAX)
        return api_fail(error, 400, "invalid_value", "temperature", "'temperature' must be at most %d", TEMPERATURE_MAX);
    if (number > 0)
        ask->temperature = (float)number;
    return number > 0 || dialect_set_new(chat, "temperature", json_integer(0));
}

static bool take_options(struct dialect_ask *ask, json_t *chat, struct api_error *error)
{
    const json_t *given = dialect_member(ask->body, "options"), *most = dialect_member(given, "num_predict");
    const char *known[ARRAY_COUNT(options) + 2];
    size_t i;

    if (given && !json_text_is_object(given))
        return schema_wrong_type(error, "options", "an object", given);
    for (i = 0; i < ARRAY_COUNT(options); i++) {
        known[i] = options[i].option;
        if (!take_option(chat, options[i].option, options[i].field, dialect_member(given, options[i].option)))
            return false;
    }
    known[i++] = "temperature";
    known[i] = NULL;
    if (!take_temperature(ask, chat, dialect_member(given, "temperature"), error))
        return false;
    if (given)
        dialect_note_ignored(&ask->ignored, given, known, ignored_options, NULL);
    if (most && !json_is_number(most))
        return schema_wrong_type(error, "options.num_predict", "an integer", most);
    ask->caps = true;
    return json_number_value(most) < 1 || take_option(chat, "num_predict", "max_tokens", most); // -1, -2, 0: as many as fit
}

// A name may have the tag that stands for the only one there is.
static bool take_model(const json_t *body, json_t *chat, struct api_error *error)
{
    static const char latest[] = ":latest";
    const json_t *model = dialect_member(body, "model");
    const size_t bytes = json_string_length(model), tag = sizeof latest - 1;

    if (!model)
        return api_missing(error, "model");
    if (!json_is_string(model))
        return schema_wrong_type(error, "model", "a string", model);
    if (bytes > tag && memcmp(json_string_value(model) + bytes - tag, latest, tag) == 0)
        return dialect_set_new(chat, "model", json_stringn(json_string_value(model), bytes - tag));
    return dialect_set(chat, "model", model);
}

// "json", or a schema.
static bool take_format(const json_t *body, json_t *chat, struct api_error *error)
{
    const json_t *format = dialect_member(body, "format");

    if (!format || schema_is_string(format, ""))
        return true;
    if (schema_is_string(format, "json"))
        return dialect_set_new(chat, "response_format", json_pack("{s:s}", "type", "json_object"));
    if (!json_text_is_object(format))
        return schema_wrong_type(error, "format", "'json' or a schema", format);
    return dialect_set_new(chat, "response_format",
                           json_pack("{s:s, s:{s:s, s:O}}", "type", "json_schema", "json_schema", "name", "format", "schema",
                                     (json_t *)(uintptr_t)format));
}

static bool take_think(const json_t *body, json_t *chat, struct api_error *error)
{
    const json_t *think = dialect_member(body, "think");

    if (!think)
        return true;
    if (json_is_string(think))
        return dialect_set(chat, "reasoning_effort", think);
    if (!json_is_boolean(think))
        return schema_wrong_type(error, "think", "a boolean or a string", think);
    return dialect_set_new(chat, "chat_template_kwargs", json_pack("{s:b}", "enable_thinking", (int)json_is_true(think)));
}

// Shared by chats and generation.
static bool take_common(struct dialect_ask *ask, json_t *chat, struct api_error *error)
{
    const json_t *body = ask->body;
    static const char *const refused[] = {"template", "context", "images"};
    const json_t *stream = dialect_member(body, "stream");

    for (size_t i = 0; i < ARRAY_COUNT(refused); i++) {
        const json_t *value = dialect_member(body, refused[i]);
        if (value && !json_is_false(value) && !schema_is_string(value, "") &&
            !(json_is_array(value) && json_array_size(value) == 0) && !(json_is_integer(value) && json_integer_value(value) == 0))
            return dialect_unsupported(error, refused[i], "");
    }
    dialect_note_ignored(&ask->ignored, body, read_fields, NULL, NULL);
    if (stream && !json_is_boolean(stream))
        return schema_wrong_type(error, "stream", "a boolean", stream);
    if (!dialect_set(chat, "logprobs", dialect_member(body, "logprobs")) ||
        !dialect_set(chat, "top_logprobs", dialect_member(body, "top_logprobs")))
        return false;
    return dialect_set_new(chat, "stream", json_boolean(!json_is_false(stream))) && take_model(body, chat, error) &&
           take_options(ask, chat, error) && take_format(body, chat, error) && take_think(body, chat, error);
}

// --- messages of a chat -------------------------------------------------------------------------------------------
// Its calls have no ids, and arguments that are objects. A tool's answer names the tool.
static bool take_calls(json_t *messages, const json_t *calls, size_t index, json_t *message)
{
    bool ok = true;
    size_t i;

    for (i = 0; ok && i < json_array_size(calls); i++) {
        const json_t *function = json_object_get(json_array_get(calls, i), "function");
        json_t *arguments = NULL, *id = json_sprintf("call_%zu_%zu", index, i);
        const json_t *given = dialect_member(function, "arguments");
        arguments = !given                  ? json_string("{}")
                    : json_is_string(given) ? json_incref((json_t *)(uintptr_t)given) // JSON as OpenAI's clients have it
                                            : json_text_string(given, false);
        ok = id && arguments && dialect_add_call(messages, id, json_object_get(function, "name"), arguments, &message);
        json_decref(id);
        json_decref(arguments);
    }
    return ok;
}

static bool take_message(json_t *messages, size_t index, const json_t *given, struct api_error *error)
{
    const json_t *role = json_object_get(given, "role"), *content = dialect_member(given, "content");
    const json_t *images = dialect_member(given, "images"), *tool = dialect_member(given, "tool_name");
    json_t *message;
    char where[64];

    snprintf(where, sizeof where, "messages[%zu]", index);
    if (!json_text_is_object(given))
        return schema_wrong_type(error, where, "an object", given);
    if (!json_is_string(role) || schema_has_zero(role))
        return api_fail(error, 400, "invalid_type", where, "'%s.role' must be a string", where);
    if (content && !json_is_string(content))
        return api_fail(error, 400, "invalid_type", where, "'%s.content' must be a string", where);
    if (json_array_size(images) > 0)
        return api_fail(error, 400, "unsupported_content", where, "'%s.images' are not supported", where);
    return dialect_add_message(messages, json_string_value(role),
                               content ? json_incref((json_t *)(uintptr_t)content) : json_string(""), &message) &&
           dialect_set(message, "reasoning_content", dialect_member(given, "thinking")) && dialect_set(message, "name", tool) &&
           dialect_set(message, "tool_call_id", dialect_member(given, "tool_call_id")) &&
           take_calls(messages, json_object_get(given, "tool_calls"), index, message);
}

// No messages, as no prompt, stand for an empty one that is not answered: programs ask so for the model to be loaded.
static bool take_messages(struct dialect_ask *ask, json_t *chat, struct api_error *error)
{
    const json_t *given = dialect_member(ask->body, "messages");
    json_t *messages = json_array(), *message;
    bool ok = messages != NULL;
    size_t i;

    if (given && !json_is_array(given))
        ok = schema_wrong_type(error, "messages", "an array of messages", given);
    for (i = 0; ok && i < json_array_size(given); i++)
        ok = take_message(messages, i, json_array_get(given, i), error);
    ask->only_loads = i == 0;
    if (ok && ask->only_loads)
        ok = dialect_add_message(messages, "user", json_string(""), &message);
    ok = ok && dialect_set(chat, "messages", messages);
    json_decref(messages);
    return ok;
}

// --- requests -----------------------------------------------------------------------------------------------------
static bool dialect_ollama_translate_chat(struct dialect_ask *ask, struct api_error *error)
{
    json_t *chat = ask->chat = json_object();

    return chat && take_common(ask, chat, error) && take_messages(ask, chat, error) &&
           dialect_set(chat, "tools", dialect_member(ask->body, "tools"));
}

// The prompt as a chat.
static bool take_turn(json_t *chat, const json_t *prompt, const json_t *system)
{
    json_t *messages = json_array(), *message;
    bool ok = messages && (!system || schema_is_string(system, "") ||
                           dialect_add_message(messages, "system", json_incref((json_t *)(uintptr_t)system), &message));

    ok = ok &&
         dialect_add_message(messages, "user", prompt ? json_incref((json_t *)(uintptr_t)prompt) : json_string(""), &message) &&
         dialect_set(chat, "messages", messages);
    json_decref(messages);
    return ok;
}

static bool take_prompt(struct dialect_ask *ask, json_t *chat, struct api_error *error)
{
    const json_t *prompt = dialect_member(ask->body, "prompt"), *system = dialect_member(ask->body, "system");
    const json_t *suffix = dialect_member(ask->body, "suffix"), *most = json_object_get(chat, "max_tokens");

    if (prompt && !json_is_string(prompt))
        return schema_wrong_type(error, "prompt", "a string", prompt);
    ask->only_loads = json_string_length(prompt) == 0;
    if (system && !json_is_string(system))
        return schema_wrong_type(error, "system", "a string", system);
    if (!json_is_true(json_object_get(ask->body, "raw")) && (!suffix || schema_is_string(suffix, "")))
        return take_turn(chat, prompt, system);
    if (json_is_true(json_object_get(ask->body, "logprobs")))
        return dialect_unsupported(error, "logprobs", " beside 'raw' or 'suffix'");
    json_object_del(chat, "logprobs"); // false, or nothing: a completion's are numbers
    json_object_del(chat, "top_logprobs");
    ask->kind = API_COMPLETION;
    return (prompt ? dialect_set(chat, "prompt", prompt) : dialect_set_new(chat, "prompt", json_string(""))) &&
           dialect_set(chat, "suffix", suffix) && (most || dialect_set_new(chat, "max_tokens", json_integer(RAW_TOKENS)));
}

static bool dialect_ollama_translate_generate(struct dialect_ask *ask, struct api_error *error)
{
    json_t *chat = ask->chat = json_object();

    return chat && take_common(ask, chat, error) && take_prompt(ask, chat, error);
}

// --- vectors ------------------------------------------------------------------------------------------------------
// No text, as no message, asks for the model to be loaded.
static bool take_texts(struct dialect_ask *ask, json_t *out, const json_t *texts)
{
    ask->only_loads = !texts || schema_is_string(texts, "") || (json_is_array(texts) && json_array_size(texts) == 0);
    return ask->only_loads ? dialect_set_new(out, "input", json_string("")) : dialect_set(out, "input", texts);
}

static bool take_vectors(struct dialect_ask *ask, const char *name, struct api_error *error)
{
    json_t *out = ask->chat = json_object();
    static const char *const known[] = {"model", "input", "prompt", "truncate", "dimensions", "options", "keep_alive", NULL};
    const json_t *truncate = dialect_member(ask->body, "truncate"), *given = dialect_member(ask->body, "options");
    const json_t *dimensions = dialect_member(ask->body, "dimensions"), *texts = dialect_member(ask->body, name);

    if (truncate && !json_is_boolean(truncate))
        return schema_wrong_type(error, "truncate", "a boolean", truncate);
    if (given && !json_text_is_object(given)) // what they may say of vectors is how the model is loaded
        return schema_wrong_type(error, "options", "an object", given);
    ask->truncates = !json_is_false(truncate);
    if (json_is_integer(dimensions) && json_integer_value(dimensions) == 0)
        dimensions = NULL; // all
    for (size_t i = 0; i < json_array_size(texts); i++)
        if (!json_is_string(json_array_get(texts, i)))
            return schema_wrong_type(error, name, "a string or an array of strings", json_array_get(texts, i));
    dialect_note_ignored(&ask->ignored, ask->body, known, NULL, NULL);
    return out && take_model(ask->body, out, error) && dialect_set(out, "dimensions", dimensions) && take_texts(ask, out, texts);
}

// Translate requests of kind API_EMBED: of /api/embed, and of the older /api/embeddings.
static bool dialect_ollama_translate_embed(struct dialect_ask *ask, struct api_error *error)
{
    ask->scales = true;
    return take_vectors(ask, "input", error);
}

static bool dialect_ollama_translate_embeddings(struct dialect_ask *ask, struct api_error *error)
{
    const json_t *prompt = dialect_member(ask->body, "prompt");

    if (prompt && !json_is_string(prompt))
        return schema_wrong_type(error, "prompt", "a string", prompt);
    return take_vectors(ask, "prompt", error);
}

// --- answers ---------------------------------------------------------------------------------------------------------
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
    text_json_after(out, "{\"model\":", run->model);
    text_format(out, ",\"created_at\":\"%s.%06lluZ\"", date, (unsigned long long)(now_us % 1000000));
}

// Whether it is a chat, not a generation.
static bool is_chat(const struct dialect_run *run) { return run->dialect == &dialect_ollama_chat; }

static void call_json(const struct dialect_item *item, struct text *out)
{
    text_json_bytes_after(out, "{\"function\":{\"name\":", item->name.data, item->name.bytes);
    text_string(out, ",\"arguments\":");
    dialect_append_arguments(item->data.data, item->data.bytes, out);
    text_string(out, "}}");
}

// A message of a chat, or the text of a generation: one item's, or a part of it. data: NULL: a call, or nothing.
static void body_json(bool chat, const struct dialect_item *item, const char *data, size_t bytes, struct text *out)
{
    const bool thinks = item && item->part == DIALECT_REASONING;

    text_json_bytes_after(out, chat ? ",\"message\":{\"role\":\"assistant\",\"content\":" : ",\"response\":", data,
                          thinks ? 0 : bytes);
    if (thinks) {
        text_json_bytes_after(out, ",\"thinking\":", data, bytes);
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
                (unsigned long long)end->total_us * 1000, (unsigned long long)end->usage.prompt_tokens,
                (unsigned long long)end->prompt_us * 1000, (unsigned long long)end->usage.completion_tokens,
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

static void line(struct dialect_run *run, const struct dialect_item *item, const char *data, size_t bytes, struct text *out)
{
    head(run, out);
    body_json(is_chat(run), item, data, bytes, out);
    if (item->part == DIALECT_TEXT)
        logprobs_json(&run->logprobs, out);
    text_string(out, ",\"done\":false}\n");
}

static void end_stream(struct dialect_run *run, const struct dialect_end *end, struct text *out)
{
    head(run, out);
    body_json(is_chat(run), NULL, "", 0, out);
    end_json(end, out);
}

// All texts joined, and the calls in a list.
static void whole(struct dialect_run *run, const struct dialect_end *end, struct text *out)
{
    const bool chat = is_chat(run);
    struct text parts[3] = {{0}}, logprobs = {0};
    uint32_t calls = 0, i;

    for (i = 0; i < run->item_count; i++) {
        const struct dialect_item *item = &run->items[i];
        if (item->part == DIALECT_CALL) {
            shown_comma(&parts[DIALECT_CALL], calls++ == 0);
            call_json(item, &parts[DIALECT_CALL]);
        } else {
            text_append(&parts[item->part], item->data.data, item->data.bytes);
        }
        if (item->logprobs.bytes)
            shown_comma(&logprobs, logprobs.bytes == 0);
        text_append(&logprobs, item->logprobs.data, item->logprobs.bytes);
    }
    head(run, out);
    text_json_bytes_after(out,
                          chat ? ",\"message\":{\"role\":\"assistant\",\"content\":" : ",\"response\":", parts[DIALECT_TEXT].data,
                          parts[DIALECT_TEXT].bytes);
    if (parts[DIALECT_REASONING].bytes) {
        text_json_bytes_after(out, ",\"thinking\":", parts[DIALECT_REASONING].data, parts[DIALECT_REASONING].bytes);
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

static void delta(struct dialect_run *run, const struct dialect_item *item, const char *data, size_t bytes, struct text *out)
{
    if (item->part != DIALECT_CALL)
        line(run, item, data, bytes, out);
}

static void item_end(struct dialect_run *run, const struct dialect_item *item, struct text *out)
{
    if (item->part == DIALECT_CALL && is_chat(run))
        line(run, item, "", 0, out);
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
    text_json_after(out, "{\"error\":", own);
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
                                            .delta = delta,
                                            .item_end = item_end,
                                            .end = end_stream,
                                            .error = fail_stream,
                                            .whole = whole,
                                            .refuse = refuse};

const struct dialect dialect_ollama_generate = {.id_prefix = "ollama-",
                                                .stream_type = STREAM_TYPE,
                                                .renamed = renamed,
                                                .translate = dialect_ollama_translate_generate,
                                                .delta = delta,
                                                .item_end = item_end,
                                                .end = end_stream,
                                                .error = fail_stream,
                                                .whole = whole,
                                                .refuse = refuse};

// --- vectors ------------------------------------------------------------------------------------------------------
static const struct dialect_rename renamed_prompt[] = {{"input", "prompt"}, {NULL, NULL}};

static void embed(struct dialect_run *run, const struct dialect_end *end, const struct dialect_vector *vectors, uint32_t count,
                  struct text *out)
{
    text_json_after(out, "{\"model\":", run->model);
    text_string(out, ",\"embeddings\":[");
    for (uint32_t i = 0; i < count; i++) {
        shown_comma(out, i == 0);
        text_append(out, vectors[i].json, vectors[i].bytes);
    }
    text_format(out, "],\"total_duration\":%llu,\"load_duration\":0,\"prompt_eval_count\":%llu}\n",
                (unsigned long long)end->total_us * 1000, (unsigned long long)end->usage.prompt_tokens);
}

static void embed_nothing(struct dialect_run *run, const struct dialect_end *end, struct text *out)
{
    embed(run, end, NULL, 0, out);
}

static void embeddings(struct dialect_run *run, const struct dialect_end *end, const struct dialect_vector *vectors, uint32_t count,
                       struct text *out)
{
    (void)run, (void)end, (void)count; // it has one input
    text_string(out, "{\"embedding\":");
    text_append(out, vectors[0].json, vectors[0].bytes);
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
