/* test_sampler_fields.c: typical-p, xtc, dry and bans beside plain references. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/checked.h"
#include "common/sampler/sampler.h"
#include "tests/cmocka.h"

enum { VOCAB = 300, WORDS = (VOCAB + 31) / 32 };

static struct sampler_scratch *scratch;

static struct sampler_params plain(void) { return (struct sampler_params){.top_p = 1, .repetition_penalty = 1, .temperature = 1}; }

static struct sampler *open_sampler(const struct sampler_params *params)
{
    struct sampler *sampler = NULL;
    struct error error;
    if (sampler_open(params, VOCAB, 4096, &sampler, &error))
        fail_msg("%s", error.text);
    return sampler;
}

static void fill(float *logits, unsigned seed)
{
    for (int i = 0; i < VOCAB; i++) {
        seed = seed * 1664525u + 1013904223u;
        logits[i] = (float)(seed >> 8) / (float)(1 << 24) * 8.0f - 4.0f;
    }
}

static uint32_t draw(const struct sampler *sampler, const float *logits, const uint32_t *allowed, uint32_t index)
{
    struct sampler_result result;
    sampler_sample(sampler, logits, allowed, index, scratch, &result);
    return result.token;
}

/* Which tokens are drawn in many tries: all that can be are, if there are few. */
static void reached(const struct sampler *sampler, const float *logits, bool *hit)
{
    memset(hit, 0, VOCAB * sizeof *hit);
    for (uint32_t index = 0; index < 30000; index++)
        hit[draw(sampler, logits, NULL, index)] = true;
}

struct weighed {
    uint32_t token;
    double p, key;
};

static int by_key(const void *a, const void *b)
{
    const struct weighed *x = a, *y = b;
    return x->key != y->key ? (x->key > y->key) - (x->key < y->key) : (x->token > y->token) - (x->token < y->token);
}

static void softmax(const float *logits, struct weighed *out)
{
    double total = 0;
    for (uint32_t i = 0; i < VOCAB; i++)
        total += exp((double)logits[i]);
    for (uint32_t i = 0; i < VOCAB; i++)
        out[i] = (struct weighed){i, exp((double)logits[i]) / total, 0};
}

/* Typical-p as in the paper: the distance between a token's information and the entropy. */
static void test_typical(void **state)
{
    for (unsigned seed = 1; seed < 6; seed++) {
        float logits[VOCAB];
        struct weighed all[VOCAB];
        bool want[VOCAB] = {0}, hit[VOCAB];
        double entropy = 0, sum = 0;
        struct sampler_params params = plain();
        fill(logits, seed);
        for (int i = 0; i < VOCAB; i++)
            logits[i] *= 2;
        softmax(logits, all);
        for (int i = 0; i < VOCAB; i++)
            entropy -= all[i].p * log(all[i].p);
        for (int i = 0; i < VOCAB; i++)
            all[i].key = fabs(-log(all[i].p) - entropy);
        qsort(all, VOCAB, sizeof *all, by_key);
        params.typical_p = 0.2f * (float)seed - 0.1f;
        for (int i = 0; i < VOCAB && sum < (double)params.typical_p; sum += all[i++].p)
            want[all[i].token] = true;
        struct sampler *sampler = open_sampler(&params);
        reached(sampler, logits, hit);
        for (uint32_t i = 0; i < VOCAB; i++) {
            assert_false(hit[i] && !want[i]);
            for (uint32_t k = 0; k < VOCAB; k++) /* whatever comes up often enough has come up */
                if (all[k].token == i && want[i] && all[k].p / sum > 2e-3)
                    assert_true(hit[i]);
        }
        sampler_close(sampler);
    }
}

/* Top-k is before it, top-p and min-p behind: of ten, those near the entropy of the four; then the heaviest of these. */
static void test_typical_among_filters(void **state)
{
    float logits[VOCAB];
    bool hit[VOCAB];
    struct sampler_params params = plain();
    for (int i = 0; i < VOCAB; i++)
        logits[i] = -30;
    logits[10] = logf(0.4f), logits[11] = logf(0.2f), logits[12] = logf(0.19f), logits[13] = logf(0.18f), logits[14] = logf(0.03f);
    params.top_k = 4, params.typical_p = 0.5f; /* entropy 1.33: distances 0.45, 0.25, 0.20, 0.14 */
    struct sampler *sampler = open_sampler(&params);
    reached(sampler, logits, hit);
    assert_true(!hit[10] && hit[11] && hit[12] && hit[13] && !hit[14]);
    sampler_close(sampler);
    params.top_p = 0.3f; /* of what is left the heaviest has 0.35 */
    sampler = open_sampler(&params);
    reached(sampler, logits, hit);
    assert_true(!hit[10] && hit[11] && !hit[12] && !hit[13]);
    sampler_close(sampler);
    params.top_p = 1, params.min_p = 0.93f; /* beside the heaviest that is left: 0.95 and 0.90 */
    sampler = open_sampler(&params);
    reached(sampler, logits, hit);
    assert_true(!hit[10] && hit[11] && hit[12] && !hit[13]);
    sampler_close(sampler);
}

static void test_xtc(void **state)
{
    float logits[VOCAB];
    bool hit[VOCAB];
    unsigned top = 0;
    struct sampler_params params = plain();
    for (int i = 0; i < VOCAB; i++)
        logits[i] = -30;
    logits[10] = logf(0.4f), logits[11] = logf(0.3f), logits[12] = logf(0.2f), logits[13] = logf(0.1f);
    params.xtc_probability = 1, params.xtc_threshold = 0.15f; /* 10 and 11 go, 12 is the least likely above the threshold */
    struct sampler *sampler = open_sampler(&params);
    reached(sampler, logits, hit);
    assert_true(!hit[10] && !hit[11] && hit[12] && hit[13]);
    sampler_close(sampler);
    params.top_k = 2; /* of 0.57 and 0.43: 11 stays */
    sampler = open_sampler(&params);
    reached(sampler, logits, hit);
    assert_true(!hit[10] && hit[11] && !hit[12]);
    sampler_close(sampler);
    params.top_k = 0, params.xtc_threshold = 0.35f; /* only one is above: nothing is excluded */
    sampler = open_sampler(&params);
    reached(sampler, logits, hit);
    assert_true(hit[10] && hit[11] && hit[12] && hit[13]);
    sampler_close(sampler);
    params.xtc_threshold = 0.15f, params.xtc_probability = 0.25f;
    sampler = open_sampler(&params);
    for (uint32_t index = 0; index < 20000; index++) {
        uint32_t token = draw(sampler, logits, NULL, index);
        top += token == 10 || token == 11;
        assert_int_equal(token, draw(sampler, logits, NULL, index));
    }
    assert_in_range(top, 20000 * 0.525 - 500, 20000 * 0.525 + 500); /* 0.7 of three quarters */
    assert_true(sampler_is_pure(sampler) && !sampler_is_simple(sampler, 0));
    sampler_close(sampler);
}

/* Applies dry by comparing every two places of the text. */
static void dry_reference(const struct sampler_params *p, const uint32_t *text, uint32_t count, const bool *breaker, float *logits)
{
    double cost[VOCAB] = {0};
    uint32_t from = p->dry_last_tokens && p->dry_last_tokens < count ? count - p->dry_last_tokens : 0;
    if (p->dry_last_tokens == 0 && count > VOCAB)
        from = count - VOCAB;
    for (uint32_t end = from; end + 1 < count; end++) { /* the repetition's last token */
        uint32_t length = 0;
        while (end >= from + length && text[end - length] == text[count - 1 - length] && !breaker[text[end - length]])
            length++;
        if (length && length >= p->dry_allowed_length && !breaker[text[end + 1]])
            cost[text[end + 1]] =
                fmax(cost[text[end + 1]], (double)p->dry_multiplier * pow((double)p->dry_base, length - p->dry_allowed_length));
    }
    for (int i = 0; i < VOCAB; i++)
        logits[i] -= (float)fmin(cost[i], 1e30);
}

static void test_dry(void **state)
{
    unsigned random = 7, differs = 0;
    for (int round = 0; round < 300; round++) {
        float logits[VOCAB], want[VOCAB];
        uint32_t text[700], count = 1 + round * 2;
        bool breaker[VOCAB] = {0};
        unsigned char bits[(VOCAB + 7) / 8] = {0};
        struct sampler_params params = plain();
        params.temperature = 0;
        params.dry_multiplier = 0.8f, params.dry_base = 1.75f;
        params.dry_allowed_length = (uint32_t)round % 4;
        params.dry_last_tokens = round % 3 == 0 ? 0 : (uint32_t)round % 150;
        params.dry_breakers = bits, params.dry_breaker_bytes = sizeof bits;
        for (uint32_t i = 0; i < count; i++) {
            random = random * 1664525u + 1013904223u;
            text[i] = (random >> 20) % (2 + (unsigned)round % 5) * 37; /* few tokens: many repetitions */
        }
        if (round % 2) {
            breaker[37] = true;
            bits[37 / 8] |= 1 << 37 % 8;
        }
        for (int i = 0; i < VOCAB; i++)
            logits[i] = (float)(i % 37 == 0) * (float)(1 + i / 37 % 3) - 1; /* those of the text are the best */
        memcpy(want, logits, sizeof want);
        dry_reference(&params, text, count, breaker, want);
        uint32_t best = 0, plain_best = 0;
        for (uint32_t i = 0; i < VOCAB; i++) {
            best = want[i] > want[best] ? i : best;
            plain_best = logits[i] > logits[plain_best] ? i : plain_best;
        }
        struct sampler *sampler = open_sampler(&params);
        for (uint32_t i = 0; i < count; i++)
            i < count / 2 ? sampler_see_prompt(sampler, text[i]) : sampler_see_generated(sampler, text[i]);
        assert_int_equal(draw(sampler, logits, NULL, 0), best);
        assert_false(sampler_is_pure(sampler));
        differs += best != plain_best;
        sampler_close(sampler);
    }
    assert_true(differs > 100);
}

static void test_lists_of_tokens(void **state)
{
    float logits[VOCAB];
    const uint32_t ends[] = {5}, stops[] = {6}, allowed[] = {4, 5, 6, 64};
    struct sampler_params params = plain();
    for (int i = 0; i < VOCAB; i++)
        logits[i] = (float)-i;
    params.temperature = 0;
    params.end_tokens = ends, params.end_count = 1, params.stop_tokens = stops, params.stop_count = 1;
    params.allowed_tokens = allowed, params.allowed_count = 4, params.min_tokens = 3;
    logits[5] = 9, logits[6] = 8;
    struct sampler *sampler = open_sampler(&params);
    assert_int_equal(draw(sampler, logits, NULL, 2), 4); /* neither 5 nor 6 yet, and not 0 */
    assert_int_equal(draw(sampler, logits, NULL, 3), 5);
    uint32_t mask[WORDS] = {0};
    mask[64 / 32] = 1;
    assert_int_equal(draw(sampler, logits, mask, 3), 64);
    struct sampler_result result;
    sampler_sample(sampler, logits, mask, 3, scratch, &result);
    assert_false(result.all_banned);
    mask[64 / 32] = 2; /* 65 is not in the list */
    sampler_sample(sampler, logits, mask, 3, scratch, &result);
    assert_true(result.all_banned);
    assert_true(sampler_is_pure(sampler));
    sampler_close(sampler);
}

static void test_bad_words(void **state)
{
    float logits[VOCAB] = {0};
    const uint32_t lengths[] = {1, 3, 2}, tokens[] = {7, 1, 2, 3, 2, 4};
    struct sampler_params params = plain();
    params.temperature = 0;
    params.bad_lengths = lengths, params.bad_count = 3, params.bad_tokens = tokens, params.bad_token_count = 6;
    logits[7] = 9, logits[3] = 8, logits[4] = 7;
    struct sampler *sampler = open_sampler(&params);
    assert_false(sampler_is_pure(sampler));
    sampler_see_prompt(sampler, 1);
    sampler_see_prompt(sampler, 2);
    assert_int_equal(draw(sampler, logits, NULL, 0), 3); /* what is in the prompt does not count */
    sampler_see_generated(sampler, 1);
    assert_int_equal(draw(sampler, logits, NULL, 1), 3);
    sampler_see_generated(sampler, 2);
    assert_int_equal(draw(sampler, logits, NULL, 2), 0); /* 1 2 3 and 2 4 */
    sampler_see_generated(sampler, 9);
    sampler_see_generated(sampler, 2);
    assert_int_equal(draw(sampler, logits, NULL, 4), 3);
    sampler_close(sampler);
    params.bad_count = 1, params.bad_token_count = 1;
    sampler = open_sampler(&params);
    assert_true(sampler_is_pure(sampler));
    assert_int_equal(draw(sampler, logits, NULL, 0), 3);
    sampler_close(sampler);
}

/* A field that is off changes no bit, and the device samples exactly where it can. */
static void test_off(void **state)
{
    float logits[VOCAB];
    struct sampler_params params = plain(), off = plain();
    uint32_t all[WORDS];
    memset(all, 0xff, sizeof all);
    fill(logits, 3);
    off.typical_p = 1, off.xtc_threshold = 0.1f, off.dry_base = 1.75f, off.dry_allowed_length = 2, off.min_tokens = 5;
    struct sampler *a = open_sampler(&params), *b = open_sampler(&off);
    for (uint32_t index = 0; index < 1000; index++) {
        assert_int_equal(draw(a, logits, NULL, index), draw(b, logits, NULL, index));
        assert_int_equal(draw(a, logits, NULL, index), draw(a, logits, all, index));
    }
    assert_true(sampler_is_simple(a, 0) && sampler_is_simple(b, 0) && sampler_is_pure(b));
    sampler_close(a);
    sampler_close(b);
    const uint32_t end[] = {1};
    off.end_tokens = end, off.end_count = 1;
    b = open_sampler(&off);
    assert_true(!sampler_is_simple(b, 4) && sampler_is_simple(b, 5));
    sampler_close(b);
}

static void test_refused(void **state)
{
    const uint32_t beyond[] = {VOCAB}, zero[] = {0}, one[] = {1};
    const struct {
        struct sampler_params params;
        const char *named;
    } wrong[] = {
        {{.typical_p = 1.1f}, "typical_p"},
        {{.xtc_probability = NAN}, "xtc_probability"},
        {{.xtc_threshold = -1}, "xtc_threshold"},
        {{.dry_multiplier = 1}, "dry_base"},
        {{.dry_multiplier = -1}, "dry_multiplier"},
        {{.stop_tokens = beyond, .stop_count = 1}, "stop_token_ids"},
        {{.end_tokens = beyond, .end_count = 1}, "end tokens"},
        {{.stop_count = SAMPLER_END_TOKENS_MAX + 1}, "stop tokens"},
        {{.allowed_tokens = beyond, .allowed_count = 1}, "allowed_token_ids"},
        {{.allowed_count = VOCAB + 1}, "allowed tokens"},
        {{.bad_lengths = one, .bad_tokens = beyond, .bad_count = 1, .bad_token_count = 1}, "bad_words"},
        {{.bad_lengths = zero, .bad_tokens = one, .bad_count = 1, .bad_token_count = 0}, "bad word"},
        {{.bad_lengths = one, .bad_tokens = one, .bad_count = 1, .bad_token_count = 0}, "bad word"},
        {{.bad_count = SAMPLER_BAD_MAX + 1}, "bad words"},
        {{.dry_breaker_bytes = VOCAB}, "breakers"},
    };
    for (size_t i = 0; i < ARRAY_COUNT(wrong); i++) {
        struct sampler_params params = wrong[i].params;
        struct sampler *sampler;
        struct error error;
        params.top_p = params.repetition_penalty = 1;
        assert_int_equal(sampler_open(&params, VOCAB, 10, &sampler, &error), STATUS_INVALID_ARGUMENT);
        if (!strstr(error.text, wrong[i].named))
            fail_msg("%s does not name %s", error.text, wrong[i].named);
    }
}

static int open_scratch(void **state) { return sampler_scratch_open(VOCAB, &scratch); }

static int close_scratch(void **state)
{
    sampler_scratch_close(scratch);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_typical),
        cmocka_unit_test(test_typical_among_filters),
        cmocka_unit_test(test_xtc),
        cmocka_unit_test(test_dry),
        cmocka_unit_test(test_lists_of_tokens),
        cmocka_unit_test(test_bad_words),
        cmocka_unit_test(test_off),
        cmocka_unit_test(test_refused),
    };
    return cmocka_run_group_tests(tests, open_scratch, close_scratch);
}
