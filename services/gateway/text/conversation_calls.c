// conversation_calls.c: which result belongs to which call, and the ids that tell so.
//
// Results are matched by the id that they name, or without one in the order of the last message's calls. Some clients give all calls
// the same id: their results are matched in order, too. The template gets what is missing: the id of the call and the name of its
// function. Ids that it would refuse are replaced, at the call and its results alike. A new id depends on the old one and on what came
// before, and on nothing else, so that the next turn of the conversation has the same prefix.
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/text.h"
#include "services/gateway/text/conversation_calls.h"

enum { ID_BYTES = 9, MATCH_MAX = 128 }; // those of a message without ids that are looked at

struct matching {
    const struct call_form *form;
    json_t *by_id; // a group for each id that the client gave
    json_t *used;  // ids that the template is shown; true: made here
    json_t *open;  // borrowed: calls of the last message that has some
    bool answered[MATCH_MAX];
    const json_t **owners;                        // [message]: the call whose result it is, borrowed; NULL: none
    size_t call_count, message_count, made_count; // made_count: of ids
    json_t *strays;                               // results of no call
};

// A group is a list: the number of the last message with calls of this id, how many results they have, these calls.
enum { GROUP_MESSAGE, GROUP_RESULTS, GROUP_CALLS };

static bool is_short_id(const json_t *id)
{
    const char *text = json_string_value(id);

    return json_string_length(id) == ID_BYTES &&
           strspn(text, "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz") == ID_BYTES;
}

static bool has_zero(const json_t *string) { return memchr(json_string_value(string), 0, json_string_length(string)); }

// Returns a new id that stands for what is in `seed`; NULL: no memory.
static json_t *make_id(struct matching *matching, const char *seed, size_t bytes)
{
    static const char letters[] = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
    uint64_t hash = 14695981039346656037u; // FNV-1a (RFC 9923)
    char text[ID_BYTES + 1] = "";

    for (size_t i = 0; i < bytes; i++)
        hash = (hash ^ (unsigned char)seed[i]) * 1099511628211u;
    do {
        uint64_t rest = hash ^ hash >> 29;
        for (size_t i = 0; i < ID_BYTES; i++, rest /= sizeof letters - 1)
            text[i] = letters[rest % (sizeof letters - 1)];
        // Another one, on which no earlier call with the same seed has come.
        hash = (hash ^ ++matching->made_count) * 1099511628211u;
    } while (json_object_get(matching->used, text));
    return json_object_set_new(matching->used, text, json_true()) == 0 ? json_string(text) : NULL;
}

// Whether the template needs another id than this one, which may be NULL.
static bool needs_new(const struct matching *matching, const json_t *id)
{
    if (!id)
        return matching->form->short_ids || matching->form->needs_ids;
    return matching->form->short_ids && (!is_short_id(id) || json_is_true(json_object_get(matching->used, json_string_value(id))));
}

static bool add_to_group(struct matching *matching, const char *id, json_t *call)
{
    json_t *group = json_object_get(matching->by_id, id);

    if (group && json_integer_value(json_array_get(group, GROUP_MESSAGE)) == (json_int_t)matching->message_count)
        return json_array_append(group, call) == 0;
    return json_object_set_new(matching->by_id, id, json_pack("[I,i,O]", (json_int_t)matching->message_count, 0, call)) == 0;
}

// The call that the next result of this id belongs to; NULL: none.
static json_t *next_of_group(const struct matching *matching, const char *id)
{
    const json_t *group = json_object_get(matching->by_id, id);
    json_t *results = json_array_get(group, GROUP_RESULTS);
    const json_int_t count = json_integer_value(results), last = (json_int_t)json_array_size(group) - GROUP_CALLS - 1;

    if (!group)
        return NULL;
    json_integer_set(results, count + 1);
    return json_array_get(group, GROUP_CALLS + (size_t)(count < last ? count : last));
}

static bool take_call(struct matching *matching, json_t *call)
{
    json_t *given = json_object_get(call, "id"), *id = json_is_string(given) ? given : NULL;
    bool ok = true;

    matching->call_count++;
    if (id && !has_zero(id))
        ok = add_to_group(matching, json_string_value(id), call);
    if (!ok || !needs_new(matching, id))
        return ok &&
               (!id || !matching->form->short_ids || json_object_set_new(matching->used, json_string_value(id), json_false()) == 0);
    char place[32];
    const int length = snprintf(place, sizeof place, "call %zu", matching->call_count);
    return json_object_set_new(call, "id",
                               id ? make_id(matching, json_string_value(id), json_string_length(id))
                                  : make_id(matching, place, (size_t)length)) == 0;
}

// The call of a result that names no id: the first one of its name, or of any, that has no result yet.
static json_t *next_open(const struct matching *matching, const json_t *name)
{
    for (size_t i = 0; i < json_array_size(matching->open) && i < MATCH_MAX; i++) {
        json_t *call = json_array_get(matching->open, i);
        if (!matching->answered[i] &&
            (!json_is_string(name) || json_equal(name, json_object_get(json_object_get(call, "function"), "name"))))
            return call;
    }
    return NULL;
}

static bool take_result(struct matching *matching, json_t *message, const json_t **owner)
{
    json_t *id = json_object_get(message, "tool_call_id"), *name = json_object_get(message, "name"), *call = NULL;

    if (!json_is_string(id))
        call = next_open(matching, name);
    else if (!has_zero(id))
        call = next_of_group(matching, json_string_value(id));
    *owner = call;
    if (!call && matching->form->no_strays && json_array_append(matching->strays, message) != 0)
        return false;
    for (size_t i = 0; i < json_array_size(matching->open) && i < MATCH_MAX; i++)
        matching->answered[i] |= json_array_get(matching->open, i) == call;
    json_t *called_id = json_object_get(call, "id"), *called = json_object_get(json_object_get(call, "function"), "name");
    if (called_id && json_object_set(message, "tool_call_id", called_id) != 0)
        return false;
    if (!call && json_is_string(id) && needs_new(matching, id) &&
        json_object_set_new(message, "tool_call_id", make_id(matching, json_string_value(id), json_string_length(id))) != 0)
        return false;
    return name || !called || json_object_set(message, "name", called) == 0;
}

// --- one call a message ---------------------------------------------------------------------------------------------------
// Returns the message with one of its calls: what else it has stays with the first.
static json_t *with_call(json_t *message, json_t *call, bool first)
{
    json_t *single = first ? json_copy(message) : json_pack("{s:s,s:n}", "role", "assistant", "content");

    if (single && json_object_set_new(single, "tool_calls", json_pack("[O]", call)) != 0) {
        json_decref(single);
        return NULL;
    }
    return single;
}

// Puts a message with several calls, and the results up to message `end`, into `out`: each call, then its results.
static bool split_calls(json_t *messages, const json_t **owners, size_t at, size_t end, json_t *out)
{
    json_t *message = json_array_get(messages, at), *calls = json_object_get(message, "tool_calls");
    bool ok = true;

    for (size_t c = 0; ok && c < json_array_size(calls); c++) {
        json_t *call = json_array_get(calls, c);
        ok = json_array_append_new(out, with_call(message, call, c == 0)) == 0;
        for (size_t i = at + 1; ok && i < end; i++)
            if (owners[i] == call)
                ok = json_array_append(out, json_array_get(messages, i)) == 0;
    }
    for (size_t i = at + 1; ok && i < end; i++) { // results of none of them
        bool placed = false;
        for (size_t c = 0; c < json_array_size(calls); c++)
            placed |= owners[i] == json_array_get(calls, c);
        ok = placed || json_array_append(out, json_array_get(messages, i)) == 0;
    }
    return ok;
}

static bool is_result(const json_t *message)
{
    const char *role = json_string_value(json_object_get(message, "role"));

    return role && strcmp(role, "tool") == 0;
}

// Moves what is said beside calls to a message before them.
static bool move_content(json_t *message, json_t *out)
{
    json_t *content = json_object_get(message, "content");

    return json_string_length(content) == 0 ||
           (json_array_append_new(out, json_pack("{s:s,s:O}", "role", "assistant", "content", content)) == 0 &&
            json_object_set_new(message, "content", json_null()) == 0);
}

static bool split_all(const struct call_form *form, json_t *messages, const json_t **owners)
{
    json_t *out = json_array();
    bool ok = out != NULL;

    for (size_t i = 0, end; ok && i < json_array_size(messages); i = end) {
        json_t *message = json_array_get(messages, i);
        end = i + 1;
        const size_t calls = json_array_size(json_object_get(message, "tool_calls"));
        ok = !form->content_apart || calls == 0 || move_content(message, out);
        if (!form->one_call || calls < 2) {
            ok = ok && json_array_append(out, message) == 0;
            continue;
        }
        while (is_result(json_array_get(messages, end)))
            end++;
        ok = ok && split_calls(messages, owners, i, end, out);
    }
    ok = ok && json_array_clear(messages) == 0 && json_array_extend(messages, out) == 0;
    json_decref(out);
    return ok;
}

// --- results of no call -----------------------------------------------------------------------------------------------------
void conversation_tell_result(struct text *out, const json_t *message)
{
    const json_t *name = json_object_get(message, "name"), *content = json_object_get(message, "content");

    text_string(out, out->bytes ? "\n\n" : "");
    if (json_is_string(name))
        text_format(out, "The function %s returned:\n", json_string_value(name));
    else
        text_string(out, "A function returned:\n");
    text_append(out, json_string_value(content), json_string_length(content));
}

static bool tell_strays(const json_t *strays)
{
    bool ok = true;

    for (size_t i = 0; ok && i < json_array_size(strays); i++) {
        json_t *message = json_array_get(strays, i);
        struct text text = {0};
        conversation_tell_result(&text, message);
        json_object_del(message, "tool_call_id");
        json_object_del(message, "name");
        ok = !text.failed && json_object_set_new(message, "role", json_string("user")) == 0 &&
             json_object_set_new(message, "content", json_stringn_nocheck(text.data, text.bytes)) == 0;
        text_free(&text);
    }
    return ok;
}

bool conversation_match_calls(const struct call_form *form, json_t *messages)
{
    const size_t count = json_array_size(messages);
    struct matching matching = {.form = form,
                                .by_id = json_object(),
                                .used = json_object(),
                                .owners = calloc(count + 1, sizeof *matching.owners),
                                .strays = json_array()};
    bool ok = matching.by_id && matching.used && matching.owners && matching.strays;

    for (size_t i = 0; ok && i < count; i++) {
        json_t *message = json_array_get(messages, i), *calls = json_object_get(message, "tool_calls");
        if (is_result(message)) {
            ok = take_result(&matching, message, &matching.owners[i]);
        } else if (json_array_size(calls) > 0) {
            matching.open = calls;
            matching.message_count++;
            memset(matching.answered, 0, sizeof matching.answered);
            for (size_t c = 0; ok && c < json_array_size(calls); c++)
                ok = take_call(&matching, json_array_get(calls, c));
        }
    }
    ok = ok && ((!form->one_call && !form->content_apart) || split_all(form, messages, matching.owners)) &&
         tell_strays(matching.strays);
    json_decref(matching.by_id);
    json_decref(matching.strays);
    json_decref(matching.used);
    free(matching.owners);
    return ok;
}
