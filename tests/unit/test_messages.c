// test_messages.c: conversions between messages and structs: what goes out comes back, and what cannot be is refused.
#include <math.h>
#include <string.h>

#include "attend.pb-c.h"
#include "common/mesh/messages.h"
#include "tests/cmocka.h"

static void a_kv_shape_comes_back(void **state)
{
    const struct kv_shape shape = {.layers = 1,
                                   .heads = 2,
                                   .kv_heads = 3,
                                   .head_dim = 4,
                                   .page_tokens = 5,
                                   .type = KV_INT4,
                                   .max_sequences = 7,
                                   .max_context = 8,
                                   .sparse_percent = 9,
                                   .window = 10,
                                   .windowed = {1},
                                   .soft_cap = 12};
    Fastdecode__KvShape message, other;
    messages_from_kv_shape(&shape, &message);
    const struct kv_shape back = messages_to_kv_shape(&message, 7);
    assert_true(kv_same_shape(&back, &shape));
    uint32_t *const fields[] = {&other.layers,      &other.heads,          &other.kv_heads,       &other.head_dim,
                                &other.page_tokens, &other.context_tokens, &other.sparse_percent, &other.window};
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++) {
        other = message;
        assert_true(messages_same_kv_shape(&message, &other));
        ++*fields[i];
        assert_false(messages_same_kv_shape(&message, &other));
    }
    uint64_t windowed = 0;
    other = message;
    other.windowed_layers = &windowed;
    assert_false(messages_same_kv_shape(&message, &other));
    other = message;
    other.soft_cap = 0;
    assert_false(messages_same_kv_shape(&message, &other));
    other = message;
    other.type = FASTDECODE__KV_TYPE__KV_TYPE_F16;
    assert_false(messages_same_kv_shape(&message, &other));
    other = message;
    other.all_windowed = true;
    assert_false(messages_same_kv_shape(&message, &other));
}

static void kv_costs_come_back_if_they_can_be(void **state)
{
    const struct kv_costs costs = {.call_us = 1, .row_us = 2, .token_us = 3, .prefill_row_us = 4, .pair_us = 5};
    const double bad_token[] = {0, -1, NAN, INFINITY, 1e7}, bad_pair[] = {-1, NAN, INFINITY, 1e7};
    Fastdecode__KvCosts message;
    struct kv_costs back;
    messages_from_kv_costs(&costs, &message);
    assert_true(messages_to_kv_costs(&message, &back));
    assert_memory_equal(&back, &costs, sizeof costs);
    assert_false(messages_to_kv_costs(NULL, &back));
    for (size_t i = 0; i < sizeof bad_token / sizeof *bad_token; i++) {
        messages_from_kv_costs(&costs, &message);
        message.token_us = bad_token[i];
        assert_false(messages_to_kv_costs(&message, &back));
        assert_true(back.token_us == 0);
    }
    for (size_t i = 0; i < sizeof bad_pair / sizeof *bad_pair; i++) {
        messages_from_kv_costs(&costs, &message);
        message.pair_us = bad_pair[i];
        assert_false(messages_to_kv_costs(&message, &back));
    }
}

static void a_list_of_what_is_held_has_a_limit(void **state)
{
    Fastdecode__HeldReply reply = FASTDECODE__HELD_REPLY__INIT;
    struct messages_held held;
    unsigned char bytes[256];
    assert_int_equal(messages_held_open(2, &held), STATUS_OK);
    messages_held_set(&held, 0, &(struct kv_held){.sequence = 11, .positions = 12, .certain = 10, .pages = 1});
    messages_held_set(&held, 1, &(struct kv_held){.sequence = 21, .positions = 1022, .certain = 1020, .first = 512, .pages = 33});
    reply.n_held = held.count;
    reply.held = held.pointers;
    size_t length = fastdecode__held_reply__pack(&reply, bytes);
    messages_held_close(&held);
    Fastdecode__HeldReply *back = fastdecode__held_reply__unpack(NULL, length, bytes);
    assert_non_null(back);
    assert_int_equal(back->n_held, 2);
    assert_int_equal(back->held[1]->sequence, 21);
    assert_int_equal(back->held[1]->positions, 1022);
    assert_int_equal(back->held[1]->certain, 1020);
    assert_int_equal(back->held[1]->pages, 33);
    assert_int_equal(back->held[1]->first_position, 512);
    fastdecode__held_reply__free_unpacked(back, NULL);
    assert_int_equal(messages_held_open(0, &held), STATUS_OK);
    messages_held_close(&held);
    assert_int_equal(messages_held_open(MESSAGES_HELD_MAX + 1, &held), STATUS_OK);
    assert_int_equal(held.count, MESSAGES_HELD_MAX);
    messages_held_close(&held);
    assert_int_equal(messages_held_open(SIZE_MAX, &held), STATUS_OK);
    messages_held_close(&held);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_kv_shape_comes_back),
        cmocka_unit_test(kv_costs_come_back_if_they_can_be),
        cmocka_unit_test(a_list_of_what_is_held_has_a_limit),
    };
    return cmocka_run_group_tests_name("messages", tests, NULL, NULL);
}
