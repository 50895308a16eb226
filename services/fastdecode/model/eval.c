// eval.c: `fastdecode eval`: what a KV type, sparse attention or weights in fewer bits cost in quality: perplexity, and KL divergence from
// KV in f32 and weights as they are, on a text file. --table compares all of them, beside what the FlexGen paper claims.
//
// Both runs use the same compute mode. In int8 any small change flips some roundings of activations, which sets a floor of about 7e-4 for
// the default model; KV types that differ by less cannot be told apart. So the default is f32.
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <jansson.h>
#include <utf8proc.h>

#include "common/base/checked.h"
#include "common/base/clock.h"
#include "common/base/options.h"
#include "common/kv/kv_shape.h"
#include "common/model/compute.h"
#include "common/model/vocabulary.h"
#include "kernels/dispatch/kernels.h"
#include "services/fastdecode/model/commands.h"
#include "services/fastdecode/model/evaluate.h"

enum { TEXT_MAX_BYTES = 64 << 20, CONTEXT_TOKENS = 512, PROGRESS_US = 2000000 };

struct eval_settings {
    const char *model, *text, *kv_type_name, *sparse_attention, *quantize, *compute;
    uint32_t tokens, context, threads;
    bool json, table;
    enum kv_type kv_type;
    uint32_t sparse_percent;
};

static enum status parse(struct eval_settings *s, int argc, char **argv, bool *check_only, struct error *error)
{
    const struct option options[] = {
        {"model", OPTION_STRING, &s->model, "FILE", "GGUF file, or directory of Hugging Face files (required)", 0, 0},
        {"text", OPTION_STRING, &s->text, "FILE", "UTF-8 text to read, such as a book's chapter (required)", 0, 0},
        {"kv-type", OPTION_STRING, &s->kv_type_name, "TYPE", "KV type to compare with f32: " KV_TYPE_NAMES, 0, 0},
        {KV_SPARSE_OPTION, OPTION_STRING, &s->sparse_attention, KV_SPARSE_NAMES,
         "compare sparse attention, also for the prompt's tokens; --kv-type f32 shows its effect alone", 0, 0},
        {"quantize", OPTION_CHOICE, &s->quantize, QUANTIZE_NAMES,
         "compare weights quantized to 4 or 8 bits with those of the file; --kv-type f32 shows their effect alone", 0, 0},
        {"table", OPTION_BOOL, &s->table, NULL,
         "compare every KV type, and weights in 8 and 4 bits if the file has them in 16 or 32", 0, 0},
        {"compute", OPTION_CHOICE, &s->compute, "f32|int8",
         "compute mode of both runs; f32 shows the effect of the KV type alone, int8 adds some rounding", 0, 0},
        {"tokens", OPTION_U32, &s->tokens, "N", "tokens to read from the start of the text; 0: all", 0, 1 << 30},
        {"context", OPTION_U32, &s->context, "TOKENS", "the text is cut into contexts of this length, each read on its own", 2,
         1 << 20},
        {"threads", OPTION_U32, &s->threads, "N", "compute threads; 0: one per usable CPU, each pinned", 0, 1024},
        {"json", OPTION_BOOL, &s->json, NULL, "print the figures as one JSON object", 0, 0},
    };
    struct program program = {
        .name = "fastdecode eval",
        .purpose =
            "measures what a KV type, sparse attention or weights in fewer bits cost in quality: perplexity and KL divergence on a text",
        .options = options,
        .option_count = ARRAY_COUNT(options)};
    enum status status = options_parse(&program, argc, argv, error);

    *check_only = program.check_only;
    if (status)
        return status;
    if (!s->model)
        return error_set(error, STATUS_INVALID_ARGUMENT, "--model FILE is missing (`make model` gets a small one)");
    if (!s->text)
        return error_set(error, STATUS_INVALID_ARGUMENT,
                         "--text FILE is missing: any UTF-8 text of a few thousand words, similar to what the model will serve");
    if (kv_sparse_parse(s->sparse_attention, &s->sparse_percent, error))
        return error->status;
    return kv_type_parse(s->kv_type_name, &s->kv_type, error);
}

// --- the text --------------------------------------------------------------------------------------------------------

static enum status check_utf8(const char *path, const char *text, size_t bytes, struct error *error)
{
    for (size_t at = 0; at < bytes;) {
        utf8proc_int32_t code;
        utf8proc_ssize_t n = utf8proc_iterate((const utf8proc_uint8_t *)text + at, (utf8proc_ssize_t)MIN(bytes - at, 4u), &code);
        if (n <= 0)
            return error_set(error, STATUS_INVALID_ARGUMENT, "--text %s: byte 0x%02x at offset %zu is not UTF-8", path,
                             (unsigned char)text[at], at);
        at += (size_t)n;
    }
    return STATUS_OK;
}

// Reads the whole file. The caller frees *out, also after a failure.
static enum status read_text(const char *path, char **out, size_t *bytes, struct error *error)
{
    FILE *file = fopen(path, "re");
    size_t capacity = 1 << 16;
    enum status status = STATUS_OK;

    *bytes = 0;
    *out = NULL;
    if (!file)
        return error_set(error, STATUS_NOT_FOUND, "--text %s: %s", path, strerror(errno));
    for (;;) {
        char *grown = realloc(*out, capacity);
        if (!grown) {
            status = error_set(error, STATUS_RESOURCE_EXHAUSTED, "--text %s: cannot allocate %zu bytes", path, capacity);
            break;
        }
        *out = grown;
        *bytes += fread(*out + *bytes, 1, capacity - *bytes, file);
        if (*bytes < capacity)
            break;
        if (capacity > TEXT_MAX_BYTES) {
            status = error_set(error, STATUS_INVALID_ARGUMENT, "--text %s: longer than %d MiB", path, TEXT_MAX_BYTES >> 20);
            break;
        }
        capacity *= 2;
    }
    if (!status && ferror(file))
        status = error_set(error, STATUS_INVALID_ARGUMENT, "--text %s: %s", path, strerror(errno));
    fclose(file);
    return status ? status : check_utf8(path, *out, *bytes, error);
}

// Returns the text's token ids (malloc'd, at most --tokens of them) and the token that the model expects before a text (MODEL_NO_TOKEN: none).
static enum status tokenize(const struct eval_settings *s, const struct model *model, uint32_t **ids, uint32_t *count,
                            uint32_t *first_token, struct error *error)
{
    struct tokenizer *tokenizer = NULL;
    struct text_segment segment = {.bytes = ""};
    char *text = NULL;
    uint32_t *special = NULL, special_count = 0;
    enum status status = read_text(s->text, &text, &segment.length, error);

    *first_token = MODEL_NO_TOKEN;
    if (!status)
        status = vocabulary_open(model, &tokenizer, error);
    if (!status)
        status = tokenizer_encode(tokenizer, &(struct text_segment){.bytes = ""}, 1, true, 8, &special, &special_count, error);
    if (!status && special_count && special[0] == model->tokenizer.bos)
        *first_token = special[0];
    segment.bytes = text;
    if (!status)
        status = tokenizer_encode(tokenizer, &segment, 1, false, UINT32_MAX, ids, count, error);
    if (!status && *count < 2)
        status = error_set(error, STATUS_INVALID_ARGUMENT, "--text %s: %u tokens are too few to compare", s->text, *count);
    if (!status && s->tokens)
        *count = MIN(*count, MAX(s->tokens, 2u));
    free(special);
    free(text);
    tokenizer_close(tokenizer);
    return status;
}

// --- the run ---------------------------------------------------------------------------------------------------------

struct outcome {
    char level[32];
    uint32_t tokens, contexts;
    double seconds;
    struct divergence_summary sum;
};

// items: [count]
static enum status run_all(struct evaluation *evaluation, const uint32_t *ids, uint32_t count, struct divergence *items,
                           struct outcome *out, struct error *error)
{
    uint64_t began_us = clock_now_us(), told_us = began_us;
    uint32_t positions = 0;

    for (uint32_t done = 0; count - done >= 2;) {
        uint32_t take = evaluation_context_tokens(evaluation, count - done), more;
        enum status status = evaluation_run(evaluation, ids + done, take, items + positions, &more, error);
        if (status)
            return status;
        done += take;
        positions += more;
        out->contexts++;
        out->tokens = done;
        if (clock_now_us() - told_us > PROGRESS_US) {
            divergence_sum(items, positions, &out->sum);
            fprintf(stderr, "fastdecode eval: %u of %u tokens, mean KL so far %.3g\n", done, count, out->sum.kl_mean);
            told_us = clock_now_us();
        }
    }
    divergence_sum(items, positions, &out->sum);
    out->seconds = (double)(clock_now_us() - began_us) / 1e6;
    if (!isfinite(out->sum.kl_mean) || !isfinite(out->sum.perplexity) || !isfinite(out->sum.reference_perplexity))
        return error_set(error, STATUS_DATA_LOSS, "the model's logits are not finite on this text");
    return STATUS_OK;
}

// Shared by all comparisons.
struct subject {
    struct model *model;
    struct thread_pool *pool;
    uint32_t *ids, count, first_token;
    struct divergence *items; // [count]
};

static void close_subject(struct subject *subject)
{
    thread_pool_close(subject->pool);
    free(subject->items);
    free(subject->ids);
    model_close(subject->model);
}

// A failure leaves what close_subject() closes.
static enum status open_subject(const struct eval_settings *s, struct subject *out, struct error *error)
{
    enum status status = kernels_init(NULL, error);

    if (!status)
        status = model_open(s->model, &out->model, error);
    if (!status && s->context > out->model->shape.context_length)
        status = error_set(error, STATUS_INVALID_ARGUMENT, "--context is %u, the model's is %u", s->context,
                           out->model->shape.context_length);
    if (!status)
        status = tokenize(s, out->model, &out->ids, &out->count, &out->first_token, error);
    if (!status && !(out->items = calloc(out->count, sizeof *out->items)))
        status = error_set(error, STATUS_RESOURCE_EXHAUSTED, "cannot allocate results for %u positions", out->count);
    if (!status && thread_pool_open(s->threads ? s->threads : cpu_count_usable(), &out->pool))
        status = error_set(error, STATUS_RESOURCE_EXHAUSTED, "cannot start the compute threads");
    return status;
}

static enum status evaluate(const struct eval_settings *s, const struct subject *subject, struct outcome *out, struct error *error)
{
    const struct evaluation_config config = {
        .model = subject->model,
        .pool = subject->pool,
        .compute = !strcmp(s->compute, "f32") ? COMPUTE_F32 : COMPUTE_INT8,
        .kv_type = s->kv_type,
        .sparse_percent = s->sparse_percent,
        .quantize_bits = QUANTIZE_BITS(s->quantize),
        .context_tokens = s->context,
        .first_token = subject->first_token,
    };
    struct evaluation *evaluation = NULL;
    enum status status = evaluation_open(&config, &evaluation, error);

    if (!status) {
        snprintf(out->level, sizeof out->level, "%s", evaluation_level(evaluation));
        status = run_all(evaluation, subject->ids, subject->count, subject->items, out, error);
    }
    evaluation_close(evaluation);
    return status;
}

// --- the figures -----------------------------------------------------------------------------------------------------

static void print_text(const struct eval_settings *s, const struct outcome *out)
{
    const struct divergence_summary *sum = &out->sum;

    printf("%s, %s\n", s->model, s->text);
    printf("  text             %u tokens in %u contexts of %u: %u positions compared, %.1f s\n", out->tokens, out->contexts,
           s->context, sum->positions, out->seconds);
    printf("  compute          %s\n", out->level);
    if (s->sparse_percent)
        printf("  attention        the best %u %% of each context\n", s->sparse_percent);
    if (QUANTIZE_BITS(s->quantize))
        printf("  weights          matrices in F32, F16 and BF16 quantized to %u bits\n", QUANTIZE_BITS(s->quantize));
    printf("  perplexity       %.4f with KV %s, %.4f with f32 (%+.3f %%)\n", sum->perplexity, s->kv_type_name,
           sum->reference_perplexity, 100 * (sum->perplexity / sum->reference_perplexity - 1));
    printf("  KL divergence    %.3g mean (standard error %.1g), %.3g largest, at position %u\n", sum->kl_mean, sum->kl_error,
           sum->kl_max, sum->kl_max_at);
    printf("  same best token  %.2f %%\n", 100 * sum->same_best);
}

static json_t *outcome_json(const struct eval_settings *s, const struct outcome *out)
{
    const struct divergence_summary *sum = &out->sum;
    return json_pack("{s:s, s:s, s:s, s:s, s:I, s:I, s:s, s:I, s:I, s:I, s:f, s:f, s:f, s:f, s:f, s:I, s:f, s:f}", "model",
                     s->model, "text", s->text, "compute", out->level, "kv_type", s->kv_type_name, "sparse_percent",
                     (json_int_t)s->sparse_percent, "quantize_bits", (json_int_t)QUANTIZE_BITS(s->quantize), "reference_kv_type",
                     "f32", "tokens", (json_int_t)out->tokens, "context", (json_int_t)s->context, "positions",
                     (json_int_t)sum->positions, "perplexity", sum->perplexity, "reference_perplexity", sum->reference_perplexity,
                     "kl_mean", sum->kl_mean, "kl_standard_error", sum->kl_error, "kl_max", sum->kl_max, "kl_max_at",
                     (json_int_t)sum->kl_max_at, "same_best", sum->same_best, "seconds", out->seconds);
}

static int print_json(json_t *root)
{
    int failed = !root || json_dumpf(root, stdout, 0);

    json_decref(root);
    printf("%s", failed ? "" : "\n");
    return failed;
}

// --- the table -------------------------------------------------------------------------------------------------------

static const struct comparison {
    const char *kv_type, *quantize;
} comparisons[] = {
    {"f16", "none"}, {"bf16", "none"}, {"int8", "none"}, {"int4", "none"}, {"int4x", "none"},
    {"f32", "8"},    {"f32", "4"},     {"int4", "4"},    {"int4x", "4"},
};

static void print_row(const struct eval_settings *s, const struct outcome *out)
{
    const struct divergence_summary *sum = &out->sum;

    printf("  %-7s %-10s %10.4f %+8.3f %% %10.2e %9.2g %8.2f %%\n", s->kv_type_name,
           QUANTIZE_BITS(s->quantize) ? s->quantize : "as they are", sum->perplexity,
           100 * (sum->perplexity / sum->reference_perplexity - 1), sum->kl_mean, sum->kl_max, 100 * sum->same_best);
    fflush(stdout);
}

static void print_head(const struct eval_settings *s, const struct subject *subject)
{
    printf("%s, %s: %u tokens in contexts of %u, beside KV in f32 and weights as they are\n\n", s->model, s->text, subject->count,
           s->context);
    printf("  KV      weights    perplexity     change    mean KL largest KL  same best\n");
}

static void print_claim(bool weights)
{
    if (!weights)
        printf("\nWeights in fewer bits are left out: the file has none in F32, F16 or BF16.\n");
    printf(
        "\nFlexGen (arXiv 2303.06865) claims for weights and KV in 4 bits, groups of 64, with OPT-30B and OPT-175B: \"negligible accuracy "
        "loss\".\nIts form of KV is int4x's, of weights that of 4; int4 keeps K in 8 bits.\n");
}

// Runs all comparisons, those of weights only if there are some to quantize.
static enum status run_table(const struct eval_settings *settings, const struct subject *subject, json_t *rows, struct error *error)
{
    struct eval_settings s = *settings;
    bool weights = backend_quantizes(subject->model, 4);

    if (!s.json)
        print_head(&s, subject);
    for (size_t i = 0; i < ARRAY_COUNT(comparisons); i++) {
        struct outcome outcome = {.tokens = 0};
        s.kv_type_name = comparisons[i].kv_type;
        s.quantize = comparisons[i].quantize;
        if (QUANTIZE_BITS(s.quantize) && !weights)
            continue;
        enum status status = kv_type_parse(s.kv_type_name, &s.kv_type, error);
        if (!status)
            status = evaluate(&s, subject, &outcome, error);
        if (status)
            return status;
        if (s.json)
            json_array_append_new(rows, outcome_json(&s, &outcome));
        else
            print_row(&s, &outcome);
    }
    if (!s.json)
        print_claim(weights);
    return STATUS_OK;
}

static enum status run_one(const struct eval_settings *s, const struct subject *subject, struct error *error)
{
    struct outcome outcome = {.tokens = 0};
    enum status status = evaluate(s, subject, &outcome, error);

    if (!status && s->json)
        return print_json(outcome_json(s, &outcome)) ? error_set(error, STATUS_INTERNAL, "cannot write JSON") : STATUS_OK;
    if (!status)
        print_text(s, &outcome);
    return status;
}

int eval_main(int argc, char **argv)
{
    struct eval_settings s = {
        .kv_type_name = "f16", .sparse_attention = "off", .quantize = "none", .compute = "f32", .context = CONTEXT_TOKENS};
    struct subject subject = {.model = NULL};
    struct error error;
    bool check_only;
    enum status status = parse(&s, argc, argv, &check_only, &error);

    if (!status)
        status = open_subject(&s, &subject, &error);
    if (!status && s.table && !check_only) {
        json_t *rows = json_array();
        status = run_table(&s, &subject, rows, &error);
        if (!status && s.json && print_json(json_incref(rows)))
            status = error_set(&error, STATUS_INTERNAL, "cannot write JSON");
        json_decref(rows);
    } else if (!status && !check_only) {
        status = run_one(&s, &subject, &error);
    }
    close_subject(&subject);
    if (status) {
        fprintf(stderr, "fastdecode eval: %s\n", error.text);
        return (int)error_exit_code(&error);
    }
    return 0;
}
