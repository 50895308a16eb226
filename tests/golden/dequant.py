#!/usr/bin/env python3
"""Writes dequant.inc: a few blocks of random bits of every supported type, and what PyPI's `gguf` (numpy) makes of them.

    python3 -m venv /tmp/oracle && /tmp/oracle/bin/pip install numpy gguf
    /tmp/oracle/bin/python tests/golden/dequant.py > tests/golden/dequant.inc

A line of dequant.inc: GOLDEN(type, value count, hexadecimal bytes of the blocks, hexadecimal bits of each f32).
"""
import gguf
import numpy as np

# Blocks, and where the f16 scales lie in one: they must be finite. An exponent of MXFP4 may be any: the largest overflow f32.
TYPES = {"F32": (8, []), "F16": (16, [0]), "BF16": (16, []), "Q4_0": (2, [0]), "Q4_1": (2, [0, 2]), "Q5_0": (2, [0]),
         "Q5_1": (2, [0, 2]), "Q8_0": (2, [0]), "Q4_K": (1, [0, 2]), "Q5_K": (1, [0, 2]), "Q6_K": (1, [208]),
         "Q2_K": (2, [80, 82]), "Q3_K": (2, [108]), "Q8_K": (1, []), "IQ4_NL": (3, [0]), "IQ4_XS": (2, [0]), "MXFP4": (9, [])}
MXFP4_EXPONENTS = [0, 1, 2, 3, 120, 127, 252, 254, 255]


def finite_f16(random):
    while True:
        bits = random.integers(0, 1 << 16, dtype=np.uint16)
        if (bits >> 10) & 31 != 31:
            return bits.tobytes()


def q8_k(blocks):
    """gguf has no reader of Q8_K: f32 d, then 256 signed bytes; the sums behind them do not count."""
    d = np.ascontiguousarray(blocks[:, :4]).view("<f4")
    return (d * blocks[:, 4:260].view(np.int8).astype(np.float32)).reshape(-1)


def main():
    random = np.random.default_rng(20)
    print("/* Written by dequant.py with gguf's numpy code: do not edit. */")
    for name, (count, scales) in TYPES.items():
        kind = gguf.GGMLQuantizationType[name]
        values, size = gguf.GGML_QUANT_SIZES[kind]
        blocks = random.integers(0, 256, (count, size), dtype=np.uint8)
        for block in blocks:
            for at in scales:
                block[at:at + 2] = np.frombuffer(finite_f16(random), np.uint8)
        if name in ("F32", "BF16"):  # finite: a few exponents below infinity
            blocks[:, -1] &= 0xbf
        if name == "Q8_K":
            blocks[:, 3] = 0x3e
        if name == "MXFP4":
            blocks[:, 0] = MXFP4_EXPONENTS
        data = blocks.reshape(1, -1)
        if name in ("F32", "F16"):
            data = data.view(np.float32 if name == "F32" else np.float16)
        with np.errstate(over="ignore"):
            out = q8_k(blocks) if name == "Q8_K" else gguf.dequantize(data, kind).astype(np.float32).reshape(-1)
        assert len(out) == count * values and not np.isnan(out).any()
        assert name == "MXFP4" or np.isfinite(out).all()
        lines = ["".join("%08x" % bits for bits in out.view(np.uint32)[i:i + 14]) for i in range(0, len(out), 14)]
        print("GOLDEN(TENSOR_%s, %d,\n    \"%s\",\n    %s)" % (
            name, len(out), bytes(blocks.reshape(-1)).hex(), "\n    ".join('"%s"' % line for line in lines)))


if __name__ == "__main__":
    main()
