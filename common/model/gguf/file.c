// file.c: opens a GGUF file, or the parts of one as one set of keys and tensors.
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/checked.h"
#include "common/model/gguf/gguf.h"
#include "common/model/gguf/header.h"

// --- parts ----------------------------------------------------------------------------------------------------------

// A model may be split into several GGUF files. The first part has the model's keys, and may have tensors; the others have tensors. Each
// says which one it is (split.no, from 0), of how many (split.count), and how many tensors there are in all (split.tensors.count). The
// parts lie in one directory, and their names differ in the number alone.

enum { MAX_PARTS = 1024, SUFFIX_BYTES = 20, SHOWN_NAME_BYTES = 72 }; // "-00001-of-00003.gguf"

struct parts {
    struct gguf *gguf[MAX_PARTS];
    uint32_t count, opened;
    struct error *error;
};

static void write_suffix(char suffix[SUFFIX_BYTES + 1], uint32_t index, uint32_t count)
{
    snprintf(suffix, SUFFIX_BYTES + 1, "-%05u-of-%05u.gguf", (index + 1) % 100000, count % 100000);
}

// Reads the numbers of a part and checks them against its place.
static enum status check_part(struct parts *parts, const struct gguf *gguf, uint32_t index)
{
    uint32_t number = 0, count = 0;
    enum status status;

    if ((status = gguf_get_u32(gguf, "split.no", &number, parts->error)) ||
        (status = gguf_get_u32(gguf, "split.count", &count, parts->error))) {
        if (status == STATUS_NOT_FOUND) // what is missing is no file
            status = error_set(parts->error, STATUS_INVALID_ARGUMENT,
                               "%s: not a part of a model: it has no keys split.no and split.count", gguf->label);
        return status;
    }
    if (count != parts->count || number != index)
        return error_set(parts->error, STATUS_INVALID_ARGUMENT, "%s: says that it is part %u of %u, expected part %u of %u",
                         gguf->label, number + 1, count, index + 1, parts->count);
    return STATUS_OK;
}

// Checks the first part's own numbers, and the number in its name.
static enum status check_first(struct parts *parts, struct gguf *first)
{
    char suffix[SUFFIX_BYTES + 1];
    size_t length = strlen(first->name), stem = length > SUFFIX_BYTES ? length - SUFFIX_BYTES : length;
    uint32_t number = 0;
    enum status status;

    if ((status = gguf_get_u32(first, "split.count", &parts->count, parts->error)))
        return status;
    if (parts->count > MAX_PARTS)
        return error_set(parts->error, STATUS_INVALID_ARGUMENT, "%s: key 'split.count' is %u, expected up to %d", first->label,
                         parts->count, MAX_PARTS);
    if (gguf_has(first, "split.no") && (status = gguf_get_u32(first, "split.no", &number, parts->error)))
        return status;
    if (number >= parts->count)
        return error_set(parts->error, STATUS_INVALID_ARGUMENT, "%s: key 'split.no' is %u, expected less than split.count, %u",
                         first->label, number, parts->count);
    write_suffix(suffix, number, parts->count);
    bool named = strcmp(first->name + stem, suffix) == 0;
    write_suffix(suffix, 0, parts->count);
    if (!named)
        return error_set(parts->error, STATUS_INVALID_ARGUMENT,
                         "%s: part %u of %u by its keys: the parts' names must end in their numbers, the first in %s", first->label,
                         number + 1, parts->count, suffix);
    if (number != 0) {
        char *wanted = strdup(first->name), label[GGUF_LABEL_BYTES];
        if (!wanted)
            return error_set(parts->error, STATUS_RESOURCE_EXHAUSTED, "%s: no memory for a name", first->label);
        memcpy(wanted + stem, suffix, SUFFIX_BYTES);
        gguf_make_label(label, wanted);
        free(wanted);
        return error_set(parts->error, STATUS_INVALID_ARGUMENT, "%s: part %u of %u; open the first, %s, which stands for all",
                         first->label, number + 1, parts->count, label);
    }
    return check_part(parts, first, 0);
}

// A tensor may be in one part only.
static enum status check_tensors(const struct parts *parts, const struct gguf *gguf)
{
    char shown[SHOWN_NAME_BYTES], name[GGUF_MAX_NAME_BYTES + 1];

    for (uint32_t i = 0; i < gguf->tensor_count; i++) {
        struct gguf_string wanted = gguf->tensors[i].name;
        if (memchr(wanted.data, 0, wanted.length))
            continue; // no name that is looked up
        memcpy(name, wanted.data, wanted.length);
        name[wanted.length] = '\0';
        for (uint32_t part = 0; part < parts->opened; part++)
            if (gguf_find_tensor(parts->gguf[part], name))
                return error_set(parts->error, STATUS_DATA_LOSS, "%s: tensor '%s' is in part %u too", gguf->label,
                                 gguf_printable(shown, sizeof shown, wanted), part + 1);
    }
    return STATUS_OK;
}

// Maps and walks a file.
static enum status open_one(const char *path, struct gguf **out, struct error *error)
{
    struct gguf *gguf;
    struct mapped_file file;
    enum status status = gguf_new(path, &gguf, error);

    if (status)
        return status;
    status = mapped_file_open(path, gguf->label, "GGUF", &file, error);
    if (!status) {
        gguf->bytes = file.bytes;
        gguf->byte_count = file.byte_count;
        gguf->mapped = gguf->may_be_part = true;
        status = gguf_walk(gguf, error);
    }
    if (status)
        gguf_free(gguf);
    else
        *out = gguf;
    return status;
}

static enum status open_part(struct parts *parts, uint32_t index)
{
    struct gguf *gguf;
    char *path = strdup(parts->gguf[0]->name), suffix[SUFFIX_BYTES + 1];

    if (!path)
        return error_set(parts->error, STATUS_RESOURCE_EXHAUSTED, "%s: no memory for a name", parts->gguf[0]->label);
    write_suffix(suffix, index, parts->count);
    memcpy(path + strlen(path) - SUFFIX_BYTES, suffix, SUFFIX_BYTES);
    enum status status = open_one(path, &gguf, parts->error);
    free(path);
    if (status)
        return status;
    status = check_part(parts, gguf, index);
    if (!status)
        status = check_tensors(parts, gguf);
    if (status) {
        gguf_free(gguf);
        return status;
    }
    parts->gguf[parts->opened++] = gguf;
    return STATUS_OK;
}

static enum status check_sum(const struct parts *parts)
{
    uint64_t total = 0;
    uint32_t wanted = 0;
    const struct gguf *first = parts->gguf[0];
    enum status status;

    for (uint32_t i = 0; i < parts->count; i++)
        total += parts->gguf[i]->tensor_count;
    if (!gguf_has(first, "split.tensors.count"))
        return STATUS_OK;
    if ((status = gguf_get_u32(first, "split.tensors.count", &wanted, parts->error)))
        return status;
    if (total != wanted)
        return error_set(parts->error, STATUS_DATA_LOSS,
                         "%s: the %u parts have %" PRIu64 " tensors, key 'split.tensors.count' is %u", first->label, parts->count,
                         total, wanted);
    return STATUS_OK;
}

static bool begins(struct gguf_string name, const char *prefix)
{
    return name.length >= strlen(prefix) && memcmp(name.data, prefix, strlen(prefix)) == 0;
}

// The model's keys without those that are about the files.
static void take_keys(const struct gguf *first, struct assembly *assembly)
{
    for (uint32_t i = 0; i < first->key_count; i++) {
        const struct gguf_key *key = &first->keys[i];
        uint64_t end = i + 1 < first->key_count ? key[1].entry_offset : first->keys_end;
        if (!begins(key->name, "split.") && !begins(key->name, "general.alignment"))
            assembly_raw_key(assembly, first->bytes + key->entry_offset, (size_t)(end - key->entry_offset));
    }
}

static enum status join(struct parts *parts, struct gguf **out)
{
    struct assembly assembly = {0};
    struct mapped_file *pieces = calloc(parts->count, sizeof *pieces);
    const struct gguf *first = parts->gguf[0];

    if (!pieces)
        return error_set(parts->error, STATUS_RESOURCE_EXHAUSTED, "%s: no memory for %u parts", first->label, parts->count);
    take_keys(first, &assembly);
    for (uint32_t i = 0; i < parts->count; i++) {
        struct gguf *gguf = parts->gguf[i];
        for (uint32_t t = 0; t < gguf->tensor_count; t++) {
            const struct gguf_tensor *tensor = &gguf->tensors[t];
            assembly_tensor(&assembly, tensor->name.data, tensor->name.length, tensor->type, tensor->dim_count, tensor->dims, i,
                            tensor->data_offset);
        }
        pieces[i] = (struct mapped_file){.bytes = gguf->bytes, .byte_count = gguf->byte_count, .mapped = true};
        gguf->mapped = false;
    }
    enum status status = assembly_finish(&assembly, first->name, pieces, parts->count, out, parts->error);
    for (uint32_t i = 0; i < parts->count; i++)
        mapped_file_close(&pieces[i]);
    free(pieces);
    return status;
}

// Opens the other parts beside `first`, whose split.count is above 1, and makes one of all. Takes first, whatever it returns.
// INVALID_ARGUMENT: first is another part than the first, or parts do not belong together; else as gguf_open().
static enum status gguf_split_open(struct gguf *first, struct gguf **out, struct error *error)
{
    struct parts *parts = calloc(1, sizeof *parts);
    enum status status;

    if (!parts) {
        gguf_free(first);
        return error_set(error, STATUS_RESOURCE_EXHAUSTED, "no memory to open a model file");
    }
    parts->error = error;
    parts->gguf[0] = first;
    parts->opened = 1;
    status = check_first(parts, first);
    for (uint32_t i = 1; !status && i < parts->count; i++)
        status = open_part(parts, i);
    if (!status)
        status = check_sum(parts);
    if (!status)
        status = join(parts, out);
    for (uint32_t i = 0; i < parts->opened; i++)
        gguf_free(parts->gguf[i]);
    free(parts);
    return status;
}

// --- opening --------------------------------------------------------------------------------------------------------

//     a file        map ─ gguf_walk
//     part 1 of N   map ─ gguf_walk ─ the other parts ─ gguf_assemble: all of them in one range of addresses

enum status gguf_open(const char *path, struct gguf **out, struct error *error)
{
    struct gguf *gguf;
    uint32_t parts = 1;
    enum status status = open_one(path, &gguf, error);

    if (status)
        return status;
    if (gguf_has(gguf, "split.count"))
        status = gguf_get_u32(gguf, "split.count", &parts, error);
    if (!status && parts > 1)
        return gguf_split_open(gguf, out, error);
    if (status)
        gguf_free(gguf);
    else
        *out = gguf;
    return status;
}

enum status gguf_open_memory(const char *name, const void *bytes, uint64_t byte_count, struct gguf **out, struct error *error)
{
    struct gguf *gguf;
    enum status status = gguf_new(name, &gguf, error);

    if (status)
        return status;
    gguf->bytes = bytes;
    gguf->byte_count = byte_count;
    status = gguf_walk(gguf, error);
    if (status)
        gguf_free(gguf);
    else
        *out = gguf;
    return status;
}

void gguf_close(struct gguf *gguf) { gguf_free(gguf); }

void gguf_release_pages(const struct gguf *gguf, const unsigned char *data, uint64_t bytes)
{
    uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE), begin = (uint64_t)(data - gguf->bytes), end = begin + bytes;

    begin = begin / page * page;
    if (begin < gguf->written_bytes) // they are in no file
        begin = gguf->written_bytes;
    if (gguf->mapped && begin < end) // a hint: may fail
        madvise((void *)(uintptr_t)(gguf->bytes + begin), end - begin, MADV_DONTNEED);
}

void gguf_release_stored(const struct gguf *gguf, const struct stored_rows *stored)
{
    gguf_release_pages(gguf, stored->values, stored->values_bytes);
    if (stored->scales)
        gguf_release_pages(gguf, stored->scales, stored->scales_bytes);
}
