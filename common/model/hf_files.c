// hf_files.c: the files of a directory, on the disk or in memory, and messages about them.
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/model/hf.h"
#include "common/model/hf_state.h"

enum status hf_fail(struct hf *hf, enum status status, const char *file, const char *format, ...)
{
    char text[sizeof((struct error){0}.text)];
    va_list arguments;

    if (hf->status)
        return hf->status;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    hf->status = status;
    return error_set(hf->error, status, "%s%s%s: %s", hf->label, file ? "/" : "", file ? file : "", text);
}

void hf_file_label(const struct hf *hf, const char *name, char label[HF_LABEL_BYTES])
{
    char shown[HF_LABEL_BYTES - GGUF_LABEL_BYTES - 1];

    snprintf(label, HF_LABEL_BYTES, "%s/%s", hf->label,
             gguf_printable(shown, sizeof shown, (struct gguf_string){name, strlen(name)}));
}

static bool find_in_memory(const struct hf *hf, const char *name, struct mapped_file *out)
{
    for (uint32_t i = 0; i < hf->file_count; i++)
        if (strcmp(hf->files[i].name, name) == 0) {
            *out = (struct mapped_file){.bytes = hf->files[i].bytes, .byte_count = hf->files[i].byte_count};
            return true;
        }
    return false;
}

bool hf_file_open(struct hf *hf, const char *name, struct mapped_file *out)
{
    char label[HF_LABEL_BYTES], *path = NULL;

    *out = (struct mapped_file){0};
    if (hf->status)
        return false;
    if (!hf->path)
        return find_in_memory(hf, name, out);
    if (asprintf(&path, "%s/%s", hf->path, name) < 0) {
        hf_fail(hf, STATUS_RESOURCE_EXHAUSTED, name, "no memory for its name");
        return false;
    }
    hf_file_label(hf, name, label);
    enum status status = mapped_file_open(path, label, strstr(name, ".json") ? "JSON" : "model's", out, hf->error);
    free(path);
    if (status && status != STATUS_NOT_FOUND)
        hf->status = status;
    return status == STATUS_OK;
}

// Puts a name without its ending into the sorted list, if it has that ending.
static void add_name(const char *name, const char *ending, char (*names)[HF_TEMPLATE_NAME_BYTES], uint32_t most, uint32_t *count)
{
    const size_t length = strlen(name), end = strlen(ending);
    char short_name[HF_TEMPLATE_NAME_BYTES];
    uint32_t at = *count;

    if (length <= end || length - end >= sizeof short_name || strcmp(name + length - end, ending) != 0)
        return;
    snprintf(short_name, sizeof short_name, "%.*s", (int)(length - end), name);
    for (; at > 0 && strcmp(names[at - 1], short_name) > 0; at--)
        if (at < most)
            memcpy(names[at], names[at - 1], sizeof short_name);
    if (at >= most)
        return;
    memcpy(names[at], short_name, sizeof short_name);
    *count += *count < most;
}

uint32_t hf_file_names(struct hf *hf, const char *folder, const char *ending, char (*names)[HF_TEMPLATE_NAME_BYTES], uint32_t most)
{
    const size_t bytes = strlen(folder);
    const struct dirent *entry;
    uint32_t count = 0;
    char *path = NULL;

    for (uint32_t i = 0; !hf->path && i < hf->file_count; i++)
        if (strncmp(hf->files[i].name, folder, bytes) == 0 && hf->files[i].name[bytes] == '/')
            add_name(hf->files[i].name + bytes + 1, ending, names, most, &count);
    if (!hf->path || asprintf(&path, "%s/%s", hf->path, folder) < 0)
        return count;
    DIR *listed = opendir(path);
    while (listed && (entry = readdir(listed)))
        add_name(entry->d_name, ending, names, most, &count);
    if (listed)
        closedir(listed);
    free(path);
    return count;
}

static json_t *read_json(struct hf *hf, const char *name, bool is_list)
{
    char label[HF_LABEL_BYTES];
    struct mapped_file file;
    json_t *root = NULL;

    if (!hf_file_open(hf, name, &file))
        return NULL;
    hf_file_label(hf, name, label);
    hf->status = (is_list ? hf_json_parse_list : hf_json_parse)(label, file.bytes, file.byte_count, &root, hf->error);
    mapped_file_close(&file);
    return root;
}

json_t *hf_file_json(struct hf *hf, const char *name) { return read_json(hf, name, false); }
json_t *hf_file_list(struct hf *hf, const char *name) { return read_json(hf, name, true); }
