// check.c: compares what the gateway says, and what lies in its folder, with the model.
#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/api/batch.h"
#include "common/base/checked.h"
#include "tests/sim/disk/model.h"

enum { OUTPUT, ERRORS };

static const char *text_of(json_t *object, const char *name)
{
    const char *text = json_string_value(json_object_get(object, name));
    return text ? text : "";
}

// The call must be answered with 200. NULL: it was not, or not with JSON.
static json_t *ask(enum batch_call_kind kind, uint32_t tenant, const char *what)
{
    struct reply reply = gateway_call(kind, tenant, "", NULL);
    json_t *root = reply.status == 200 ? json_loadb(reply.body, reply.bytes, 0, NULL) : NULL;

    if (!root)
        sim_fail("%s: status %d: %.200s", what, reply.status, reply.body ? reply.body : "");
    reply_free(&reply);
    return root;
}

static const char *get_content(uint32_t tenant, const char *id, size_t *bytes)
{
    struct reply reply = gateway_call(BATCH_FILE_CONTENT, tenant, id, NULL);

    if (reply.status != 200 && !disk.off && (!disk.armed || reply.status < 500))
        sim_fail("the content of %s: status %d: %.200s", id, reply.status, reply.body ? reply.body : "");
    const bool there = reply.status == 200 && !disk.off;
    reply_free(&reply);
    return there ? wrap_content(bytes) : NULL;
}

void check_content(const struct file_model *file)
{
    size_t bytes = 0;
    const char *content = get_content(file->tenant, file->id, &bytes);

    if (content && (bytes != file->bytes || memcmp(content, file->content, bytes)))
        sim_fail("%s: %zu bytes, and not those that were uploaded, %zu", file->id, bytes, file->bytes);
}

// --- results

// The line that a request's result is, if it was answered.
static bool is_answer(const struct batch_model *batch, uint32_t number, const char *line, size_t bytes, bool *failed)
{
    char id[BATCH_ID_BYTES + 24], custom_id[32], body[ANSWER_BYTES_MAX];
    struct text wanted = {0};

    snprintf(id, sizeof id, "batch_req_%.16s_%u", batch->id + strlen("batch_"), number);
    snprintf(custom_id, sizeof custom_id, "c%u-%u", batch->file, number);
    const int status = model_answer(batch->file, number, body, sizeof body);
    const struct batch_result result = {
        .id = id, .custom_id = custom_id, .status = status, .request_id = id, .body = body, .body_bytes = strlen(body)};
    batch_result_write(&wanted, &result);
    const bool same = wanted.bytes == bytes && memcmp(wanted.data, line, bytes) == 0;
    text_free(&wanted);
    *failed = status != 200;
    return same;
}

static bool has(const char *line, size_t bytes, const char *text) { return memmem(line, bytes, text, strlen(text)) != NULL; }

// Whether a line may be among the results. *number: of the line of the input.
static bool is_result(const struct batch_model *batch, bool cancelled, int kind, const char *line, size_t bytes, uint32_t *number)
{
    const struct file_model *file = &model.files[batch->file];
    const char *quote = memchr(line, '"', bytes), *digits = NULL;
    bool failed;

    for (uint32_t i = 0; i < 3 && quote; i++) // {"id":"batch_req_0123_4"
        quote = memchr(quote + 1, '"', (size_t)(line + bytes - quote - 1));
    for (digits = quote; digits && digits > line && *digits != '_'; digits--)
        ;
    *number = digits ? (uint32_t)strtoul(digits + 1, NULL, 10) : 0;
    if (*number < 1 || *number > file->lines)
        return false;
    if (file->is_request[*number] && is_answer(batch, *number, line, bytes, &failed))
        return failed == (kind == ERRORS);
    return kind == ERRORS && has(line, bytes, "\"response\":null") &&
           ((cancelled && has(line, bytes, "batch_cancelled")) ||
            (!file->is_request[*number] && has(line, bytes, "\"custom_id\":null")));
}

// Each line of the input has its result, once.
static void check_results(const struct batch_model *batch, const char *status, uint64_t counts_given[3])
{
    const bool cancelled = strcmp(status, "cancelled") == 0;
    const uint32_t lines = model.files[batch->file].lines;
    uint64_t found[2] = {0};
    bool seen[LINES_MAX + 1] = {false};

    for (int kind = OUTPUT; kind <= ERRORS; kind++) {
        const char *at = batch->content[kind], *end = at + batch->bytes[kind];
        while (at < end) {
            const char *next = memchr(at, '\n', (size_t)(end - at));
            const size_t bytes = next ? (size_t)(next - at) + 1 : (size_t)(end - at);
            uint32_t number;
            if (!is_result(batch, cancelled, kind, at, bytes, &number) || seen[number]) {
                sim_fail("batch %s: no result, or one that is there twice: %.*s", batch->id, (int)MIN(bytes, (size_t)200), at);
                return;
            }
            seen[number] = true;
            found[kind]++;
            at += bytes;
        }
    }
    if (!cancelled && found[OUTPUT] + found[ERRORS] != lines)
        sim_fail("batch %s is completed with %" PRIu64 " results of %u lines", batch->id, found[OUTPUT] + found[ERRORS], lines);
    const uint64_t failed = cancelled ? counts_given[0] - found[OUTPUT] : found[ERRORS];
    if (counts_given[0] > lines || counts_given[1] != found[OUTPUT] || counts_given[2] != failed)
        sim_fail("batch %s says total %" PRIu64 " completed %" PRIu64 " failed %" PRIu64 ", its results are %" PRIu64
                 " and %" PRIu64 " of %u lines",
                 batch->id, counts_given[0], counts_given[1], counts_given[2], found[OUTPUT], found[ERRORS], lines);
}

// --- batches

// It is over: takes its results, or compares them with what they were.
static void check_over(struct batch_model *batch, json_t *entry, const char *status)
{
    static const char *const names[] = {"output_file_id", "error_file_id"};
    json_t *given = json_object_get(entry, "request_counts");
    uint64_t counts_given[3] = {(uint64_t)json_integer_value(json_object_get(given, "total")),
                                (uint64_t)json_integer_value(json_object_get(given, "completed")),
                                (uint64_t)json_integer_value(json_object_get(given, "failed"))};

    for (int kind = OUTPUT; kind <= ERRORS; kind++) {
        const char *id = text_of(entry, names[kind]), *content;
        size_t bytes = 0;
        if (batch->over[0] && strcmp(id, batch->results[kind]))
            sim_fail("batch %s: its results are %s now, they were %s", batch->id, id, batch->results[kind]);
        if (!id[0])
            continue;
        content = get_content(batch->tenant, id, &bytes);
        if (!content)
            return;
        if (batch->over[0] && (bytes != batch->bytes[kind] || memcmp(content, batch->content[kind], bytes)))
            sim_fail("batch %s: its results %s have changed", batch->id, id);
        if (batch->over[0])
            continue;
        snprintf(batch->results[kind], sizeof batch->results[kind], "%s", id);
        batch->content[kind] = sim_grow(batch->content[kind], bytes + 1);
        memcpy(batch->content[kind], content, bytes);
        batch->bytes[kind] = bytes;
    }
    if (!batch->over[0])
        check_results(batch, status, counts_given);
    snprintf(batch->over, sizeof batch->over, "%s", status);
}

static void check_batch(json_t *entry, uint32_t tenant)
{
    const char *status = text_of(entry, "status"), *id = text_of(entry, "id");
    const uint32_t index = (uint32_t)strtoul(text_of(json_object_get(entry, "metadata"), "n"), NULL, 10);
    struct batch_model *batch = &model.batches[index];
    const bool cancelled = strcmp(status, "cancelled") == 0, completed = strcmp(status, "completed") == 0;

    if (index >= model.batch_count || batch->tenant != tenant || batch->seen || batch->is == GONE ||
        (batch->id[0] && strcmp(batch->id, id)) || strcmp(text_of(entry, "input_file_id"), model.files[batch->file].id)) {
        sim_fail("batch %s with n=%u: nobody was told that it is there", id, index);
        return;
    }
    counts.after_all += batch->is == MAYBE && batch->refused;
    snprintf(batch->id, sizeof batch->id, "%s", id);
    batch->is = THERE;
    batch->seen = true;
    if (cancelled || strcmp(status, "cancelling") == 0) {
        if (batch->cancel == GONE)
            sim_fail("batch %s is %s: nobody has asked for that", id, status);
        batch->cancel = THERE;
    } else if (batch->cancel == THERE) {
        sim_fail("batch %s is %s, it was cancelled", id, status);
    }
    if (strcmp(status, "failed") == 0 || strcmp(status, "expired") == 0)
        sim_fail("batch %s is %s", id, status);
    if (batch->over[0] && strcmp(batch->over, status))
        sim_fail("batch %s is %s, it was %s", id, status, batch->over);
    if (cancelled || completed)
        check_over(batch, entry, status);
}

static void check_batches(bool at_start)
{
    for (uint32_t i = 0; i < model.batch_count; i++)
        model.batches[i].seen = false;
    for (uint32_t tenant = 0; tenant < TENANTS; tenant++) {
        json_t *root = ask(BATCH_LIST, tenant, "the list of batches"), *entry;
        size_t i;
        json_array_foreach (json_object_get(root, "data"), i, entry)
            check_batch(entry, tenant);
        json_decref(root);
    }
    for (uint32_t i = 0; i < model.batch_count; i++) {
        struct batch_model *batch = &model.batches[i];
        if (batch->is == THERE && !batch->seen)
            sim_fail("batch %s is gone", batch->id);
        if (batch->is == MAYBE && at_start)
            batch->is = GONE;
    }
}

// --- files

static void check_file(json_t *entry, uint32_t tenant)
{
    const char *id = text_of(entry, "id"), *name = text_of(entry, "filename");
    const uint64_t bytes = (uint64_t)json_integer_value(json_object_get(entry, "bytes"));
    const uint32_t index = strncmp(name, "up-", 3) == 0 ? (uint32_t)strtoul(name + 3, NULL, 10) : FILES_MAX;

    if (index < model.file_count) {
        struct file_model *file = &model.files[index];
        if (file->is == GONE || file->seen || file->tenant != tenant || bytes != file->bytes ||
            (file->id[0] && strcmp(file->id, id)))
            sim_fail("file %s, %s, of %" PRIu64 " bytes: nobody was told that it is there", id, name, bytes);
        counts.after_all += file->is == MAYBE && file->refused;
        snprintf(file->id, sizeof file->id, "%s", id);
        file->is = THERE;
        file->seen = true;
        check_content(file);
        return;
    }
    for (uint32_t i = 0; i < model.batch_count; i++)
        for (int kind = OUTPUT; kind <= ERRORS; kind++)
            if (model.batches[i].over[0] && strcmp(model.batches[i].results[kind], id) == 0 &&
                model.batches[i].bytes[kind] == bytes)
                return;
    sim_fail("file %s, %s, of %" PRIu64 " bytes: of no batch that is over", id, name, bytes);
}

static void check_files(bool at_start)
{
    for (uint32_t i = 0; i < model.file_count; i++)
        model.files[i].seen = false;
    for (uint32_t tenant = 0; tenant < TENANTS; tenant++) {
        json_t *root = ask(BATCH_FILE_LIST, tenant, "the list of files"), *entry;
        size_t i;
        json_array_foreach (json_object_get(root, "data"), i, entry)
            check_file(entry, tenant);
        json_decref(root);
    }
    for (uint32_t i = 0; i < model.file_count; i++) {
        struct file_model *file = &model.files[i];
        if (file->is == THERE && !file->seen)
            sim_fail("file %s, up-%u, is gone", file->id, i);
        if (file->is == MAYBE && at_start)
            file->is = GONE;
    }
}

// --- the folder

static bool is_known(const char *name)
{
    for (uint32_t i = 0; i < model.file_count; i++)
        if (model.files[i].is != GONE && strcmp(model.files[i].id, name) == 0)
            return true;
    for (uint32_t i = 0; i < model.batch_count; i++)
        if (!strcmp(model.batches[i].results[OUTPUT], name) || !strcmp(model.batches[i].results[ERRORS], name))
            return true;
    return false;
}

// All that lies there belongs to a file or to a batch at work, and the store knows how much it is.
static void check_folder(bool at_start)
{
    uint32_t unknown = 0, open = 0;
    struct inode *folder;
    uint64_t bytes = 0;

    if (files_find(STORE_DIR "/files", &folder)) {
        sim_fail("there is no folder for files");
        return;
    }
    for (uint32_t i = 0; files_name(folder, i); i++) {
        bytes += files_bytes(files_in(folder, files_name(folder, i)));
        unknown += !is_known(files_name(folder, i));
    }
    for (uint32_t i = 0; i < model.batch_count; i++)
        open += model.batches[i].is == THERE && !model.batches[i].over[0];
    if (at_start && unknown > 2 * open)
        sim_fail("%u files lie there that belong to nobody", unknown - 2 * open);
    struct batch_store *store = gateway_store();
    const bool no_more = batch_store_reserve(store, "", STORE_BYTES_MAX - bytes);
    if (!no_more || batch_store_reserve(store, "", 1))
        sim_fail("the store counts %s than the %" PRIu64 " bytes that lie there", no_more ? "less" : "more", bytes);
    batch_store_release(store, "", STORE_BYTES_MAX - bytes);
}

void check_all(bool at_start)
{
    check_batches(at_start);
    check_files(at_start);
    if (at_start || !disk.bytes_stay) // else some may lie there for now that could not be removed
        check_folder(at_start);
}
