// device.c: opens a device's shared object and chooses the device.
#include "kernels/backend/device.h"

#include <ctype.h>
#include <dlfcn.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define LIBRARY "libfastdecode-cuda.so"
enum { DEVICES_MAX = 64 };

static enum status library_path(char *out, size_t bytes, struct error *error)
{
    const char *named = getenv("FD_CUDA_LIBRARY");
    char program[PATH_MAX];
    ssize_t length = readlink("/proc/self/exe", program, sizeof program - 1);

    if (named && *named) {
        snprintf(out, bytes, "%s%s", strchr(named, '/') ? "" : "./", named); // the loader would look elsewhere
        return STATUS_OK;
    }
    if (length < 0)
        return error_set(error, STATUS_UNAVAILABLE, "/proc is not mounted: FD_CUDA_LIBRARY says where " LIBRARY " is");
    program[length] = '\0';
    char *slash = strrchr(program, '/');
    snprintf(out, bytes, "%.*s" LIBRARY, slash ? (int)(slash + 1 - program) : 0, program);
    return STATUS_OK;
}

static enum status open_library(const struct device_library **out, struct error *error)
{
    char path[PATH_MAX];
    enum status status = library_path(path, sizeof path, error);

    if (status)
        return status;
    if (access(path, R_OK))
        return error_set(error, STATUS_UNAVAILABLE, "there is no %s (`make cuda` builds it)", path);
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!library)
        return error_set(error, STATUS_UNAVAILABLE, "%s", dlerror());
    *out = dlsym(library, "fastdecode_device");
    if (!*out || (*out)->layout != DEVICE_LAYOUT) {
        dlclose(library);
        return error_set(error, STATUS_UNAVAILABLE, "%s is of another build", path);
    }
    return STATUS_OK;
}

static enum status choose_cuda(int index, struct device_choice *out, struct error *error)
{
    const struct device_library *library;
    char name[200];
    enum status status = open_library(&library, error);

    if (!status)
        status = library->probe(index, name, sizeof name, error);
    if (status)
        return status;
    *out = (struct device_choice){.ops = library->ops, .library = library, .index = index};
    snprintf(out->line, sizeof out->line, "cuda:%d, %s", index, name);
    return STATUS_OK;
}

enum status device_choose(const char *wanted, struct device_choice *out, struct error *error)
{
    bool any = !strcmp(wanted, "auto"), numbered = !strncmp(wanted, "cuda:", 5) && isdigit((unsigned char)wanted[5]);
    char *end = NULL;
    long index = numbered ? strtol(wanted + 5, &end, 10) : 0;

    if (!strcmp(wanted, "cpu")) {
        *out = (struct device_choice){.ops = &backend_cpu, .line = "cpu, as asked"};
        return STATUS_OK;
    }
    if (!any && strcmp(wanted, "cuda") && (!numbered || *end || index >= DEVICES_MAX))
        return error_set(error, STATUS_INVALID_ARGUMENT, "--device is '%s', want auto, cpu, cuda or cuda:N", wanted);
    enum status status = choose_cuda((int)index, out, error);
    if (!status || !any) {
        if (status)
            error_prefix(error, "--device %s", wanted);
        return status;
    }
    *out = (struct device_choice){.ops = &backend_cpu};
    snprintf(out->line, sizeof out->line, "cpu: %.280s", error->text);
    return STATUS_OK;
}
