// fuzz_json_text.c: what jansson takes is read as the same, what is read is written, and what was written is read as the same.
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/status.h"
#include "common/json/json_text.h"

enum { FLAGS = JSON_DECODE_ANY | JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, DEPTH_MAX = 64, VALUES_MAX = 1 << 16 };

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const char *text = (const char *)data;
    json_error_t error;
    json_t *value, *plain, *again;
    char *written;
    size_t at;

    if (json_check_limits(text, size, DEPTH_MAX, VALUES_MAX, &at) != JSON_WITHIN)
        return 0;
    value = json_text_read(text, size, FLAGS, &error);
    plain = json_loadb(text, size, FLAGS, NULL);
    assert_always(!plain || (value && json_equal(plain, value)));
    if (!value)
        assert_always(error.text[0] && error.position <= (int)size);
    for (int spaced = 0; value && spaced < 2; spaced++) {
        written = json_text_write(value, spaced);
        again = json_text_read(written, strlen(written), FLAGS, NULL);
        assert_always(json_equal(value, again));
        json_decref(again);
        free(written);
    }
    json_decref(plain);
    json_decref(value);
    return 0;
}
