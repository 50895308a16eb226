/* test_cuda_sample.c: drawing and scoring on the device beside common/sampler, on the same logits: a seeded table of parameters over
 * vocabularies, shapes of logits and hostile rows. Where the token is another, it must be one that the host's draw comes within EPSILON
 * of the mass of. Then the distribution, ties, rows that do not fit the list, and rows alone beside rows in company.
 */
#include "tests/cuda/device_rig.h"

#include "common/sampler/softmax.h"

#define EPSILON 2e-6
#define SAMPLING ((struct sampler_params){.top_p = 1, .repetition_penalty = 1})

enum { ADJUST_MAX = 1 << 16, ROW_PARTS = 3 };

static uint32_t below(uint64_t *seed, uint32_t count) { return (uint32_t)(random_next(seed) % count); }

/* --- the device's and the host's answer ---------------------------------------------------------------------------------- */

static void device_samples(const float *logits, uint32_t vocab, const struct backend_sample *samples, uint32_t rows)
{
    struct gpu_sample *asked = calloc(rows, sizeof *asked);
    struct gpu_adjust *adjust = calloc(ADJUST_MAX, sizeof *adjust);
    struct gpu_sampling s = {.rows = rows, .vocab = vocab};
    uint32_t used = 0;

    for (uint32_t i = 0; i < rows; i++) {
        cuda_ask(&samples[i], vocab, adjust, &used, ADJUST_MAX, &asked[i]);
        assert_true(asked[i].flags);
        s.flags |= asked[i].flags;
    }
    s.adjusted = used;
    s.logits = on_device(logits, (size_t)rows * vocab * sizeof *logits);
    s.samples = on_device(asked, rows * sizeof *asked);
    s.adjust = on_device(adjust, used * sizeof *adjust);
    s.raw = on_device(NULL, used * sizeof *s.raw);
    s.out = on_device(NULL, rows * sizeof *s.out);
    gpu_sample_rows(&s, rig_stream);
    struct gpu_sampled *sampled = on_host(s.out, rows * sizeof *sampled);
    for (uint32_t i = 0; i < rows; i++)
        cuda_answer(&asked[i], &sampled[i], samples[i].result);
    cudaFree(s.logits), cudaFree((void *)s.samples), cudaFree((void *)s.adjust), cudaFree(s.raw), cudaFree(s.out);
    free(asked), free(adjust), free(sampled);
}

static struct sampler *open_sampler(const struct sampler_params *params, uint32_t vocab)
{
    struct sampler *sampler = NULL;
    struct error error;
    if (sampler_open(params, vocab, 4096, &sampler, &error))
        fail_msg("%s", error.text);
    return sampler;
}

/* --- why a token may be another ------------------------------------------------------------------------------------------- */

struct weighted {
    double weight;
    uint32_t token;
};

static int heavier_first(const void *a, const void *b)
{
    const struct weighted *x = a, *y = b;
    return x->weight != y->weight ? (x->weight < y->weight) - (x->weight > y->weight)
                                  : (x->token > y->token) - (x->token < y->token);
}

static void adjust_row(const struct sampler *sampler, float *row)
{
    const struct sampler_params *p = sampler_params_of(sampler);
    uint32_t count;
    const struct sampler_seen *seen = sampler_seen_tokens(sampler, &count);
    for (uint32_t i = 0; i < count; i++) {
        float *logit = &row[seen[i].token];
        *logit = *logit > 0 ? *logit / p->repetition_penalty : *logit * p->repetition_penalty;
        if (seen[i].generated)
            *logit -= p->presence_penalty + p->frequency_penalty * (float)seen[i].generated;
    }
    for (uint32_t i = 0; i < p->bias_count; i++)
        row[p->bias[i].token] += p->bias[i].bias;
}

/* Whether, of the first `count` tokens, the draw at `uniform` is within EPSILON of the token. */
static bool is_near(const struct weighted *tokens, uint32_t count, double uniform, uint32_t token)
{
    double sum = 0, before = 0;
    for (uint32_t i = 0; i < count; i++)
        sum += tokens[i].weight;
    for (uint32_t i = 0; i < count; before += tokens[i++].weight)
        if (tokens[i].token == token)
            return uniform * sum >= before - EPSILON * sum && uniform * sum <= before + tokens[i].weight + EPSILON * sum;
    return false;
}

static bool explained(const struct sampler *sampler, const float *logits, uint32_t vocab, uint32_t index, uint32_t token)
{
    const struct sampler_params *p = sampler_params_of(sampler);
    float *row = malloc(vocab * sizeof *row), *weights = malloc(vocab * sizeof *weights);
    struct weighted *tokens = malloc(vocab * sizeof *tokens);
    double uniform = sampler_uniform(p->seed, p->choice, index), total = 0, sum = 0;
    uint32_t count = 0, least = 0, most = 0;
    bool sorted = p->top_k || p->top_p < 1, found = false;

    memcpy(row, logits, vocab * sizeof *row);
    adjust_row(sampler, row);
    softmax_weights(row, vocab, softmax_max(row, vocab), 1 / p->temperature, weights);
    for (uint32_t i = 0; i < vocab; i++)
        if (weights[i] > 0)
            tokens[count++] = (struct weighted){(double)weights[i], i};
    if (sorted)
        qsort(tokens, count, sizeof *tokens, heavier_first);
    if (p->top_k)
        count = MIN(count, p->top_k);
    for (uint32_t i = 0; i < count; i++)
        total += tokens[i].weight;
    for (uint32_t i = 0; i < count; sum += tokens[i++].weight) {
        least += p->top_p >= 1 || sum < (double)p->top_p * total * (1 - EPSILON);
        most += p->top_p >= 1 || sum < (double)p->top_p * total * (1 + EPSILON);
    }
    for (uint32_t i = 0, kept = 0; i < count; i++) { /* min-p */
        bool keep = tokens[i].weight >= (double)p->min_p;
        least -= i < least && !keep && sorted;
        if (keep)
            tokens[kept++] = tokens[i];
        if (i == count - 1)
            most = MIN(most, kept), least = MIN(least, kept);
    }
    for (uint32_t n = least; n <= most && !found; n++)
        found = is_near(tokens, n, uniform, token);
    free(row), free(weights), free(tokens);
    return found;
}

/* --- the table ------------------------------------------------------------------------------------------------------------- */

enum shape { SHAPE_NORMAL, SHAPE_PEAKED, SHAPE_FLAT, SHAPE_TIES, SHAPE_BANNED, SHAPE_HOSTILE, SHAPES };

static void fill(float *row, uint32_t vocab, enum shape shape, uint64_t *seed)
{
    for (uint32_t i = 0; i < vocab; i++) {
        float x = random_normal(seed);
        row[i] = shape == SHAPE_PEAKED ? 12 * x : shape == SHAPE_FLAT ? 0.01f * x : 2.5f * x;
        if (shape == SHAPE_TIES)
            row[i] = roundf(row[i] * 2) / 2;
        if (shape == SHAPE_BANNED && below(seed, 10))
            row[i] = -INFINITY;
        if (shape == SHAPE_HOSTILE && below(seed, 4) == 0)
            row[i] = below(seed, 3) ? NAN : -INFINITY;
    }
    if (shape == SHAPE_HOSTILE && below(seed, 3) == 0) { /* nothing to draw from, or too much */
        float with = below(seed, 2) ? NAN : -INFINITY;
        for (uint32_t i = 0; i < vocab; i++)
            row[i] = with;
        if (below(seed, 2))
            row[below(seed, vocab)] = below(seed, 2) ? INFINITY : 1.5f;
        if (below(seed, 2))
            row[below(seed, vocab)] = -INFINITY;
    }
}

static struct sampler *random_sampler(uint32_t vocab, uint64_t *seed)
{
    static const float temperature[] = {0, 0.2f, 0.7f, 1, 1, 1.5f, 3, 1e-7f}, top_p[] = {1, 1, 0.95f, 0.5f, 0.05f, 0.999f},
                       min_p[] = {0, 0, 0.02f, 0.3f, 1};
    static const uint32_t top_k[] = {0, 0, 1, 7, 50, 400, 700, 5000}, top[] = {0, 1, 5, 20};
    struct sampler_bias bias[40];
    struct sampler_params p = {.temperature = temperature[below(seed, ARRAY_COUNT(temperature))],
                               .top_k = top_k[below(seed, ARRAY_COUNT(top_k))],
                               .top_p = top_p[below(seed, ARRAY_COUNT(top_p))],
                               .min_p = min_p[below(seed, ARRAY_COUNT(min_p))],
                               .repetition_penalty = 1,
                               .seed = random_next(seed),
                               .choice = below(seed, 3),
                               .logprobs = below(seed, 3) == 0,
                               .top_logprobs = top[below(seed, ARRAY_COUNT(top))],
                               .bias = bias};
    if (below(seed, 3) == 0) {
        p.repetition_penalty = below(seed, 2) ? 1.3f : 1;
        p.presence_penalty = below(seed, 2) ? 0.4f : 0;
        p.frequency_penalty = 0.11f;
    }
    if (below(seed, 3) == 0)
        for (p.bias_count = 1 + below(seed, ARRAY_COUNT(bias)); p.bias_count && p.bias == bias; p.bias = NULL)
            for (uint32_t i = 0; i < p.bias_count; i++)
                bias[i] = (struct sampler_bias){below(seed, MIN(vocab, 60u)), below(seed, 9) ? random_normal(seed) * 3 : -INFINITY};
    p.bias = bias;
    struct sampler *sampler = open_sampler(&p, vocab);
    for (uint32_t i = 0; i < 60; i++)
        below(seed, 2) ? sampler_see_prompt(sampler, below(seed, vocab))
                       : sampler_see_generated(sampler, below(seed, MIN(vocab, 90u)));
    return sampler;
}

static bool same_or_near(float a, float b, double limit)
{
    return (isnan(a) && isnan(b)) || (isinf(a) && isinf(b) && a == b) || fabs((double)a - (double)b) <= limit;
}

/* Log-probabilities by plain sums in double. */
static double log_total_of(const float *logits, uint32_t vocab)
{
    double max = -INFINITY, sum = 0;
    for (uint32_t i = 0; i < vocab; i++)
        max = (double)logits[i] > max ? (double)logits[i] : max;
    for (uint32_t i = 0; i < vocab; i++)
        sum += isnan(logits[i]) ? 0 : exp((double)logits[i] - max);
    return log(sum) + max;
}

static void check_logprobs(const float *logits, uint32_t vocab, const struct sampler_result *got, const struct sampler_result *want)
{
    double log_total = log_total_of(logits, vocab);
    assert_int_equal(got->top_count, want->top_count);
    for (uint32_t i = 0; i < got->top_count; i++) {
        assert_int_equal(got->top[i].token, want->top[i].token);
        assert_true(same_or_near(got->top[i].logprob, want->top[i].logprob, 1e-6));
    }
    if (isfinite(log_total) && isfinite(logits[got->token]))
        assert_true(same_or_near(got->logprob, (float)((double)logits[got->token] - log_total), 1e-4));
    if (got->token == want->token)
        assert_true(same_or_near(got->logprob, want->logprob, 1e-6));
}

/* rows: asked for; drawn: by chance; differs: those of them that are not the host's token. */
struct tally {
    uint32_t rows, drawn, differs;
};

static void compare_rows(uint32_t vocab, enum shape shape, uint32_t all_rows, uint64_t seed, struct tally *tally)
{
    float *logits = malloc((size_t)all_rows * vocab * sizeof *logits);
    struct backend_sample *samples = calloc(all_rows, sizeof *samples);
    struct sampler_result *results = calloc(all_rows, sizeof *results), want;
    struct sampler **samplers = calloc(all_rows, sizeof *samplers);
    uint32_t rows = 0;
    struct sampler_scratch *scratch;

    assert_int_equal(sampler_scratch_open(vocab, &scratch), STATUS_OK);
    for (uint32_t row = 0; row < all_rows; row++) {
        const uint32_t i = rows;
        fill(logits + (size_t)i * vocab, vocab, shape, &seed);
        samples[i] = (struct backend_sample){.result = &results[i], .index = below(&seed, 5000)};
        samplers[i] = below(&seed, 8) ? random_sampler(vocab, &seed) : NULL;
        samples[i].sampler = samplers[i];
        if (!samplers[i])
            samples[i].token = below(&seed, vocab), samples[i].top_count = below(&seed, 21);
        if (rig_sample(row, ROW_PARTS))
            rows++;
        else if (samplers[i])
            sampler_close(samplers[i]);
    }
    tally->rows += rows;
    device_samples(logits, vocab, samples, rows);
    for (uint32_t i = 0; i < rows; i++) {
        const float *row = logits + (size_t)i * vocab;
        const struct sampler_result *got = &results[i];
        if (!samplers[i]) {
            sampler_score(row, vocab, samples[i].token, samples[i].top_count, scratch, &want);
            assert_int_equal(got->token, want.token);
            check_logprobs(row, vocab, got, &want);
            continue;
        }
        const struct sampler_params *p = sampler_params_of(samplers[i]);
        sampler_sample(samplers[i], row, NULL, samples[i].index, scratch, &want);
        tally->drawn++;
        if (got->token != want.token) {
            tally->differs++;
            if (p->temperature == 0 || !explained(samplers[i], row, vocab, samples[i].index, got->token))
                fail_msg("vocab %u shape %d row %u: token %u for %u; temperature %g top-k %u top-p %g min-p %g", vocab, (int)shape,
                         i, got->token, want.token, (double)p->temperature, p->top_k, (double)p->top_p, (double)p->min_p);
        }
        if (p->logprobs)
            check_logprobs(row, vocab, got, &want);
        else
            assert_true(got->logprob == 0 && got->top_count == 0);
        sampler_close(samplers[i]);
    }
    sampler_scratch_close(scratch);
    free(logits), free(samples), free(results), free(samplers);
}

static void test_beside_the_host(void **state)
{
    const struct {
        uint32_t vocab, rows;
    } sizes[] = {{7, 80}, {100, 80}, {1000, 80}, {2049, 60}, {49152, 12}, {128256, 6}};
    struct tally tally = {0};
    for (uint32_t i = 0; i < ARRAY_COUNT(sizes); i++)
        for (enum shape shape = SHAPE_NORMAL; shape < SHAPES; shape++)
            compare_rows(sizes[i].vocab, shape, sizes[i].rows, 1000u * i + (uint32_t)shape, &tally);
    print_message("%u tokens of %u rows drawn, %u others than the host's\n", tally.drawn, tally.rows, tally.differs);
    assert_true(tally.drawn > 0.786 * tally.rows && tally.differs * 1000 <= tally.drawn);
}

/* --- cases of their own ----------------------------------------------------------------------------------------------------- */

/* Draws of one row at many indices, beside the softmax: chi-square over the tokens, those that are rare together. */
static void chi_square(struct sampler_params params, const float *row, uint32_t vocab, const double *probability)
{
    enum { DRAWS = 1600 };
    float *logits = malloc((size_t)DRAWS * vocab * sizeof *logits);
    struct backend_sample *samples = calloc(DRAWS, sizeof *samples);
    struct sampler_result *results = calloc(DRAWS, sizeof *results);
    uint32_t *times = calloc(vocab, sizeof *times), freedom = 0;
    struct sampler *sampler = open_sampler(&params, vocab);
    double statistic = 0, rare = 0, rare_times = 0;

    for (uint32_t i = 0; i < DRAWS; i++) {
        memcpy(logits + (size_t)i * vocab, row, vocab * sizeof *row);
        samples[i] = (struct backend_sample){.sampler = sampler, .index = i, .result = &results[i]};
    }
    device_samples(logits, vocab, samples, DRAWS);
    for (uint32_t i = 0; i < DRAWS; i++)
        times[results[i].token]++;
    for (uint32_t token = 0; token < vocab; token++) {
        double expected = probability[token] * DRAWS;
        if (expected == 0)
            assert_int_equal(times[token], 0);
        if (expected < 10) {
            rare += expected, rare_times += times[token];
            continue;
        }
        statistic += (times[token] - expected) * (times[token] - expected) / expected;
        freedom++;
    }
    statistic += rare > 0 ? (rare_times - rare) * (rare_times - rare) / rare : 0;
    assert_true(freedom > 20 && statistic < freedom + 4 * sqrt(2.0 * freedom) && statistic > freedom - 4 * sqrt(2.0 * freedom));
    sampler_close(sampler);
    free(logits), free(samples), free(results), free(times);
}

static void test_distribution(void **state)
{
    enum { VOCAB = 96 };
    float row[VOCAB];
    double plain[VOCAB], cut[VOCAB] = {0}, total = 0, kept = 0;
    struct sampler_params params = SAMPLING;
    struct weighted order[VOCAB];
    uint64_t seed = 11;
    fill(row, VOCAB, SHAPE_NORMAL, &seed);
    params.temperature = 2, params.seed = 99;
    for (uint32_t i = 0; i < VOCAB; i++) {
        order[i] = (struct weighted){exp((double)row[i] / 2), i};
        total += order[i].weight;
    }
    for (uint32_t i = 0; i < VOCAB; i++)
        plain[i] = order[i].weight / total;
    if (rig_sample(0, 2))
        chi_square(params, row, VOCAB, plain);
    qsort(order, VOCAB, sizeof *order, heavier_first);
    for (uint32_t i = 0; kept < 0.8 * total; i++)
        cut[order[i].token] = order[i].weight, kept += order[i].weight;
    for (uint32_t i = 0; i < VOCAB; i++)
        cut[i] /= kept;
    params.top_p = 0.8f;
    if (rig_sample(1, 2))
        chi_square(params, row, VOCAB, cut);
}

/* Everything level: the lowest ids, in all that sorts; none of it fits the list. */
static void test_a_level_row(void **state)
{
    enum { VOCAB = 20000, ROWS = 6 };
    float *logits = calloc((size_t)ROWS * VOCAB, sizeof *logits);
    struct sampler_params params[ROWS];
    struct backend_sample samples[ROWS];
    struct sampler_result results[ROWS], again[ROWS];

    for (uint32_t i = 0; i < ROWS; i++) {
        params[i] = SAMPLING;
        params[i].temperature = i ? 1 : 0, params[i].seed = 3, params[i].logprobs = true, params[i].top_logprobs = 20;
        samples[i] = (struct backend_sample){.index = 77, .result = &results[i]};
        for (uint32_t t = 0; t < VOCAB; t++)
            logits[(size_t)i * VOCAB + t] = t % 2 ? 0.0f : -0.0f; /* one value, two patterns */
    }
    params[2].top_k = 10, params[3].top_k = 9000, params[4].top_p = 0.25f, params[5].top_k = 100, params[5].top_p = 0.5f;
    for (uint32_t i = 0; i < ROWS; i++)
        samples[i].sampler = open_sampler(&params[i], VOCAB);
    device_samples(logits, VOCAB, samples, ROWS);
    const uint32_t kept[ROWS] = {1, VOCAB, 10, 9000, 5000, 50};
    const double uniform = sampler_uniform(3, 0, 77);
    for (uint32_t i = 0; i < ROWS; i++) {
        assert_int_equal(results[i].token, (uint32_t)(uniform * kept[i]));
        assert_true(fabs((double)results[i].logprob + log(VOCAB)) < 1e-5);
        for (uint32_t t = 0; t < 20; t++)
            assert_true(results[i].top[t].token == t && fabs((double)results[i].top[t].logprob + log(VOCAB)) < 1e-5);
    }
    /* alone, and once more: the same bits */
    memcpy(again, results, sizeof again);
    for (uint32_t i = 0; i < ROWS; i++)
        device_samples(logits + (size_t)i * VOCAB, VOCAB, &samples[i], 1);
    assert_memory_equal(again, results, sizeof again);
    for (uint32_t i = 0; i < ROWS; i++)
        sampler_close((struct sampler *)samples[i].sampler);
    free(logits);
}

/* A row of `vocab` tokens whose heaviest are one of each thread's, 512 of them, then `MORE` others: weights one after the other, by `rank`.
 * Up to top_k = 512 what can be kept is bounded by the threads' own maxima (sample.cu); beyond, these say nothing of it. */
enum { EDGE = 512, MORE = 6 };

static void fill_edge(float *row, uint32_t vocab, uint32_t *rank /* [EDGE + MORE] tokens, the heaviest first */)
{
    for (uint32_t i = 0; i < vocab; i++)
        row[i] = -3 - (float)i / (float)vocab;
    for (uint32_t i = 0; i < EDGE; i++) { /* loads of one value are EDGE apart, those of four are neighbours */
        const uint32_t thread = (i * 5 + 3) % EDGE;
        rank[i] = vocab % 4 ? thread + EDGE * (thread % 4) : 4 * thread + thread % 4;
    }
    for (uint32_t i = 0; i < MORE; i++) /* a thread's second: the next four's, or the one beside it */
        rank[EDGE + i] = vocab % 4 ? (rank[i * 7] + EDGE) % (4 * EDGE) : rank[i * 7] / 4 * 4 + (rank[i * 7] + 1) % 4;
    for (uint32_t i = 0; i < EDGE + MORE; i++)
        row[rank[i]] = 2 - (float)i / (EDGE + MORE);
}

/* Each row is drawn from as near to its end that it must be the last token that top-k keeps. */
static void test_the_edge_of_top_k(void **state)
{
    static const uint32_t vocabs[] = {2048, 2049, 4000}, top_ks[] = {EDGE - 1, EDGE, EDGE + 1, EDGE + MORE};
    struct backend_sample samples[ARRAY_COUNT(top_ks)];
    struct sampler_result results[ARRAY_COUNT(top_ks)], want;

    for (uint32_t v = 0; v < ARRAY_COUNT(vocabs); v++) {
        const uint32_t vocab = vocabs[v];
        float *logits = malloc(ARRAY_COUNT(top_ks) * vocab * sizeof *logits);
        uint32_t rank[EDGE + MORE];
        struct sampler_scratch *scratch;
        assert_non_null(logits);
        assert_int_equal(sampler_scratch_open(vocab, &scratch), STATUS_OK);
        for (uint32_t i = 0; i < ARRAY_COUNT(top_ks); i++) {
            struct sampler_params params = SAMPLING;
            double total = 0, last = 0;
            uint32_t index = 0;
            fill_edge(logits + (size_t)i * vocab, vocab, rank);
            for (uint32_t k = 0; k < top_ks[i]; k++)
                total += last = exp((double)logits[(size_t)i * vocab + rank[k]]);
            params.temperature = 1, params.top_k = top_ks[i], params.seed = 5;
            while (fabs((1 - sampler_uniform(params.seed, 0, index)) * total / last - 0.5) > 0.4)
                index++;
            samples[i] = (struct backend_sample){.sampler = open_sampler(&params, vocab), .index = index, .result = &results[i]};
        }
        device_samples(logits, vocab, samples, ARRAY_COUNT(top_ks));
        for (uint32_t i = 0; i < ARRAY_COUNT(top_ks); i++) {
            sampler_sample(samples[i].sampler, logits + (size_t)i * vocab, NULL, samples[i].index, scratch, &want);
            assert_int_equal(want.token, rank[top_ks[i] - 1]);
            assert_int_equal(results[i].token, want.token);
            sampler_close((struct sampler *)samples[i].sampler);
        }
        sampler_scratch_close(scratch);
        free(logits);
    }
}

/* More penalties and biases than there is room for: the row is not the device's. */
static void test_what_does_not_fit(void **state)
{
    struct sampler_bias bias[5] = {{1, 1}, {2, 1}, {3, 1}, {1, 2}, {1, 3}};
    struct sampler_params params = SAMPLING;
    struct sampler_result result;
    struct gpu_adjust adjust[8];
    struct gpu_sample asked;
    uint32_t used = 4;
    params.bias = bias, params.bias_count = 5, params.logprobs = true;
    struct sampler *sampler = open_sampler(&params, 100);
    const struct backend_sample sample = {.sampler = sampler, .result = &result};
    cuda_ask(&sample, 100, adjust, &used, 8, &asked);
    assert_true(asked.flags == 0 && asked.bias_count == 0 && used == 4);
    used = 3;
    cuda_ask(&sample, 100, adjust, &used, 8, &asked);
    assert_true(asked.flags == (GPU_DRAW | GPU_SCORE) && asked.adjust_first == 3 && used == 8);
    sampler_close(sampler);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_beside_the_host), cmocka_unit_test(test_distribution),
                                       cmocka_unit_test(test_a_level_row), cmocka_unit_test(test_the_edge_of_top_k),
                                       cmocka_unit_test(test_what_does_not_fit)};
    return rig_begin(NULL) ? rig_end(cmocka_run_group_tests_name("cuda sampling", tests, NULL, NULL)) : 0;
}
