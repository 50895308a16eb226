// test_shape.c: shapes of published models beside what their publishers say, and what a config.json may have.
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "common/base/checked.h"
#include "common/plan/shape.h"
#include "kernels/quant/tensor_type.h"
#include "tests/cmocka.h"

// Parameters in billions as published, and KiB of KV a token in f16. Without biases, norms and positions.
static void shipped_shapes(void **state)
{
    static const struct {
        const char *name;
        double giga_values, kv_kib;
    } rows[] = {{"llama-7b", 6.738, 512},      {"llama-13b", 13.016, 800},        {"llama-70b", 68.977, 320},
                {"opt-6.7b", 6.658, 512},      {"opt-13b", 12.853, 800},          {"opt-30b", 29.974, 1344},
                {"opt-66b", 65.7, 2304},       {"opt-175b", 174.57, 4608},        {"llama-3.2-3b", 3.213, 112},
                {"llama-3.1-8b", 8.03, 128},   {"llama-3.3-70b", 70.55, 320},     {"llama-3.1-405b", 405.85, 504},
                {"qwen3-8b", 8.191, 144},      {"qwen3-14b", 14.768, 160},        {"qwen3-32b", 32.762, 256},
                {"qwen3-30b-a3b", 30.532, 96}, {"qwen3-235b-a22b", 235.094, 188}, {"gpt-oss-20b", 20.915, 48},
                {"gpt-oss-120b", 116.829, 72}, {"gemma-3-27b", 27.009, 496},      {"deepseek-v3", 671.026, 68.625}};
    struct plan_shape s;
    struct error error;

    for (size_t i = 0; i < ARRAY_COUNT(rows); i++) {
        assert_int_equal(shape_named(rows[i].name, "F16", &s, &error), STATUS_OK);
        double values = (double)s.layers * (double)s.layer_values + (double)s.head_values +
                        (double)s.in[SHAPE_HOST].embedding_bytes / 2;
        if (fabs(values / 1e9 / rows[i].giga_values - 1) > 0.002)
            fail_msg("%s: %.3f", rows[i].name, values / 1e9);
        assert_true(s.layers * shape_kv_bytes(&s, KV_F16) / 1024 == rows[i].kv_kib);
        if (!s.latent)
            assert_true(shape_link_bytes(&s) == 8.0 * s.head_dim * (s.heads + s.kv_heads));
    }
    assert_int_equal(shape_named("llama-8b", "F16", &s, &error), STATUS_NOT_FOUND);
    assert_int_equal(shape_named("llama-7b", "F15", &s, &error), STATUS_INVALID_ARGUMENT);
    assert_int_equal(shape_named("/nowhere/config.json", "F16", &s, &error), STATUS_NOT_FOUND);
    assert_non_null(strstr(error.text, "cannot be read: No such file"));
}

// A row of gpt-oss-120b uses 4 of 128 experts, half of whose layers have a window of 128; DeepSeek's class is not served.
static void what_rows_use(void **state)
{
    struct plan_shape s;
    struct error error;

    assert_int_equal(shape_named("gpt-oss-120b", "mxfp4", &s, &error), STATUS_OK);
    assert_true(s.experts == 128 && s.experts_used == 4 && s.window == 128 && s.windowed_layers == 18 && !s.unknown_class[0]);
    assert_true(s.in[SHAPE_HOST].layer_bytes == s.layer_values * 9 / 8 && s.in[SHAPE_GPU].layer_bytes == s.layer_values * 2);
    assert_true(s.quantized);
    assert_int_equal(shape_named("gemma-3-27b", "f16", &s, &error), STATUS_OK);
    assert_true(s.windowed_layers == 62 - 62 / 6 && s.in[SHAPE_HOST].embedding_bytes == 0 && !s.quantized && !s.unknown_class[0]);
    assert_int_equal(shape_named("deepseek-v3", "q8_0", &s, &error), STATUS_OK);
    assert_string_equal(s.unknown_class, "DeepseekV3ForCausalLM");
    assert_true(shape_link_bytes(&s) == 4.0 * (128 * (576 + 512) + 576));
    assert_true(shape_pair_operations(&s) == 2.0 * 128 * (576 + 512));
    double active = (double)s.layers * (double)(s.layer_values - s.expert_values) + 2 * (double)s.head_values +
                    (double)s.layers * (double)s.expert_values * s.experts_used / s.experts;
    assert_true(fabs(active / 37.55e9 - 1) < 0.005);
}

#define DENSE \
    "\"num_hidden_layers\": 4, \"hidden_size\": 64, \"num_attention_heads\": 4, \"intermediate_size\": 96, \"vocab_size\": 100"

static void configs(void **state)
{
    static const struct {
        const char *text;
        const char *wrong; // NULL: it is read, with so many windows and experts
        uint32_t windowed, experts;
    } rows[] = {
        {"{" DENSE "}", NULL, 0, 0},
        {"{\"text_config\": {" DENSE "}}", NULL, 0, 0},
        {"{" DENSE ", \"sliding_window\": 8}", NULL, 4, 0},
        {"{" DENSE ", \"sliding_window\": 8, \"use_sliding_window\": false}", NULL, 0, 0},
        {"{" DENSE ", \"sliding_window\": 8, \"sliding_window_pattern\": 2}", NULL, 2, 0},
        {"{" DENSE
         ", \"sliding_window\": 8, \"layer_types\": [\"sliding_attention\", \"full_attention\", 3, \"sliding_attention\"]}",
         NULL, 2, 0},
        {"{" DENSE ", \"num_local_experts\": 8, \"num_experts_per_tok\": 2}", NULL, 0, 8},
        {"{" DENSE ", \"num_experts\": 8}", "'num_experts_per_tok' is missing or 0", 0, 0},
        {"{" DENSE ", \"head_dim\": 24}", "'head_dim' is not a multiple of 16", 0, 0},
        {"{" DENSE ", \"num_key_value_heads\": 2.5}", "'num_key_value_heads' is not a whole number", 0, 0},
        {"{\"num_hidden_layers\": 99999999}", "'num_hidden_layers' is not a whole number from 0 to 16384", 0, 0},
        {"[]", "is no JSON object", 0, 0},
        {"{\"a\": 1, \"a\": 2}", "is no JSON object: duplicate", 0, 0},
    };

    for (size_t i = 0; i < ARRAY_COUNT(rows); i++) {
        struct plan_shape s;
        struct error error = {0};
        enum status status = shape_of_config("c.json", rows[i].text, strlen(rows[i].text), TENSOR_F16, &s, &error);
        if (rows[i].wrong && (status != STATUS_INVALID_ARGUMENT || !strstr(error.text, rows[i].wrong)))
            fail_msg("%s: '%s' lacks '%s'", rows[i].text, error.text, rows[i].wrong);
        if (!rows[i].wrong && (status || s.windowed_layers != rows[i].windowed || s.experts != rows[i].experts))
            fail_msg("%s: %s, %u windows, %u experts", rows[i].text, error.text, s.windowed_layers, s.experts);
        if (!rows[i].wrong && !s.experts)
            assert_true(s.layer_values == 4 * 64 * 64 + 3 * 64 * 96 && s.head_values == 6400 && s.kv_heads == 4 &&
                        s.head_dim == 16);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(shipped_shapes), cmocka_unit_test(what_rows_use),
                                       cmocka_unit_test(configs)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
