// wire.h: protobuf's wire format, written in place and read where it lies.
//
// protobuf-c copies `bytes` fields when it unpacks, so tensor messages are built and read here: the writer fills a buffer of known size
// (the outgoing message), and the reader returns ranges of the incoming one. Any protobuf decoder reads the same bytes.
// (Format: protobuf.dev/programming-guides/encoding.)
//
// Plain values on the caller's stack; nothing allocates. Readers treat every byte as hostile.
#ifndef FD_RPC_WIRE_H
#define FD_RPC_WIRE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/status.h"

enum wire_type { WIRE_VARINT = 0, WIRE_FIXED64 = 1, WIRE_BYTES = 2, WIRE_FIXED32 = 5 };

// --- writing ---

// Without bytes nothing is written: `at` says how many there would be, so that a message is described once, for its size and for its bytes.
struct wire_writer {
    unsigned char *bytes; // [length]; NULL: measures
    size_t length, at;
};

// Asserts that what is written fits: sizes are measured first.
void wire_put_varint(struct wire_writer *writer, uint32_t field, uint64_t value);
void wire_put_fixed32(struct wire_writer *writer, uint32_t field, uint32_t value);
void wire_put_fixed64(struct wire_writer *writer, uint32_t field, uint64_t value);
void wire_put_bytes(struct wire_writer *writer, uint32_t field, const void *bytes, size_t length);
// Writes tag and length, skips the bytes, and returns where the caller is to write them; NULL: it measures.
unsigned char *wire_put_bytes_in_place(struct wire_writer *writer, uint32_t field, size_t length);
// The same for bytes that lie at a multiple of 4 of the message: a padding field (0 to 3 zeros), which has that number, precedes them.
unsigned char *wire_put_padded(struct wire_writer *writer, uint32_t padding, uint32_t field, size_t length);

// --- reading ---
struct wire_reader {
    const unsigned char *begin, *at, *end;
};

struct wire_field {
    uint32_t number;
    enum wire_type type;
    uint64_t value;             // varint, fixed32, fixed64
    const unsigned char *bytes; // WIRE_BYTES
    size_t length;
};

void wire_reader_init(struct wire_reader *reader, const void *bytes, size_t length);

// Reads the next field. Returns false at the end (*bad false) or at malformed bytes (*bad true, at reader->at).
bool wire_next(struct wire_reader *reader, struct wire_field *field, bool *bad);

// Little-endian loads of packed fixed-size arrays, at any alignment.
static inline uint32_t wire_load_u32(const unsigned char *bytes)
{
    return (uint32_t)bytes[0] | (uint32_t)bytes[1] << 8 | (uint32_t)bytes[2] << 16 | (uint32_t)bytes[3] << 24;
}

static inline uint64_t wire_load_u64(const unsigned char *bytes)
{
    return (uint64_t)wire_load_u32(bytes) | (uint64_t)wire_load_u32(bytes + 4) << 32;
}

static inline void wire_store_u32(unsigned char *bytes, uint32_t value)
{
    for (int i = 0; i < 4; i++)
        bytes[i] = (unsigned char)(value >> (8 * i));
}

static inline void wire_store_u64(unsigned char *bytes, uint64_t value)
{
    wire_store_u32(bytes, (uint32_t)value);
    wire_store_u32(bytes + 4, (uint32_t)(value >> 32));
}

#endif
