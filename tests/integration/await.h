/* await.h: waiting for a condition while the test's own loop turns; include after cmocka.h. */
#ifndef FD_TESTS_AWAIT_H
#define FD_TESTS_AWAIT_H

#include "common/base/clock.h"
#include "tests/integration/pace.h"

enum { AWAIT_LIMIT_US = 30 * 1000 * 1000 };

/* Does `turn` (an expression, such as one round of a loop) until `condition` holds; fails the test where it never does. */
#define AWAIT(turn, condition)                                                      \
    do {                                                                            \
        uint64_t limit_us_ = clock_now_us() + pace_us(AWAIT_LIMIT_US);              \
        while (!(condition)) {                                                      \
            (turn);                                                                 \
            if (clock_now_us() > limit_us_)                                         \
                fail_msg("%s:%d: not in time: %s", __FILE__, __LINE__, #condition); \
        }                                                                           \
    } while (0)

#endif
