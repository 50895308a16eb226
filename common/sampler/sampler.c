// sampler.c: see sampler.h.
//
// A greedy row without log-probabilities is one pass for the maximum. What has penalties, biases or bans is copied into the scratch and
// adjusted there.
#include "common/sampler/sampler.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/checked.h"
#include "common/sampler/sampler_state.h"
#include "common/sampler/softmax.h"

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
    struct sampler_weighed weighed = {adjusted, softmax_max(adjusted, sampler->vocab), sampler_scale(p), 0, false};
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
