// fuzz_dialect.c: requests in other forms of the API. The first byte chooses the form and whether the answer is streamed; the rest is the
// body. One that is taken becomes a request that the schema reads or refuses with words, and its answer is told.
#include <jansson.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "common/base/checked.h"
#include "common/base/log.h"
#include "common/json/json_text.h"
#include "services/gateway/api/dialects/dialect.h"
#include "services/gateway/api/dialects/response_store.h"

static struct api_model model;

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void tell(struct dialect_run *run, const uint8_t *data, size_t size, bool stream)
{
    const struct dialect_end end = {.finish_reason = size % 2 ? "length" : "tool_calls", .usage = {.prompt_tokens = size}};
    const struct api_error error = {.status = 500, .message = "it failed"};
    struct text out = {0};

    run->model = "m";
    for (size_t at = 0; at < size && at < 64; at += 8) { // what a model writes is any bytes
        const struct dialect_piece piece = {.part = data[at] % 3,
                                            .call = data[at] / 3 % 2,
                                            .id = "call",
                                            .name = "name",
                                            .name_bytes = 4,
                                            .data = (const char *)data + at,
                                            .bytes = MIN(size - at, 8)};
        dialect_push(run, &piece, stream ? &out : NULL);
    }
    if (!stream)
        dialect_end_whole(run, &end, &out);
    else if (size % 3)
        dialect_end_stream(run, &end, &out);
    else
        dialect_fail_stream(run, &error, &out);
    assert_always(!out.failed && out.bytes > 0);
    if (!stream) { // the answer is JSON whatever the model wrote, and what it echoes of the request: an integer of 60 digits, too
        json_t *answer = json_text_read(out.data, out.bytes, JSON_ALLOW_NUL, NULL);
        assert_always(json_is_object(answer));
        json_decref(answer);
    }
    text_free(&out);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const struct dialect *const dialects[] = {&dialect_responses,        &dialect_messages,     &dialect_ollama_chat,
                                                     &dialect_ollama_generate,  &dialect_count_tokens, &dialect_ollama_embed,
                                                     &dialect_ollama_embeddings};
    static const struct response_store_config config = {.max_bytes = 1 << 16, .share = 1, .max_count = 8, .keep_s = 60};
    static struct response_store *store;
    const struct dialect *dialect;
    struct api_request request = {0};
    struct api_error error;
    json_t *body;

    log_threshold = LOG_ERROR;
    model = api_model_of(512);
    if (!store && response_store_open(&config, &store) != STATUS_OK)
        return 0;
    body = size ? json_text_read((const char *)data + 1, size - 1, JSON_ALLOW_NUL | JSON_REJECT_DUPLICATES, NULL) : NULL;
    if (!json_is_object(body)) {
        json_decref(body);
        return 0;
    }
    dialect = dialects[data[0] % ARRAY_COUNT(dialects)];
    struct dialect_ask ask = {.body = body,
                              .tenant = "t",
                              .request_id = "r",
                              .store = store,
                              .kind = dialect->tokens    ? API_TOKENIZE
                                      : dialect->vectors ? API_EMBED
                                                         : API_CHAT};
    if (!dialect_translate(dialect, &ask, &error)) {
        assert_always(error.status >= 400 && error.message[0] && !ask.chat && !ask.own);
    } else if (!api_request_read(ask.kind, ask.chat, &model, &request, &error)) {
        dialect_rename_field(dialect, &error);
        assert_always(error.status >= 400 && error.message[0] && !request.root);
    } else if (!dialect->tokens) {
        struct dialect_run *run = dialect_run_open(dialect, &ask);
        assert_always(run);
        tell(run, data, size, !dialect->vectors && data[0] / ARRAY_COUNT(dialects) % 2); // vectors are no stream
        dialect_run_close(run);
    }
    dialect_free_own(dialect, ask.own);
    api_request_free(&request);
    json_decref(body);
    return 0;
}
