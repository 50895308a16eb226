// isa.c: what the processor can run, and what the operating system saves on a context switch: on x86-64 by CPUID and XGETBV, on AArch64 by
// what the kernel says in the auxiliary vector.
//
// A bit of CPUID alone is not enough: under an operating system that does not save the upper register halves, the
// instructions fault. XCR0 bits 1-2 are the XMM and YMM state, bits 5-7 the AVX-512 masks, upper halves and ZMM16-31.
#include "kernels/simd/isa.h"

#include "common/base/checked.h"

#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#if defined(__x86_64__)
#include <cpuid.h>
#elif defined(__aarch64__)
#include <asm/hwcap.h>
#include <sys/auxv.h>
#endif

#define XCR0_AVX 0x06u
#define XCR0_AVX512 0xe6u

#define LEAF1_ECX_FMA (1u << 12)
#define LEAF1_ECX_OSXSAVE (1u << 27)
#define LEAF1_ECX_AVX (1u << 28)
#define LEAF1_ECX_F16C (1u << 29)
#define LEAF7_EBX_AVX2 (1u << 5)
#define LEAF7_EBX_AVX512F (1u << 16)
#define LEAF7_EBX_AVX512DQ (1u << 17)
#define LEAF7_EBX_AVX512BW (1u << 30)
#define LEAF7_EBX_AVX512VL (1u << 31)
#define LEAF7_ECX_VNNI (1u << 11)
#define LEAF7_1_EAX_AVXVNNI (1u << 4)

enum feature {
    HAS_AVX2 = 1,
    HAS_AVXVNNI = 2,
    HAS_AVX512 = 4,
    HAS_VNNI = 8,
    HAS_NEON = 16,
    HAS_DOTPROD = 32,
    HAS_I8MM = 64,
    IS_KNOWN = 1 << 30
};

static const struct {
    const char *name;
    int needs; // of enum feature
} levels[ISA_LEVEL_COUNT] = {
    [ISA_REF] = {"ref", 0},
    [ISA_AVX2] = {"avx2", HAS_AVX2},
    [ISA_AVXVNNI] = {"avxvnni", HAS_AVX2 | HAS_AVXVNNI},
    [ISA_AVX512] = {"avx512", HAS_AVX2 | HAS_AVX512},
    [ISA_VNNI] = {"vnni", HAS_AVX2 | HAS_AVX512 | HAS_VNNI},
    [ISA_NEON] = {"neon", HAS_NEON},
    [ISA_DOTPROD] = {"dotprod", HAS_NEON | HAS_DOTPROD},
    [ISA_I8MM] = {"i8mm", HAS_NEON | HAS_DOTPROD | HAS_I8MM},
};

static const enum isa_level by_preference[] = {ISA_VNNI, ISA_AVX512,  ISA_AVXVNNI, ISA_AVX2,
                                               ISA_I8MM, ISA_DOTPROD, ISA_NEON,    ISA_REF};

_Static_assert(ARRAY_COUNT(by_preference) == ISA_LEVEL_COUNT, "every level has a place in the list");

const char *isa_name(enum isa_level level) { return (unsigned)level < ISA_LEVEL_COUNT ? levels[level].name : "unknown"; }

#if defined(__x86_64__)
static uint32_t read_xcr0(void)
{
    uint32_t eax, edx;
    __asm__ volatile("xgetbv" : "=a"(eax), "=d"(edx) : "c"(0));
    (void)edx;
    return eax;
}

static bool has_all(uint32_t word, uint32_t bits) { return (word & bits) == bits; }

static int ask_processor(void)
{
    uint32_t eax, ebx, ecx, edx, eax_1, ebx_1, ecx_1, edx_1;
    int features = HAS_AVX2;
    if (!__get_cpuid(1, &eax, &ebx, &ecx, &edx) ||
        !has_all(ecx, LEAF1_ECX_OSXSAVE | LEAF1_ECX_AVX | LEAF1_ECX_F16C | LEAF1_ECX_FMA))
        return 0;
    uint32_t xcr0 = read_xcr0();
    if (!has_all(xcr0, XCR0_AVX) || !__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) || !has_all(ebx, LEAF7_EBX_AVX2))
        return 0;
    if (eax >= 1 && __get_cpuid_count(7, 1, &eax_1, &ebx_1, &ecx_1, &edx_1) && has_all(eax_1, LEAF7_1_EAX_AVXVNNI))
        features |= HAS_AVXVNNI;
    if (has_all(xcr0, XCR0_AVX512) &&
        has_all(ebx, LEAF7_EBX_AVX512F | LEAF7_EBX_AVX512DQ | LEAF7_EBX_AVX512BW | LEAF7_EBX_AVX512VL))
        features |= HAS_AVX512 | (has_all(ecx, LEAF7_ECX_VNNI) ? HAS_VNNI : 0);
    return features;
}
#elif defined(__aarch64__)
static int ask_processor(void)
{
    unsigned long first = getauxval(AT_HWCAP), second = getauxval(AT_HWCAP2);
    return (first & HWCAP_ASIMD ? HAS_NEON : 0) | (first & HWCAP_ASIMDDP ? HAS_DOTPROD : 0) | (second & HWCAP2_I8MM ? HAS_I8MM : 0);
}
#else // plain loops only
static int ask_processor(void) { return 0; }
#endif

// Asked once: CPUID leaves a virtual machine, which takes some ten microseconds.
static int features_here(void)
{
    static atomic_int known; // threads that ask at once find the same
    int features = atomic_load_explicit(&known, memory_order_relaxed);
    if (features == 0) {
        features = ask_processor() | IS_KNOWN;
        atomic_store_explicit(&known, features, memory_order_relaxed);
    }
    return features;
}

bool isa_supported(enum isa_level level)
{
    return (unsigned)level < ISA_LEVEL_COUNT && (levels[level].needs & ~features_here()) == 0;
}

enum isa_level isa_best(void)
{
    uint32_t i = 0;
    while (!isa_supported(by_preference[i])) // the last one always is
        i++;
    return by_preference[i];
}

enum status isa_choose(const char *name, enum isa_level *out, struct error *error)
{
    const char *source = "the requested level";
    if (!name) {
        name = getenv("FD_ISA");
        source = "FD_ISA";
    }
    enum isa_level best = isa_best();
    if (!name || !*name || strcmp(name, "auto") == 0) {
        *out = best;
        return STATUS_OK;
    }
    for (int level = 0; level < ISA_LEVEL_COUNT; level++) {
        if (strcmp(name, levels[level].name) != 0)
            continue;
        if (!isa_supported((enum isa_level)level))
            return error_set(error, STATUS_FAILED_PRECONDITION, "%s is '%s', which this processor cannot run: its best is '%s'",
                             source, name, levels[best].name);
        *out = (enum isa_level)level;
        return STATUS_OK;
    }
    return error_set(error, STATUS_INVALID_ARGUMENT,
                     "%s is '%.32s': expected auto, ref, avx2, avxvnni, avx512, vnni, neon, dotprod or i8mm", source, name);
}
