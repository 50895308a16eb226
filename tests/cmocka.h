// cmocka.h: cmocka, and the headers that it needs but does not include. A test need not use its `state`.
#ifndef FD_TESTS_CMOCKA_H
#define FD_TESTS_CMOCKA_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#pragma GCC diagnostic ignored "-Wunused-parameter"

#endif
