// respond_answer.c: messages of chats: what is thought, what is said, which functions are called.
//
// Reasoning has two names, as two generations of servers and clients call it: reasoning_content and reasoning.
#include <stdlib.h>

#include "common/base/checked.h"
#include "services/gateway/api/dialects/respond_answer.h"

enum { FIRST_CALLS = 4 };

void shown_answer_free(struct shown_answer *answer)
{
    for (uint32_t i = 0; i < answer->call_count; i++) {
        text_free(&answer->calls[i].name);
        text_free(&answer->calls[i].arguments);
    }
    free(answer->calls);
    text_free(&answer->reasoning);
    *answer = (struct shown_answer){0};
}

struct shown_call *shown_answer_add_call(struct shown_answer *answer)
{
    if (answer->call_count == answer->call_capacity) {
        uint32_t capacity = MAX(answer->call_capacity * 2, (uint32_t)FIRST_CALLS);
        struct shown_call *grown = realloc(answer->calls, capacity * sizeof *grown);
        if (!grown)
            return NULL;
        answer->calls = grown;
        answer->call_capacity = capacity;
    }
    answer->calls[answer->call_count] = (struct shown_call){0};
    return &answer->calls[answer->call_count++];
}

void respond_reasoning(struct text *out, const char *reasoning, size_t bytes)
{
    text_string(out, "\"reasoning_content\":");
    text_json(out, reasoning, bytes);
    text_string(out, ",\"reasoning\":");
    text_json(out, reasoning, bytes);
}

bool shown_call_has_news(const struct shown_call *call)
{
    return (!call->head_shown || call->arguments.bytes > 0) && (!call->is_custom || call->is_whole);
}

static void call_head(struct text *out, const struct shown_call *call)
{
    text_string(out, "\"id\":");
    text_json_string(out, call->id);
    text_string(out,
                call->is_custom ? ",\"type\":\"custom\",\"custom\":{\"name\":" : ",\"type\":\"function\",\"function\":{\"name\":");
    text_json(out, call->name.data, call->name.bytes);
    text_string(out, call->is_custom ? ",\"input\":" : ",\"arguments\":");
    text_json(out, call->arguments.data, call->arguments.bytes);
    text_append(out, "}", 1);
}

void respond_call_delta(struct text *out, const struct shown_call *call, uint32_t index)
{
    text_format(out, "\"tool_calls\":[{\"index\":%u,", index);
    if (call->head_shown) {
        text_string(out, "\"function\":{\"arguments\":");
        text_json(out, call->arguments.data, call->arguments.bytes);
        text_append(out, "}", 1);
    } else {
        call_head(out, call);
    }
    text_string(out, "}]");
}

void respond_message(struct text *out, const char *content, size_t bytes, const struct shown_answer *answer)
{
    const bool calls = answer && answer->call_count > 0, thinks = answer && answer->reasoning.bytes > 0;

    text_string(out, "\"message\":{\"role\":\"assistant\",\"content\":");
    if (bytes == 0 && calls)
        text_string(out, "null");
    else
        text_json(out, content, bytes);
    text_string(out, ",\"refusal\":null");
    if (thinks) {
        text_append(out, ",", 1);
        respond_reasoning(out, answer->reasoning.data, answer->reasoning.bytes);
    }
    for (uint32_t i = 0; calls && i < answer->call_count; i++) {
        text_string(out, i == 0 ? ",\"tool_calls\":[{" : ",{");
        call_head(out, &answer->calls[i]);
        text_append(out, "}", 1);
    }
    text_string(out, calls ? "]}" : "}");
}
