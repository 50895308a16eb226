// check.h: what must hold while a mesh runs, and when it is at rest.
#ifndef FD_TESTS_SIM_CHECK_H
#define FD_TESTS_SIM_CHECK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/status.h"

void check_begin(void);
// Looks after each event. Returns true once something is wrong, which check_failure() says.
bool check_always(void *arg);
const char *check_failure(void);                            // NULL: nothing is wrong
void check_note(const char *format, ...) PRINTF_LIKE(1, 2); // something is wrong
void check_free(const char *place, uint64_t sequence);      // its pages are freed there, right now
void check_log(const char *id, const char *text);           // a line of a log: some say that a service has seen what cannot be
// Returns whether nothing is under way and nothing is left of what was; if not, `out` says what.
bool check_rest(char *out, size_t out_bytes);

#endif
