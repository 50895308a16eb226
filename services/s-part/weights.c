// weights.c: the file of packed weights that belongs to the model and to what the device makes of it.
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "services/s-part/s_part.h"

// The model's file name without ".gguf", then the kind of its packed weights: model-Q4_1.gguf gives model-Q4_1-int8.fdw.
static enum status name_file(struct s_part *s_part, const char *folder, struct error *error)
{
    static const char suffix[] = ".gguf";
    const char *path = s_part->settings.model_path, *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path;
    size_t length = strlen(name);

    if (length > strlen(suffix) && !strcmp(name + length - strlen(suffix), suffix))
        length -= strlen(suffix);
    int written = snprintf(s_part->packed_path, sizeof s_part->packed_path, "%s/%.*s-%s.fdw", folder, (int)length, name,
                           s_part->plan.weights_kind);
    if (written < 0 || (size_t)written >= sizeof s_part->packed_path)
        return error_set(error, STATUS_INVALID_ARGUMENT, "--cache-dir %s: the path is too long", folder);
    return STATUS_OK;
}

enum status weights_choose_path(struct s_part *s_part, struct error *error)
{
    const char *folder = s_part->settings.cache_dir;
    struct stat info;

    s_part->packed_path[0] = '\0';
    if (!*s_part->plan.weights_kind || !strcmp(folder, "none"))
        return STATUS_OK;
    if (stat(folder, &info) || !S_ISDIR(info.st_mode))
        return error_set(error, STATUS_INVALID_ARGUMENT, "--cache-dir %s: %s", folder,
                         errno == ENOENT ? "there is no such folder" : "it is no folder");
    return name_file(s_part, folder, error);
}
