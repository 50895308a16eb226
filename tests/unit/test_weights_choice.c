// test_weights_choice.c: how much of the weights the s-part puts where, on a device that is only a plan: as the settings say, or what the rest
// leaves of the device and then of the host.
#include <string.h>

#include "common/base/checked.h"
#include "common/base/memory.h"
#include "services/s-part/s_part.h"
#include "tests/cmocka.h"

enum { MIB = 1 << 20, DEVICE_FREE = 1024 * MIB, ACTIVATIONS = 100 * MIB, LEAST = 8 * MIB };

static uint64_t weights;   // all of them
static uint64_t host_rest; // what else the host holds

// Plans weights by size: those that do not fit the device are on the host, and those that do not fit there on disk.
static enum status plan(const struct backend_config *config, struct backend_plan *out, struct error *error)
{
    const uint64_t device = config->weights_memory ? MIN(config->weights_memory, weights) : weights, streamed = weights - device;
    const uint64_t host = config->weights_host_memory ? MIN(config->weights_host_memory, streamed) : streamed;

    if (device < LEAST)
        return error_set(error, STATUS_RESOURCE_EXHAUSTED, "the weights need 8.0 MiB");
    if (streamed && host < LEAST)
        return error_set(error, STATUS_RESOURCE_EXHAUSTED, "on the host: the weights need 8.0 MiB");
    *out = (struct backend_plan){.pool_on_device = true,
                                 .device_free_bytes = DEVICE_FREE,
                                 .device_weight_bytes = device,
                                 .device_activation_bytes = ACTIVATIONS,
                                 .activation_bytes = host_rest,
                                 .weight_bytes = host,
                                 .streamed_bytes = streamed,
                                 .disk_bytes = streamed - host,
                                 .start_bytes = (streamed > host ? 32 : 16) * MIB};
    return STATUS_OK;
}

static const struct backend_ops device = {.name = "planned", .plan = plan};

static enum status choose(uint64_t all, uint64_t of_device, uint64_t of_host, struct backend_plan *out, struct error *error)
{
    static struct s_part s_part;
    struct backend_config config = {.weights_memory = of_device, .weights_host_memory = of_host};

    weights = all;
    s_part = (struct s_part){.loaded.device = {.ops = &device, .line = "planned"},
                             .settings = {.weights_memory = of_device,
                                          .weights_memory_text = "named",
                                          .weights_host_memory = of_host,
                                          .weights_host_memory_text = "named"}};
    enum status status = weights_choose_memory(&s_part, &config, error);
    *out = s_part.loaded.plan;
    return status;
}

static void all_fit(void **state)
{
    struct backend_plan got;
    struct error error;

    assert_int_equal(choose(DEVICE_FREE - ACTIVATIONS, 0, 0, &got, &error), STATUS_OK);
    assert_true(got.streamed_bytes == 0 && got.weight_bytes == 0);
    assert_int_equal(choose(DEVICE_FREE - ACTIVATIONS, 0, LEAST, &got, &error), STATUS_OK);
    assert_true(got.streamed_bytes == 0 && got.weight_bytes == 0);
}

static void the_host_takes_what_the_device_cannot(void **state)
{
    struct backend_plan got;
    struct error error;

    assert_int_equal(choose(DEVICE_FREE, 0, 0, &got, &error), STATUS_OK);
    assert_true(got.device_weight_bytes == DEVICE_FREE - ACTIVATIONS && got.streamed_bytes == ACTIVATIONS);
    assert_true(got.weight_bytes == ACTIVATIONS && got.disk_bytes == 0);
    assert_int_equal(choose(DEVICE_FREE, 2 * LEAST, 0, &got, &error), STATUS_OK);
    assert_true(got.device_weight_bytes == 2 * LEAST && got.disk_bytes == 0);
    assert_int_equal(choose(DEVICE_FREE, LEAST - 1, 0, &got, &error), STATUS_RESOURCE_EXHAUSTED);
    assert_string_equal(error.text, "--weights-memory named: the weights need 8.0 MiB");
}

static void the_disk_takes_what_the_host_cannot(void **state)
{
    const uint64_t available = memory_available_bytes(), all = available + 2 * (uint64_t)DEVICE_FREE;
    struct backend_plan got;
    struct error error;

    host_rest = available / 2;
    assert_int_equal(choose(all, 0, 0, &got, &error), STATUS_OK);
    host_rest = 0;
    assert_true(got.device_weight_bytes == DEVICE_FREE - ACTIVATIONS && got.disk_bytes > 0);
    assert_int_equal(got.device_weight_bytes + got.weight_bytes + got.disk_bytes, all);
    const uint64_t sum = got.weight_bytes + got.activation_bytes + got.start_bytes;
    assert_in_range(sum, available / 10 * 9, available / 10 * 11); // what is free changes meanwhile
    assert_int_equal(choose(DEVICE_FREE, 0, 3 * LEAST, &got, &error), STATUS_OK);
    assert_true(got.weight_bytes == 3 * LEAST && got.disk_bytes == ACTIVATIONS - 3 * LEAST);
    assert_int_equal(choose(DEVICE_FREE, 0, ACTIVATIONS, &got, &error), STATUS_OK);
    assert_int_equal(got.disk_bytes, 0);
    assert_int_equal(choose(DEVICE_FREE, 0, LEAST - 1, &got, &error), STATUS_RESOURCE_EXHAUSTED);
    assert_string_equal(error.text, "--weights-host-memory named: on the host: the weights need 8.0 MiB");
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(all_fit), cmocka_unit_test(the_host_takes_what_the_device_cannot),
                                       cmocka_unit_test(the_disk_takes_what_the_host_cannot)};
    return cmocka_run_group_tests_name("choice of memory for weights", tests, NULL, NULL);
}
