// isa.c: what the processor can run, by CPUID, and what the operating system saves on a context switch, by XGETBV.
//
// A bit of CPUID alone is not enough: under an operating system that does not save the upper register halves, the
// instructions fault. XCR0 bits 1-2 are the XMM and YMM state, bits 5-7 the AVX-512 masks, upper halves and ZMM16-31.
#include "kernels/simd/isa.h"

#include <cpuid.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

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

static const char *const level_names[ISA_LEVEL_COUNT] = {"ref", "avx2", "avx512", "vnni"};

const char *isa_name(enum isa_level level) { return (unsigned)level < ISA_LEVEL_COUNT ? level_names[level] : "unknown"; }

static uint32_t read_xcr0(void)
{
    uint32_t eax, edx;
    __asm__ volatile("xgetbv" : "=a"(eax), "=d"(edx) : "c"(0));
    (void)edx;
    return eax;
}

static bool has_all(uint32_t word, uint32_t bits) { return (word & bits) == bits; }

static enum isa_level ask_processor(void)
{
    uint32_t eax, ebx, ecx, edx;
    if (!__get_cpuid(1, &eax, &ebx, &ecx, &edx) ||
        !has_all(ecx, LEAF1_ECX_OSXSAVE | LEAF1_ECX_AVX | LEAF1_ECX_F16C | LEAF1_ECX_FMA))
        return ISA_REF;
    uint32_t xcr0 = read_xcr0();
    if (!has_all(xcr0, XCR0_AVX) || !__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) || !has_all(ebx, LEAF7_EBX_AVX2))
        return ISA_REF;
    if (!has_all(xcr0, XCR0_AVX512) ||
        !has_all(ebx, LEAF7_EBX_AVX512F | LEAF7_EBX_AVX512DQ | LEAF7_EBX_AVX512BW | LEAF7_EBX_AVX512VL))
        return ISA_AVX2;
    return has_all(ecx, LEAF7_ECX_VNNI) ? ISA_VNNI : ISA_AVX512;
}

// Asked once: CPUID leaves a virtual machine, which takes some ten microseconds.
enum isa_level isa_best(void)
{
    static atomic_int known; // the level and one; threads that ask at once find the same
    int level = atomic_load_explicit(&known, memory_order_relaxed);
    if (level == 0) {
        level = (int)ask_processor() + 1;
        atomic_store_explicit(&known, level, memory_order_relaxed);
    }
    return (enum isa_level)(level - 1);
}

bool isa_supported(enum isa_level level) { return (unsigned)level <= (unsigned)isa_best(); }

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
        if (strcmp(name, level_names[level]) != 0)
            continue;
        if (level > (int)best)
            return error_set(error, STATUS_FAILED_PRECONDITION, "%s is '%s', which this processor cannot run: its best is '%s'",
                             source, name, level_names[best]);
        *out = (enum isa_level)level;
        return STATUS_OK;
    }
    return error_set(error, STATUS_INVALID_ARGUMENT, "%s is '%.32s': expected auto, ref, avx2, avx512 or vnni", source, name);
}
