// check.h: what must hold while a mesh runs, and when it is at rest.
#ifndef FD_TESTS_SIM_CHECK_H
#define FD_TESTS_SIM_CHECK_H

#include <stdbool.h>
#include <stddef.h>

void check_begin(void);
// Looks after each event. Returns true once something is wrong, which check_failure() says.
bool check_always(void *arg);
const char *check_failure(void); // NULL: nothing is wrong
// Returns whether nothing is under way and nothing is left of what was; if not, `out` says what.
bool check_rest(char *out, size_t out_bytes);

#endif
