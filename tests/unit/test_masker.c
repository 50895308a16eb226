/* test_masker.c: masks of grammars: what was generated and what is guessed, where a text ends, what cannot be followed, and grammars that are
 * shared and forgotten. */
#include <semaphore.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/base/checked.h"
#include "common/base/random.h"
#include "common/model/vocabulary.h"
#include "services/s-part/step/masker.h"
#include "services/s-part/step/masker_trackers.h"
#include "tests/cmocka.h"
#include "tests/unit/gguf_build.h"
#include "tests/unit/grammar_from.h"

enum { VOCAB = 320, WORDS = VOCAB / 32, JOB_MASKS = 8 };

static char path[] = "/tmp/fd-test-masker-XXXXXX";
static struct model *model;
static struct tokenizer *tokenizer;
static struct masker *masker;
static uint32_t ends[TOKENIZER_MAX_END_TOKENS], end_count;
static atomic_uint done;

static sem_t came_back, released; /* posted by on_done() at its end; what it waits for if it is held back */
static bool is_held_back;

static void on_done(void *user)
{
    atomic_fetch_add_explicit(&done, 1, memory_order_relaxed);
    if (is_held_back)
        sem_wait(&released);
    sem_post(&came_back);
}

static int open_all(void **state)
{
    struct gguf_build build = {0};
    struct tiny_llama tiny = TINY_LLAMA;
    struct error error;
    size_t count;

    gguf_build_llama(&build, &tiny);
    unsigned char *bytes = gguf_build_finish(&build, &count);
    int file = mkstemp(path);
    if (file < 0 || write(file, bytes, count) != (ssize_t)count || close(file) || model_open(path, &model, &error) ||
        vocabulary_open(model, &tokenizer, &error))
        return -1;
    free(bytes);
    if (sem_init(&came_back, 0, 0) || sem_init(&released, 0, 0))
        return -1;
    end_count = tokenizer_end_tokens(tokenizer, ends, TOKENIZER_MAX_END_TOKENS);
    const struct masker_config config = {.model = model, .vocab = VOCAB, .on_done = on_done};
    return end_count ? (int)masker_open(&config, &masker) : -1;
}

static int close_all(void **state)
{
    masker_close(masker);
    tokenizer_close(tokenizer);
    model_close(model);
    unlink(path);
    return 0;
}

/* The token that is just this byte. */
static uint32_t letter(char c)
{
    for (uint32_t token = 0; token < VOCAB; token++) {
        struct text_span span = tokenizer_token_bytes(tokenizer, token);
        if (span.length == 1 && span.bytes[0] == c && !tokenizer_is_control(tokenizer, token))
            return token;
    }
    fail_msg("no token for %c", c);
    return 0;
}

/* Takes over the grammar. */
static struct masked_sequence *open_grammar(struct grammar *grammar, const char *generated, bool ends_late)
{
    uint32_t tokens[64], count = 0;

    for (; generated[count]; count++)
        tokens[count] = letter(generated[count]);
    struct masked_sequence_config config = {
        .generated = tokens, .generated_count = count, .end_tokens = ends, .end_count = end_count, .ends_late = ends_late};
    config.packed = grammar_packed(grammar, &config.packed_bytes);
    struct masked_sequence *sequence = masker_sequence_open(masker, &config);
    grammar_free(grammar);
    assert_non_null(sequence);
    return sequence;
}

static struct masked_sequence *open_regex(const char *regex, const char *generated, bool ends_late)
{
    struct grammar *grammar;
    struct error error;

    if (grammar_from_regex(regex, strlen(regex), &grammar, &error))
        fail_msg("%s", error.text);
    return open_grammar(grammar, generated, ends_late);
}

/* A text that no cursor can follow any further: as many rules begin there as a closure may have pairs, and some more. */
static struct masked_sequence *open_dead_end(const char *before)
{
    enum { RULES = 4200, RULE_BYTES = 48 };
    static char text[RULES * RULE_BYTES];
    struct grammar *grammar;
    struct error error;
    size_t length = (size_t)snprintf(text, sizeof text, "root ::= \"%s\" (r0", before);

    for (uint32_t i = 1; i < RULES; i++)
        length += (size_t)snprintf(text + length, sizeof text - length, "|r%u", i);
    length += (size_t)snprintf(text + length, sizeof text - length, ")\n");
    for (uint32_t i = 0; i < RULES; i++)
        length += (size_t)snprintf(text + length, sizeof text - length, "r%u::=\"c\"r%u\"d\"|\"e\"\n", i, i);
    assert_true(length < sizeof text);
    if (grammar_from_gbnf(text, length, &grammar, &error))
        fail_msg("%s", error.text);
    return open_grammar(grammar, "", false);
}

/* Which single bytes of a to z the mask allows, and '$' if an end token; in their order. */
static const char *allowed(const uint32_t *mask)
{
    static char text[32];
    uint32_t count = 0;
    for (char c = 'a'; c <= 'z'; c++)
        if (mask[letter(c) / 32] >> letter(c) % 32 & 1)
            text[count++] = c;
    if (mask[ends[0] / 32] >> ends[0] % 32 & 1)
        text[count++] = '$';
    text[count] = '\0';
    return text;
}

static void run_job(struct mask_job *job)
{
    mask_job_post(job, masker);
    mask_job_wait(job);
    assert_true(mask_job_done(job));
    if (!is_held_back)
        sem_wait(&came_back);
}

/* One mask of one sequence. */
static const char *mask_of(struct masked_sequence *sequence)
{
    static struct mask_job job;
    mask_job_clear(&job);
    assert_true(mask_job_reserve(&job, masker, 1));
    assert_int_equal(mask_job_add(&job, sequence, NULL, 1), 1);
    run_job(&job);
    const char *text = allowed(mask_job_mask(&job, 0));
    mask_job_free(&job);
    return text;
}

static void took(struct masked_sequence *sequence, const char *letters)
{
    for (; *letters; letters++)
        masker_sequence_took(sequence, *letters == '$' ? ends[0] : letter(*letters));
}

static void a_text_is_followed_to_its_end(void **state)
{
    struct masked_sequence *sequence = open_regex("ab(c|d)*e?", "", false), *late = open_regex("ab(c|d)*e?", "", true);
    assert_string_equal(mask_of(sequence), "a");
    took(sequence, "a");
    assert_string_equal(mask_of(sequence), "b");
    took(sequence, "bcd");
    assert_string_equal(mask_of(sequence), "cde$");
    took(sequence, "e");
    assert_string_equal(mask_of(sequence), "$");
    took(sequence, "$");
    assert_string_equal(mask_of(sequence), "$"); /* a row that was planned before it was known */
    assert_int_equal(sequence->generated, 6);
    took(late, "abc");
    assert_string_equal(mask_of(late), "cde"); /* it may end, and need not */
    took(late, "e");
    assert_string_equal(mask_of(late), "$");
    assert_false(sequence->failed || late->failed);
    masker_sequence_close(sequence);
    masker_sequence_close(late);
}

static void what_was_generated_before_is_taken_again(void **state)
{
    struct masked_sequence *sequence = open_regex("ab(c|d)*e?", "abdd", false);
    assert_int_equal(sequence->generated, 4);
    assert_string_equal(mask_of(sequence), "cde$");
    masker_sequence_close(sequence);
}

static void drafts_are_followed_as_far_as_the_grammar_allows(void **state)
{
    struct mask_job job = {0};
    struct masked_sequence *sequence = open_regex("abcd", "", false), *other = open_regex("xyz", "x", false);
    const uint32_t drafts[] = {letter('a'), letter('b'), letter('x'), letter('d')};
    assert_true(mask_job_reserve(&job, masker, JOB_MASKS));
    assert_int_equal(mask_job_add(&job, sequence, drafts, 5), 5);
    assert_int_equal(mask_job_add(&job, other, NULL, 1), 1);
    run_job(&job);
    assert_string_equal(allowed(mask_job_mask(&job, 0)), "a");
    assert_string_equal(allowed(mask_job_mask(&job, 1)), "b");
    assert_string_equal(allowed(mask_job_mask(&job, 2)), "c");
    assert_string_equal(allowed(mask_job_mask(&job, 3)), ""); /* 'x' is wrong: what comes behind does not count */
    assert_string_equal(allowed(mask_job_mask(&job, 4)), "");
    assert_string_equal(allowed(mask_job_mask(&job, 5)), "y");
    took(sequence, "a"); /* the first was right, then "b" was drawn and not guessed */
    took(sequence, "b");
    assert_string_equal(mask_of(sequence), "c");
    mask_job_clear(&job);
    assert_int_equal(mask_job_add(&job, sequence, drafts, JOB_MASKS + 3), JOB_MASKS); /* there is room for so many */
    assert_int_equal(mask_job_add(&job, other, NULL, 1), 0);
    mask_job_free(&job);
    masker_sequence_close(sequence);
    masker_sequence_close(other);
}

static void what_cannot_be_followed_fails_alone(void **state)
{
    struct mask_job job = {0};
    const struct masked_sequence_config broken = {
        .packed = "nothing", .packed_bytes = 7, .end_tokens = ends, .end_count = end_count};
    struct masked_sequence *bad = masker_sequence_open(masker, &broken), *good = open_regex("ab", "", false),
                           *astray = open_regex("ab", "ax", false);
    assert_true(mask_job_reserve(&job, masker, JOB_MASKS));
    mask_job_add(&job, bad, NULL, 1);
    mask_job_add(&job, good, NULL, 1);
    mask_job_add(&job, astray, NULL, 1);
    run_job(&job);
    assert_true(bad->failed && !good->failed && astray->failed);
    assert_non_null(strstr(bad->error, "cannot be used"));
    assert_non_null(strstr(astray->error, "does not follow"));
    assert_false(bad->request_fault || astray->request_fault); /* the mesh's */
    assert_string_equal(allowed(mask_job_mask(&job, 1)), "a");
    took(good, "b"); /* which its mask forbids */
    mask_job_clear(&job);
    mask_job_add(&job, good, NULL, 1);
    run_job(&job);
    assert_true(good->failed);
    mask_job_free(&job);
    masker_sequence_close(bad);
    masker_sequence_close(good);
    masker_sequence_close(astray);
}

/* With and without guesses: what is drawn before the dead end is allowed, and nothing behind it. */
static void a_dead_end_is_told(void **state)
{
    struct mask_job job = {0};
    struct masked_sequence *at_once = open_dead_end(""), *later = open_dead_end("ab");
    const uint32_t drafts[] = {letter('a')};

    assert_true(mask_job_reserve(&job, masker, JOB_MASKS));
    mask_job_add(&job, at_once, NULL, 1);
    mask_job_add(&job, later, drafts, 2);
    run_job(&job);
    assert_true(at_once->failed && !later->failed);
    assert_non_null(strstr(at_once->error, "too many rules of the grammar can begin"));
    assert_string_equal(allowed(mask_job_mask(&job, 1)), "a");
    assert_string_equal(allowed(mask_job_mask(&job, 2)), "");
    took(later, "a");
    mask_job_clear(&job);
    mask_job_add(&job, later, NULL, 1);
    run_job(&job);
    assert_true(later->failed);
    assert_non_null(strstr(later->error, "no token of the model can go on"));
    assert_true(at_once->request_fault && later->request_fault);
    mask_job_free(&job);
    masker_sequence_close(at_once);
    masker_sequence_close(later);
}

/* More grammars than are kept, some of them in use all the time: each sequence has its own. */
static void many_grammars(void **state)
{
    enum { MANY = MASKER_TRACKERS_KEPT * 3 };
    struct masked_sequence *first[MANY], *second;
    for (uint32_t i = 0; i < MANY; i++) {
        char regex[64], wanted[2] = {(char)('a' + i % 26), '\0'};
        snprintf(regex, sizeof regex, "%c%c%u", wanted[0], 'a' + (int)(i / 26), i);
        first[i] = open_regex(regex, "", false);
        second = open_regex(regex, wanted, false);
        assert_string_equal(mask_of(first[i]), wanted);
        assert_int_equal(mask_of(second)[0], 'a' + (int)(i / 26));
        masker_sequence_close(second);
        if (i % 2) {
            masker_sequence_close(first[i]);
            first[i] = NULL;
        }
    }
    for (uint32_t i = 0; i < MANY; i++)
        if (first[i]) {
            assert_int_equal(mask_of(first[i])[0], 'a' + (int)(i % 26));
            masker_sequence_close(first[i]);
        }
}

/* All grammars that there may be are in use, and one of them is let go just before another is needed. */
static void a_closed_sequence_makes_room(void **state)
{
    static struct masked_sequence *all[MASKER_TRACKERS_MAX];
    struct masked_sequence *more;
    struct mask_job job = {0};
    for (uint32_t i = 0; i < MASKER_TRACKERS_MAX; i++) {
        char regex[64];
        snprintf(regex, sizeof regex, "z%u", i);
        all[i] = open_regex(regex, "", false);
        assert_string_equal(mask_of(all[i]), "z");
    }
    more = open_regex("ab", "", false);
    mask_of(more);
    assert_true(more->failed);
    assert_non_null(strstr(more->error, "different grammars are in use"));
    masker_sequence_close(more);
    is_held_back = true;
    mask_of(all[1]); /* the masker's thread stays in on_done() */
    masker_sequence_close(all[0]);
    more = open_regex("ab", "", false);
    assert_true(mask_job_reserve(&job, masker, 1));
    mask_job_add(&job, more, NULL, 1);
    mask_job_post(&job, masker);
    sem_post(&released);
    sem_post(&released);
    mask_job_wait(&job);
    sem_wait(&came_back);
    sem_wait(&came_back);
    is_held_back = false;
    assert_false(more->failed);
    assert_string_equal(allowed(mask_job_mask(&job, 0)), "a");
    mask_job_free(&job);
    masker_sequence_close(more);
    for (uint32_t i = 1; i < MASKER_TRACKERS_MAX; i++)
        masker_sequence_close(all[i]);
}

/* Taking again what was generated has a limit: with an expression that is ambiguous on purpose a long text fails, a short one does not. */
static void what_takes_too_long_to_take_again_fails(void **state)
{
    static const char regex[] = "[ab]*a[ab]{800}";
    const uint32_t count = 100000;
    uint32_t *tokens = malloc(count * sizeof *tokens), pair[2] = {letter('a'), letter('b')};
    uint64_t random = 5;

    for (uint32_t i = 0; i < count; i++)
        tokens[i] = pair[random_next(&random) >> 63];
    for (uint32_t few = 0; few < 2; few++) {
        struct grammar *grammar;
        struct error error;
        assert_int_equal(grammar_from_regex(regex, strlen(regex), &grammar, &error), STATUS_OK);
        struct masked_sequence_config config = {
            .end_tokens = ends, .end_count = end_count, .generated = tokens, .generated_count = few ? 2000 : count};
        config.packed = grammar_packed(grammar, &config.packed_bytes);
        struct masked_sequence *sequence = masker_sequence_open(masker, &config);
        assert_non_null(sequence);
        grammar_free(grammar);
        mask_of(sequence);
        assert_int_equal(sequence->failed, !few);
        assert_true(few || strstr(sequence->error, "takes too long"));
        masker_sequence_close(sequence);
    }
    free(tokens);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_text_is_followed_to_its_end),
        cmocka_unit_test(what_was_generated_before_is_taken_again),
        cmocka_unit_test(drafts_are_followed_as_far_as_the_grammar_allows),
        cmocka_unit_test(what_cannot_be_followed_fails_alone),
        cmocka_unit_test(a_dead_end_is_told),
        cmocka_unit_test(many_grammars),
        cmocka_unit_test(what_takes_too_long_to_take_again_fails),
        cmocka_unit_test(a_closed_sequence_makes_room),
    };
    return cmocka_run_group_tests(tests, open_all, close_all);
}
