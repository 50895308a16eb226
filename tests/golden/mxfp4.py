"""MXFP4, the form that the experts of published gpt-oss files have, for the tiny model of gpt_oss_mxfp4.json. It needs the standard library alone.

A stacked matrix [expert][input][output] of a plain file, NAME, is two tensors of bytes there:
    NAME_blocks [expert][output][input / 32][16]    byte i: the code of value 2i in the low nibble, that of 2i + 1 in the high one
    NAME_scales [expert][output][input / 32]        the exponent: a value is CODES[code] * 2 ** (scale - 127)
GGUF has the two together: the scale, then 16 bytes, byte i with value i in the low nibble and value i + 16 in the high one.

Blocks are random bytes, so all codes are equally frequent, and scales lie around one that gives the wanted spread. That makes every value exact in
MXFP4, BF16 and F32.
"""
import array
import math

CODES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0)
BLOCK = 32
STEPS = (-1, 0, 0, 1)  # what a scale differs by from the middle one
SUFFIXES = ("_blocks", "_scales")


def is_part(name):
    return name.endswith(SUFFIXES)


def has_parts(config, name):
    """Whether a model has this matrix, under its plain name, in parts."""
    return name.endswith((".experts.gate_up_proj", ".experts.down_proj")) and "quantization_config" in config


def whole_of(name, shape):
    """(name, shape) of the plain matrix that a part belongs to."""
    return name[:-len(SUFFIXES[0])], [shape[0], shape[2] * BLOCK, shape[1]]


def parts_of(name, shape):
    """[name, shape] of the blocks and of the scales of a plain matrix."""
    experts, inputs, outputs = shape
    groups = [experts, outputs, inputs // BLOCK]
    return [[name + SUFFIXES[0], groups + [BLOCK // 2]], [name + SUFFIXES[1], groups]]


def scales(stream, spread):
    """One scale for each random byte, so that values get about this spread."""
    codes = math.sqrt(sum(code * code for code in CODES) / len(CODES))
    steps = math.sqrt(sum(4.0 ** step for step in STEPS) / len(STEPS))
    middle = 127 + round(math.log2(spread / codes / steps))
    return bytes(middle + STEPS[byte % len(STEPS)] for byte in stream)


def dequantized(blocks, exponents, shape):
    """The values of a plain matrix of this shape, as floats in its order."""
    experts, inputs, outputs = shape
    out = array.array("f", bytes(4 * experts * inputs * outputs))
    for i, byte in enumerate(blocks):
        block, at = divmod(i, BLOCK // 2)
        row, group = divmod(block, inputs // BLOCK)
        expert, output = divmod(row, outputs)
        scale = 2.0 ** (exponents[block] - 127)
        first = (expert * inputs + group * BLOCK + 2 * at) * outputs + output
        out[first], out[first + outputs] = CODES[byte & 15] * scale, CODES[byte >> 4] * scale
    return out


def gguf_rows(blocks, exponents, inputs):
    """Each row of outputs as GGUF has it."""
    groups, rows = inputs // BLOCK, []
    for first in range(0, len(exponents), groups):
        row = bytearray()
        for i in range(first, first + groups):
            codes = [code for byte in blocks[i * 16:i * 16 + 16] for code in (byte & 15, byte >> 4)]
            row.append(exponents[i])
            row += bytes(low | high << 4 for low, high in zip(codes[:16], codes[16:]))
        rows.append(bytes(row))
    return rows
