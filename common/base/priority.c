// priority.c: see priority.h.
//
// Since Linux 6.12 a thread of the usual policy may have a slice of its own: of those that have not had their share the one whose slice ends first
// runs next, and one that wakes with a shorter slice takes the core at once. Without it a woken thread waits for the slice of whoever computes:
// 2.8 ms with two cores, thirty layers a step. Earlier kernels ignore the field. glibc has no wrapper before 2.41.
#include "common/base/priority.h"

#include <errno.h>
#include <stdint.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { SLICE_NS = 100000 }; // the least that the kernel takes

// struct sched_attr of the kernel, in its first version.
struct attributes {
    uint32_t size, policy;
    uint64_t flags;
    int32_t nice;
    uint32_t priority;
    uint64_t runtime_ns, deadline_ns, period_ns;
};

_Static_assert(sizeof(struct attributes) == 48, "the kernel's SCHED_ATTR_SIZE_VER0");

void priority_short_turns(void)
{
    struct attributes own = {.size = sizeof own};

    if (syscall(SYS_sched_getattr, 0, &own, sizeof own, 0) || own.policy != 0) // nice stays; another policy was somebody's choice
        return;
    own.size = sizeof own;
    own.runtime_ns = SLICE_NS;
    (void)syscall(SYS_sched_setattr, 0, &own, 0);
}
