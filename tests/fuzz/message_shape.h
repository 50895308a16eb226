// message_shape.h: messages of any type whose fields the fuzzer's bytes choose: parts that are missing, extremes of numbers, empty and long
// strings and bytes, lists of odd lengths. They are walked by protobuf-c's descriptors, so a field that is new is varied from its first day on.
#ifndef FD_TESTS_MESSAGE_SHAPE_H
#define FD_TESTS_MESSAGE_SHAPE_H

#include <protobuf-c/protobuf-c.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "common/base/checked.h"

enum { SHAPE_MEMORY = 1 << 20, SHAPE_DEPTH_MAX = 6, SHAPE_LIST_MOST = 300 };

// The fuzzer's bytes that are left; behind their end come zeros.
struct shape_input {
    const uint8_t *at, *end;
};

// Numbers and texts that mean something to the service, among which fields are chosen. The target fills it.
struct shape_words {
    uint64_t numbers[16];
    uint32_t number_count;
    const char *texts[16];
    uint32_t text_count;
};

static struct shape_words shape_words;
static union {
    max_align_t alignment;
    unsigned char bytes[SHAPE_MEMORY];
} shape_memory; // of the messages of one input
static size_t shape_used;

// Whether there is memory for another good message of any type.
static inline bool shape_has_room(void) { return SHAPE_MEMORY - shape_used > SHAPE_MEMORY / 8; }

static inline uint8_t shape_byte(struct shape_input *input) { return input->at < input->end ? *input->at++ : 0; }
static inline uint32_t shape_below(struct shape_input *input, uint32_t limit) { return shape_byte(input) % limit; }

// NULL: this input has had its share.
static inline void *shape_take(size_t size)
{
    size = (size + 15) & ~(size_t)15;
    if (size > SHAPE_MEMORY - shape_used)
        return NULL;
    void *taken = shape_memory.bytes + shape_used;
    shape_used += size;
    memset(taken, 0, size);
    return taken;
}

static inline ProtobufCMessage *shape_new(const ProtobufCMessageDescriptor *descriptor)
{
    ProtobufCMessage *message = shape_take(descriptor->sizeof_message);
    if (message)
        descriptor->message_init(message);
    return message;
}

static inline uint64_t shape_number(struct shape_input *input)
{
    static const uint64_t extremes[] = {
        0,    1,     2,     3,         4,          15,         16,          17,        64,         512,        640,           1023,
        1024, 65535, 65536, INT32_MAX, 0x80000000, UINT32_MAX, 0x100000000, INT64_MAX, 1ull << 63, UINT64_MAX, UINT32_MAX - 1};
    const uint32_t kind = shape_byte(input);

    if (kind < 96)
        return extremes[kind % ARRAY_COUNT(extremes)];
    if (kind < 192 && shape_words.number_count)
        return shape_words.numbers[kind % shape_words.number_count];
    uint64_t value = 0;
    for (uint32_t i = 0; i <= kind % 4; i++)
        value = value << 8 | shape_byte(input);
    return value;
}

static inline double shape_real(struct shape_input *input)
{
    static const double extremes[] = {0,
                                      1,
                                      -1,
                                      0.5,
                                      1e-30,
                                      1e30,
                                      -1e30,
                                      1e308,
                                      100,
                                      1e-9,
                                      1e9,
                                      (double)__builtin_nanf(""),
                                      (double)__builtin_inff(),
                                      -(double)__builtin_inff()};
    const uint32_t kind = shape_byte(input);
    return kind < 128 ? extremes[kind % ARRAY_COUNT(extremes)] : shape_byte(input) / 16.0;
}

static inline char *shape_text(struct shape_input *input)
{
    static const uint16_t lengths[] = {0, 1, 2, 63, 64, 65, 127, 128, 200, 256, 1000};
    const uint32_t kind = shape_byte(input);

    if (kind < 160 && shape_words.text_count)
        return (char *)shape_words.texts[kind % shape_words.text_count];
    const size_t length = lengths[kind % ARRAY_COUNT(lengths)];
    char *text = shape_take(length + 1);
    const char filler = (char)shape_byte(input);
    if (text)
        memset(text, filler ? filler : 'x', length);
    return text;
}

static inline ProtobufCBinaryData shape_bytes(struct shape_input *input)
{
    static const uint16_t lengths[] = {0, 1, 3, 4, 16, 24, 40, 64, 100, 512, 4096};
    ProtobufCBinaryData bytes = {.len = lengths[shape_below(input, ARRAY_COUNT(lengths))]};

    bytes.data = shape_take(bytes.len);
    if (!bytes.data)
        bytes.len = 0;
    for (size_t i = 0; i < MIN(bytes.len, (size_t)8); i++)
        bytes.data[i] = shape_byte(input);
    return bytes;
}

static inline size_t shape_size_of(const ProtobufCFieldDescriptor *field)
{
    switch (field->type) {
    case PROTOBUF_C_TYPE_INT64:
    case PROTOBUF_C_TYPE_SINT64:
    case PROTOBUF_C_TYPE_SFIXED64:
    case PROTOBUF_C_TYPE_UINT64:
    case PROTOBUF_C_TYPE_FIXED64:
    case PROTOBUF_C_TYPE_DOUBLE: return 8;
    case PROTOBUF_C_TYPE_STRING:
    case PROTOBUF_C_TYPE_MESSAGE: return sizeof(void *);
    case PROTOBUF_C_TYPE_BYTES: return sizeof(ProtobufCBinaryData);
    default: return 4;
    }
}

static inline void shape_change_at(struct shape_input *input, ProtobufCMessage *message, uint32_t depth);

// Chooses one value of the field's type anew. A message may be changed inside, or, where that is possible, be left out.
static inline void shape_set(struct shape_input *input, const ProtobufCFieldDescriptor *field, void *value, bool may_lack,
                             uint32_t depth)
{
    ProtobufCMessage **message = value;

    switch (field->type) {
    case PROTOBUF_C_TYPE_STRING: *(char **)value = shape_text(input); return;
    case PROTOBUF_C_TYPE_BYTES: *(ProtobufCBinaryData *)value = shape_bytes(input); return;
    case PROTOBUF_C_TYPE_FLOAT: *(float *)value = (float)shape_real(input); return;
    case PROTOBUF_C_TYPE_DOUBLE: *(double *)value = shape_real(input); return;
    case PROTOBUF_C_TYPE_BOOL: *(protobuf_c_boolean *)value = shape_byte(input) & 1; return;
    case PROTOBUF_C_TYPE_ENUM:
        *(int *)value = shape_byte(input) < 224 ? (int)shape_below(input, 9) : (int)shape_number(input);
        return;
    case PROTOBUF_C_TYPE_MESSAGE:
        if (*message && may_lack && shape_below(input, 4) == 0)
            *message = NULL;
        else if (!*message)
            *message = shape_new(field->descriptor);
        if (*message && depth < SHAPE_DEPTH_MAX && shape_byte(input) & 1)
            shape_change_at(input, *message, depth + 1);
        return;
    default:
        if (shape_size_of(field) == 8)
            *(uint64_t *)value = shape_number(input);
        else
            *(uint32_t *)value = (uint32_t)shape_number(input);
    }
}

// A list becomes empty, longer, shorter, another one of its values, or very long.
static inline void shape_change_list(struct shape_input *input, const ProtobufCFieldDescriptor *field, size_t *count, void **list,
                                     uint32_t depth)
{
    const size_t size = shape_size_of(field), before = *count;
    const uint32_t what = shape_below(input, 16);
    const size_t wanted = what == 0 ? 0 : what == 1 ? before / 2 : what == 2 ? SHAPE_LIST_MOST : what < 8 ? before + 1 : before;

    if (wanted > before) {
        unsigned char *grown = wanted <= SHAPE_LIST_MOST ? shape_take(wanted * size) : NULL;
        if (!grown)
            return;
        if (before)
            memcpy(grown, *list, before * size);
        for (size_t i = before; i < wanted; i++) {
            if (before && field->type == PROTOBUF_C_TYPE_MESSAGE && i > before)
                memcpy(grown + i * size, grown + (i - 1) * size, size); // the same message again
            else if (i - before < 4)
                shape_set(input, field, grown + i * size, false, depth);
            else
                memcpy(grown + i * size, grown + (i - 4) * size, size);
        }
        *list = grown;
    }
    *count = wanted;
    if (wanted && wanted == before)
        shape_set(input, field, (unsigned char *)*list + shape_below(input, (uint32_t)MIN(wanted, (size_t)256)) * size, false,
                  depth);
}

static inline void shape_change_field(struct shape_input *input, ProtobufCMessage *message, const ProtobufCFieldDescriptor *field,
                                      uint32_t depth)
{
    unsigned char *base = (unsigned char *)message;

    if (field->label == PROTOBUF_C_LABEL_REPEATED)
        shape_change_list(input, field, (size_t *)(void *)(base + field->quantifier_offset),
                          (void **)(void *)(base + field->offset), depth);
    else
        shape_set(input, field, base + field->offset, true, depth);
}

static inline void shape_change_at(struct shape_input *input, ProtobufCMessage *message, uint32_t depth)
{
    const ProtobufCMessageDescriptor *descriptor = message->descriptor;

    if (descriptor->n_fields)
        shape_change_field(input, message, &descriptor->fields[shape_below(input, descriptor->n_fields)], depth);
}

// Changes nothing, a field, up to fifteen fields at any depth, or about a quarter of the message's own.
static inline void shape_change(struct shape_input *input, ProtobufCMessage *message)
{
    enum { NONE = 64, ONE = 112, SOME = 176 };
    const uint32_t how = shape_byte(input), count = how < NONE ? 0 : how < ONE ? 1 : how < SOME ? how % 16 : 0;

    for (uint32_t i = 0; i < count; i++)
        shape_change_at(input, message, 0);
    for (unsigned i = 0; how >= SOME && i < message->descriptor->n_fields; i++)
        if (shape_below(input, 4) == 3)
            shape_change_field(input, message, &message->descriptor->fields[i], 0);
}

#endif
