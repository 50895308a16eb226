// grammars.c: see grammars.h.
//
// The key of the cache is what the grammar is made of, as text. It is compared as a whole.
#include "services/gateway/text/grammars.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/checked.h"
#include "common/grammar/build.h"
#include "common/json/json_text.h"
#include "common/schema/schema.h"
#include "services/gateway/http/json_write.h"

// --- wanted ----------------------------------------------------------------------------------------------------------

enum { CHOICES_MAX = 1 << 14 };

// Appends what makes up the grammar, as text: equal texts, equal grammars.
static void wanted_key(const struct wanted *wanted, struct text *key)
{
    const struct api_form *form = wanted->form;
    const struct answer_grammar_options *answer = &wanted->answer;

    text_format(key, "%s %x %s %d;", answer->family ? answer_family_name(answer->family) : "-", (unsigned)answer->unit_markers,
                answer->reasoning ? answer_reasoning_name(answer->reasoning) : "-", answer->reasoning_is_open);
    text_format(key, "%d %d %d %d %d:", (int)form->kind, (int)form->space, form->is_strict, form->open_objects, form->in_any_order);
    if (form->json)
        json_text_append(key, form->json, false);
    if (form->text)
        text_append(key, form->text, form->bytes);
    if (!answer->tools)
        return;
    text_append(key, "", 1); // no text has a zero
    text_format(key, "%s %d %d %d:", answer->only ? answer->only : "", answer->one_call, answer->open_objects,
                answer->in_any_order);
    json_text_append(key, answer->tools, false);
}

static uint32_t add_choices(struct grammar_builder *builder, const json_t *list)
{
    const size_t count = json_array_size(list);
    uint32_t *nodes, node;

    if (count > CHOICES_MAX)
        return grammar_builder_fail(builder, STATUS_INVALID_ARGUMENT, "%zu choices, at most %d are allowed", count, CHOICES_MAX);
    nodes = calloc(MAX(count, (size_t)1), sizeof *nodes);
    if (!nodes)
        return grammar_builder_fail(builder, STATUS_UNAVAILABLE, "out of memory");
    for (size_t i = 0; i < count; i++)
        nodes[i] = grammar_text(builder, json_string_value(json_array_get(list, i)));
    node = grammar_either(builder, nodes, (uint32_t)count);
    free(nodes);
    return node;
}

static uint32_t add_form(struct grammar_builder *builder, const struct api_form *form)
{
    const struct grammar_schema_options options = {
        .space = form->space == API_SPACE_NONE    ? GRAMMAR_SPACE_NONE
                 : form->space == API_SPACE_LINES ? GRAMMAR_SPACE_LINES
                                                  : GRAMMAR_SPACE_ONE,
        .closed_by_default = form->is_strict || !form->open_objects,
        .is_strict = form->is_strict,
        .in_any_order = form->in_any_order,
    };

    switch (form->kind) {
    case API_FORM_SCHEMA: return grammar_add_schema(builder, form->json, &options);
    case API_FORM_OBJECT: return grammar_add_json_object(builder, &options);
    case API_FORM_REGEX: return grammar_add_regex(builder, form->text, form->bytes, true);
    case API_FORM_CHOICE: return add_choices(builder, form->json);
    case API_FORM_GBNF: return grammar_add_gbnf(builder, form->text, form->bytes);
    default: return grammar_nothing(builder);
    }
}

// Compiles it. The caller frees *out. The errors are those of common/grammar.
static enum status wanted_compile(const struct wanted *wanted, struct grammar **out, struct error *error)
{
    struct grammar_builder *builder = grammar_builder_open();
    enum status status;

    *out = NULL;
    if (!builder)
        return error_set(error, STATUS_UNAVAILABLE, "out of memory");
    const uint32_t thoughts = answer_add_reasoning(builder, &wanted->answer);
    uint32_t said = grammar_nothing(builder);
    if (wanted->form->kind != API_FORM_NONE)
        said = answer_add_content(builder, &wanted->answer, add_form(builder, wanted->form));
    if (wanted->answer.tools)
        said = grammar_either(builder, (const uint32_t[]){said, answer_add_calls(builder, &wanted->answer)}, 2);
    status = grammar_compile(builder, grammar_sequence(builder, (const uint32_t[]){thoughts, said}, 2), out, error);
    grammar_builder_close(builder);
    return status;
}

enum {
    KEPT_MAX = 64,
    KEPT_BYTES_MAX = 16 << 20, // keys and grammars together
};

// --- the cache -------------------------------------------------------------------------------------------------------
struct packed_grammar {
    atomic_uint users; // relaxed to count up, acquire-release to count down: the last one frees what others have written
    size_t bytes;
    unsigned char data[];
};

struct kept {
    char *key; // [key_bytes]; NULL: free
    size_t key_bytes;
    struct packed_grammar *grammar;
    uint64_t used_at;
};

struct grammars {
    pthread_mutex_t mutex;
    struct kept kept[KEPT_MAX];
    size_t bytes;
    uint64_t uses;
};

struct grammars *grammars_open(void)
{
    struct grammars *grammars = calloc(1, sizeof *grammars);

    if (grammars)
        pthread_mutex_init(&grammars->mutex, NULL);
    return grammars;
}

void packed_grammar_let_go(struct packed_grammar *grammar)
{
    if (grammar && atomic_fetch_sub_explicit(&grammar->users, 1, memory_order_acq_rel) == 1)
        free(grammar);
}

static struct packed_grammar *hold(struct packed_grammar *grammar)
{
    atomic_fetch_add_explicit(&grammar->users, 1, memory_order_relaxed);
    return grammar;
}

const void *packed_grammar_bytes(const struct packed_grammar *grammar, size_t *count)
{
    *count = grammar->bytes;
    return grammar->data;
}

static void forget(struct grammars *grammars, struct kept *kept)
{
    if (!kept->key)
        return;
    grammars->bytes -= kept->key_bytes + kept->grammar->bytes;
    packed_grammar_let_go(kept->grammar);
    free(kept->key);
    *kept = (struct kept){0};
}

void grammars_close(struct grammars *grammars)
{
    if (!grammars)
        return;
    for (uint32_t i = 0; i < KEPT_MAX; i++)
        forget(grammars, &grammars->kept[i]);
    pthread_mutex_destroy(&grammars->mutex);
    free(grammars);
}

// --- the cache; under the mutex

static struct packed_grammar *find(struct grammars *grammars, const struct text *key)
{
    for (uint32_t i = 0; i < KEPT_MAX; i++) {
        struct kept *kept = &grammars->kept[i];
        if (!kept->key || kept->key_bytes != key->bytes || memcmp(kept->key, key->data, key->bytes) != 0)
            continue;
        kept->used_at = ++grammars->uses;
        return hold(kept->grammar);
    }
    return NULL;
}

// Returns the free entry, or the one that was unused for longest; NULL: none is used.
static struct kept *oldest(struct grammars *grammars, bool or_free)
{
    struct kept *best = NULL;

    for (uint32_t i = 0; i < KEPT_MAX; i++) {
        struct kept *kept = &grammars->kept[i];
        if (!kept->key && or_free)
            return kept;
        if (kept->key && (!best || kept->used_at < best->used_at))
            best = kept;
    }
    return best;
}

static void keep(struct grammars *grammars, const struct text *key, struct packed_grammar *grammar)
{
    const size_t bytes = key->bytes + grammar->bytes;
    struct packed_grammar *other = find(grammars, key);
    char *copy = other || bytes > KEPT_BYTES_MAX / 4 ? NULL : malloc(key->bytes);

    packed_grammar_let_go(other); // another request was quicker
    if (!copy)
        return;
    memcpy(copy, key->data, key->bytes);
    while (grammars->bytes + bytes > KEPT_BYTES_MAX)
        forget(grammars, oldest(grammars, false));
    struct kept *entry = oldest(grammars, true);
    forget(grammars, entry);
    *entry = (struct kept){.key = copy, .key_bytes = key->bytes, .grammar = hold(grammar), .used_at = ++grammars->uses};
    grammars->bytes += bytes;
}

static enum status pack(struct grammar *grammar, struct packed_grammar **out, struct error *error)
{
    size_t bytes;
    const void *packed = grammar_packed(grammar, &bytes);

    *out = malloc(sizeof **out + bytes);
    if (!*out)
        return error_set(error, STATUS_UNAVAILABLE, "out of memory");
    atomic_init(&(*out)->users, 1);
    (*out)->bytes = bytes;
    memcpy((*out)->data, packed, bytes);
    return STATUS_OK;
}

enum status grammars_get(struct grammars *grammars, const struct wanted *wanted, struct packed_grammar **out, struct error *error)
{
    struct text key = {0};
    struct grammar *grammar = NULL;
    enum status status = STATUS_OK;

    wanted_key(wanted, &key);
    if (key.failed) {
        text_free(&key);
        return error_set(error, STATUS_UNAVAILABLE, "out of memory");
    }
    pthread_mutex_lock(&grammars->mutex);
    *out = find(grammars, &key);
    pthread_mutex_unlock(&grammars->mutex);
    if (!*out && !(status = wanted_compile(wanted, &grammar, error)))
        status = pack(grammar, out, error);
    if (!status && grammar) {
        pthread_mutex_lock(&grammars->mutex);
        keep(grammars, &key, *out);
        pthread_mutex_unlock(&grammars->mutex);
    }
    grammar_free(grammar);
    text_free(&key);
    return status;
}
