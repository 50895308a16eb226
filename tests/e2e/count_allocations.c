/* count_allocations.c: preloaded into a service, counts who allocates: by the code that the call of malloc & co. returns to.
 *
 * Counters are in a file that is mapped shared, $FD_ALLOCATIONS/PROGRAM.PID, so that the test reads them while the process
 * runs and a process that is killed leaves them behind. Counted are calls from the program itself, from protobuf-c (which
 * allocates on the program's behalf) and from libc (qsort, strdup, stdio); not those of other libraries, nng and
 * libmicrohttpd among them. Callers are named by their offset in the file, for addr2line.
 */
#include <errno.h>
#include <fcntl.h>
#include <link.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { PROGRAM, PROTOBUF, LIBC, MODULES, CALLERS_MAX = 1024 };

struct counters {
    atomic_ullong calls[MODULES];
    struct {
        atomic_ullong address; /* in its module's file; 0: free */
        atomic_ullong count;
        uint64_t module;
    } callers[CALLERS_MAX];
};

extern void *__libc_malloc(size_t size);
extern void *__libc_calloc(size_t count, size_t size);
extern void *__libc_realloc(void *pointer, size_t size);
extern void *__libc_memalign(size_t alignment, size_t size);

static struct counters *counters;
static struct {
    uintptr_t base, begin, end;
} modules[MODULES];

static int take_module(struct dl_phdr_info *info, size_t size, void *seen)
{
    int module = !*(int *)seen                              ? PROGRAM
                 : strstr(info->dlpi_name, "libprotobuf-c") ? PROTOBUF
                 : strstr(info->dlpi_name, "/libc.so")      ? LIBC
                                                            : MODULES;

    (void)size;
    *(int *)seen = 1;
    for (int i = 0; module < MODULES && i < info->dlpi_phnum; i++)
        if (info->dlpi_phdr[i].p_type == PT_LOAD && info->dlpi_phdr[i].p_flags & PF_X) {
            modules[module].base = info->dlpi_addr;
            modules[module].begin = info->dlpi_addr + info->dlpi_phdr[i].p_vaddr;
            modules[module].end = modules[module].begin + info->dlpi_phdr[i].p_memsz;
        }
    return 0;
}

__attribute__((constructor)) static void start(void)
{
    const char *folder = getenv("FD_ALLOCATIONS");
    char path[512];
    int seen = 0, fd;
    void *map;

    if (!folder)
        return;
    dl_iterate_phdr(take_module, &seen);
    snprintf(path, sizeof path, "%s/%s.%d", folder, program_invocation_short_name, (int)getpid());
    fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0644);
    if (fd < 0 || ftruncate(fd, sizeof *counters))
        return;
    map = mmap(NULL, sizeof *counters, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    if (map != MAP_FAILED)
        counters = map;
}

static void count(const void *caller)
{
    uintptr_t at = (uintptr_t)caller;

    for (uint32_t m = 0; counters && m < MODULES; m++) {
        if (at < modules[m].begin || at >= modules[m].end)
            continue;
        atomic_fetch_add(&counters->calls[m], 1);
        at -= modules[m].base;
        for (uint32_t k = 0, slot = (uint32_t)(at * 2654435761u) % CALLERS_MAX; k < CALLERS_MAX;
             k++, slot = (slot + 1) % CALLERS_MAX) {
            unsigned long long none = 0;
            if (atomic_compare_exchange_strong(&counters->callers[slot].address, &none, at) || none == at) {
                counters->callers[slot].module = m;
                atomic_fetch_add(&counters->callers[slot].count, 1);
                return;
            }
        }
        return;
    }
}

void *malloc(size_t size)
{
    count(__builtin_return_address(0));
    return __libc_malloc(size);
}

void *calloc(size_t item_count, size_t size)
{
    count(__builtin_return_address(0));
    return __libc_calloc(item_count, size);
}

void *realloc(void *pointer, size_t size)
{
    count(__builtin_return_address(0));
    return __libc_realloc(pointer, size);
}

void *memalign(size_t alignment, size_t size)
{
    count(__builtin_return_address(0));
    return __libc_memalign(alignment, size);
}

void *aligned_alloc(size_t alignment, size_t size)
{
    count(__builtin_return_address(0));
    return __libc_memalign(alignment, size);
}

int posix_memalign(void **out, size_t alignment, size_t size)
{
    count(__builtin_return_address(0));
    *out = __libc_memalign(alignment, size);
    return *out ? 0 : ENOMEM;
}
