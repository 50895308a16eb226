// sampler_filter.c: which tokens may be drawn: top-k, typical-p, top-p, min-p, xtc.
//
// Candidates for top-k and top-p are found without a full sort: a threshold pass drops what cannot matter, and only the rest is sorted (by
// weight, ties to the lower id).
#include <math.h>

#include "common/base/checked.h"
#include "common/sampler/sampler_state.h"

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

uint32_t sampler_filter(const struct sampler *sampler, const struct sampler_weighed *weighed, struct sampler_scratch *scratch)
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
