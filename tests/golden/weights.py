#!/usr/bin/env python3
"""Writes the tiny model that a golden file describes, as a Hugging Face directory. It needs the standard library alone.

  weights.py NAME FOLDER [--type F32|BF16] [--shards 2] [--gguf FILE [--gguf-type F32|F16|BF16]]

NAME: llama for tests/golden/llama.json, which make.py wrote: there are the configuration, the names and shapes of the tensors,
token ids, and the log-probabilities that `transformers` computes for them.

Values are not stored but follow from the tensor's name: SHAKE-128 of "SEED:NAME" gives a byte for each element, and the byte
chooses one of 256 quantiles of a normal distribution, whose centre and spread depend on what the tensor is for. Spreads are such
that attention chooses, windows and scaled positions matter and logits are not flat. All values are exact in BF16, and in F16
as well, so each type of file gives the same results. Experts in MXFP4 are bytes in any type of file (mxfp4.py).
"""
import argparse
import hashlib
import json
import math
import os
import statistics
import struct

import mxfp4
import tiny_tokenizers
import to_gguf

HERE = os.path.dirname(os.path.abspath(__file__))
QUANTILES = [statistics.NormalDist().inv_cdf((i + 0.5) / 256) for i in range(256)]
WIDTH = {"F32": 4, "BF16": 2, "U8": 1}
# The JSON files here that are not goldens of a model.
OTHERS = ("chat_template", "chat_tools", "embeddings", "oracle", "saved", "schemas", "tokenizer")


def names():
    """The goldens that are here."""
    return sorted(name[:-5] for name in os.listdir(HERE) if name.endswith(".json") and name[:-5] not in OTHERS)


def golden(name):
    """What NAME.json says."""
    with open(os.path.join(HERE, name + ".json"), encoding="utf-8") as file:
        return json.load(file)


def distribution(name, shape, config):
    """(centre, spread) of a tensor's values."""
    if mxfp4.is_part(name):
        name, shape = mxfp4.whole_of(name, shape)
    part = name.removesuffix(".weight").rsplit(".", 1)[-1]  # "q_proj"
    swapped = len(shape) == 3  # experts in one tensor, as [expert][input][output]
    per_input = (shape[1] if swapped else shape[-1]) ** -0.5
    if part == "sinks":
        return 0, 1
    if part.endswith("bias"):
        return 0, 0.2
    if "norm" in part:
        centre = 0 if config["model_type"].startswith("gemma") else 1  # Gemma adds 1 itself
        return centre + (0.5 if part in ("q_norm", "k_norm") else 0), 0.15
    if part in ("embed_tokens", "embed_positions"):
        return 0, 0.2
    gains = {"lm_head": 1.5, "q_proj": 1.5, "k_proj": 1.5, "qkv_proj": 1.5, "gate": 3, "router": 3}
    if swapped:  # large enough that the clamp of gpt-oss is met
        gains = {"gate_up_proj": 3, "down_proj": 0.3}
    return 0, gains.get(part, 1) * per_input


def bf16(value):
    """The bits of a number rounded to BF16, to nearest even."""
    bits, = struct.unpack("<I", struct.pack("<f", value))
    return (bits + 0x7fff + (bits >> 16 & 1)) >> 16


def values(name, shape, config, seed, kind="F32"):
    """The bytes of one tensor, little-endian."""
    if mxfp4.has_parts(config, name):
        return plain_values(name, shape, config, seed, kind)
    centre, spread = distribution(name, shape, config)
    stream = hashlib.shake_128(f"{seed}:{name}".encode()).digest(math.prod(shape))
    if mxfp4.is_part(name):
        return stream if name.endswith("_blocks") else mxfp4.scales(stream, spread)
    table = [bf16(centre + spread * z) for z in QUANTILES]
    out = bytearray(len(stream) * WIDTH[kind])
    out[WIDTH[kind] - 2::WIDTH[kind]] = stream.translate(bytes(bits & 255 for bits in table))
    out[WIDTH[kind] - 1::WIDTH[kind]] = stream.translate(bytes(bits >> 8 for bits in table))
    return out


def plain_values(name, shape, config, seed, kind):
    """Those of a matrix that the model has in MXFP4."""
    blocks, exponents = (values(part, size, config, seed) for part, size in mxfp4.parts_of(name, shape))
    wide = mxfp4.dequantized(blocks, exponents, shape).tobytes()
    return wide if kind == "F32" else bytes(byte for i, byte in enumerate(wide) if i % 4 >= 2)


def kind_of(name, kind):
    """The type of a tensor in a file whose floats have the type `kind`."""
    return "U8" if mxfp4.is_part(name) else kind


def plain_tensors(what):
    """[name, shape] of the model's tensors with no experts in MXFP4."""
    return [list(mxfp4.whole_of(name, shape)) if mxfp4.is_part(name) else [name, shape]
            for name, shape in what["tensors"] if not name.endswith("_scales")]


def checksum(what):
    """SHA-256 of all values as F32: whether they are still those that transformers was given."""
    found = hashlib.sha256()
    for name, shape in what["tensors"]:
        found.update(values(name, shape, what["config"], what["seed"]))
    return found.hexdigest()


def write_tensors(path, tensors, what, kind):
    """A safetensors file of [name, shape] of the golden `what`. Returns the size of its data."""
    header, body, at = {"__metadata__": {"format": "pt"}}, [], 0
    for name, shape in tensors:
        data = values(name, shape, what["config"], what["seed"], kind)
        header[name] = {"dtype": kind_of(name, kind), "shape": shape, "data_offsets": [at, at + len(data)]}
        body.append(data)
        at += len(data)
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text + b"".join(body))
    return at


def write_json(folder, name, content):
    with open(os.path.join(folder, name), "w", encoding="utf-8") as file:
        json.dump(content, file, indent=2, ensure_ascii=False)
        file.write("\n")


def write(folder, what, kind="F32", shards=1, plain=False):
    """Writes the directory. what: a golden's name or content. kind: of the tensors. shards: files that the tensors are spread over. plain: experts in
    MXFP4 are written as floats of the same values."""
    what = golden(what) if isinstance(what, str) else what
    os.makedirs(folder, exist_ok=True)
    tokenizer, tokenizer_config, ids = tiny_tokenizers.tokenizer_of(what["config"]["model_type"])
    config = {key: value for key, value in what["config"].items() if not (plain and key == "quantization_config")}
    write_json(folder, "config.json", dict(config, torch_dtype={"F32": "float32", "BF16": "bfloat16"}[kind]))
    write_json(folder, "generation_config.json", {"_from_model_config": True, **ids})
    write_json(folder, "tokenizer.json", tokenizer)
    write_json(folder, "tokenizer_config.json", tokenizer_config)
    tensors = plain_tensors(what) if plain else what["tensors"]
    if shards == 1:
        write_tensors(os.path.join(folder, "model.safetensors"), tensors, what, kind)
        return
    total, files = 0, {}
    for i in range(shards):
        part = tensors[len(tensors) * i // shards:len(tensors) * (i + 1) // shards]
        file = f"model-{i + 1:05}-of-{shards:05}.safetensors"
        total += write_tensors(os.path.join(folder, file), part, what, kind)
        files.update((name, file) for name, _ in part)
    write_json(folder, "model.safetensors.index.json", {"metadata": {"total_size": total}, "weight_map": files})


def main():
    parser = argparse.ArgumentParser(description="Writes a tiny model as a Hugging Face directory, and as GGUF.")
    parser.add_argument("name", choices=names())
    parser.add_argument("folder")
    parser.add_argument("--type", choices=["F32", "BF16"], default="F32")
    parser.add_argument("--shards", type=int, default=1)
    parser.add_argument("--gguf", metavar="FILE", help="write this GGUF file as well")
    parser.add_argument("--gguf-type", choices=["F32", "F16", "BF16"], default="F32")
    options = parser.parse_args()
    write(options.folder, options.name, options.type, options.shards)
    if options.gguf:
        to_gguf.convert(options.folder, options.gguf, options.gguf_type)


if __name__ == "__main__":
    main()
