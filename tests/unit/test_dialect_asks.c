// test_dialect_asks.c: other forms of the API: what a request becomes, which are refused, and which names errors and paths have.
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/checked.h"
#include "services/gateway/api/dialects/dialect.h"
#include "services/gateway/serve/gateway_internal.h"
#include "tests/cmocka.h"
#include "tests/unit/dialect_ask.h"

// Translates the body; the chat must be as the text says.
static void expect_chat(const struct dialect *dialect, const char *body, const char *chat)
{
    struct dialect_ask ask = ask_of(body, NULL);
    json_t *wanted = json_loads(chat, 0, NULL);
    struct api_error error;

    assert_non_null(wanted);
    if (!dialect_translate(dialect, &ask, &error))
        fail_msg("%s: refused: %s", body, error.message);
    if (!json_equal(ask.chat, wanted)) {
        char *got = json_dumps(ask.chat, JSON_COMPACT | JSON_SORT_KEYS);
        fail_msg("%s\n gives  %s\n wanted %s", body, got, chat);
    }
    dialect_free_own(dialect, ask.own);
    json_decref(ask.chat);
    json_decref((json_t *)(uintptr_t)ask.body);
    json_decref(wanted);
}

static void expect_refused(const struct dialect *dialect, const char *body, const char *param, const char *part)
{
    struct dialect_ask ask = ask_of(body, NULL);
    struct api_error error;

    if (dialect_translate(dialect, &ask, &error))
        fail_msg("%s: taken", body);
    assert_null(ask.chat);
    assert_null(ask.own);
    if (strcmp(error.param, param) != 0 || !strstr(error.message, part))
        fail_msg("%s: %s: %s", body, error.param, error.message);
    json_decref((json_t *)(uintptr_t)ask.body);
}

static void test_responses_ask(void **state)
{
    const struct dialect *d = &dialect_responses;

    expect_chat(
        d,
        "{\"model\":\"m\",\"input\":\"hi\",\"instructions\":\"be brief\",\"max_output_tokens\":7,\"temperature\":0.5,\"seed\":3}",
        "{\"model\":\"m\",\"max_completion_tokens\":7,\"temperature\":0.5,\"seed\":3,\"messages\":[{\"role\":\"system\","
        "\"content\":\"be brief\"},{\"role\":\"user\",\"content\":\"hi\"}]}");
    expect_chat(
        d,
        "{\"input\":[{\"role\":\"user\",\"content\":[{\"type\":\"input_text\",\"text\":\"6*7?\"}]},{\"type\":\"reasoning\",\"id\":"
        "\"rs\",\"summary\":[],\"content\":[{\"type\":\"reasoning_text\",\"text\":\"a tool\"}]},{\"type\":\"function_call\","
        "\"call_id\":\"c1\",\"name\":\"mul\",\"arguments\":\"{}\"},{\"type\":\"function_call\",\"call_id\":\"c2\",\"name\":\"add\","
        "\"arguments\":\"{}\"},{\"type\":\"function_call_output\",\"call_id\":\"c1\",\"output\":\"42\"},{\"type\":\"message\",\"role\":"
        "\"assistant\",\"content\":[{\"type\":\"output_text\",\"text\":\"42\",\"annotations\":[]}]}],\"truncation\":\"auto\"}",
        "{\"truncate_prompt_tokens\":-1,\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"6*7?\"}]},"
        "{\"role\":\"assistant\",\"content\":null,\"reasoning_content\":\"a tool\",\"tool_calls\":[{\"id\":\"c1\",\"type\":"
        "\"function\",\"function\":{\"name\":\"mul\",\"arguments\":\"{}\"}},{\"id\":\"c2\",\"type\":\"function\",\"function\":{\"name\":"
        "\"add\",\"arguments\":\"{}\"}}]},{\"role\":\"tool\",\"content\":\"42\",\"tool_call_id\":\"c1\"},{\"role\":\"assistant\","
        "\"content\":[{\"type\":\"text\",\"text\":\"42\"}]}]}");
    expect_chat(
        d,
        "{\"input\":\"x\",\"tools\":[{\"type\":\"function\",\"name\":\"f\",\"parameters\":{\"type\":\"object\"},\"strict\":true}],"
        "\"tool_choice\":{\"type\":\"function\",\"name\":\"f\"},\"text\":{\"format\":{\"type\":\"json_schema\",\"name\":\"n\","
        "\"schema\":{}}},\"reasoning\":{\"effort\":\"low\"}}",
        "{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"f\","
        "\"parameters\":{\"type\":\"object\"},\"strict\":true}}],\"tool_choice\":{\"type\":\"function\",\"function\":{\"name\":\"f\"}},"
        "\"response_format\":{\"type\":\"json_schema\",\"json_schema\":{\"name\":\"n\",\"schema\":{}}},\"reasoning_effort\":\"low\"}");
    expect_refused(d, "{}", "input", "required");
    expect_refused(d, "{\"input\":5}", "input", "not an integer");
    expect_refused(d, "{\"input\":[5]}", "input[0]", "an object");
    expect_chat(
        d,
        "{\"input\":\"x\",\"tools\":[{\"type\":\"function\",\"name\":\"f\"}],\"tool_choice\":{\"type\":\"allowed_tools\",\"mode\":"
        "\"required\",\"tools\":[{\"type\":\"function\",\"name\":\"f\"}]}}",
        "{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"f\"}}],"
        "\"tool_choice\":{\"type\":\"allowed_tools\",\"allowed_tools\":{\"mode\":\"required\",\"tools\":[{\"type\":\"function\","
        "\"function\":{\"name\":\"f\"}}]}}}");
    expect_chat(
        d,
        "{\"input\":[{\"type\":\"custom_tool_call\",\"call_id\":\"c\",\"name\":\"p\",\"input\":\"a\\nb\"},{\"type\":"
        "\"custom_tool_call_output\",\"call_id\":\"c\",\"output\":\"1\"}],\"tools\":[{\"type\":\"custom\",\"name\":\"p\",\"format\":{"
        "\"type\":\"grammar\",\"syntax\":\"regex\",\"definition\":\"x\"}}],\"tool_choice\":{\"type\":\"custom\",\"name\":\"p\"}}",
        "{\"messages\":[{\"role\":\"assistant\",\"content\":null,\"tool_calls\":[{\"id\":\"c\",\"type\":\"custom\",\"custom\":{"
        "\"name\":\"p\",\"input\":\"a\\nb\"}}]},{\"role\":\"tool\",\"content\":\"1\",\"tool_call_id\":"
        "\"c\"}],\"tools\":[{\"type\":\"custom\",\"custom\":{\"name\":\"p\",\"format\":{\"type\":\"grammar\",\"grammar\":{\"syntax\":"
        "\"regex\",\"definition\":\"x\"}}}}],\"tool_choice\":{\"type\":\"custom\",\"custom\":{\"name\":\"p\"}}}");
    expect_refused(d, "{\"input\":[{\"type\":\"custom_tool_call\",\"call_id\":\"c\",\"name\":\"p\"}]}", "input[0].input",
                   "required");
    expect_refused(d, "{\"input\":[{\"type\":\"item_reference\",\"id\":\"x\"}]}", "input[0]", "is not there");
    expect_refused(d, "{\"input\":[{\"type\":\"item_reference\"}]}", "input[0].id", "required");
    expect_refused(d, "{\"input\":[{\"role\":\"user\"}]}", "input[0].content", "required");
    expect_refused(d, "{\"input\":[{\"content\":\"x\"}]}", "input[0].role", "required");
    expect_refused(d, "{\"input\":[{\"role\":\"user\",\"content\":[{\"type\":\"input_image\"}]}]}", "input[0].content[0]",
                   "only parts of type");
    expect_refused(d, "{\"input\":[{\"role\":\"user\",\"content\":[{\"type\":\"input_text\"}]}]}", "input[0].content[0]",
                   "a string");
    expect_refused(d, "{\"input\":[{\"type\":\"function_call\",\"name\":\"f\",\"arguments\":\"\"}]}", "input[0].call_id",
                   "required");
    expect_refused(d, "{\"input\":[{\"type\":\"function_call_output\",\"call_id\":\"f\"}]}", "input[0].output", "required");
    expect_refused(d, "{\"input\":\"x\",\"background\":true}", "background", "not supported");
    expect_refused(d, "{\"input\":\"x\",\"conversation\":\"c\"}", "conversation", "not supported");
    expect_refused(d, "{\"input\":\"x\",\"include\":[\"everything\"]}", "include", "not known");
    expect_refused(d, "{\"input\":\"x\",\"store\":1}", "store", "a boolean");
    expect_refused(d, "{\"input\":\"x\",\"max_output_tokens\":0}", "max_output_tokens", "at least 1");
    expect_refused(d, "{\"input\":\"x\",\"truncation\":\"some\"}", "truncation", "must be");
    expect_refused(d, "{\"input\":\"x\",\"instructions\":[]}", "instructions", "a string");
    expect_refused(d, "{\"input\":\"x\",\"tools\":[{\"type\":\"web_search\"}]}", "tools[0]", "only tools of type");
    expect_refused(d, "{\"input\":\"x\",\"previous_response_id\":\"resp_1\"}", "previous_response_id", "keeps no responses");
}

static void test_messages_ask(void **state)
{
    const struct dialect *d = &dialect_messages;

    expect_chat(
        d,
        "{\"model\":\"m\",\"max_tokens\":5,\"system\":[{\"type\":\"text\",\"text\":\"be brief\"}],\"stop_sequences\":[\"x\"],"
        "\"messages\":[{\"role\":\"user\",\"content\":\"6*7?\"},{\"role\":\"assistant\",\"content\":[{\"type\":\"thinking\","
        "\"thinking\":\"a tool\",\"signature\":\"\"},{\"type\":\"text\",\"text\":\"let me see\"},{\"type\":\"tool_use\",\"id\":\"u1\","
        "\"name\":\"mul\",\"input\":{\"a\":6}}]},{\"role\":\"user\",\"content\":[{\"type\":\"tool_result\",\"tool_use_id\":\"u1\","
        "\"content\":[{\"type\":\"text\",\"text\":\"42\"}]},{\"type\":\"text\",\"text\":\"so?\"}]}]}",
        "{\"model\":\"m\",\"max_tokens\":5,\"stop\":[\"x\"],\"messages\":[{\"role\":\"system\",\"content\":[{\"type\":\"text\","
        "\"text\":\"be brief\"}]},{\"role\":\"user\",\"content\":\"6*7?\"},{\"role\":\"assistant\",\"content\":[{\"type\":\"text\","
        "\"text\":\"let me see\"}],\"reasoning_content\":\"a tool\",\"tool_calls\":[{\"id\":\"u1\",\"type\":\"function\",\"function\":"
        "{\"name\":\"mul\",\"arguments\":\"{\\\"a\\\":6}\"}}]},{\"role\":\"tool\",\"content\":[{\"type\":\"text\",\"text\":\"42\"}],"
        "\"tool_call_id\":\"u1\"},{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"so?\"}]}]}");
    expect_chat(
        d, "{\"max_tokens\":5,\"messages\":[{\"role\":\"user\",\"content\":\"a\"},{\"role\":\"assistant\",\"content\":\"It\"}]}",
        "{\"max_tokens\":5,\"continue_final_message\":true,\"messages\":[{\"role\":\"user\",\"content\":\"a\"},{\"role\":\"assistant\","
        "\"content\":\"It\"}]}");
    expect_chat(
        d,
        "{\"max_tokens\":5,\"messages\":[{\"role\":\"user\",\"content\":\"a\"}],\"tools\":[{\"name\":\"f\",\"description\":\"d\","
        "\"input_schema\":{}}],\"tool_choice\":{\"type\":\"tool\",\"name\":\"f\",\"disable_parallel_tool_use\":true},\"thinking\":"
        "{\"type\":\"enabled\",\"budget_tokens\":1024}}",
        "{\"max_tokens\":5,\"messages\":[{\"role\":\"user\",\"content\":\"a\"}],\"tools\":[{\"type\":\"function\",\"function\":{\"name\":"
        "\"f\",\"description\":\"d\",\"parameters\":{}}}],\"tool_choice\":{\"type\":\"function\",\"function\":{\"name\":\"f\"}},"
        "\"parallel_tool_calls\":false,\"chat_template_kwargs\":{\"enable_thinking\":true}}");
    static const char formed[] =
        "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"}],\"max_tokens\":9,\"response_format\":{\"type\":"
        "\"json_schema\",\"json_schema\":{\"schema\":{\"type\":\"object\"}}}%s}";
    char chat[512];
    snprintf(chat, sizeof chat, formed, ",\"reasoning_effort\":\"max\"");
    expect_chat(
        &dialect_messages,
        "{\"max_tokens\":9,\"messages\":[{\"role\":\"user\",\"content\":\"a\"}],\"output_config\":{\"effort\":\"max\",\"format\":{"
        "\"type\":\"json_schema\",\"schema\":{\"type\":\"object\"}}}}",
        chat);
    snprintf(chat, sizeof chat, formed, "");
    expect_chat(&dialect_messages, // its older name
                "{\"max_tokens\":9,\"messages\":[{\"role\":\"user\",\"content\":\"a\"}],\"output_config\":{},\"output_format\":{"
                "\"type\":\"json_schema\",\"schema\":{\"type\":\"object\"}}}",
                chat);
    expect_refused(d, "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"}]}", "max_tokens", "required");
    expect_refused(d, "{\"max_tokens\":1}", "messages", "required");
    expect_refused(d, "{\"max_tokens\":1,\"messages\":[]}", "messages", "must not be empty");
    expect_refused(d, "{\"max_tokens\":1,\"messages\":[{\"role\":\"system\",\"content\":\"a\"}]}", "messages[0]",
                   "'user' or 'assistant'");
    expect_refused(d, "{\"max_tokens\":1,\"messages\":[{\"role\":\"user\",\"content\":1}]}", "messages[0]", "a string or an array");
    expect_refused(d, "{\"max_tokens\":1,\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"image\"}]}]}",
                   "messages[0].content[0]", "only blocks");
    expect_refused(d, "{\"max_tokens\":1,\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"tool_result\"}]}]}",
                   "messages[0].content[0]", "tool_use_id");
    expect_refused(d,
                   "{\"max_tokens\":1,\"messages\":[{\"role\":\"assistant\",\"content\":[{\"type\":\"tool_use\",\"id\":\"a\"}]}]}",
                   "messages[0].content[0]", "'input'");
    expect_refused(d, "{\"max_tokens\":1,\"system\":4,\"messages\":[]}", "system", "a string or an array");
    expect_refused(d, "{\"max_tokens\":1,\"messages\":[{\"role\":\"user\",\"content\":\"a\"}],\"tool_choice\":{\"type\":\"x\"}}",
                   "tool_choice", "must be");
    expect_refused(
        d, "{\"max_tokens\":1,\"messages\":[{\"role\":\"user\",\"content\":\"a\"}],\"tools\":[{\"type\":\"bash_20250124\"}]}",
        "tools[0]", "the client's own");
    expect_refused(d, "{\"max_tokens\":1,\"messages\":[],\"stop_sequences\":\"x\"}", "stop_sequences", "an array");
    expect_refused(d, "{\"max_tokens\":1,\"messages\":[],\"output_config\":1}", "output_config", "an object");
    expect_refused(d, "{\"max_tokens\":1,\"messages\":[],\"output_config\":{\"format\":{\"type\":\"xml\"}}}",
                   "output_config.format", "must be");
    expect_refused(d, "{\"max_tokens\":1,\"messages\":[],\"output_config\":{\"format\":{\"type\":\"json_schema\"}}}",
                   "output_config.format", "'output_config.format.schema' is required");
}

static void test_ollama_ask(void **state)
{
    expect_chat(
        &dialect_ollama_chat,
        "{\"model\":\"m:latest\",\"messages\":[{\"role\":\"user\",\"content\":\"a\"},{\"role\":\"assistant\",\"content\":\"\","
        "\"tool_calls\":[{\"function\":{\"name\":\"f\",\"arguments\":{\"x\":1}}}]},{\"role\":\"tool\",\"content\":\"1\",\"tool_name\":"
        "\"f\"}],\"options\":{\"num_predict\":9,\"repeat_penalty\":1.1,\"num_ctx\":4096,\"stop\":[\"x\"]},\"format\":\"json\",\"think\":"
        "true,\"keep_alive\":\"5m\"}",
        "{\"model\":\"m\",\"stream\":true,\"max_tokens\":9,\"repetition_penalty\":1.1,\"stop\":[\"x\"],\"response_format\":{\"type\":"
        "\"json_object\"},\"chat_template_kwargs\":{\"enable_thinking\":true},\"messages\":[{\"role\":\"user\",\"content\":\"a\"},{"
        "\"role\":\"assistant\",\"content\":\"\",\"tool_calls\":[{\"id\":\"call_1_0\",\"type\":\"function\",\"function\":{\"name\":\"f\","
        "\"arguments\":\"{\\\"x\\\":1}\"}}]},{\"role\":\"tool\",\"content\":\"1\",\"name\":\"f\"}]}");
    expect_chat(
        &dialect_ollama_generate,
        "{\"model\":\"m\",\"prompt\":\"a\",\"system\":\"s\",\"stream\":false,\"options\":{\"num_predict\":-1}}",
        "{\"model\":\"m\",\"stream\":false,\"messages\":[{\"role\":\"system\",\"content\":\"s\"},{\"role\":\"user\",\"content\":\"a\"}]}");
    expect_chat(
        &dialect_ollama_generate,
        "{\"model\":\"m\",\"prompt\":\"a\",\"suffix\":\"b\",\"stream\":false,\"format\":{\"type\":\"object\"}}",
        "{\"model\":\"m\",\"stream\":false,\"prompt\":\"a\",\"suffix\":\"b\",\"max_tokens\":128,\"response_format\":{\"type\":"
        "\"json_schema\",\"json_schema\":{\"name\":\"format\",\"schema\":{\"type\":\"object\"}}}}");
    expect_chat(&dialect_ollama_embed,
                "{\"model\":\"m:latest\",\"input\":[\"a\",\"b\"],\"dimensions\":8,\"options\":{\"num_ctx\":9},\"keep_alive\":0}",
                "{\"model\":\"m\",\"input\":[\"a\",\"b\"],\"dimensions\":8}");
    expect_chat(&dialect_ollama_embeddings, "{\"model\":\"m\",\"prompt\":\"a\"}", "{\"model\":\"m\",\"input\":\"a\"}");
    expect_refused(&dialect_ollama_embed, "{\"model\":\"m\",\"input\":[\"a\",[1]]}", "input", "an array of strings");
    expect_refused(&dialect_ollama_embed, "{\"model\":\"m\",\"input\":\"a\",\"truncate\":1}", "truncate", "a boolean");
    expect_refused(&dialect_ollama_embed, "{\"model\":\"m\",\"input\":\"a\",\"options\":[]}", "options", "an object");
    expect_refused(&dialect_ollama_embeddings, "{\"model\":\"m\",\"prompt\":[\"a\"]}", "prompt", "a string");
    expect_refused(&dialect_ollama_chat, "{\"messages\":[]}", "model", "required");
    expect_refused(&dialect_ollama_chat, "{\"model\":\"m\",\"messages\":{}}", "messages", "an array");
    expect_refused(&dialect_ollama_chat,
                   "{\"model\":\"m\",\"messages\":[{\"role\":\"user\",\"content\":\"a\",\"images\":[\"x\"]}]}", "messages[0]",
                   "images");
    expect_refused(&dialect_ollama_chat, "{\"model\":\"m\",\"messages\":[],\"options\":[]}", "options", "an object");
    expect_refused(&dialect_ollama_chat, "{\"model\":\"m\",\"messages\":[],\"options\":{\"num_predict\":\"x\"}}",
                   "options.num_predict", "an integer");
    expect_refused(&dialect_ollama_chat, "{\"model\":\"m\",\"messages\":[],\"stream\":1}", "stream", "a boolean");
    expect_refused(&dialect_ollama_chat, "{\"model\":\"m\",\"messages\":[],\"format\":1}", "format", "a schema");
    expect_refused(&dialect_ollama_generate, "{\"model\":\"m\",\"prompt\":[]}", "prompt", "a string");
    expect_refused(&dialect_ollama_generate, "{\"model\":\"m\",\"prompt\":\"x\",\"template\":\"y\"}", "template", "not supported");
}

// --- names --------------------------------------------------------------------------------------------------------
static void test_fields_have_the_dialects_names(void **state)
{
    struct api_error error;

    api_fail(&error, 400, NULL, "max_tokens", "'max_tokens' must be at least 1");
    dialect_rename_field(&dialect_responses, &error);
    assert_string_equal(error.param, "max_output_tokens");
    assert_string_equal(error.message, "'max_output_tokens' must be at least 1");
    api_fail(&error, 400, NULL, "response_format.json_schema.schema", "'response_format.json_schema.schema': #/type: no");
    dialect_rename_field(&dialect_responses, &error);
    assert_string_equal(error.message, "'text.format.schema': #/type: no");
    api_fail(&error, 400, NULL, "response_format.json_schema.schema", "'response_format.json_schema.schema': #/type: no");
    dialect_rename_field(&dialect_messages, &error);
    assert_string_equal(error.message, "'output_config.format.schema': #/type: no");
    api_fail(&error, 400, NULL, "response_format.json_schema.schema", "'response_format.json_schema.schema': #/type: no");
    dialect_rename_field(&dialect_ollama_chat, &error);
    assert_string_equal(error.message, "'format': #/type: no");
    api_fail(&error, 400, NULL, "messages[3].role", "no");
    dialect_rename_field(&dialect_responses, &error);
    assert_string_equal(error.param, "input");
    api_fail(&error, 400, NULL, "temperature", "'temperature' is wrong");
    dialect_rename_field(&dialect_ollama_chat, &error);
    assert_string_equal(error.param, "temperature");
}

static void test_paths(void **state)
{
    assert_ptr_equal(routes_dialect("/v1/responses", "POST"), &dialect_responses);
    assert_ptr_equal(routes_dialect("/v1/messages", "POST"), &dialect_messages);
    assert_ptr_equal(routes_dialect("/v1/messages/count_tokens", "POST"), &dialect_count_tokens);
    assert_ptr_equal(routes_dialect("/api/chat", "POST"), &dialect_ollama_chat);
    assert_ptr_equal(routes_dialect("/api/embed", "POST"), &dialect_ollama_embed);
    assert_ptr_equal(routes_dialect("/api/anything", "POST"), &dialect_ollama_other);
    assert_ptr_equal(routes_dialect("/v1/chat/completions", "POST"), &dialect_openai);
    assert_null(routes_dialect("/v1/messagesx", "POST"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_responses_ask), cmocka_unit_test(test_messages_ask),
        cmocka_unit_test(test_ollama_ask),    cmocka_unit_test(test_fields_have_the_dialects_names),
        cmocka_unit_test(test_paths),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
