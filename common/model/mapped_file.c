// mapped_file.c: see mapped_file.h.
#include "common/model/mapped_file.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum status mapped_file_open(const char *path, const char *label, const char *kind, struct mapped_file *out, struct error *error)
{
    enum status status = STATUS_OK;
    struct stat info;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); // a FIFO must not hang us

    *out = (struct mapped_file){0};
    if (fd < 0)
        return error_set(error, status_of_path(errno), "%s: cannot be opened: %s", label, strerror(errno));
    if (fstat(fd, &info) != 0)
        status = error_set(error, STATUS_UNAVAILABLE, "%s: cannot be examined: %s", label, strerror(errno));
    else if (!S_ISREG(info.st_mode))
        status = error_set(error, STATUS_INVALID_ARGUMENT, "%s: not a regular file", label);
    else if (info.st_size == 0)
        status = error_set(error, STATUS_INVALID_ARGUMENT, "%s: an empty file, not a %s file", label, kind);
    if (!status) {
        void *map = mmap(NULL, (size_t)info.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
        if (map == MAP_FAILED)
            status = error_set(error, STATUS_RESOURCE_EXHAUSTED, "%s: %lld bytes cannot be mapped: %s", label,
                               (long long)info.st_size, strerror(errno));
        else
            *out = (struct mapped_file){.bytes = map, .byte_count = (uint64_t)info.st_size, .mapped = true};
    }
    close(fd);
    return status;
}

void mapped_file_close(struct mapped_file *file)
{
    if (file->mapped)
        munmap((void *)(uintptr_t)file->bytes, file->byte_count);
    *file = (struct mapped_file){0};
}
