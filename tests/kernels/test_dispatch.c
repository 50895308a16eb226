// test_dispatch.c: levels are found, forced and refused as isa.h says, and every table is complete.
#include "kernel_test.h"

#if defined(__aarch64__)
#include <asm/hwcap.h>
#include <sys/auxv.h>
#endif

static void test_names(void **state)
{
    assert_string_equal(isa_name(ISA_REF), "ref");
    assert_string_equal(isa_name(ISA_AVX2), "avx2");
    assert_string_equal(isa_name(ISA_AVXVNNI), "avxvnni");
    assert_string_equal(isa_name(ISA_AVX512), "avx512");
    assert_string_equal(isa_name(ISA_VNNI), "vnni");
    assert_string_equal(isa_name(ISA_NEON), "neon");
    assert_string_equal(isa_name(ISA_DOTPROD), "dotprod");
    assert_string_equal(isa_name(ISA_I8MM), "i8mm");
    assert_string_equal(isa_name((enum isa_level)99), "unknown");
}

#if defined(__x86_64__)
// Not all compilers in use know this name; the kernel's list is as good a second opinion.
static bool has_avxvnni(void)
{
    FILE *file = fopen("/proc/cpuinfo", "r");
    char line[16384];
    bool found = false;
    while (file && fgets(line, sizeof line, file))
        found |= strstr(line, " avx_vnni") != NULL;
    if (file)
        fclose(file);
    return found;
}

// The compiler's own detection is the second opinion.
static void check_detection(void)
{
    bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
    bool avx512 = avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                  __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
    assert_int_equal(isa_supported(ISA_AVX2), avx2);
    assert_int_equal(isa_supported(ISA_AVXVNNI), avx2 && has_avxvnni());
    assert_int_equal(isa_supported(ISA_AVX512), avx512);
    assert_int_equal(isa_supported(ISA_VNNI), avx512 && __builtin_cpu_supports("avx512vnni"));
    assert_int_equal(isa_best(), isa_supported(ISA_VNNI)      ? ISA_VNNI
                                 : isa_supported(ISA_AVX512)  ? ISA_AVX512
                                 : isa_supported(ISA_AVXVNNI) ? ISA_AVXVNNI
                                 : isa_supported(ISA_AVX2)    ? ISA_AVX2
                                                              : ISA_REF);
    assert_false(isa_supported(ISA_NEON) || isa_supported(ISA_DOTPROD) || isa_supported(ISA_I8MM));
}
#elif defined(__aarch64__)
// Compares with what the processor says in its registers, which the kernel lets a program read.
static void check_detection(void)
{
    uint64_t first, second;
    if (!(getauxval(AT_HWCAP) & HWCAP_CPUID))
        skip();
    __asm__("mrs %0, s3_0_c0_c6_0" : "=r"(first));  // ID_AA64ISAR0_EL1
    __asm__("mrs %0, s3_0_c0_c6_1" : "=r"(second)); // ID_AA64ISAR1_EL1
    bool dotprod = first >> 44 & 15, i8mm = second >> 52 & 15;
    assert_true(isa_supported(ISA_NEON));
    assert_int_equal(isa_supported(ISA_DOTPROD), dotprod);
    assert_int_equal(isa_supported(ISA_I8MM), dotprod && i8mm);
    assert_false(isa_supported(ISA_AVX2) || isa_supported(ISA_AVXVNNI) || isa_supported(ISA_AVX512) || isa_supported(ISA_VNNI));
}
#else
static void check_detection(void) { assert_int_equal(isa_best(), ISA_REF); }
#endif

static void test_detection(void **state)
{
    assert_true(isa_supported(ISA_REF));
    check_detection();
    assert_true(isa_supported(isa_best()));
}

static void test_choice(void **state)
{
    enum isa_level level = ISA_LEVEL_COUNT;
    struct error error = {0};
    setenv("FD_ISA", "ref", 1);
    assert_int_equal(isa_choose(NULL, &level, &error), STATUS_OK);
    assert_int_equal(level, ISA_REF);
    assert_int_equal(isa_choose("auto", &level, &error), STATUS_OK); // a name goes before the environment
    assert_int_equal(level, isa_best());
    setenv("FD_ISA", "auto", 1);
    assert_int_equal(isa_choose(NULL, &level, &error), STATUS_OK);
    assert_int_equal(level, isa_best());
    unsetenv("FD_ISA");
    assert_int_equal(isa_choose(NULL, &level, &error), STATUS_OK);
    assert_int_equal(level, isa_best());
    for (int l = 0; l < ISA_LEVEL_COUNT; l++) {
        enum status status = isa_choose(isa_name((enum isa_level)l), &level, &error);
        if (isa_supported((enum isa_level)l)) {
            assert_int_equal(status, STATUS_OK);
            assert_int_equal(level, l);
        } else {
            assert_int_equal(status, STATUS_FAILED_PRECONDITION);
            assert_non_null(strstr(error.text, "cannot run"));
        }
    }
}

static void test_refused(void **state)
{
    enum isa_level level = ISA_LEVEL_COUNT;
    struct error error = {0};
    setenv("FD_ISA", "sse9", 1);
    assert_int_equal(isa_choose(NULL, &level, &error), STATUS_INVALID_ARGUMENT);
    assert_int_equal(level, ISA_LEVEL_COUNT);
    assert_non_null(strstr(error.text, "FD_ISA is 'sse9'"));
    assert_non_null(strstr(error.text, "vnni"));
    assert_int_equal(kernels_init(NULL, &error), STATUS_INVALID_ARGUMENT);
    assert_null(kernels);
    assert_string_equal(kernels_level_name(), "none");
    unsetenv("FD_ISA");
}

static void test_init(void **state)
{
    struct error error = {0};
    assert_int_equal(kernels_init("ref", &error), STATUS_OK);
    assert_string_equal(kernels_level_name(), "ref");
    assert_ptr_equal(kernels, kernels_of_level(ISA_REF));
    setenv("FD_ISA", isa_name(isa_best()), 1);
    assert_int_equal(kernels_init(NULL, &error), STATUS_OK);
    assert_string_equal(kernels_level_name(), isa_name(isa_best()));
    unsetenv("FD_ISA");
}

static void test_tables_complete(void **state)
{
    for (int level = 0; level < ISA_LEVEL_COUNT; level++) {
        const struct kernels *table = kernels_of_level((enum isa_level)level);
        if (!table)
            continue;
        assert_int_equal(table->level, level);
        void (*const *entries)(void) = (void (*const *)(void))(const void *)&table->quantize_rows;
        size_t count = (sizeof *table - offsetof(struct kernels, quantize_rows)) / sizeof *entries;
        for (size_t i = 0; i < count; i++)
            assert_non_null(entries[i]);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_names),   cmocka_unit_test(test_detection), cmocka_unit_test(test_choice),
        cmocka_unit_test(test_refused), cmocka_unit_test(test_init),      cmocka_unit_test(test_tables_complete),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
