// language.c: see language.h: the model file's metadata made into a tokenizer and chat templates; the file is closed again.
#include "services/gateway/text/language.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/checked.h"
#include "common/base/log.h"
#include "common/base/text.h"
#include "common/model/pooling.h"
#include "common/model/vocabulary.h"
#include "common/tokenizer/tokenizer.h"
#include "services/gateway/jinja/chat_template.h"
#include "services/gateway/text/chat_templates.h"

struct language {
    char *name;
    uint32_t context;
    uint64_t fingerprint;
    struct api_model api_model;
    struct tokenizer *tokenizer;
    struct chat_templates templates;
    uint32_t end_tokens[TOKENIZER_MAX_END_TOKENS];
    uint32_t end_token_count;
    struct language_pooling pooling;
    struct language_facts facts;
};

struct language_stream {
    struct detokenizer detokenizer;
    size_t max_output;
};

// --- lifecycle ----------------------------------------------------------------------------------------------------
// The keys that llama.cpp's converter and hf/special.c make of generation_config.json, by the fields of requests
// (github.com/ggml-org/llama.cpp, src/llama-arch.cpp: LLM_KV_GENERAL_SAMPLING_*). Its mirostat and its order of steps are not ours.
static const struct {
    const char *key, *field;
    bool is_whole;
} recommended[] = {
    {"general.sampling.temp", "temperature", false},
    {"general.sampling.top_k", "top_k", true},
    {"general.sampling.top_p", "top_p", false},
    {"general.sampling.min_p", "min_p", false},
    {"general.sampling.typical_p", "typical_p", false}, // of a directory alone
    {"general.sampling.penalty_repeat", "repetition_penalty", false},
    {"general.sampling.xtc_probability", "xtc_probability", false},
    {"general.sampling.xtc_threshold", "xtc_threshold", false},
};

void language_read_sampling(const struct gguf *gguf, struct api_model *out)
{
    for (size_t i = 0; i < ARRAY_COUNT(recommended); i++) {
        const char *key = recommended[i].key;
        struct error error;
        uint32_t whole = 0;
        float number = 0;

        if (!gguf_has(gguf, key))
            continue;
        enum status status = recommended[i].is_whole ? gguf_get_u32(gguf, key, &whole, &error)
                                                     : gguf_get_f32(gguf, key, &number, &error);
        if (!status)
            status = api_model_set(out, recommended[i].field, recommended[i].is_whole ? whole : (double)number, &error);
        if (status)
            log_warn("DEFAULT-IGNORED", "key=%s why=\"%s\"", key, error.text);
    }
}

// Requests say, else the option, else the file, else the API.
static enum status open_sampling(const struct language_config *config, const struct model *model, struct api_model *out,
                                 struct error *error)
{
    struct text said = {0};
    const char *name;
    double value;

    *out = api_model_of(model->shape.vocab);
    language_read_sampling(model->gguf, out);
    enum status status = config->sampling ? api_model_set_all(out, config->sampling, error) : STATUS_OK;
    for (size_t at = 0; !status && api_model_next(out, &at, &name, &value);)
        text_format(&said, " %s=%g", name, value);
    if (said.bytes && !said.failed)
        log_info("SAMPLING-DEFAULTS", "%.*s", (int)said.bytes - 1, said.data + 1);
    text_free(&said);
    return status;
}

// The prompt with which Qwen3-Reranker was published.
static const char qwen3_rank_prompt[] =
    "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and the Instruct provided. Note that the "
    "answer can only be \"yes\" or \"no\".<|im_end|>\n<|im_start|>user\n<Instruct>: Given a web search query, retrieve relevant passages "
    "that answer the query\n<Query>: {query}\n<Document>: {document}<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n";

// The file's own prompt for ranking, or that of Qwen3's rerankers, which their own directories lack.
static enum status open_pooling(const struct language_config *config, const struct model *model, struct language *language,
                                struct error *error)
{
    struct language_pooling *pooling = &language->pooling;
    struct gguf_string own = {0};
    enum status status = model_pooling_choose(model, config->pooling ? config->pooling : "auto", &pooling->model, error);

    pooling->hidden = model->shape.hidden;
    if (status || pooling->model.kind != MODEL_POOL_RANK)
        return status;
    if (gguf_get_string(model->gguf, "tokenizer.chat_template.rerank", &own, NULL) == STATUS_OK && own.length)
        pooling->rank_prompt = strndup(own.data, own.length);
    else if (strcmp(model->arch_name, "qwen3") == 0 && pooling->model.named_reranker)
        pooling->rank_prompt = strdup(qwen3_rank_prompt);
    else
        return STATUS_OK;
    return pooling->rank_prompt ? STATUS_OK : error_set(error, STATUS_RESOURCE_EXHAUSTED, "out of memory");
}

// Returns the name of the type that most bytes have.
static const char *name_of_type(const struct gguf *gguf)
{
    uint64_t bytes[64] = {0};
    uint32_t most = 0;

    for (uint32_t i = 0; i < gguf_tensor_count(gguf); i++) {
        const struct gguf_tensor *tensor = gguf_tensor_at(gguf, i);
        if ((uint32_t)tensor->type < ARRAY_COUNT(bytes) && (bytes[tensor->type] += tensor->bytes) > bytes[most])
            most = tensor->type;
    }
    return tensor_type_info(most) ? tensor_type_info(most)->name : "";
}

static struct language_facts facts_of(const struct model *model)
{
    const struct model_shape *s = &model->shape;
    struct language_facts facts = {.layers = s->layers,
                                   .hidden = s->hidden,
                                   .heads = s->heads,
                                   .kv_heads = s->kv_heads,
                                   .head_dim = s->head_dim,
                                   .ffn = s->ffn,
                                   .vocab = s->vocab,
                                   .experts = s->experts,
                                   .experts_used = s->experts_used,
                                   .parameters = model->parameters,
                                   .file_bytes = gguf_file_bytes(model->gguf),
                                   .quantization = name_of_type(model->gguf)};

    snprintf(facts.architecture, sizeof facts.architecture, "%s", model->arch_name);
    return facts;
}

enum status language_open(const struct language_config *config, struct language **out, struct error *error)
{
    struct language *language = calloc(1, sizeof *language);
    struct model *model = NULL;
    const char *stem;
    size_t stem_length;
    enum status status;

    *out = NULL;
    if (!language)
        return error_set(error, STATUS_RESOURCE_EXHAUSTED, "out of memory");
    stem = model_stem(config->model_path, &stem_length);
    language->name = config->served_name ? strdup(config->served_name) : strndup(stem, stem_length);
    status = language->name ? STATUS_OK : error_set(error, STATUS_RESOURCE_EXHAUSTED, "out of memory");
    if (status == STATUS_OK && model_open(config->model_path, &model, error))
        status = error_prefix(error, "--model");
    if (status == STATUS_OK) {
        language->context = model->shape.context_length;
        if (config->context_tokens)
            language->context = MIN(language->context, config->context_tokens);
        language->fingerprint = model->fingerprint;
        language->facts = facts_of(model);
        status = open_sampling(config, model, &language->api_model, error);
    }
    if (status == STATUS_OK) {
        status = vocabulary_open(model, &language->tokenizer, error);
    }
    if (status == STATUS_OK)
        language->end_token_count = tokenizer_end_tokens(language->tokenizer, language->end_tokens, TOKENIZER_MAX_END_TOKENS);
    if (status == STATUS_OK)
        status = chat_templates_open(&(struct chat_templates_config){.model_path = config->model_path,
                                                                     .chat_template_path = config->chat_template_path,
                                                                     .tool_parser = config->tool_parser,
                                                                     .reasoning_parser = config->reasoning_parser},
                                     model, language->tokenizer, &language->templates, error);
    if (status == STATUS_OK)
        status = open_pooling(config, model, language, error);
    model_close(model);
    if (status != STATUS_OK) {
        language_close(language);
        return status;
    }
    *out = language;
    return STATUS_OK;
}

void language_close(struct language *language)
{
    if (!language)
        return;
    chat_templates_close(&language->templates);
    tokenizer_close(language->tokenizer);
    free(language->pooling.rank_prompt);
    free(language->name);
    free(language);
}

const char *language_name(const struct language *language) { return language->name; }

bool language_is_named(const struct language *language, const char *name)
{
    return strcmp(name, language->name) == 0 || strcmp(name, "default") == 0;
}

uint32_t *language_end_tokens(const struct language *language, uint32_t *count)
{
    *count = language->end_token_count;
    return (uint32_t *)(uintptr_t)language->end_tokens;
}

const struct language_pooling *language_pooling(const struct language *language) { return &language->pooling; }
const struct api_model *language_api_model(const struct language *language) { return &language->api_model; }
uint32_t language_vocab(const struct language *language) { return tokenizer_vocab(language->tokenizer); }
uint32_t language_context(const struct language *language) { return language->context; }
const struct language_facts *language_facts(const struct language *language) { return &language->facts; }
bool language_chats(const struct language *language) { return language->templates.count > 0; }
uint64_t language_fingerprint(const struct language *language) { return language->fingerprint; }

// --- text to ids --------------------------------------------------------------------------------------------------
enum status language_encode(const struct language *language, const char *text, size_t bytes, bool add_special, bool parse_special,
                            uint32_t max_tokens, uint32_t **ids, uint32_t *count, struct error *error)
{
    struct text_segment segment = {.bytes = text, .length = bytes, .parse_special = parse_special};

    return tokenizer_encode(language->tokenizer, &segment, 1, add_special, max_tokens, ids, count, error);
}

enum status language_encode_segments(const struct language *language, const struct text_segment *segments, uint32_t segment_count,
                                     bool add_special, uint32_t max_tokens, uint32_t **ids, uint32_t *count, struct error *error)
{
    return tokenizer_encode(language->tokenizer, segments, segment_count, add_special, max_tokens, ids, count, error);
}

// The rendered text cut at its spans: content may not hold special tokens, the rest may.
static enum status encode_output(const struct language *language, const struct chat_output *output, uint32_t max_tokens,
                                 uint32_t **ids, uint32_t *count, struct error *error)
{
    struct text_segment *segments = calloc((size_t)output->span_count * 2 + 1, sizeof *segments);
    uint32_t i, segment_count = 0;
    size_t at = 0;
    enum status status;

    if (!segments)
        return error_set(error, STATUS_RESOURCE_EXHAUSTED, "out of memory");
    for (i = 0; i < output->span_count; i++) {
        const struct chat_span *span = &output->spans[i];
        if (span->begin > at)
            segments[segment_count++] =
                (struct text_segment){.bytes = output->text + at, .length = span->begin - at, .parse_special = true};
        segments[segment_count++] = (struct text_segment){.bytes = output->text + span->begin, .length = span->end - span->begin};
        at = span->end;
    }
    if (output->length > at)
        segments[segment_count++] =
            (struct text_segment){.bytes = output->text + at, .length = output->length - at, .parse_special = true};
    status = tokenizer_encode(language->tokenizer, segments, segment_count, false, max_tokens, ids, count, error);
    free(segments);
    return status;
}

// Stands behind the content of a message that is to be continued, so that its place is found in what the template makes of it. The space shows
// whether the template trims.
static const char mark[] = "FastDecodeContinuesHere ";

static bool append_mark(json_t *messages)
{
    json_t *message = json_array_get(messages, json_array_size(messages) - 1), *content = json_object_get(message, "content");
    struct text text = {0};

    text_append(&text, json_string_value(content), json_string_length(content));
    text_string(&text, mark);
    json_t *marked = text.failed ? NULL : json_stringn_nocheck(text.data, text.bytes);
    text_free(&text);
    return json_object_set_new(message, "content", marked) == 0;
}

static bool is_blank(char c) { return strchr(" \t\r\n\f\v", c) && c; }

// Whether the text before the mark has all of the content, but for white space around it.
static bool has_content(const struct api_chat_message *message, const char *text, size_t bytes)
{
    size_t begin = 0, end = message->content ? message->bytes : 0;

    while (begin < end && is_blank(message->content[begin]))
        begin++;
    while (begin < end && is_blank(message->content[end - 1]))
        end--;
    return begin == end || memmem(text, bytes, message->content + begin, end - begin);
}

// Ends the text where the mark is. A template that trims a content has taken the white space before the mark, too.
static bool cut_at_mark(const struct api_chat_message *message, struct chat_output *output)
{
    const size_t bytes = sizeof mark - 2; // without the space
    const char *at = NULL, *end = output->text + output->length;
    uint32_t span = output->span_count;

    for (const char *from = output->text; (from = memmem(from, (size_t)(end - from), mark, bytes)); from++)
        at = from;
    const size_t begin = at ? (size_t)(at - output->text) : 0;
    while (span > 0 && output->spans[span - 1].begin > begin)
        span--;
    if (!at || span == 0 || output->spans[span - 1].end < begin + bytes || !has_content(message, output->text, begin))
        return false;
    struct chat_span *last = &output->spans[span - 1];
    const bool trims = last->end < begin + bytes + 1;
    for (last->end = begin; trims && last->end > last->begin && is_blank(output->text[last->end - 1]);)
        last->end--;
    output->length = last->end;
    output->span_count = span - (last->begin == last->end);
    return true;
}

// Whether a text ends with a marker, but for white space.
static bool ends_with(const char *text, size_t length, const char *marker)
{
    const size_t bytes = strlen(marker);

    while (length > 0 && strchr(" \t\r\n", text[length - 1]))
        length--;
    return length >= bytes && memcmp(text + length - bytes, marker, bytes) == 0;
}

static enum status no_template(const struct language *language, const struct api_request *api, struct error *error)
{
    char names[512];

    if (language->templates.count == 0)
        return error_set(error, STATUS_FAILED_PRECONDITION, "the model has no chat template: use /v1/completions");
    chat_templates_names(&language->templates, names, sizeof names);
    if (!api->chat.chat_template)
        return error_set(error, STATUS_FAILED_PRECONDITION,
                         "the model has no default chat template: 'chat_template' must name one of %s", names);
    return error_set(error, STATUS_NOT_FOUND, "'chat_template': this model has none called '%.64s'; there are %s",
                     api->chat.chat_template, names);
}

enum status language_encode_chat(const struct language *language, struct api_request *api, uint32_t max_tokens, uint32_t **ids,
                                 uint32_t *count, bool *reasoning_is_open, struct error *error)
{
    struct json_t *tools = api->chat.tool_choice == API_TOOLS_NONE ? NULL : api->chat.tools;
    const struct named_template *template = chat_templates_choose(&language->templates, api->chat.chat_template, tools != NULL);
    struct chat_output output;
    enum status status;

    *ids = NULL;
    *count = 0;
    *reasoning_is_open = false;
    if (!template)
        return no_template(language, api, error);
    if (api->chat.continue_final_message && !append_mark(api->chat.conversation))
        return error_set(error, STATUS_RESOURCE_EXHAUSTED, "out of memory");
    if (!conversation_shape(&template->form, api->chat.conversation, tools, &api->chat.variables, &tools))
        return error_set(error, STATUS_RESOURCE_EXHAUSTED, "out of memory");
    const char *lost = conversation_find_lost(&template->form, api->chat.conversation);
    if (lost)
        return error_set(error, STATUS_INVALID_ARGUMENT, "the chat template shows nothing of what messages of role '%s' say", lost);
    const struct chat_input input = {.messages = api->chat.conversation,
                                     .tools = tools,
                                     .documents = api->chat.documents,
                                     .variables = api->chat.variables,
                                     .add_generation_prompt = api->chat.add_generation_prompt,
                                     .tools_list = template->form.tools_list};
    status = chat_template_render(template->chat, &input, &output, error);
    if (status != STATUS_OK)
        return status;
    if (api->chat.continue_final_message && !cut_at_mark(&api->messages[api->message_count - 1], &output)) {
        chat_output_free(&output);
        return error_set(
            error, STATUS_INVALID_ARGUMENT,
            "'continue_final_message' is not possible: the chat template does not show the last message's content as it is");
    }
    *reasoning_is_open = template->notation.reasoning &&
                         ends_with(output.text, output.length, answer_reasoning_open(template->notation.reasoning));
    status = encode_output(language, &output, max_tokens, ids, count, error);
    chat_output_free(&output);
    return status;
}

struct language_notation language_notation(const struct language *language, const char *chat_template, bool with_tools)
{
    const struct named_template *template = chat_templates_choose(&language->templates, chat_template, with_tools);
    struct language_notation notation = template ? template->notation : (struct language_notation){0};

    if (template && with_tools && template->describes_tools)
        notation.family = answer_find_family("json");
    if (!with_tools && !answer_has_channels(notation.family))
        notation.family = NULL;
    return notation;
}

// --- ids to text --------------------------------------------------------------------------------------------------
const char *language_token(const struct language *language, uint32_t id, size_t *bytes)
{
    struct text_span span = tokenizer_token_bytes(language->tokenizer, id);

    *bytes = span.length;
    return span.length ? span.bytes : "";
}

bool language_is_end(const struct language *language, uint32_t id) { return tokenizer_is_end(language->tokenizer, id); }

bool language_is_special(const struct language *language, uint32_t id)
{
    return tokenizer_is_control(language->tokenizer, id) || tokenizer_is_end(language->tokenizer, id);
}

// The most that detokenizer_push() writes: a token and what was held back before it, with three bytes for each wrong one.
static size_t output_room(const struct tokenizer *tokenizer) { return 3 * tokenizer_max_token_bytes(tokenizer) + 16; }

static void push(struct detokenizer *detokenizer, size_t max_output, uint32_t id, struct text *out)
{
    if (text_reserve(out, max_output))
        out->bytes += detokenizer_push(detokenizer, id, out->data + out->bytes, max_output);
}

static void flush(struct detokenizer *detokenizer, struct text *out)
{
    if (text_reserve(out, 4))
        out->bytes += detokenizer_flush(detokenizer, out->data + out->bytes, 4);
}

void language_decode(const struct language *language, const uint32_t *ids, uint32_t count, bool show_special, struct text *out)
{
    size_t max_output = output_room(language->tokenizer);
    struct detokenizer detokenizer;
    uint32_t i;

    detokenizer_init(&detokenizer, language->tokenizer, !show_special);
    for (i = 0; i < count; i++)
        push(&detokenizer, max_output, ids[i], out);
    flush(&detokenizer, out);
}

struct language_stream *language_stream_open(const struct language *language)
{
    struct language_stream *stream = malloc(sizeof *stream);

    if (!stream)
        return NULL;
    detokenizer_init(&stream->detokenizer, language->tokenizer, true);
    stream->detokenizer.drop_space = false; // the text continues the prompt
    stream->max_output = output_room(language->tokenizer);
    return stream;
}

void language_stream_close(struct language_stream *stream) { free(stream); }

void language_stream_push(struct language_stream *stream, uint32_t id, struct text *out)
{
    push(&stream->detokenizer, stream->max_output, id, out);
}

void language_stream_finish(struct language_stream *stream, struct text *out) { flush(&stream->detokenizer, out); }
