// dialect.c: see dialect.h.
#include "services/gateway/api/dialects/dialect.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/checked.h"
#include "common/base/clock.h"

void dialect_free_own(const struct dialect *dialect, void *own)
{
    if (own)
        dialect->free_own(own);
}

bool dialect_translate(const struct dialect *dialect, struct dialect_ask *ask, struct api_error *error)
{
    *error = (struct api_error){0};
    if (dialect->translate(ask, error))
        return true;
    json_decref(ask->chat);
    ask->chat = NULL;
    dialect_free_own(dialect, ask->own);
    ask->own = NULL;
    return error->status != 0 ? false : api_no_memory(error);
}

// Replaces 'old' by 'new' in the message, if there is room for it.
static void rename_in_message(struct api_error *error, const char *old, const char *new)
{
    char quoted[128], message[sizeof error->message];
    const char *at;

    snprintf(quoted, sizeof quoted, "'%s'", old);
    at = strstr(error->message, quoted);
    if (!at)
        return;
    snprintf(message, sizeof message, "%.*s'%s'%s", (int)(at - error->message), error->message, new, at + strlen(quoted));
    memcpy(error->message, message, sizeof message);
}

void dialect_rename_field(const struct dialect *dialect, struct api_error *error)
{
    for (const struct dialect_rename *row = dialect->renamed; row && row->chat; row++) {
        const size_t length = strlen(row->chat);
        if (strncmp(error->param, row->chat, length) != 0 || !strchr("[.", error->param[length])) // strchr finds the end, too
            continue;
        rename_in_message(error, row->chat, row->own);
        snprintf(error->param, sizeof error->param, "%s", row->own); // places within it may be others
        return;
    }
}

// --- a run --------------------------------------------------------------------------------------------------------
struct dialect_run *dialect_run_open(const struct dialect *dialect, struct dialect_ask *ask)
{
    struct dialect_run *run = calloc(1, sizeof *run);

    if (!run)
        return NULL;
    run->dialect = dialect;
    run->created_s = clock_wall_us() / 1000000;
    snprintf(run->id, sizeof run->id, "%s%s", ask->id[0] ? "" : dialect->id_prefix, ask->id[0] ? ask->id : ask->request_id);
    run->kind = ask->kind;
    run->own = ask->own;
    run->only_loads = ask->only_loads;
    run->only_warms = ask->only_warms;
    ask->own = NULL;
    return run;
}

void dialect_run_close(struct dialect_run *run)
{
    if (!run)
        return;
    for (uint32_t i = 0; i < run->item_count; i++) {
        text_free(&run->items[i].id);
        text_free(&run->items[i].name);
        text_free(&run->items[i].data);
        text_free(&run->items[i].logprobs);
    }
    free(run->items);
    text_free(&run->logprobs);
    text_free(&run->whole);
    dialect_free_own(run->dialect, run->own);
    free(run);
}

static struct dialect_item *last_item(struct dialect_run *run) { return run->item_open ? &run->items[run->item_count - 1] : NULL; }

// The tokens' log-probabilities go where their text is.
static void take_logprobs(struct dialect_run *run, struct dialect_item *item)
{
    if (run->logprobs.bytes == 0)
        return;
    shown_comma(&item->logprobs, item->logprobs.bytes == 0);
    text_append(&item->logprobs, run->logprobs.data, run->logprobs.bytes);
    run->failed |= item->logprobs.failed || run->logprobs.failed;
    text_clear(&run->logprobs);
}

static void close_item(struct dialect_run *run, struct text *out)
{
    struct dialect_item *item = last_item(run);

    if (!item)
        return;
    if (item->part == DIALECT_TEXT) // of a token without text
        take_logprobs(run, item);
    run->item_open = false;
    if (out && run->dialect->item_end)
        run->dialect->item_end(run, item, out);
}

static struct dialect_item *open_item(struct dialect_run *run, const struct dialect_piece *piece, struct text *out)
{
    struct dialect_item *item;

    if (run->item_count == run->item_capacity) {
        const uint32_t wanted = run->item_capacity ? run->item_capacity * 2 : 4;
        struct dialect_item *grown = realloc(run->items, wanted * sizeof *grown);
        if (!grown) {
            run->failed = true;
            return NULL;
        }
        run->items = grown;
        run->item_capacity = wanted;
    }
    item = &run->items[run->item_count++];
    *item = (struct dialect_item){.part = piece->part, .call = piece->call, .custom = piece->custom};
    text_string(&item->id, piece->id ? piece->id : "");
    text_append(&item->name, piece->name, piece->name_bytes);
    run->item_open = true;
    if (out && run->dialect->item_begin)
        run->dialect->item_begin(run, item, out);
    return item;
}

static void begin(struct dialect_run *run, struct text *out)
{
    if (!run->begun && out && run->dialect->begin)
        run->dialect->begin(run, out);
    run->begun = true;
}

void dialect_push(struct dialect_run *run, const struct dialect_piece *piece, struct text *out)
{
    struct dialect_item *item = last_item(run);

    begin(run, out);
    if (run->only_warms)
        return;
    if (item && (item->part != piece->part || (piece->part == DIALECT_CALL && item->call != piece->call))) {
        close_item(run, out);
        item = NULL;
    }
    if (!item)
        item = open_item(run, piece, out);
    if (!item || piece->bytes == 0)
        return;
    text_append(&item->data, piece->data, piece->bytes);
    run->failed |= item->data.failed || item->id.failed || item->name.failed;
    if (out && run->dialect->delta)
        run->dialect->delta(run, item, piece->data, piece->bytes, out);
    if (item->part == DIALECT_TEXT)
        take_logprobs(run, item);
}

static bool is_in_call(const struct dialect_run *run, uint32_t *call)
{
    const struct dialect_item *last = run->item_open ? &run->items[run->item_count - 1] : NULL;

    *call = last ? last->call : 0;
    return last && last->part == DIALECT_CALL;
}

// --- what a choice shows, as pieces ---------------------------------------------------------------------------------
static void push_text(struct dialect_run *run, enum dialect_part part, struct text *text, struct text *out)
{
    const struct dialect_piece piece = {.part = part, .data = text->data, .bytes = text->bytes};

    if (text->bytes > 0)
        dialect_push(run, &piece, out);
    text_clear(text);
}

// A call begins with its first piece, which may have no arguments yet.
static void push_call(struct dialect_run *run, uint32_t number, struct shown_call *call, struct text *out)
{
    const struct dialect_piece piece = {.part = DIALECT_CALL,
                                        .call = number,
                                        .id = call->id,
                                        .custom = call->is_custom,
                                        .data = call->arguments.data,
                                        .bytes = call->arguments.bytes,
                                        .name = call->name.data,
                                        .name_bytes = call->name.bytes};

    if (!shown_call_has_news(call))
        return;
    dialect_push(run, &piece, out);
    call->head_shown = true;
    text_clear(&call->arguments);
}

// In the order in which models write: what is thought, what is said, what is called. A call that has begun goes on first.
static void push_news(struct dialect_run *run, const struct dialect_news *news, struct text *out)
{
    struct shown_answer *answer = news->answer;
    uint32_t call;

    run->prompt_tokens = news->prompt_tokens;
    shown_tokens_move_content(news->tokens, &run->logprobs);
    if (answer && is_in_call(run, &call) && call < answer->call_count)
        push_call(run, call, &answer->calls[call], out);
    if (answer)
        push_text(run, DIALECT_REASONING, &answer->reasoning, out);
    push_text(run, DIALECT_TEXT, news->text, out);
    for (uint32_t i = 0; answer && i < answer->call_count; i++)
        push_call(run, i, &answer->calls[i], out);
}

void dialect_show(struct dialect_run *run, const struct dialect_news *news, struct text *out)
{
    if (run->dialect->show)
        run->dialect->show(run, news, out);
    else
        push_news(run, news, out);
}

// An answer without any text is an empty text.
static void finish(struct dialect_run *run, struct text *out)
{
    if (run->dialect->show) // it has no items
        return;
    begin(run, out);
    if (run->item_count == 0)
        dialect_push(run, &(struct dialect_piece){.part = DIALECT_TEXT}, out);
    close_item(run, out);
}

void dialect_end_stream(struct dialect_run *run, const struct dialect_end *end, struct text *out)
{
    run->end = end;
    finish(run, out);
    run->dialect->end(run, end, out);
    run->end = NULL;
    out->failed |= run->failed;
}

void dialect_end_whole(struct dialect_run *run, const struct dialect_end *end, struct text *out)
{
    finish(run, NULL);
    run->dialect->whole(run, end, out);
    out->failed |= run->failed;
}

void dialect_fail_stream(struct dialect_run *run, const struct api_error *error, struct text *out)
{
    begin(run, out);
    run->dialect->error(run, error, out);
}
