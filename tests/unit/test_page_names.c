// test_page_names.c: which pages of a sequence have names, and when two have the same.
#include <string.h>

#include "common/base/checked.h"
#include "services/scheduler/token_logs.h"
#include "tests/cmocka.h"

enum { PAGE = 16, TOKENS = 100 };

struct named {
    struct token_log log;
    uint32_t tokens[TOKENS];
    struct sched_page_name names[TOKENS / PAGE];
};

// The first tokens are numbers, the others those from `other` on.
static void fill(struct named *n, const struct page_names *names, uint32_t prompt, uint32_t differs_at)
{
    *n = (struct named){.log = {.prompt_count = prompt, .token_count = TOKENS, .names.capacity = TOKENS / PAGE}};
    for (uint32_t i = 0; i < TOKENS; i++)
        n->tokens[i] = i < differs_at ? i : 1000 + i;
    n->log.tokens = n->tokens;
    n->log.names.of = n->names;
    n->log.names.root = page_names_root(names, "tenant", "salt");
}

static void equal_beginnings_have_equal_names(void **state)
{
    struct page_names names;
    struct named a, b;
    struct error error;
    assert_int_equal(page_names_open(&names, PAGE, false, &error), STATUS_OK);
    fill(&a, &names, 5, TOKENS);
    fill(&b, &names, 60, 40);
    assert_int_equal(page_names_extend(&names, &a.log), TOKENS / PAGE);
    assert_int_equal(page_names_extend(&names, &b.log), TOKENS / PAGE);
    for (uint32_t i = 0; i < TOKENS / PAGE; i++)
        assert_int_equal(!memcmp(&a.names[i], &b.names[i], sizeof a.names[i]), i < 2);
}

// With sparse attention a page with a generated token has no name: a prompt of the same tokens has other K and V.
static void generated_pages_have_none(void **state)
{
    struct page_names names;
    struct named n;
    struct error error;
    assert_int_equal(page_names_open(&names, PAGE, true, &error), STATUS_OK);
    for (uint32_t prompt = 1; prompt <= TOKENS; prompt++) {
        fill(&n, &names, prompt, TOKENS);
        assert_int_equal(page_names_extend(&names, &n.log), prompt / PAGE);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(equal_beginnings_have_equal_names),
        cmocka_unit_test(generated_pages_have_none),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
