// model.c: `fastdecode model FILE`: what a file holds, and the memory that serving it takes; or writes a synthetic one.
#include <stdio.h>
#include <string.h>

#include "common/base/checked.h"
#include "common/base/options.h"
#include "common/model/compute.h"
#include "common/model/pooling.h"
#include "common/sched/settings.h"
#include "kernels/backend/backend.h"
#include "kernels/dispatch/kernels.h"
#include "kernels/kv/kv_store.h"
#include "services/fastdecode/model/commands.h"
#include "services/fastdecode/model/synthetic.h"

enum { TYPES_MAX = 64, PAGE_TOKENS = 16, CHUNK_ROWS = 512, SEQUENCES_MAX = 16384 };

struct model_settings {
    const char *kv_type_name, *compute, *quantize;
    enum kv_type kv_type;
    uint32_t context, max_batch, kv_workers;
    uint64_t kv_memory, local_pool;
};

static void print_bytes(const char *what, uint64_t bytes)
{
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
    double value = (double)bytes;
    size_t unit = 0;
    for (; value >= 1024 && unit + 1 < ARRAY_COUNT(units); unit++)
        value /= 1024;
    printf("  %-34s %9.1f %-4s %16llu B\n", what, value, units[unit], (unsigned long long)bytes);
}

static void print_tensor_types(const struct model *model)
{
    uint32_t counts[TYPES_MAX] = {0};
    uint64_t bytes[TYPES_MAX] = {0};

    for (uint32_t i = 0; i < gguf_tensor_count(model->gguf); i++) {
        const struct gguf_tensor *tensor = gguf_tensor_at(model->gguf, i);
        if ((uint32_t)tensor->type < TYPES_MAX) {
            counts[tensor->type]++;
            bytes[tensor->type] += tensor->bytes;
        }
    }
    printf("tensors\n");
    for (uint32_t type = 0; type < TYPES_MAX; type++)
        if (counts[type]) {
            char what[64];
            snprintf(what, sizeof what, "%s, %u tensors", tensor_type_info(type)->name, counts[type]);
            print_bytes(what, bytes[type]);
        }
}

static uint32_t windowed_layers(const struct model *model)
{
    uint32_t count = 0;
    for (uint32_t l = 0; l < model->shape.layers; l++)
        count += model->layers[l].windowed;
    return count;
}

static void print_model(const struct model *model)
{
    const struct model_shape *s = &model->shape;
    const struct model_tokenizer *t = &model->tokenizer;

    printf("model\n");
    printf("  name           %.*s\n", (int)model->name.length, model->name.length ? model->name.data : "");
    printf("  architecture   %s, %.1f M parameters\n", model->arch_name, (double)model->parameters / 1e6);
    printf("  shape          %u layers, hidden %u, ffn %u, %u heads of %u, %u KV heads\n", s->layers, s->hidden, s->ffn, s->heads,
           s->head_dim, s->kv_heads);
    printf("  context        %u tokens\n", s->context_length);
    if (s->window)
        printf("  window         %u tokens in %u of the layers\n", s->window, windowed_layers(model));
    if (s->experts)
        printf("  experts        %u, each row goes through %u\n", s->experts, s->experts_used);
    printf("  vocabulary     %u tokens%s, tokenizer %.*s %.*s\n", s->vocab, model->tied ? ", output tied to the embedding" : "",
           (int)t->kind.length, t->kind.length ? t->kind.data : "", (int)t->pre.length, t->pre.length ? t->pre.data : "");
    if (model->pooling.kind)
        printf("  pooling        %s%s\n", model_pool_name(model->pooling.kind),
               model->pooling.kind == MODEL_POOL_RANK ? ""
               : model->pooling.normalize             ? ", vectors of length 1"
                                                      : "");
    printf("  chat template  %s\n", t->chat_template.length ? "yes" : "none (--chat-template FILE gives one)");
    print_tensor_types(model);
}

static enum status print_plan(const struct model *model, const struct model_settings *s, struct thread_pool *pool,
                              struct error *error)
{
    uint32_t context = s->context ? MIN(s->context, model->shape.context_length) : model->shape.context_length;
    const struct backend_config config = {
        .model = model,
        .pool = pool,
        .max_batches = 1,
        .context_tokens = context,
        .page_tokens = PAGE_TOKENS,
        .compute = !strcmp(s->compute, "f32")    ? COMPUTE_F32
                   : !strcmp(s->compute, "int8") ? COMPUTE_INT8
                                                 : COMPUTE_AUTO,
        .quantize_bits = QUANTIZE_BITS(s->quantize),
        .max_rows = (s->max_batch + CHUNK_ROWS + 15) / 16 * 16,
        .kv_type = s->kv_type,
        .max_sequences = SEQUENCES_MAX,
        .local_pool_bytes = s->local_pool,
    };
    struct backend_plan plan;
    enum status status = backend_cpu.plan(&config, &plan, error);

    if (status)
        return status;
    printf("memory plan (context %u, batch %u, KV %s)\n", context, s->max_batch, s->kv_type_name);
    print_bytes("s-part: weights", plan.weight_bytes);
    print_bytes("s-part: activations, logits", plan.activation_bytes);
    print_bytes("s-part: while loading", plan.start_bytes);
    print_bytes("s-part: local pool, scratch", plan.pool_fixed_bytes);
    print_bytes("s-part: local pool, tables at most", plan.pool_table_bytes);
    print_bytes("s-part: local pool, pages at most", s->local_pool);
    print_bytes("each kv-worker: pages at most", s->kv_memory);
    print_bytes("a page (16 tokens)", plan.pool_page_bytes);
    print_bytes("KV of a token", plan.pool_page_bytes / PAGE_TOKENS);
    print_bytes("KV of a full context", plan.pool_page_bytes * ((context + PAGE_TOKENS - 1) / PAGE_TOKENS));
    print_bytes("all, pages in use at most", plan.weight_bytes + plan.activation_bytes + plan.pool_fixed_bytes +
                                                 plan.pool_table_bytes + s->local_pool + s->kv_workers * s->kv_memory);
    return STATUS_OK;
}

static void print_architectures(void)
{
    struct arch_description a;

    printf("| architecture | models | norms | positions | MLP | attention |\n| --- | --- | --- | --- | --- | --- |\n");
    for (uint32_t i = 0; arch_describe(i, &a); i++)
        printf("| `%s` | %s | %s | %s | %s | %s |\n", a.name, a.families, a.norms, a.positions, a.mlp, a.attention);
}

int model_main(int argc, char **argv)
{
    struct model_settings s = {.kv_type_name = "f16",
                               .compute = "auto",
                               .quantize = "none",
                               .max_batch = 128,
                               .kv_workers = 1,
                               .kv_memory = 1ull << 30,
                               .local_pool = 1ull << 30};
    struct synthetic_config synthetic = {.type = "q4_0"};
    uint32_t seed = 1;
    bool architectures = false;
    const struct option options[] = {
        {"kv-type", OPTION_STRING, &s.kv_type_name, "TYPE", KV_TYPE_NAMES, 0, 0},
        {"compute", OPTION_CHOICE, &s.compute, COMPUTE_NAMES, COMPUTE_HELP, 0, 0},
        {"quantize", OPTION_CHOICE, &s.quantize, QUANTIZE_NAMES, QUANTIZE_HELP, 0, 0},
        {"context", OPTION_U32, &s.context, "TOKENS", "longest sequence; 0: the model's", 0, 1 << 24},
        {"max-batch", OPTION_U32, &s.max_batch, "N", SCHED_RUNNING_HELP, 1, SCHED_RUNNING_MAX},
        {"kv-workers", OPTION_U32, &s.kv_workers, "N", "KV workers", 0, SCHED_WORKERS_MAX},
        {"kv-memory", OPTION_SIZE, &s.kv_memory, "SIZE", "memory for the pages of each KV worker", 0, 0},
        {"local-pool", OPTION_SIZE, &s.local_pool, "SIZE", "memory for the pages of the s-part", 0, 0},
        {"synthetic", OPTION_STRING, &synthetic.shape, "SHAPE", "write FILE with random weights: " SYNTHETIC_SHAPES, 0, 0},
        {"type", OPTION_STRING, &synthetic.type, "TYPE", "with --synthetic: type of the matrices: " SYNTHETIC_TYPES, 0, 0},
        {"layers", OPTION_U32, &synthetic.layers, "N", "with --synthetic: layers; 0: as many as the shape has", 0, 512},
        {"seed", OPTION_U32, &seed, "N", "with --synthetic: seed of the weights", 0, UINT32_MAX},
        {"architectures", OPTION_BOOL, &architectures, "on|off", "print a table of the architectures that can be served; no FILE",
         0, 0},
    };
    struct program program = {
        .name = "fastdecode model",
        .purpose = "shows what a GGUF file holds and the memory it takes, or writes a synthetic one for measuring speed",
        .options = options,
        .option_count = ARRAY_COUNT(options),
        .operand_name = "FILE"};
    struct thread_pool *pool = NULL;
    struct model *model = NULL;
    struct error error;
    enum status status = options_parse(&program, argc, argv, &error);

    if (!status && architectures && program.operand_count == 0) {
        print_architectures();
        return 0;
    }
    if (!status)
        status = kv_type_parse(s.kv_type_name, &s.kv_type, &error);
    if (!status && program.operand_count != 1)
        status = error_set(&error, STATUS_INVALID_ARGUMENT, "want one FILE (see --help)");
    if (!status && synthetic.shape) {
        synthetic.path = program.operands[0];
        synthetic.seed = seed;
        status = synthetic_write(&synthetic, &error);
        if (status)
            fprintf(stderr, "fastdecode model: %s\n", error.text);
        return status ? (int)error_exit_code(&error) : 0;
    }
    if (!status)
        status = kernels_init(NULL, &error);
    if (!status && thread_pool_open(cpu_count_usable(), &pool))
        status = error_set(&error, STATUS_RESOURCE_EXHAUSTED, "no threads");
    if (!status)
        status = model_open(program.operands[0], &model, &error);
    if (!status) {
        print_model(model);
        status = print_plan(model, &s, pool, &error);
    }
    if (status)
        fprintf(stderr, "fastdecode model: %s\n", error.text);
    model_close(model);
    thread_pool_close(pool);
    return status ? (int)error_exit_code(&error) : 0;
}
