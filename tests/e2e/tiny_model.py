"""A small model for tests that are not about language: random weights, and the vocabulary of the default model.

  tiny_model.py FILE TOKENIZER_FILE     writes it; tests call tiny_model.path()

4 layers, hidden 192, 6 heads of 64 on 2 KV heads, MLP of 512: a tenth of the default model's work a token, in the same types (Q4_1, and Q8_0
for embedding and output). The same bytes each time. Most random weights would repeat the last token for ever. Here
  - embedding and output are two matrices, so that no token favours itself;
  - q and k are twice as large as usual, so that attention chooses, and a token far back changes every logit;
  - one token in 400 has an output row three times as large as the others'. Greedy text keeps to these 120 tokens, with 90 to 100
    different ones in 300, and some sequences come again: drafts find them, and a quarter of what they guess is right.
"""
import hashlib
import os
import random
import struct
import sys

LAYERS, HIDDEN, HEADS, KV_HEADS, HEAD, FFN, CONTEXT = 4, 192, 6, 2, 64, 512, 8192
F32, Q4_1, Q8_0 = 0, 3, 8
BLOCK_BYTES = {Q4_1: 20, Q8_0: 34}  # of 32 values
ALIGN = 32
FAVOURED_EVERY, FAVOURED_TIMES = 400, 3
U32, FLOAT, STRING, ARRAY = 4, 6, 8, 9
SCALAR_BYTES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}


def text(value):
    value = value.encode()
    return struct.pack("<Q", len(value)) + value


class Keys:
    """The keys of a GGUF file, in bytes."""

    def __init__(self, path):
        with open(path, "rb") as file:
            self.data = file.read(16 << 20)
        count, self.at = struct.unpack("<Q", self.data[16:24])[0], 24
        self.found = {}
        for _ in range(count):
            begin = self.at
            name = self.string()
            self.value(self.take("<I"))
            self.found[name] = self.data[begin:self.at]

    def take(self, form):
        value, = struct.unpack_from(form, self.data, self.at)
        self.at += struct.calcsize(form)
        return value

    def string(self):
        size = self.take("<Q")
        self.at += size
        return self.data[self.at - size:self.at].decode(errors="replace")

    def value(self, kind):
        if kind == STRING:
            self.string()
        elif kind == ARRAY:
            inner, count = self.take("<I"), self.take("<Q")
            if inner == STRING:
                for _ in range(count):
                    self.string()
            else:
                self.at += SCALAR_BYTES[inner] * count
        else:
            self.at += SCALAR_BYTES[kind]


def vocabulary_size(keys):
    name = "tokenizer.ggml.tokens"
    return struct.unpack_from("<Q", keys.found[name], 8 + len(name) + 4 + 4)[0]


def own_keys(vocabulary):
    numbers = {"block_count": LAYERS, "context_length": CONTEXT, "embedding_length": HIDDEN, "feed_forward_length": FFN,
               "attention.head_count": HEADS, "attention.head_count_kv": KV_HEADS, "attention.key_length": HEAD,
               "attention.value_length": HEAD, "rope.dimension_count": HEAD, "vocab_size": vocabulary}
    keys = [text(key) + struct.pack("<I", STRING) + text(value)
            for key, value in (("general.architecture", "llama"), ("general.name", "tiny"))]
    keys += [text("llama." + key) + struct.pack("<II", U32, value) for key, value in numbers.items()]
    keys += [text("llama." + key) + struct.pack("<If", FLOAT, value)
             for key, value in (("attention.layer_norm_rms_epsilon", 1e-5), ("rope.freq_base", 100000.0))]
    return keys


def tensors(vocabulary):
    """(name, columns, rows, type, standard deviation); rows 0: a vector of ones."""
    usual, q, kv = HIDDEN**-0.5, HEADS * HEAD, KV_HEADS * HEAD
    found = [("token_embd.weight", HIDDEN, vocabulary, Q8_0, 0.7), ("output.weight", HIDDEN, vocabulary, Q8_0, 3 * usual),
             ("output_norm.weight", HIDDEN, 0, F32, 1)]
    for layer in range(LAYERS):
        parts = (("attn_norm", HIDDEN, 0, F32, 1), ("attn_q", HIDDEN, q, Q4_1, 2 * usual), ("attn_k", HIDDEN, kv, Q4_1, 2 * usual),
                 ("attn_v", HIDDEN, kv, Q4_1, usual), ("attn_output", q, HIDDEN, Q4_1, 0.3 * q**-0.5), ("ffn_norm", HIDDEN, 0, F32, 1),
                 ("ffn_gate", HIDDEN, FFN, Q4_1, usual), ("ffn_up", HIDDEN, FFN, Q4_1, usual), ("ffn_down", FFN, HIDDEN, Q4_1, 0.8 * FFN**-0.5))
        found += [(f"blk.{layer}.{name}.weight", *rest) for name, *rest in parts]
    return found


def weights(columns, rows, kind, deviation, source):
    """Blocks of random bytes, each with the same scale (and least value) at its head."""
    if rows == 0:
        return struct.pack("<f", 1.0) * columns
    size, count = BLOCK_BYTES[kind], columns // 32 * rows
    scale = deviation / (73.9 if kind == Q8_0 else 4.61)  # the deviation of -128 .. 127, and of 0 .. 15
    head = struct.pack("<e", scale) if kind == Q8_0 else struct.pack("<ee", scale, -7.5 * scale)
    data = bytearray(source.randbytes(size * count))
    for i, byte in enumerate(head):
        data[i::size] = bytes([byte]) * count
    return data


def favour_some(data, columns):
    """Scales up an output row now and then. data: of Q8_0."""
    row = columns // 32 * BLOCK_BYTES[Q8_0]
    for begin in range(7 * row, len(data), FAVOURED_EVERY * row):
        for at in range(begin, begin + row, BLOCK_BYTES[Q8_0]):
            struct.pack_into("<e", data, at, FAVOURED_TIMES * struct.unpack_from("<e", data, at)[0])


def write(path, tokenizer_file, seed=1, more=()):
    """more: keys beside its own, in bytes."""
    keys = Keys(tokenizer_file)
    kept = [data for name, data in keys.found.items() if name.startswith("tokenizer.")]
    vocabulary, source = vocabulary_size(keys), random.Random(seed)
    all_keys, all_tensors = [*own_keys(vocabulary), *kept, *more], tensors(vocabulary)
    head, body, offset = [], [], 0
    for name, columns, rows, kind, deviation in all_tensors:
        data = weights(columns, rows, kind, deviation, source)
        if name == "output.weight":
            favour_some(data, columns)
        head.append(text(name) + (struct.pack("<IQQ", 2, columns, rows) if rows else struct.pack("<IQ", 1, columns)) +
                    struct.pack("<IQ", kind, offset))
        data += bytes(-len(data) % ALIGN)
        body.append(data)
        offset += len(data)
    begin = b"GGUF" + struct.pack("<IQQ", 3, len(all_tensors), len(all_keys)) + b"".join(all_keys) + b"".join(head)
    temporary = f"{path}.{os.getpid()}"
    with open(temporary, "wb") as file:
        file.write(begin + bytes(-len(begin) % ALIGN) + b"".join(body))
    os.replace(temporary, path)  # another process may be writing it too


def path(folder, tokenizer_file):
    """The file in `folder`; it is written where it is not there yet, or was by another version of this program."""
    with open(__file__, "rb") as file:
        version = hashlib.sha256(file.read() + str(os.path.getsize(tokenizer_file)).encode()).hexdigest()[:12]
    found = os.path.join(folder, f"tiny-{version}.gguf")
    if not os.path.exists(found):
        os.makedirs(folder, exist_ok=True)
        write(found, tokenizer_file)
    return found


if __name__ == "__main__":
    write(*sys.argv[1:])
