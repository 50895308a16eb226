// test_stream_events.c: streamed answers, cut anywhere; prompts of words, and how many tokens they are taken for.
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/checked.h"
#include "services/fastdecode/client/client.h"
#include "services/fastdecode/client/stream_events.h"
#include "tests/cmocka.h"

enum { SEEN_MAX = 16 };

struct seen {
    uint32_t count;
    struct stream_event events[SEEN_MAX];
};

static void on_event(void *arg, const struct stream_event *event)
{
    struct seen *seen = arg;

    assert_true(seen->count < SEEN_MAX);
    seen->events[seen->count++] = *event;
}

static const char answer[] = ": keep-alive\r\n\r\n"
                             "data: {\"choices\":[{\"text\":\" a\",\"finish_reason\":null}],\"usage\":null}\n\n"
                             "data:{\"choices\":[{\"text\":\"\",\"finish_reason\":null}]}\r\n\r\n"
                             "event: x\n"
                             "data: {\"choices\":[{\"delta\":{\"content\":\"b\"},\"finish_reason\":\"stop\"}]}\n\n"
                             "data: {\"choices\":[{\"text\":\"\",\"finish_reason\":\"length\"}]}\n\n"
                             "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":7,\"completion_tokens\":3}}\n\n"
                             "data: no json\n\n"
                             "data: {\"error\":{\"message\":\"gone\"}}\n\n"
                             "{\"error\":\"bare\"}\n"
                             "data: [DONE]\r\n\r\n";

static void check_answer(const struct seen *seen)
{
    static const bool tokens[] = {true, true, true, false, false, false, false, false};

    assert_int_equal(seen->count, 8);
    for (int i = 0; i < 8; i++)
        assert_int_equal(seen->events[i].has_token, tokens[i]);
    assert_true(seen->events[4].has_usage && seen->events[4].prompt_tokens == 7 && seen->events[4].answer_tokens == 3);
    assert_string_equal(seen->events[5].error, "gone");
    assert_string_equal(seen->events[6].error, "bare");
    assert_true(seen->events[7].is_end && !seen->events[6].is_end);
}

static void an_answer_cut_anywhere(void **state)
{
    struct stream_reader reader = {0};

    for (size_t cut = 0; cut < sizeof answer - 1; cut++) {
        struct seen seen = {0};
        stream_reader_take(&reader, answer, cut, on_event, &seen);
        stream_reader_take(&reader, answer + cut, sizeof answer - 1 - cut, on_event, &seen);
        check_answer(&seen);
    }
    struct seen seen = {0};
    for (size_t i = 0; i < sizeof answer - 1; i++)
        stream_reader_take(&reader, answer + i, 1, on_event, &seen);
    check_answer(&seen);
    stream_reader_free(&reader);
}

// Deltas with reasoning or calls of functions have a token of the answer, too.
static void deltas_of_chats(void **state)
{
    static const char *const deltas[] = {"{\"reasoning_content\":\"hm\",\"reasoning\":\"hm\"}", "{\"reasoning\":\"hm\"}",
                                         "{\"tool_calls\":[{\"index\":0,\"function\":{\"arguments\":\"{\"}}]}", "{}",
                                         "{\"tool_calls\":[]}"};
    struct stream_reader reader = {0};

    for (int i = 0; i < 5; i++) {
        struct seen seen = {0};
        char line[256];
        int length = snprintf(line, sizeof line, "data: {\"choices\":[{\"delta\":%s,\"finish_reason\":null}]}\n\n", deltas[i]);
        stream_reader_take(&reader, line, (size_t)length, on_event, &seen);
        assert_int_equal(seen.count, 1);
        assert_int_equal(seen.events[0].has_token, i < 3);
    }
    stream_reader_free(&reader);
}

static void a_line_has_a_limit(void **state)
{
    struct stream_reader reader = {0};
    struct seen seen = {0};
    char *part = malloc(1 << 16);

    assert_non_null(part);
    memset(part, 'x', 1 << 16);
    for (int i = 0; i < 32; i++)
        stream_reader_take(&reader, part, 1 << 16, on_event, &seen);
    assert_true(reader.failed && reader.line.bytes <= STREAM_LINE_BYTES_MAX);
    stream_reader_clear(&reader);
    stream_reader_take(&reader, answer, sizeof answer - 1, on_event, &seen);
    check_answer(&seen);
    stream_reader_free(&reader);
    free(part);
}

static void odd_events(void **state)
{
    static const struct {
        const char *text, *error;
        bool ok;
    } cases[] = {
        {"{}", "", true},
        {"[]", "", false},
        {"{\"choices\":7,\"usage\":[1]}", "", true},
        {"{\"usage\":{\"prompt_tokens\":-5,\"completion_tokens\":1e9}}", "", true},
        {"{\"error\":null}", "", true},
        {"{\"error\":{}}", "an error without a message", true},
        {"{\"object\":\"error\",\"message\":\"m\"}", "m", true},
        {"[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[", "", false},
        {"{\"choices\":[{\"text\":\"x\"", "", false},
    };
    struct stream_event event;

    for (size_t i = 0; i < ARRAY_COUNT(cases); i++) {
        assert_int_equal(stream_event_parse(cases[i].text, strlen(cases[i].text), &event), cases[i].ok);
        assert_string_equal(event.error, cases[i].error);
        assert_true(!event.has_token && event.prompt_tokens == 0);
    }
}

static void words_and_their_tokens(void **state)
{
    struct prompt_fit fit = {0, 1};

    assert_int_equal(prompt_fit_words(&fit, 500), 500);
    prompt_fit_learn(&fit, 16, 37, 300, 605); // 2 a word and 5 more
    assert_true(fabs(fit.a_word - 2) < 1e-9 && fabs(fit.fixed - 5) < 1e-9);
    assert_int_equal(prompt_fit_words(&fit, 205), 100);
    assert_int_equal(prompt_fit_words(&fit, 1), 1);
    prompt_fit_learn(&fit, 300, 605, 300, 605);
    prompt_fit_learn(&fit, 16, 37, 300, 37);
    assert_true(fabs(fit.a_word - 2) < 1e-9);
}

static void no_prompt_is_like_another(void **state)
{
    enum { PROMPTS = 2000, COMMON_MAX = 40 };
    char *prompts[PROMPTS];

    for (uint64_t i = 0; i < PROMPTS; i++) {
        struct text text = {0};
        prompt_words_append(&text, 200, i);
        text_append(&text, "", 1);
        assert_false(text.failed);
        uint32_t blanks = 0;
        for (const char *at = text.data; *at; at++) {
            assert_true(*at == ' ' || (*at >= 'a' && *at <= 'z'));
            blanks += *at == ' ';
        }
        assert_int_equal(blanks, 199);
        prompts[i] = text.data;
    }
    for (int i = 0; i < PROMPTS; i++)
        for (int j = i + 1; j < PROMPTS; j++) {
            size_t common = 0;
            while (prompts[i][common] == prompts[j][common])
                common++;
            if (common > COMMON_MAX)
                fail_msg("%d and %d: %zu letters: %.*s", i, j, common, (int)common, prompts[i]);
        }
    for (int i = 0; i < PROMPTS; i++)
        free(prompts[i]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_answer_cut_anywhere), cmocka_unit_test(deltas_of_chats),
        cmocka_unit_test(a_line_has_a_limit),     cmocka_unit_test(odd_events),
        cmocka_unit_test(words_and_their_tokens), cmocka_unit_test(no_prompt_is_like_another),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
