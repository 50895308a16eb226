/* await.h: waiting for a condition while the test's own loop turns, or the test does what it waits for; include after cmocka.h. */
#ifndef FD_TESTS_AWAIT_H
#define FD_TESTS_AWAIT_H

#include "tests/integration/pace.h"

/* Does `turn` (an expression, such as one round of a loop) until `condition` holds; fails the test where it never does. */
#define AWAIT(turn, condition)                                                      \
    do {                                                                            \
        struct pace_deadline deadline_ = pace_deadline(PACE_WAIT_US);               \
        while (!(condition)) {                                                      \
            (turn);                                                                 \
            if (pace_passed(&deadline_))                                            \
                fail_msg("%s:%d: not in time: %s", __FILE__, __LINE__, #condition); \
        }                                                                           \
    } while (0)

#endif
