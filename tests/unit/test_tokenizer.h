// test_tokenizer.h: a tokenizer that must open. Include after cmocka.h.
#ifndef FD_TESTS_TEST_TOKENIZER_H
#define FD_TESTS_TEST_TOKENIZER_H

#include "common/tokenizer/tokenizer.h"

static inline struct tokenizer *open_spec(const struct tokenizer_spec *spec)
{
    struct tokenizer *tokenizer;
    struct error error = {0};
    if (tokenizer_open(spec, &tokenizer, &error))
        fail_msg("%s", error.text);
    return tokenizer;
}

#endif
