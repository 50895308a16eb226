// fuzz_request.c: bodies of requests. The first byte chooses the endpoint; the rest is the body. A request that is taken
// must keep the promises that the rest of the gateway relies on.
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <jansson.h>

#include "common/base/log.h"
#include "common/json/json_text.h"
#include "services/gateway/api/schema/schema.h"
#include "services/gateway/text/conversation.h"
#include "tests/unit/request_parse.h"

enum { VOCAB = 512 };
static struct api_model model;

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check(const struct api_request *request)
{
    uint32_t i, j;

    assert_always(request->prompt_count <= API_MAX_PROMPTS && request->draw.stop_count <= API_MAX_STOPS);
    assert_always(
        (request->limits.n >= 1 && request->limits.n * (request->prompt_count ? request->prompt_count : 1) <= API_MAX_CHOICES) ||
        request->kind >= API_TOKENIZE);
    assert_always(request->sampling.temperature >= 0 && request->sampling.temperature <= 2 && request->sampling.top_p > 0 &&
                  request->sampling.top_p <= 1);
    assert_always(request->shown.top_logprobs >= 0 && request->shown.top_logprobs <= API_MAX_LOGPROBS &&
                  request->limits.max_tokens >= -1);
    assert_always(!(request->kind & API_POOLS) || (request->prompt_count >= 1 && request->prompt_count <= API_MAX_PROMPTS));
    assert_always(request->kind != API_RERANK || request->pool.query);
    for (i = 0; i < request->prompt_count; i++)
        for (j = 0; j < request->prompts[i].id_count; j++)
            assert_always(request->prompts[i].ids[j] < VOCAB);
    for (i = 0; i < request->draw.stop_count; i++)
        assert_always(request->draw.stops[i].bytes >= 1 && request->draw.stops[i].bytes <= API_MAX_STOP_BYTES);
    for (i = 0; i < request->draw.bias_count; i++)
        assert_always(request->draw.bias[i].token < VOCAB);
    assert_always(!request->message_count == !request->chat.conversation &&
                  json_array_size(request->chat.conversation) == request->message_count &&
                  json_array_size(request->chat.tools) <= API_MAX_TOOLS);
    for (i = 0; i < request->message_count; i++) {
        const json_t *calls = json_object_get(json_array_get(request->chat.conversation, i), "tool_calls");
        assert_always(json_string_value(json_object_get(json_array_get(request->chat.conversation, i), "role")));
        for (j = 0; j < json_array_size(calls); j++) {
            const json_t *function = json_object_get(json_array_get(calls, j), "function");
            const json_t *arguments = json_object_get(function, "arguments");
            assert_always(json_string_value(json_object_get(function, "name")) &&
                          (json_text_is_object(arguments) || json_is_string(arguments)));
        }
    }
    for (i = 0; i < request->message_count; i++)
        assert_always(request->messages[i].role && (request->messages[i].content || request->messages[i].bytes == 0));
}

// Puts the conversation into a form that its bytes choose: what comes out are messages with roles again, and calls as the form has them.
static void shape(struct api_request *request, const uint8_t *data, size_t size)
{
    uint32_t bits = 2166136261u; // FNV-1a
    for (size_t i = 0; i < size; i++)
        bits = (bits ^ data[i]) * 16777619u;
    const struct conversation_form form = {.tools_name = bits & 1   ? "tools"
                                                         : bits & 2 ? "xml_tools"
                                                                    : NULL,
                                           .has_calls = bits & 4,
                                           .has_system = bits & 8,
                                           .has_late_system = bits & 16,
                                           .needs_user = bits & 32,
                                           .fills_start = bits & 64,
                                           .fills_gap = bits & 128,
                                           .content_empty = bits & 256,
                                           .arguments_text = bits & 512,
                                           .reasoning_key = bits & 1024 ? "thinking" : "reasoning_content",
                                           .calls = {.short_ids = bits & 2048,
                                                     .needs_ids = bits & 4096,
                                                     .one_call = bits & 8192,
                                                     .content_apart = bits & 16384,
                                                     .no_strays = bits >> 27 & 1},
                                           .no_empty = bits >> 28 & 1,
                                           .no_early_system = bits >> 29 & 1,
                                           .takes_broken = bits >> 30 & 1,
                                           .typed = bits >> 15 & 15,
                                           .joined = bits >> 19 & 15,
                                           .lost = bits >> 23 & 15};
    json_t *given;

    assert_always(conversation_shape(&form, request->chat.conversation, request->chat.tools, &request->chat.variables, &given));
    assert_always(json_array_size(request->chat.conversation) >= 1);
    for (size_t i = 0; i < json_array_size(request->chat.conversation); i++) {
        const json_t *message = json_array_get(request->chat.conversation, i), *calls = json_object_get(message, "tool_calls");
        assert_always(json_string_value(json_object_get(message, "role")));
        assert_always(!form.calls.one_call || !form.has_calls || json_array_size(calls) < 2);
        for (size_t c = 0; form.calls.short_ids && c < json_array_size(calls); c++)
            assert_always(json_string_length(json_object_get(json_array_get(calls, c), "id")) == 9);
    }
    (void)conversation_find_lost(&form, request->chat.conversation);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const enum api_kind kinds[] = {API_COMPLETION, API_CHAT, API_TOKENIZE, API_DETOKENIZE},
                               pools[] = {API_EMBED, API_RERANK};
    struct api_request request;
    struct api_error error;

    log_threshold = LOG_ERROR;
    model = api_model_of(VOCAB);
    if (size == 0)
        return 0;
    const enum api_kind kind = data[0] < 128 ? kinds[data[0] % 4] : pools[data[0] % 2];
    if (api_request_parse(kind, (const char *)data + 1, size - 1, &model, &request, &error)) {
        check(&request);
        if (request.message_count)
            shape(&request, data, size);
    } else {
        assert_always(error.status >= 400 && error.message[0] && !request.root);
    }
    api_request_free(&request);
    return 0;
}
