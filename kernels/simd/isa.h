// isa.h: the instruction-set levels that kernels are built for, and which of them this processor can run.
//
// A level is a set of features that its code needs; isa_best() is the first in a list by preference that the processor has all of.
// There is one table of functions per level, and a program picks its table once at start by isa_choose(). An operation
// without code of its own at a level uses that of another level whose features it has, which gives the same bits: most of
// ISA_VNNI is the AVX-512 code, most of ISA_AVXVNNI the AVX2 code, and most of ISA_DOTPROD and ISA_I8MM the NEON code.
//
//     ref     plain loops, double accumulation: the reference and the fallback; its bits are its own
//     avx2    AVX2 + FMA + F16C
//     avxvnni avx2 with AVX-VNNI (vpdpbusd on 256 bits): the same bits as avx2
//     avx512  AVX-512 F, BW, VL, DQ: the same bits
//     vnni    avx512 with VNNI (vpdpbusd on 512 bits): the same bits
//     neon    NEON of AArch64's baseline: the same bits
//     dotprod neon with products of four signed bytes (sdot): the same bits
//     i8mm    dotprod with those of unsigned with signed bytes, and of two rows with two (usdot, usmmla): the same bits
//
// A level of another architecture is known by its name and never supported.
#ifndef FD_KERNELS_SIMD_ISA_H
#define FD_KERNELS_SIMD_ISA_H

#include <stdbool.h>

#include "common/base/status.h"

// Numbers name levels and are no order: a processor may have one and not those before it.
enum isa_level { ISA_REF, ISA_AVX2, ISA_AVXVNNI, ISA_AVX512, ISA_VNNI, ISA_NEON, ISA_DOTPROD, ISA_I8MM, ISA_LEVEL_COUNT };

// "ref", "avx2", "avxvnni", "avx512", "vnni", "neon", "dotprod", "i8mm". Never NULL. Any thread.
const char *isa_name(enum isa_level level);

// Whether processor and operating system (XGETBV, getauxval) can run the level. ISA_REF: always. Any thread.
bool isa_supported(enum isa_level level);

// The fastest level that this machine can run. Any thread.
enum isa_level isa_best(void);

// Chooses the level: name if it is not NULL, else the environment's FD_ISA, else "auto" (the best one). A name that is
// unknown: STATUS_INVALID_ARGUMENT; one that the machine lacks: STATUS_FAILED_PRECONDITION; both with one line in
// *error that says where the name came from, and *out untouched. Call at start (reads the environment).
enum status isa_choose(const char *name, enum isa_level *out, struct error *error) MUST_CHECK;

#endif
