// sampler.c: draws tokens.
//
//     logits ─▶ penalties ─▶ dry ─▶ biases ─▶ bans ─▶ adjusted ─▶ weights ─▶ filters ─▶ one of the candidates
//
// A greedy row without log-probabilities is one pass for the maximum. What has penalties, biases or bans is copied into the scratch and
// adjusted there.
#include "common/sampler/sampler.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/checked.h"
#include "common/sampler/softmax.h"

struct sampler {
    struct sampler_params params; // its lists point to copies below
    uint32_t vocab;
    // penalties
    uint32_t slot_mask;
    uint32_t seen_count, seen_limit;
    struct sampler_seen *seen; // [seen_limit] in the order they were first seen; NULL without penalties
    uint32_t *slots;           // [slot_mask + 1] open addressing: index into seen, plus 1; 0: empty
    // dry, and sequences that are banned
    uint32_t *history;                                     // [history_limit] prompt, then generated; NULL if nobody looks back
    uint32_t history_count, history_limit, history_prompt; // history_prompt: how many of them are the prompt's
    uint32_t *dry_breakers;                                // [words of the vocabulary] a bit a token; NULL: there are none
    // bans
    uint32_t *allowed;     // [words of the vocabulary] a bit a token; NULL: all
    uint32_t *token_lists; // what the lists of params point to
    struct sampler_bias bias[];
};

struct sampler_candidate {
    uint32_t token;
    float weight;
};

struct sampler_scratch {
    uint32_t vocab;
    float *adjusted;                      // [vocab]
    float *weights;                       // [vocab]
    struct sampler_candidate *candidates; // [vocab]
};

static inline bool sampler_has_typical(const struct sampler_params *p) { return p->typical_p > 0 && p->typical_p < 1; }

static inline uint32_t sampler_words(uint32_t vocab) { return (vocab + 31) / 32; }

static inline bool sampler_has_bit(const uint32_t *words, uint32_t token) { return words[token / 32] >> token % 32 & 1; }

// --- tokens that may not be drawn (sampler.h: bans) ---

static bool is_before_min(const struct sampler_params *p, uint32_t index)
{
    return index < p->min_tokens && (p->end_count || p->stop_count);
}

// Returns whether there is a token that may be banned at this index.
static bool sampler_ban_any(const struct sampler *sampler, uint32_t index, const uint32_t *allowed)
{
    return allowed || sampler->allowed || sampler->params.bad_count || is_before_min(&sampler->params, index);
}

// Bans all tokens without a bit in both masks; NULL: all bits.
static void apply_masks(const uint32_t *a, const uint32_t *b, uint32_t vocab, float *logits)
{
    for (uint32_t first = 0; first < vocab; first += 32) {
        uint32_t bits = (a ? a[first / 32] : ~0u) & (b ? b[first / 32] : ~0u);
        if (bits == 0 && first + 32 <= vocab) { // most words of most masks
            for (uint32_t i = 0; i < 32; i++)
                logits[first + i] = -INFINITY;
            continue;
        }
        for (uint32_t i = 0; bits != ~0u && i < 32 && first + i < vocab; i++)
            if (!(bits >> i & 1))
                logits[first + i] = -INFINITY;
    }
}

// Whether the tokens generated last are these.
static bool ends_with(const struct sampler *sampler, const uint32_t *tokens, uint32_t count)
{
    if (count > sampler->history_count - sampler->history_prompt)
        return false;
    for (uint32_t i = 0; i < count; i++)
        if (sampler->history[sampler->history_count - 1 - i] != tokens[count - 1 - i])
            return false;
    return true;
}

static void ban_all(const uint32_t *tokens, uint32_t count, float *logits)
{
    for (uint32_t i = 0; i < count; i++)
        logits[tokens[i]] = -INFINITY;
}

// Sets the logits of banned tokens to -inf.
static void sampler_ban_apply(const struct sampler *sampler, uint32_t index, const uint32_t *allowed, float *logits)
{
    const struct sampler_params *p = &sampler->params;
    const uint32_t *bad = p->bad_tokens;

    if (allowed || sampler->allowed)
        apply_masks(allowed, sampler->allowed, sampler->vocab, logits);
    if (is_before_min(p, index)) {
        ban_all(p->end_tokens, p->end_count, logits);
        ban_all(p->stop_tokens, p->stop_count, logits);
    }
    for (uint32_t i = 0; i < p->bad_count; bad += p->bad_lengths[i++])
        if (p->bad_lengths[i] == 1 || ends_with(sampler, bad, p->bad_lengths[i] - 1))
            logits[bad[p->bad_lengths[i] - 1]] = -INFINITY;
}

// --- the cost of repetitions (sampler.h: dry) ---
//
//     text   … the cat sat on the     repetition "the", 1 long, of the text's end; next was "cat"
//                   r(2)   r(1)  r(0)
//
// The lengths of all repetitions come from one pass over the text, backwards: the Z function of the reversed text (Gusfield). z[k] is how
// many tokens before the k-th last one, itself included, are those before the text's end; the token behind it is r(k - 1).

#define COST_MOST 1e30 // far beyond any logit, and finite: a repetition is no ban

// base ^ exponent by squaring: the same bits on every machine, unlike pow().
static double power(double base, uint32_t exponent)
{
    double result = 1;
    for (; exponent; exponent >>= 1, base *= base)
        if (exponent & 1)
            result *= base;
    return result;
}

static float cost_of(const struct sampler_params *p, uint32_t length)
{
    double cost = (double)p->dry_multiplier * power((double)p->dry_base, length - p->dry_allowed_length);
    return (float)(cost < COST_MOST ? cost : COST_MOST);
}

static bool is_breaker(const struct sampler *sampler, uint32_t token)
{
    return sampler->dry_breakers && sampler_has_bit(sampler->dry_breakers, token);
}

// z[k].token for k of 1 to count - 1.
static void find_repetitions(const uint32_t *last, uint32_t count, struct sampler_candidate *z)
{
#define R(i) (*(last - (i)))
    for (uint32_t k = 1, left = 0, right = 0; k < count; k++) {
        uint32_t length = k < right ? MIN(right - k, z[k - left].token) : 0;
        while (k + length < count && R(length) == R(k + length))
            length++;
        z[k].token = length;
        if (k + length > right)
            left = k, right = k + length;
    }
#undef R
}

// Takes off scratch->adjusted of tokens that would go on with a repetition what that costs. Uses scratch->weights and candidates.
static void sampler_dry_apply(const struct sampler *sampler, struct sampler_scratch *scratch)
{
    const struct sampler_params *p = &sampler->params;
    const uint32_t reach = p->dry_last_tokens ? MIN(p->dry_last_tokens, sampler->vocab) : sampler->vocab;
    const uint32_t count = MIN(sampler->history_count, reach);
    const uint32_t *last = sampler->history + sampler->history_count - 1;
    struct sampler_candidate *z = scratch->candidates;
    float *before = scratch->weights; // of tokens that cost something: their logits without it
    uint32_t longest = 0;             // tokens behind the last breaker

    if (count == 0)
        return;
    while (longest < count && !is_breaker(sampler, *(last - longest)))
        longest++;
    if (longest < p->dry_allowed_length)
        return;
    find_repetitions(last, count, z);
    for (uint32_t k = 1; k < count; k++)
        before[*(last - (k - 1))] = scratch->adjusted[*(last - (k - 1))];
    for (uint32_t k = 1; k < count; k++) {
        uint32_t next = *(last - (k - 1)), length = MIN(z[k].token, longest);
        if (length && length >= p->dry_allowed_length && !is_breaker(sampler, next))
            scratch->adjusted[next] = fminf(scratch->adjusted[next], before[next] - cost_of(p, length));
    }
}

// --- the tokens that may be drawn: top-k, typical-p, top-p, min-p, xtc ---

// A row before the filters: scratch->weights are exp((adjusted - max) * scale), and their sum is `total`.
struct sampler_weighed {
    const float *adjusted;
    float max, scale;
    double total;
    bool excludes_top; // xtc applies to this token
};
//
// Candidates for top-k and top-p are found without a full sort: a threshold pass drops what cannot matter, and only the rest is sorted (by
// weight, ties to the lower id).

enum { TYPICAL_FIRST = 256, TYPICAL_TIMES = 8 }; // so many are sorted at first, and so many times as many if they are not enough

static bool heavier(const struct sampler_candidate *a, const struct sampler_candidate *b)
{
    return a->weight > b->weight || (a->weight == b->weight && a->token < b->token);
}

static void sift_down(struct sampler_candidate *c, uint32_t at, uint32_t count)
{
    struct sampler_candidate moving = c[at];
    for (uint32_t child; (child = at * 2 + 1) < count; at = child) {
        if (child + 1 < count && heavier(&c[child], &c[child + 1]))
            child++;
        if (!heavier(&moving, &c[child]))
            break;
        c[at] = c[child];
    }
    c[at] = moving;
}

// Heaviest first. A heap sort with the lightest on top: qsort(3) allocates, and a step does not.
static void sort_all(struct sampler_candidate *c, uint32_t count)
{
    for (uint32_t at = count / 2; at-- > 0;)
        sift_down(c, at, count);
    for (uint32_t end = count; end-- > 1;) {
        struct sampler_candidate lightest = c[0];
        c[0] = c[end];
        c[end] = lightest;
        sift_down(c, 0, end);
    }
}

// The `keep` heaviest of the candidates, sorted, to the front: quickselect, then a sort of what is kept.
static void sort_top(struct sampler_candidate *c, uint32_t count, uint32_t keep)
{
    uint32_t low = 0, high = count;

    while (keep < count && high - low > 32) {
        struct sampler_candidate pivot = c[low + (high - low) / 2], swap;
        uint32_t i = low, j = high - 1;
        for (;;) {
            while (heavier(&c[i], &pivot))
                i++;
            while (heavier(&pivot, &c[j]))
                j--;
            if (i >= j)
                break;
            swap = c[i], c[i] = c[j], c[j] = swap;
            i++, j--;
        }
        if (keep <= i)
            high = i;
        else
            low = i;
        if (low >= keep)
            break;
    }
    sort_all(c, MAX(high, MIN(keep, count)));
}

static double sum_of(const struct sampler_candidate *c, uint32_t count)
{
    double sum = 0;
    for (uint32_t i = 0; i < count; i++)
        sum += (double)c[i].weight;
    return sum;
}

// Keeps those whose information is nearest to the entropy, until they have `share` of the weight; heaviest first. With x = ln of a weight, a
// token's information less the entropy is the mean of x less its own: the logarithm of the sum cancels out.
static uint32_t keep_typical(const struct sampler_weighed *weighed, float share, uint32_t count, struct sampler_scratch *scratch)
{
    struct sampler_candidate *c = scratch->candidates;
    double total = sum_of(c, count), mean = 0, sum = 0;
    uint32_t keep = 0;

    for (uint32_t i = 0; i < count; i++)
        mean += (double)c[i].weight * (double)((weighed->adjusted[c[i].token] - weighed->max) * weighed->scale);
    mean /= total;
    for (uint32_t i = 0; i < count; i++) // the nearest is the heaviest now
        c[i].weight = (float)-fabs((double)((weighed->adjusted[c[i].token] - weighed->max) * weighed->scale) - mean);
    for (uint32_t sorted = TYPICAL_FIRST;; sorted *= TYPICAL_TIMES) {
        sort_top(c, count, MIN(sorted, count));
        for (keep = 0, sum = 0; keep < MIN(sorted, count) && sum < (double)share * total; keep++)
            sum += (double)scratch->weights[c[keep].token];
        if (sum >= (double)share * total || sorted >= count)
            break;
    }
    for (uint32_t i = 0; i < keep; i++)
        c[i].weight = scratch->weights[c[i].token];
    sort_all(c, keep);
    return keep;
}

// Drops all that have the threshold's part of the weight, but the last of them in the order of weight.
static uint32_t exclude_top(const struct sampler_params *p, struct sampler_candidate *c, uint32_t count)
{
    double least = (double)p->xtc_threshold * sum_of(c, count);
    uint32_t top = 0, kept = 0, last = 0;

    for (uint32_t i = 0; i < count; i++)
        if ((double)c[i].weight >= least) {
            last = top == 0 || heavier(&c[last], &c[i]) ? i : last;
            top++;
        }
    for (uint32_t i = 0; i < count && top > 1; i++)
        if ((double)c[i].weight < least || i == last)
            c[kept++] = c[i];
    return top > 1 ? kept : count;
}

// Takes the tokens that have a weight, and are not too light for top-p and min-p, as candidates; those of top-k if there is one.
static uint32_t take_candidates(const struct sampler_params *p, uint32_t vocab, double total, bool whole,
                                struct sampler_scratch *scratch)
{
    struct sampler_candidate *c = scratch->candidates;
    uint32_t count = 0, keep;
    float floor_weight = p->min_p; // the heaviest has weight 1

    // what is lighter than (1 - top_p) of the total spread over the vocabulary cannot be inside top-p
    if (p->top_p < 1)
        floor_weight = fmaxf(floor_weight, (float)((1.0 - (double)p->top_p) * total / (double)vocab * 0.5));
    for (uint32_t i = 0; i < vocab; i++)
        if (scratch->weights[i] > 0 && (scratch->weights[i] >= floor_weight || whole))
            c[count++] = (struct sampler_candidate){i, scratch->weights[i]};
    keep = p->top_k && p->top_k < count ? p->top_k : count;
    if (p->top_k || (p->top_p < 1 && !whole))
        sort_top(c, count, keep);
    return keep;
}

// Leaves in scratch->candidates those that may be drawn, and returns how many.
static uint32_t sampler_filter(const struct sampler *sampler, const struct sampler_weighed *weighed,
                               struct sampler_scratch *scratch)
{
    const struct sampler_params *p = &sampler->params;
    struct sampler_candidate *c = scratch->candidates;
    const bool typical = sampler_has_typical(p);
    const bool whole = typical || (p->top_k && p->top_p < 1); // then what a later filter will drop counts in totals, too
    uint32_t count = take_candidates(p, sampler->vocab, weighed->total, whole, scratch), keep;
    double sum = 0, kept_total = weighed->total;

    if (typical)
        count = keep_typical(weighed, p->typical_p, count, scratch);
    if (whole)
        kept_total = sum_of(c, count);
    if (p->top_p < 1) {
        for (keep = 0; keep < count && sum < (double)p->top_p * kept_total; keep++)
            sum += (double)c[keep].weight;
        count = keep;
    }
    for (keep = 0; keep < count; keep++) // min-p where the list is sorted or was filtered already
        if (c[keep].weight < p->min_p * (typical ? c[0].weight : 1))
            break;
    count = keep ? keep : MIN(count, 1u);
    return weighed->excludes_top ? exclude_top(p, c, count) : count;
}

static const uint64_t XTC_STREAM = 0x8cb92ba72f3d8dd7u; // added to the seed: other random numbers than those of the draw

static uint64_t mix(uint64_t x) // splitmix64's finalizer (Steele, Lea, Flood 2014)
{
    x ^= x >> 30;
    x *= 0xbf58476d1ce4e5b9u;
    x ^= x >> 27;
    x *= 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

double sampler_uniform(uint64_t seed, uint32_t choice, uint32_t index)
{
    uint64_t counter = ((uint64_t)choice << 32 | index) + 0xd1b54a32d192ed03u; // another stream than the seed's
    uint64_t hash = mix(mix(seed + 0x9e3779b97f4a7c15u) + mix(counter));
    return (double)(hash >> 11) * 0x1p-53;
}

float sampler_scale(const struct sampler_params *p) { return p->temperature > 0 ? 1.0f / MAX(p->temperature, 1e-6f) : 0; }

static bool has_penalties(const struct sampler_params *p)
{
    return p->presence_penalty != 0 || p->frequency_penalty != 0 || p->repetition_penalty != 1;
}

// Whether any bad sequence has a token before its last one.
static bool has_long_bad(const struct sampler_params *p)
{
    for (uint32_t i = 0; i < p->bad_count; i++)
        if (p->bad_lengths[i] > 1)
            return true;
    return false;
}

static enum status check_tokens(const uint32_t *tokens, uint32_t count, uint32_t vocab, const char *name, struct error *error)
{
    for (uint32_t i = 0; i < count; i++)
        if (tokens[i] >= vocab)
            return error_set(error, STATUS_INVALID_ARGUMENT, "sampling: %s has token %u, the vocabulary has %u", name, tokens[i],
                             vocab);
    return STATUS_OK;
}

// The lists of tokens.
static enum status check_lists(const struct sampler_params *p, uint32_t vocab, struct error *error)
{
    uint64_t total = 0;

    if (p->end_count > SAMPLER_END_TOKENS_MAX || p->stop_count > SAMPLER_END_TOKENS_MAX)
        return error_set(error, STATUS_INVALID_ARGUMENT, "sampling: %u end tokens and %u stop tokens, at most %d each are taken",
                         p->end_count, p->stop_count, SAMPLER_END_TOKENS_MAX);
    if (p->bad_count > SAMPLER_BAD_MAX || p->bad_token_count > SAMPLER_BAD_TOKENS_MAX)
        return error_set(error, STATUS_INVALID_ARGUMENT, "sampling: %u bad words of %u tokens, at most %d of %d are taken",
                         p->bad_count, p->bad_token_count, SAMPLER_BAD_MAX, SAMPLER_BAD_TOKENS_MAX);
    for (uint32_t i = 0; i < p->bad_count; i++) {
        if (p->bad_lengths[i] == 0)
            return error_set(error, STATUS_INVALID_ARGUMENT, "sampling: bad word %u has no tokens", i);
        total += p->bad_lengths[i];
    }
    if (total != p->bad_token_count)
        return error_set(error, STATUS_INVALID_ARGUMENT, "sampling: %u bad words have %llu tokens, and %u are there", p->bad_count,
                         (unsigned long long)total, p->bad_token_count);
    if (p->dry_breaker_bytes > (vocab + 7) / 8)
        return error_set(error, STATUS_INVALID_ARGUMENT, "sampling: %u bytes of dry breakers, the vocabulary has %u tokens",
                         p->dry_breaker_bytes, vocab);
    if (p->allowed_count > vocab)
        return error_set(error, STATUS_INVALID_ARGUMENT, "sampling: %u allowed tokens, the vocabulary has %u", p->allowed_count,
                         vocab);
    if (check_tokens(p->end_tokens, p->end_count, vocab, "the end tokens", error) ||
        check_tokens(p->stop_tokens, p->stop_count, vocab, "stop_token_ids", error) ||
        check_tokens(p->allowed_tokens, p->allowed_count, vocab, "allowed_token_ids", error) ||
        check_tokens(p->bad_tokens, p->bad_token_count, vocab, "bad_words", error))
        return error->status;
    return STATUS_OK;
}

enum status sampler_check(const struct sampler_params *p, uint32_t vocab, struct error *error)
{
#define REQUIRE(condition, name, wanted) \
    if (!(condition))                    \
    return error_set(error, STATUS_INVALID_ARGUMENT, "sampling: %s must be %s", name, wanted)
    REQUIRE(p->temperature >= 0 && p->temperature <= 100, "temperature", "from 0 to 100");
    REQUIRE(p->top_p > 0 && p->top_p <= 1, "top_p", "above 0 and at most 1");
    REQUIRE(p->min_p >= 0 && p->min_p <= 1, "min_p", "from 0 to 1");
    REQUIRE(fabsf(p->presence_penalty) <= 100, "presence_penalty", "from -100 to 100");
    REQUIRE(fabsf(p->frequency_penalty) <= 100, "frequency_penalty", "from -100 to 100");
    REQUIRE(p->repetition_penalty > 0 && p->repetition_penalty <= 100, "repetition_penalty", "above 0 and at most 100");
    REQUIRE(p->typical_p >= 0 && p->typical_p <= 1, "typical_p", "from 0 to 1");
    REQUIRE(p->xtc_probability >= 0 && p->xtc_probability <= 1, "xtc_probability", "from 0 to 1");
    REQUIRE(p->xtc_threshold >= 0 && p->xtc_threshold <= 1, "xtc_threshold", "from 0 to 1");
    REQUIRE(p->dry_multiplier >= 0 && p->dry_multiplier <= 100, "dry_multiplier", "from 0 to 100");
    REQUIRE(p->dry_multiplier == 0 || (p->dry_base >= 1 && p->dry_base <= 100), "dry_base", "from 1 to 100");
    REQUIRE(p->top_logprobs <= SAMPLER_TOP_LOGPROBS_MAX, "top_logprobs", "at most 20");
    REQUIRE(p->bias_count <= SAMPLER_BIAS_MAX, "logit_bias", "at most 1024 entries");
    for (uint32_t i = 0; i < p->bias_count; i++) {
        REQUIRE(p->bias[i].token < vocab, "logit_bias", "for tokens of the vocabulary");
        REQUIRE(p->bias[i].bias < INFINITY && !isnan(p->bias[i].bias), "logit_bias", "a number below infinity"); // -inf bans
    }
#undef REQUIRE
    return check_lists(p, vocab, error);
}

// Copies a list to *at, which is moved on, and returns where it is now.
static const uint32_t *copy_list(const uint32_t *list, uint32_t count, uint32_t **at)
{
    uint32_t *copy = *at;

    if (count)
        memcpy(copy, list, count * sizeof *list);
    *at += count;
    return copy;
}

// Copies the lists of tokens that a draw looks at.
static bool open_lists(struct sampler *sampler)
{
    struct sampler_params *p = &sampler->params;
    const uint32_t words = sampler_words(sampler->vocab);
    uint32_t *at = malloc(((size_t)p->end_count + p->stop_count + p->bad_count + p->bad_token_count + 1) * sizeof *at);

    sampler->token_lists = at;
    sampler->allowed = p->allowed_count ? calloc(words, sizeof *sampler->allowed) : NULL;
    if (!at || (p->allowed_count && !sampler->allowed))
        return false;
    p->end_tokens = copy_list(p->end_tokens, p->end_count, &at);
    p->stop_tokens = copy_list(p->stop_tokens, p->stop_count, &at);
    p->bad_lengths = copy_list(p->bad_lengths, p->bad_count, &at);
    p->bad_tokens = copy_list(p->bad_tokens, p->bad_token_count, &at);
    for (uint32_t i = 0; i < p->allowed_count; i++)
        sampler->allowed[p->allowed_tokens[i] / 32] |= 1u << p->allowed_tokens[i] % 32;
    p->allowed_tokens = NULL;
    return true;
}

// Makes room for the text, if a draw looks back at it.
static bool open_history(struct sampler *sampler, uint32_t history_tokens)
{
    struct sampler_params *p = &sampler->params;

    if (p->dry_multiplier == 0 && !has_long_bad(p))
        return true;
    sampler->history_limit = history_tokens;
    sampler->history = malloc(((size_t)history_tokens + 1) * sizeof *sampler->history);
    if (p->dry_multiplier > 0 && p->dry_breaker_bytes) {
        sampler->dry_breakers = calloc(sampler_words(sampler->vocab), sizeof *sampler->dry_breakers);
        for (uint32_t i = 0; sampler->dry_breakers && i < p->dry_breaker_bytes; i++)
            sampler->dry_breakers[i / 4] |= (uint32_t)p->dry_breakers[i] << i % 4 * 8;
    }
    const bool complete = sampler->history && (sampler->dry_breakers || p->dry_multiplier == 0 || !p->dry_breaker_bytes);
    p->dry_breakers = NULL;
    return complete;
}

// Makes room to count the tokens, if there are penalties.
static bool open_seen(struct sampler *sampler, uint32_t history_tokens)
{
    uint32_t slots = 16;

    if (!has_penalties(&sampler->params))
        return true;
    sampler->seen_limit = MIN(sampler->vocab, history_tokens);
    while (slots < sampler->seen_limit * 2u)
        slots *= 2;
    sampler->seen = calloc((size_t)sampler->seen_limit + 1, sizeof *sampler->seen);
    sampler->slots = calloc(slots, sizeof *sampler->slots);
    sampler->slot_mask = slots - 1;
    return sampler->seen && sampler->slots;
}

enum status sampler_open(const struct sampler_params *params, uint32_t vocab, uint32_t history_tokens, struct sampler **out,
                         struct error *error)
{
    struct sampler *sampler;
    enum status status = sampler_check(params, vocab, error);

    if (status)
        return status;
    sampler = calloc(1, sizeof *sampler + params->bias_count * sizeof sampler->bias[0]);
    if (!sampler)
        return error_set(error, STATUS_RESOURCE_EXHAUSTED, "sampling: no memory");
    sampler->params = *params;
    sampler->vocab = vocab;
    if (params->bias_count)
        memcpy(sampler->bias, params->bias, params->bias_count * sizeof sampler->bias[0]);
    sampler->params.bias = sampler->bias;
    if (!open_lists(sampler) || !open_history(sampler, history_tokens) || !open_seen(sampler, history_tokens)) {
        sampler_close(sampler);
        return error_set(error, STATUS_RESOURCE_EXHAUSTED, "sampling: no memory for its lists");
    }
    *out = sampler;
    return STATUS_OK;
}

void sampler_close(struct sampler *sampler)
{
    if (!sampler)
        return;
    free(sampler->seen);
    free(sampler->slots);
    free(sampler->history);
    free(sampler->dry_breakers);
    free(sampler->allowed);
    free(sampler->token_lists);
    free(sampler);
}

bool sampler_is_pure(const struct sampler *sampler) { return !sampler->seen && !sampler->history; }

bool sampler_is_simple(const struct sampler *sampler, uint32_t index)
{
    const struct sampler_params *p = &sampler->params;

    return !sampler_has_typical(p) && p->xtc_probability == 0 && p->dry_multiplier == 0 && !sampler_ban_any(sampler, index, NULL);
}

const struct sampler_params *sampler_params_of(const struct sampler *sampler) { return &sampler->params; }

const struct sampler_seen *sampler_seen_tokens(const struct sampler *sampler, uint32_t *count)
{
    *count = sampler->seen_count;
    return sampler->seen;
}

static struct sampler_seen *find_seen(struct sampler *sampler, uint32_t token)
{
    uint32_t slot = (uint32_t)mix(token) & sampler->slot_mask;
    while (sampler->slots[slot] && sampler->seen[sampler->slots[slot] - 1].token != token)
        slot = (slot + 1) & sampler->slot_mask;
    if (!sampler->slots[slot]) {
        if (sampler->seen_count == sampler->seen_limit)
            return NULL; // history longer than announced: what is over the limit is not penalized
        sampler->seen[sampler->seen_count] = (struct sampler_seen){.token = token};
        sampler->slots[slot] = ++sampler->seen_count;
    }
    return &sampler->seen[sampler->slots[slot] - 1];
}

static void remember(struct sampler *sampler, uint32_t token)
{
    if (sampler->history_count < sampler->history_limit && token < sampler->vocab)
        sampler->history[sampler->history_count++] = token;
}

void sampler_see_prompt(struct sampler *sampler, uint32_t token)
{
    remember(sampler, token);
    sampler->history_prompt = sampler->history_count;
    if (sampler->seen && token < sampler->vocab)
        find_seen(sampler, token);
}

void sampler_see_generated(struct sampler *sampler, uint32_t token)
{
    remember(sampler, token);
    if (sampler->seen && token < sampler->vocab) {
        struct sampler_seen *seen = find_seen(sampler, token);
        if (seen)
            seen->generated++;
    }
}

enum status sampler_scratch_open(uint32_t vocab, struct sampler_scratch **out)
{
    struct sampler_scratch *scratch = calloc(1, sizeof *scratch);
    if (!scratch)
        return STATUS_RESOURCE_EXHAUSTED;
    scratch->vocab = vocab;
    scratch->adjusted = calloc(vocab, sizeof *scratch->adjusted);
    scratch->weights = calloc(vocab, sizeof *scratch->weights);
    scratch->candidates = calloc(vocab, sizeof *scratch->candidates);
    if (!scratch->adjusted || !scratch->weights || !scratch->candidates) {
        sampler_scratch_close(scratch);
        return STATUS_RESOURCE_EXHAUSTED;
    }
    *out = scratch;
    return STATUS_OK;
}

void sampler_scratch_close(struct sampler_scratch *scratch)
{
    if (!scratch)
        return;
    free(scratch->adjusted);
    free(scratch->weights);
    free(scratch->candidates);
    free(scratch);
}

// Lowest id of those that have the maximum; 0 if all are NaN or -inf.
static uint32_t argmax(const float *values, uint32_t count)
{
    float max = softmax_max(values, count);
    for (uint32_t i = 0; i < count; i++)
        if (values[i] == max)
            return i;
    return 0;
}

// A copy in the scratch with penalties, biases and bans.
static void adjust(const struct sampler *sampler, const float *logits, const uint32_t *allowed, uint32_t index,
                   struct sampler_scratch *scratch)
{
    const struct sampler_params *p = &sampler->params;
    float *adjusted = scratch->adjusted;

    memcpy(adjusted, logits, sampler->vocab * sizeof *adjusted);
    for (uint32_t i = 0; i < sampler->seen_count; i++) {
        const struct sampler_seen *seen = &sampler->seen[i];
        float *logit = &adjusted[seen->token];
        *logit = *logit > 0 ? *logit / p->repetition_penalty : *logit * p->repetition_penalty;
        if (seen->generated)
            *logit -= p->presence_penalty + p->frequency_penalty * (float)seen->generated;
    }
    if (p->dry_multiplier > 0)
        sampler_dry_apply(sampler, scratch);
    for (uint32_t i = 0; i < p->bias_count; i++)
        adjusted[p->bias[i].token] += p->bias[i].bias;
    sampler_ban_apply(sampler, index, allowed, adjusted);
}

static uint32_t draw(const struct sampler *sampler, const float *adjusted, uint32_t index, struct sampler_scratch *scratch)
{
    const struct sampler_params *p = &sampler->params;
    struct sampler_weighed weighed = {
        .adjusted = adjusted, .max = softmax_max(adjusted, sampler->vocab), .scale = sampler_scale(p)};
    uint32_t count;
    double sum = 0, target;

    weighed.total = softmax_weights(adjusted, sampler->vocab, weighed.max, weighed.scale, scratch->weights);
    if (!(weighed.total > 0))
        return argmax(adjusted, sampler->vocab);
    weighed.excludes_top = p->xtc_probability > 0 &&
                           sampler_uniform(p->seed + XTC_STREAM, p->choice, index) < (double)p->xtc_probability;
    count = sampler_filter(sampler, &weighed, scratch);
    for (uint32_t i = 0; i < count; i++)
        sum += (double)scratch->candidates[i].weight;
    target = sampler_uniform(p->seed, p->choice, index) * sum;
    sum = 0;
    for (uint32_t i = 0; i < count; i++) {
        sum += (double)scratch->candidates[i].weight;
        if (sum > target)
            return scratch->candidates[i].token;
    }
    return count ? scratch->candidates[count - 1].token : argmax(adjusted, sampler->vocab);
}

void sampler_score(const float *logits, uint32_t vocab, uint32_t token, uint32_t top_count, struct sampler_scratch *scratch,
                   struct sampler_result *result)
{
    float max = softmax_max(logits, vocab);
    double log_total = log(softmax_weights(logits, vocab, max, 1.0f, scratch->weights)) + (double)max;

    result->token = token;
    result->all_banned = false;
    result->logprob = (float)((double)logits[token] - log_total);
    result->top_count = MIN(top_count, vocab);
    for (uint32_t found = 0; found < result->top_count; found++) { // insertion into a short list, below
        result->top[found] = (struct sampler_top){UINT32_MAX, -INFINITY};
    }
    for (uint32_t i = 0; result->top_count && i < vocab; i++) {
        float value = isnan(logits[i]) ? -INFINITY : logits[i];
        uint32_t at = result->top_count - 1;
        if (!(value > result->top[at].logprob) && result->top[at].token != UINT32_MAX)
            continue;
        for (; at > 0 && (result->top[at - 1].token == UINT32_MAX || value > result->top[at - 1].logprob); at--)
            result->top[at] = result->top[at - 1];
        result->top[at] = (struct sampler_top){i, value};
    }
    for (uint32_t i = 0; i < result->top_count; i++)
        result->top[i].logprob = (float)((double)result->top[i].logprob - log_total);
}

void sampler_sample(const struct sampler *sampler, const float *logits, const uint32_t *allowed, uint32_t index,
                    struct sampler_scratch *scratch, struct sampler_result *result)
{
    const struct sampler_params *p = &sampler->params;
    const bool dry = p->dry_multiplier > 0 && sampler->history_count;
    const float *adjusted = logits;
    uint32_t token;

    assert_always(scratch->vocab == sampler->vocab);
    if (sampler->seen_count || p->bias_count || dry || sampler_ban_any(sampler, index, allowed)) {
        adjust(sampler, logits, allowed, index, scratch);
        adjusted = scratch->adjusted;
    }
    token = p->temperature > 0 ? draw(sampler, adjusted, index, scratch) : argmax(adjusted, sampler->vocab);
    bool all_banned = !(adjusted[token] > -INFINITY);
    if (all_banned && index < p->min_tokens) { // nothing but an end is possible: it comes before min_tokens
        adjust(sampler, logits, allowed, p->min_tokens, scratch);
        token = p->temperature > 0 ? draw(sampler, adjusted, index, scratch) : argmax(adjusted, sampler->vocab);
        all_banned = !(adjusted[token] > -INFINITY);
    }
    if (p->logprobs) {
        sampler_score(logits, sampler->vocab, token, p->top_logprobs, scratch, result);
    } else {
        result->token = token;
        result->logprob = 0;
        result->top_count = 0;
    }
    result->all_banned = all_banned;
}
