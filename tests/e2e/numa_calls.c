/* numa_calls.c: preloaded into a service, writes down which memory policies it asks the kernel for, so that a machine with one NUMA node can
 * test those of others.
 *
 * A line a call in $FD_NUMA_CALLS/PROGRAM.PID, such as "mbind mode=2 nodes=1 bytes=65536". The kernel is not asked, for it does not know the
 * nodes; the answer is success, or the error whose number $FD_NUMA_ANSWER is.
 */
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { BITS = 1024, WORD = 8 * sizeof(unsigned long) };

/* Calls without a node are OpenBLAS', for its own memory. */
static void note(const char *call, unsigned long mode, const unsigned long *mask, unsigned long max_node, unsigned long bytes)
{
    char path[512], line[1024];
    int length = snprintf(line, sizeof line, "%s mode=%lu nodes=", call, mode), first = 1;

    for (unsigned long node = 0; mask && node < BITS && node + 1 < max_node; node++)
        if (mask[node / WORD] >> node % WORD & 1) {
            length += snprintf(line + length, sizeof line - (size_t)length, first ? "%lu" : ",%lu", node);
            first = 0;
        }
    if (first)
        return;
    length += snprintf(line + length, sizeof line - (size_t)length, " bytes=%lu\n", bytes);
    snprintf(path, sizeof path, "%s/%s.%d", getenv("FD_NUMA_CALLS"), program_invocation_short_name, (int)getpid());
    int fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
    if (fd < 0 || write(fd, line, (size_t)length) != length)
        abort();
    close(fd);
}

long syscall(long number, ...)
{
    long (*real)(long, ...);
    const char *answer = getenv("FD_NUMA_ANSWER");
    unsigned long a[6];
    va_list list;

    va_start(list, number);
    for (int i = 0; i < 6; i++)
        a[i] = va_arg(list, unsigned long);
    va_end(list);
    if (number == SYS_mbind) {
        note("mbind", a[2], (const unsigned long *)a[3], a[4], a[1]);
    } else if (number == SYS_set_mempolicy) {
        note("set_mempolicy", a[0], (const unsigned long *)a[1], a[2], 0);
    } else {
        *(void **)&real = dlsym(RTLD_NEXT, "syscall");
        return real(number, a[0], a[1], a[2], a[3], a[4], a[5]);
    }
    errno = answer ? atoi(answer) : 0;
    return errno ? -1 : 0;
}
