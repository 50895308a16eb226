// find_model.c: see find_model.h.
#include "services/fastdecode/up/find_model.h"

#include <dirent.h>
#include <errno.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/base/checked.h"

enum { LISTED_BYTES = 400 };

struct search {
    const char *name;
    char best[256], listed[LISTED_BYTES]; // the one that has the name, or begins with it; all that there are
    bool exact;                           // best has the name, with .gguf or without
    uint32_t alike;                       // unless it does: how many begin with the name
};

static bool ends_with(const char *text, const char *end)
{
    size_t length = strlen(text), wanted = strlen(end);
    return length > wanted && strcmp(text + length - wanted, end) == 0;
}

// Whether a folder's entry is a model: a GGUF file, the first of several, or a directory with config.json.
static bool is_model(const char *folder, const char *entry)
{
    const char *part = strstr(entry, "-of-");
    char path[4096];

    if (ends_with(entry, ".gguf"))
        return !part || part - entry < 6 || strncmp(part - 6, "-00001", 6) == 0;
    return (size_t)snprintf(path, sizeof path, "%s/%s/config.json", folder, entry) < sizeof path && access(path, R_OK) == 0;
}

static void look_at(struct search *search, const char *entry)
{
    size_t at = strlen(search->listed), length = search->name ? strlen(search->name) : 0;

    snprintf(search->listed + at, sizeof search->listed - at, "%s%s", at ? ", " : "", entry);
    if (!length || strncmp(entry, search->name, length))
        return;
    if (search->exact) // before all that begin with it; NAME comes before NAME.gguf
        return;
    search->exact = entry[length] == '\0' || strcmp(entry + length, ".gguf") == 0;
    search->alike++;
    snprintf(search->best, sizeof search->best, "%s", entry);
}

static int by_name(const struct dirent **a, const struct dirent **b) { return strcmp((*a)->d_name, (*b)->d_name); }

static void look_through(struct search *search, const char *folder)
{
    struct dirent **entries;
    int count = scandir(folder, &entries, NULL, by_name);

    for (int i = 0; i < count; i++) {
        if (entries[i]->d_name[0] != '.' && is_model(folder, entries[i]->d_name))
            look_at(search, entries[i]->d_name);
        free(entries[i]);
    }
    if (count >= 0)
        free(entries);
}

static enum status fail(const char *name, const char *folder, const struct search *search, int number, struct error *error)
{
    char there[LISTED_BYTES + 300] = "";

    if (search->listed[0])
        snprintf(there, sizeof there, "; in %.200s there are %s", folder, search->listed);
    if (!name)
        return error_set(error, STATUS_INVALID_ARGUMENT, "--model FILE is missing (`make model` gets a small one)%s", there);
    if (!search->exact && search->alike > 1)
        error_set(error, STATUS_NOT_FOUND, "--model %s: several begin so%s", name, there);
    else
        error_set(error, STATUS_NOT_FOUND, "--model %s: %s%s", name, strerror(number), there);
    error->about_model = true;
    return error->status;
}

enum status find_model(const char *name, const char *folder, char *out, size_t bytes, struct error *error)
{
    struct search search = {.name = name};
    int number;

    if (name && access(name, R_OK) == 0) {
        if ((size_t)snprintf(out, bytes, "%s", name) < bytes)
            return STATUS_OK;
        return error_set(error, STATUS_INVALID_ARGUMENT, "--model: the path is too long");
    }
    number = errno;
    if (!name || !strchr(name, '/'))
        look_through(&search, folder);
    bool found = search.exact || search.alike == 1;
    if (found && (size_t)snprintf(out, bytes, "%s/%s", folder, search.best) < bytes)
        return STATUS_OK;
    return fail(name, folder, &search, number, error);
}
