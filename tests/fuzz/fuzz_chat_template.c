// fuzz_chat_template.c: libFuzzer target: any bytes as a template, over a fixed conversation.
// What is rendered must keep the promises of chat_template.h about spans.
#include <stdlib.h>
#include <string.h>

#include "common/base/status.h"
#include "services/gateway/jinja/chat_template.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const char conversation[] =
        "[{\"role\":\"system\",\"content\":\" be brief \"},{\"role\":\"user\",\"content\":\"h\xc3\xa9llo\\n<s> \"},"
        "{\"role\":\"assistant\",\"content\":null,\"tool_calls\":[{\"id\":\"1\",\"type\":\"function\",\"function\":"
        "{\"name\":\"f\",\"arguments\":{\"a\":[1,2.5,true,null]}}}]},{\"role\":\"critic\",\"content\":\"a,b\"}]";
    static json_t *messages;
    struct chat_template *opened;
    struct chat_output out;
    struct error error;
    if (!messages)
        messages = json_loads(conversation, 0, NULL);
    const struct chat_input input = {.messages = messages, .tools = messages, .add_generation_prompt = true};
    if (chat_template_open((const char *)data, size, "<s>", NULL, &opened, &error) != STATUS_OK)
        return 0;
    if (chat_template_render_at(opened, 1722384000, &input, &out, &error) == STATUS_OK) {
        size_t end = 0;
        assert_always(out.text[out.length] == 0);
        for (uint32_t i = 0; i < out.span_count; i++) {
            assert_always(out.spans[i].begin < out.spans[i].end && out.spans[i].end <= out.length);
            assert_always(i == 0 || out.spans[i].begin > end);
            end = out.spans[i].end;
        }
    }
    chat_output_free(&out);
    chat_template_close(opened);
    return 0;
}
