// sampler.c: see sampler.h.
//
// A greedy row without log-probabilities is one pass for the maximum. What has penalties or biases is copied into the scratch and
// adjusted there. Candidates for top-k and top-p are found without a full sort: a threshold pass drops what cannot matter,
// and only the rest is sorted (by weight, ties to the lower id).
#include "common/sampler/sampler.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/checked.h"
#include "common/sampler/softmax.h"

struct sampler {
    struct sampler_params params;
    uint32_t vocab;
    uint32_t slot_mask;
    uint32_t seen_count, seen_limit;
    struct sampler_seen *seen; // [seen_limit] in the order they were first seen; NULL without penalties
    uint32_t *slots;           // [slot_mask + 1] open addressing: index into seen, plus 1; 0: empty
    struct sampler_bias bias[];
};

struct candidate {
    uint32_t token;
    float weight;
};

struct sampler_scratch {
    uint32_t vocab;
    float *adjusted;              // [vocab]
    float *weights;               // [vocab]
    struct candidate *candidates; // [vocab]
};

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
    REQUIRE(p->top_logprobs <= SAMPLER_TOP_LOGPROBS_MAX, "top_logprobs", "at most 20");
    REQUIRE(p->bias_count <= SAMPLER_BIAS_MAX, "logit_bias", "at most 1024 entries");
    for (uint32_t i = 0; i < p->bias_count; i++) {
        REQUIRE(p->bias[i].token < vocab, "logit_bias", "for tokens of the vocabulary");
        REQUIRE(p->bias[i].bias < INFINITY && !isnan(p->bias[i].bias), "logit_bias", "a number below infinity"); // -inf bans
    }
#undef REQUIRE
    return STATUS_OK;
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
    if (has_penalties(params)) {
        uint32_t slots = 16;
        sampler->seen_limit = MIN(vocab, history_tokens);
        while (slots < sampler->seen_limit * 2u)
            slots *= 2;
        sampler->seen = calloc((size_t)sampler->seen_limit + 1, sizeof *sampler->seen);
        sampler->slots = calloc(slots, sizeof *sampler->slots);
        sampler->slot_mask = slots - 1;
        if (!sampler->seen || !sampler->slots) {
            sampler_close(sampler);
            return error_set(error, STATUS_RESOURCE_EXHAUSTED, "sampling: no memory for penalties");
        }
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
    free(sampler);
}

bool sampler_is_pure(const struct sampler *sampler) { return !sampler->seen; }

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

void sampler_see_prompt(struct sampler *sampler, uint32_t token)
{
    if (sampler->seen && token < sampler->vocab)
        find_seen(sampler, token);
}

void sampler_see_generated(struct sampler *sampler, uint32_t token)
{
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

// A copy with penalties and biases.
static void adjust(const struct sampler *sampler, const float *logits, float *adjusted)
{
    const struct sampler_params *p = &sampler->params;

    memcpy(adjusted, logits, sampler->vocab * sizeof *adjusted);
    for (uint32_t i = 0; i < sampler->seen_count; i++) {
        const struct sampler_seen *seen = &sampler->seen[i];
        float *logit = &adjusted[seen->token];
        *logit = *logit > 0 ? *logit / p->repetition_penalty : *logit * p->repetition_penalty;
        if (seen->generated)
            *logit -= p->presence_penalty + p->frequency_penalty * (float)seen->generated;
    }
    for (uint32_t i = 0; i < p->bias_count; i++)
        adjusted[p->bias[i].token] += p->bias[i].bias;
}

static bool heavier(const struct candidate *a, const struct candidate *b)
{
    return a->weight > b->weight || (a->weight == b->weight && a->token < b->token);
}

static void sift_down(struct candidate *c, uint32_t at, uint32_t count)
{
    struct candidate moving = c[at];
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
static void sort_all(struct candidate *c, uint32_t count)
{
    for (uint32_t at = count / 2; at-- > 0;)
        sift_down(c, at, count);
    for (uint32_t end = count; end-- > 1;) {
        struct candidate lightest = c[0];
        c[0] = c[end];
        c[end] = lightest;
        sift_down(c, 0, end);
    }
}

// The `keep` heaviest of the candidates, sorted, to the front: quickselect, then a sort of what is kept.
static void sort_top(struct candidate *c, uint32_t count, uint32_t keep)
{
    uint32_t low = 0, high = count;

    while (keep < count && high - low > 32) {
        struct candidate pivot = c[low + (high - low) / 2], swap;
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

// Candidates after top-k, top-p, min-p, heaviest first; returns how many.
static uint32_t filter(const struct sampler_params *p, uint32_t vocab, double total, struct sampler_scratch *scratch)
{
    struct candidate *c = scratch->candidates;
    uint32_t count = 0, keep;
    float floor_weight = p->min_p; // the heaviest has weight 1
    double sum = 0, kept_total = total;
    bool total_is_of_top_k = p->top_k && p->top_p < 1; // then what min-p will drop counts in it too

    // what is lighter than (1 - top_p) of the total spread over the vocabulary cannot be inside top-p
    if (p->top_p < 1)
        floor_weight = fmaxf(floor_weight, (float)((1.0 - (double)p->top_p) * total / (double)vocab * 0.5));
    for (uint32_t i = 0; i < vocab; i++)
        if (scratch->weights[i] > 0 && (scratch->weights[i] >= floor_weight || total_is_of_top_k))
            c[count++] = (struct candidate){i, scratch->weights[i]};
    keep = p->top_k && p->top_k < count ? p->top_k : count;
    if (p->top_k || p->top_p < 1)
        sort_top(c, count, keep);
    count = keep;
    if (total_is_of_top_k) { // top-p is of what top-k left
        kept_total = 0;
        for (uint32_t i = 0; i < count; i++)
            kept_total += (double)c[i].weight;
    }
    if (p->top_p < 1) {
        for (keep = 0; keep < count && sum < (double)p->top_p * kept_total; keep++)
            sum += (double)c[keep].weight;
        count = keep;
    }
    for (keep = 0; keep < count; keep++) // min-p where the list is sorted or was filtered already
        if (c[keep].weight < p->min_p)
            break;
    return keep ? keep : MIN(count, 1u);
}

static uint32_t draw(const struct sampler *sampler, const float *adjusted, uint32_t index, struct sampler_scratch *scratch)
{
    const struct sampler_params *p = &sampler->params;
    float max = softmax_max(adjusted, sampler->vocab);
    double total = softmax_weights(adjusted, sampler->vocab, max, sampler_scale(p), scratch->weights);
    uint32_t count;
    double sum = 0, target;

    if (!(total > 0))
        return argmax(adjusted, sampler->vocab);
    count = filter(p, sampler->vocab, total, scratch);
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

void sampler_sample(const struct sampler *sampler, const float *logits, uint32_t index, struct sampler_scratch *scratch,
                    struct sampler_result *result)
{
    const struct sampler_params *p = &sampler->params;
    const float *adjusted = logits;
    uint32_t token;

    assert_always(scratch->vocab == sampler->vocab);
    if (sampler->seen_count || p->bias_count) {
        adjust(sampler, logits, scratch->adjusted);
        adjusted = scratch->adjusted;
    }
    token = p->temperature > 0 ? draw(sampler, adjusted, index, scratch) : argmax(adjusted, sampler->vocab);
    if (p->logprobs) {
        sampler_score(logits, sampler->vocab, token, p->top_logprobs, scratch, result);
    } else {
        result->token = token;
        result->logprob = 0;
        result->top_count = 0;
    }
}
