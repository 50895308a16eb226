/* even_priority.h: in this program no thread gives way. Threads that yield (long texts of the gateway, handshakes of strangers) run at nice 19,
 * where another program's busy loop gets 68 times their share, and the test would wait a minute. One a program. */
#ifndef FD_TESTS_EVEN_PRIORITY_H
#define FD_TESTS_EVEN_PRIORITY_H

#include <sys/resource.h>

int setpriority(__priority_which_t which, id_t who, int priority)
{
    (void)which, (void)who, (void)priority;
    return 0;
}

#endif
