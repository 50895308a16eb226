#!/usr/bin/env python3
"""Shuffles the channels of a llama model in F16, in place: what it computes stays the same, what lies beside what in its matrices does not.

To measure what 4 bits cost, one needs weights of 16 bits. The default model has 4: made into F16 they lie on the grid of their groups, and are
quantized again without a loss. Shuffled, a group of 32 has values of 32 groups, as weights that never were quantized. So:

    python3 -m venv /tmp/shuffle && /tmp/shuffle/bin/pip install numpy gguf
    build/bin/fastdecode quantize models/SmolLM2-135M-Instruct.Q4_1.gguf /tmp/f16.gguf --type f16 --requantize
    /tmp/shuffle/bin/python tests/golden/shuffle_channels.py /tmp/f16.gguf
    build/bin/fastdecode eval --model /tmp/f16.gguf --text docs/design.md --tokens 2000 --table

Three kinds of channels can change places: those of the residual stream (one order for the whole model), those of each MLP, and those of each
KV head's values.
"""
import sys

import gguf
import numpy as np


def main():
    reader = gguf.GGUFReader(sys.argv[1], "r+")
    field = lambda key: reader.fields[key].contents()
    assert field("general.architecture") == "llama"
    heads, kv_heads, hidden = (field("llama." + key) for key in ("attention.head_count", "attention.head_count_kv", "embedding_length"))
    random, tensors = np.random.default_rng(1), {t.name: t.data for t in reader.tensors}  # data: [outputs][inputs]
    assert all(t.tensor_type in (gguf.GGMLQuantizationType.F16, gguf.GGMLQuantizationType.F32) for t in reader.tensors)
    stream = random.permutation(hidden)

    for name, data in tensors.items():
        part = name.split(".")[-2]
        if part in ("attn_output", "ffn_down"):
            data[:] = data[stream]
        elif data.shape[-1] == hidden and part not in ("rope_freqs",):
            data[:] = data[..., stream]
    for layer in range(field("llama.block_count")):
        gate, up, down, v, o = (tensors["blk.%d.%s.weight" % (layer, part)] for part in
                                ("ffn_gate", "ffn_up", "ffn_down", "attn_v", "attn_output"))
        inner = random.permutation(gate.shape[0])
        gate[:], up[:], down[:] = gate[inner], up[inner], down[:, inner]
        size = v.shape[0] // kv_heads
        orders = [random.permutation(size) for _ in range(kv_heads)]
        v[:] = v[np.concatenate([head * size + order for head, order in enumerate(orders)])]
        o[:] = o[:, np.concatenate([head * size + orders[head // (heads // kv_heads)] for head in range(heads)])]
    for data in tensors.values():
        if isinstance(data.base, np.memmap):
            data.base.flush()


main()
