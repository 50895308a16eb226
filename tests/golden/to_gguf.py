#!/usr/bin/env python3
"""Converts a tiny Hugging Face directory (weights.py) to a GGUF file, with the names, keys and layouts that GGUF files of each
architecture have. It needs the standard library alone.

  to_gguf.py FOLDER FILE [--type F32|F16|BF16]

What differs from the directory, beside names:
  - architectures llama, granite and smollm3 rotate neighbouring pairs, so rows of q and k are reordered within each head; all
    others rotate elements half a head apart, as transformers does everywhere
  - Gemma's norms hold weight + 1
  - experts are stacked: ffn_{gate,up,down}_exps [expert][output][input]; those of gpt-oss are transposed for it, and its gate
    and up, which alternate, are parted; in MXFP4 they stay so, and a block gets its scale
  - scaled positions: factors become tensors (rope_freqs for llama3, rope_factors_{short,long} for longrope)
  - what sentence-transformers or the class say of embeddings is pooling_type; a head's score.weight is cls.output.weight
  - matrices may be F16 or BF16 (exact for the values of weights.py); norms, biases, routers, sinks and positions are F32

OPT has no published GGUF form; here it is "opt" with token_embd, position_embd (all rows, with the two that the offset skips),
attn_norm, ffn_norm and output_norm with biases, ffn_up and ffn_down.
"""
import argparse
import array
import glob
import json
import math
import os
import re
import struct

import mxfp4

U32, I32, F32, BOOL, STRING, ARRAY = 4, 5, 6, 7, 8, 9
FORMS = {U32: "<I", I32: "<i", F32: "<f", BOOL: "<?"}
TENSOR_TYPES = {"F32": 0, "F16": 1, "BF16": 30, "MXFP4": 39}
ALIGN = 32
TOKEN_NORMAL, TOKEN_UNKNOWN, TOKEN_CONTROL, TOKEN_UNUSED, TOKEN_BYTE = 1, 2, 3, 5, 6

ARCHITECTURES = {"mistral": "llama", "mixtral": "llama", "qwen3_moe": "qwen3moe", "gemma3_text": "gemma3", "gpt_oss": "gpt-oss"}
NEIGHBOURS = ("llama", "granite", "smollm3")  # pairs of elements that are rotated together lie side by side

TOP = {"embed_tokens": "token_embd", "embed_positions": "position_embd", "norm": "output_norm", "final_layer_norm": "output_norm",
       "lm_head": "output", "score": "cls.output"}
POOLINGS = {"pooling_mode_mean_tokens": 1, "pooling_mode_cls_token": 2, "pooling_mode_lasttoken": 3}
LAYER = {
    "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v", "self_attn.qkv_proj": "attn_qkv",
    "self_attn.o_proj": "attn_output", "self_attn.out_proj": "attn_output", "self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm",
    "self_attn.sinks": "attn_sinks", "self_attn_layer_norm": "attn_norm", "input_layernorm": "attn_norm", "final_layer_norm": "ffn_norm",
    "pre_feedforward_layernorm": "ffn_norm", "post_feedforward_layernorm": "post_ffw_norm", "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down", "mlp.gate_up_proj": "ffn_up",
    "fc1": "ffn_up", "fc2": "ffn_down", "mlp.c_fc": "ffn_up", "mlp.c_proj": "ffn_down",
    "mlp.gate": "ffn_gate_inp", "mlp.router": "ffn_gate_inp", "block_sparse_moe.gate": "ffn_gate_inp",
    "mlp.experts.gate_proj": "ffn_gate_exps", "mlp.experts.up_proj": "ffn_up_exps", "mlp.experts.down_proj": "ffn_down_exps",
    "block_sparse_moe.experts.w1": "ffn_gate_exps", "block_sparse_moe.experts.w3": "ffn_up_exps", "block_sparse_moe.experts.w2": "ffn_down_exps"}
# Architectures whose post_attention_layernorm follows attention, and is not what the MLP begins with. (That of gpt-oss is, under this name.)
POST_NORMS = ("gemma2", "gemma3", "olmo2", "gpt-oss")


class Blocks:
    """Shape, outermost dimension first, and the bytes of each row, in MXFP4."""

    def __init__(self, shape, rows):
        self.shape, self.rows = list(shape), rows
        assert math.prod(shape[:-1]) == len(rows)


class Tensor:
    """Shape, outermost dimension first, and values, an array of floats."""

    def __init__(self, shape, data):
        self.shape, self.data = list(shape), data
        assert math.prod(shape) == len(data)

    def rows(self):
        width = self.shape[-1]
        return [self.data[i:i + width] for i in range(0, len(self.data), width)]

    def of_rows(self, rows, *shape):
        """The given rows (or parts of them) one after the other."""
        return Tensor(shape or self.shape, array.array("f", b"".join(row.tobytes() for row in rows)))


# --- the directory ------------------------------------------------------------------------------------------------------------

def load_json(folder, name):
    with open(os.path.join(folder, name), encoding="utf-8") as file:
        return json.load(file)


def floats(data, kind):
    """Values of F32 or BF16 bytes."""
    if kind == "BF16":
        wide = bytearray(2 * len(data))
        wide[2::4], wide[3::4] = data[::2], data[1::2]
        data = wide
    return array.array("f", bytes(data))


def load_tensors(folder):
    """Name: Tensor, of all safetensors files."""
    found = {}
    for path in sorted(glob.glob(os.path.join(folder, "*.safetensors"))):
        with open(path, "rb") as file:
            data = file.read()
        begin = 8 + int.from_bytes(data[:8], "little")
        for name, entry in json.loads(data[8:begin]).items():
            if name != "__metadata__":
                first, last = entry["data_offsets"]
                part = data[begin + first:begin + last]
                found[name] = Tensor(entry["shape"], part if entry["dtype"] == "U8" else floats(part, entry["dtype"]))
    return found


def rope_of(config):
    """(base, scaling) of the layers with full attention; scaling has "rope_type", or is empty."""
    rope = config.get("rope_parameters") or {}
    rope = dict(rope.get("full_attention", rope) or config.get("rope_scaling") or {})
    base = rope.pop("rope_theta", config.get("rope_theta"))
    rope["rope_type"] = rope.get("rope_type", rope.pop("type", "default"))
    return base, rope if rope["rope_type"] != "default" else {}


def local_base_of(config):
    rope = config.get("rope_parameters") or {}
    return rope.get("sliding_attention", {}).get("rope_theta", config.get("rope_local_base_freq"))


# --- tensors ------------------------------------------------------------------------------------------------------------------

def pair_neighbours(tensor, heads):
    """Rows of a head [first half][second half] alternate."""
    rows = tensor.rows() if len(tensor.shape) == 2 else [tensor.data[i:i + 1] for i in range(len(tensor.data))]
    half = len(rows) // heads // 2
    return tensor.of_rows([rows[(2 * head + side) * half + i] for head in range(heads) for i in range(half) for side in range(2)])


def transpose(tensor):
    """[expert][a][b] as [expert][b][a]."""
    experts, a, b = tensor.shape
    return tensor.of_rows([tensor.data[e * a * b + i:(e + 1) * a * b:b] for e in range(experts) for i in range(b)], experts, b, a)


def every_second(tensor, first):
    """Of the last dimension but one of three, of the last of two."""
    if len(tensor.shape) == 2:
        return tensor.of_rows([row[first::2] for row in tensor.rows()], tensor.shape[0], tensor.shape[1] // 2)
    experts, rows, columns = tensor.shape
    return tensor.of_rows([row for i, row in enumerate(tensor.rows()) if i % 2 == first], experts, rows // 2, columns)


def name_of(arch, name):
    """(GGUF name, number of the expert or None) of a tensor of the directory."""
    parts = name.split(".")
    kind = parts.pop() if parts[-1] in ("weight", "bias") else "weight"
    found = re.fullmatch(r"model\.(?:decoder\.)?layers\.(\d+)\.(.*?)(?:experts\.(\d+)\.(\w+))?", ".".join(parts))
    if not found:
        return f"{TOP[parts[-1]]}.{kind}", None
    layer, rest, expert, matrix = found.groups()
    rest = rest if expert is None else f"{rest}experts.{matrix}"
    own = "post_attention_norm" if rest == "post_attention_layernorm" and arch in POST_NORMS else LAYER[rest]
    return f"blk.{layer}.{own}.{kind}", expert and int(expert)


def experts_of_gpt_oss(name, tensor):
    """(name, tensor) pairs of what a stacked tensor of gpt-oss becomes."""
    layer, matrix = re.fullmatch(r"model\.layers\.(\d+)\.mlp\.experts\.(\w+)", name).groups()
    if isinstance(tensor, Blocks):
        experts, outputs, inputs = tensor.shape
        if matrix.startswith("down"):
            return [(f"blk.{layer}.ffn_down_exps.weight", tensor)]
        return [(f"blk.{layer}.ffn_{own}_exps.weight", Blocks([experts, outputs // 2, inputs], tensor.rows[i::2]))
                for i, own in enumerate(("gate", "up"))]
    kind = "bias" if matrix.endswith("_bias") else "weight"
    tensor = tensor if kind == "bias" else transpose(tensor)
    if matrix.startswith("down"):
        return [(f"blk.{layer}.ffn_down_exps.{kind}", tensor)]
    return [(f"blk.{layer}.ffn_{own}_exps.{kind}", every_second(tensor, i)) for i, own in enumerate(("gate", "up"))]


def own_layout(arch, config, name, tensor):
    """A tensor as the architecture has it under its GGUF name."""
    if arch in NEIGHBOURS and re.search(r"\.attn_[qk]\.", name):
        return pair_neighbours(tensor, config["num_attention_heads" if ".attn_q." in name else "num_key_value_heads"])
    if arch.startswith("gemma") and name.endswith("norm.weight"):
        return Tensor(tensor.shape, array.array("f", (x + 1 for x in tensor.data)))
    return tensor


def joined_blocks(tensors):
    """The same, with blocks and scales as one."""
    out = {}
    for name, tensor in tensors.items():
        if name.endswith("_blocks"):
            whole, (experts, inputs, outputs) = mxfp4.whole_of(name, tensor.shape)
            out[whole] = Blocks([experts, outputs, inputs], mxfp4.gguf_rows(tensor.data, tensors[whole + "_scales"].data, inputs))
        elif not name.endswith("_scales"):
            out[name] = tensor
    return out


def convert_tensors(arch, config, tensors):
    """Name: Tensor as they are in GGUF."""
    out, stacks = {}, {}
    tensors = joined_blocks(tensors)
    for name, tensor in tensors.items():
        if arch == "gpt-oss" and ".experts." in name:
            out.update(experts_of_gpt_oss(name, tensor))
            continue
        own, expert = name_of(arch, name)
        if expert is not None:
            stacks.setdefault(own, {})[expert] = tensor
            continue
        out[own] = own_layout(arch, config, own, tensor)
    for own, stack in stacks.items():
        ordered = [stack[i] for i in range(len(stack))]
        out[own] = Tensor([len(stack), *ordered[0].shape], array.array("f", b"".join(t.data.tobytes() for t in ordered)))
    return out


def factors_of_llama3(base, dim, scaling):
    """What each pair's frequency is divided by."""
    low, high, before = (scaling[key] for key in ("low_freq_factor", "high_freq_factor", "original_max_position_embeddings"))
    factors = []
    for i in range(0, dim, 2):
        turns = before / (2 * math.pi * base ** (i / dim))  # within the length of training
        smooth = min(max((turns - low) / (high - low), 0), 1)
        factors.append(1 / ((1 - smooth) / scaling["factor"] + smooth))
    return factors


def rope_tensors(base, dim, scaling):
    kind = scaling.get("rope_type")
    if kind == "llama3":
        return {"rope_freqs.weight": Tensor([dim // 2], array.array("f", factors_of_llama3(base, dim, scaling)))}
    if kind == "longrope":
        return {f"rope_factors_{length}.weight": Tensor([dim // 2], array.array("f", scaling[f"{length}_factor"])) for length in ("long", "short")}
    return {}


# --- keys ---------------------------------------------------------------------------------------------------------------------

def text(value):
    return struct.pack("<Q", len(value.encode())) + value.encode()


class Keys:
    """Key-value pairs, in bytes. put() and put_array() leave out a key whose value is None."""

    def __init__(self):
        self.data, self.count = bytearray(), 0

    def put(self, name, kind, value):
        if value is not None:
            self.data += text(name) + struct.pack("<I", kind) + (text(value) if kind == STRING else struct.pack(FORMS[kind], value))
            self.count += 1

    def put_array(self, name, kind, values):
        if values is not None:
            items = b"".join(text(value) if kind == STRING else struct.pack(FORMS[kind], value) for value in values)
            self.data += text(name) + struct.pack("<IIQ", ARRAY, kind, len(values)) + items
            self.count += 1


def put_rope(keys, arch, config, head_dim):
    base, scaling = rope_of(config)
    kind, before = scaling.get("rope_type"), scaling.get("original_max_position_embeddings", config.get("original_max_position_embeddings"))
    keys.put(f"{arch}.rope.freq_base", F32, base)
    keys.put(f"{arch}.rope.dimension_count", U32, rotated(config, head_dim))
    if arch == "gemma3":
        keys.put("gemma3.rope.freq_base_swa", F32, local_base_of(config))
    if kind in ("linear", "yarn", "longrope"):
        keys.put(f"{arch}.rope.scaling.type", STRING, kind)
        keys.put(f"{arch}.rope.scaling.factor", F32, scaling.get("factor"))
    if kind in ("yarn", "longrope"):
        keys.put(f"{arch}.rope.scaling.original_context_length", U32, before)
    if kind == "yarn":
        keys.put(f"{arch}.rope.scaling.yarn_beta_fast", F32, scaling.get("beta_fast"))
        keys.put(f"{arch}.rope.scaling.yarn_beta_slow", F32, scaling.get("beta_slow"))
    if kind == "longrope":
        longer = config["max_position_embeddings"] / before
        keys.put(f"{arch}.rope.scaling.attn_factor", F32, math.sqrt(1 + math.log(longer) / math.log(before)) if longer > 1 else 1.0)


def rotated(config, head_dim):
    """Elements of a head that are rotated."""
    return int(head_dim * config.get("partial_rotary_factor", 1.0))


def put_model(keys, arch, config, head_dim):
    heads = config["num_attention_heads"]
    keys.put("general.architecture", STRING, arch)
    keys.put("general.name", STRING, "Tiny")
    keys.put("general.alignment", U32, ALIGN)
    for name, value in (("vocab_size", config["vocab_size"]), ("context_length", config["max_position_embeddings"]),
                        ("embedding_length", config["hidden_size"]), ("block_count", config["num_hidden_layers"]),
                        ("feed_forward_length", config.get("intermediate_size", config.get("ffn_dim"))), ("attention.head_count", heads),
                        ("attention.head_count_kv", config.get("num_key_value_heads", heads)), ("attention.key_length", head_dim),
                        ("attention.value_length", head_dim), ("expert_count", config.get("num_experts", config.get("num_local_experts"))),
                        ("expert_used_count", config.get("num_experts_per_tok")), ("attention.sliding_window", window_of(config))):
        keys.put(f"{arch}.{name}", U32, value)
    if arch in ("qwen3moe", "gpt-oss"):
        keys.put(f"{arch}.expert_feed_forward_length", U32, config.get("moe_intermediate_size", config["intermediate_size"]))
    scalar = config.get("query_pre_attn_scalar")
    for name, value in (("attention.layer_norm_rms_epsilon", config.get("rms_norm_eps")),
                        ("attention.layer_norm_epsilon", 1e-5 if arch == "opt" else config.get("norm_epsilon")),
                        ("attn_logit_softcapping", config.get("attn_logit_softcapping")),
                        ("final_logit_softcapping", config.get("final_logit_softcapping")),
                        ("embedding_scale", config.get("embedding_multiplier")), ("residual_scale", config.get("residual_multiplier")),
                        ("logit_scale", config.get("logits_scaling")),
                        ("attention.scale", config.get("attention_multiplier", scalar and scalar ** -0.5))):
        keys.put(f"{arch}.{name}", F32, value)
    keys.put(f"{arch}.expert_weights_norm", BOOL, config.get("norm_topk_prob"))
    if arch != "opt":
        put_rope(keys, arch, config, head_dim)


def put_pooling(keys, arch, config, folder):
    """What the class, or the files of sentence-transformers, say of embeddings."""
    labels, path = config.get("id2label") or {}, os.path.join("1_Pooling", "config.json")
    if config["architectures"][0].endswith("ForSequenceClassification"):
        keys.put(f"{arch}.pooling_type", U32, 4)
        keys.put_array(f"{arch}.classifier.output_labels", STRING, [labels[str(i)] for i in range(len(labels))] or None)
    elif os.path.exists(os.path.join(folder, path)):
        pooling = load_json(folder, path)
        keys.put(f"{arch}.pooling_type", U32, next(number for mode, number in POOLINGS.items() if pooling.get(mode)))


def window_of(config):
    """The window, where some layer has one."""
    return config.get("sliding_window") if config.get("use_sliding_window", True) else None


PRE = ((r"\p{N}{1,3}", "llama-bpe"), (r"|\p{N}|", "qwen2"))


def put_tokenizer(keys, folder, vocabulary):
    """All of tokenizer.ggml. vocabulary: rows of the embedding; those without a token get names."""
    tokenizer, config = load_json(folder, "tokenizer.json"), load_json(folder, "tokenizer_config.json")
    ids, model, pieces = load_json(folder, "generation_config.json"), tokenizer["model"], tokenizer["model"]["byte_fallback"]
    tokens, kinds = [f"[PAD{i}]" for i in range(vocabulary)], [TOKEN_UNUSED] * vocabulary
    for token, i in model["vocab"].items():
        tokens[i], kinds[i] = token, TOKEN_BYTE if pieces and re.fullmatch("<0x..>", token) else TOKEN_NORMAL
    for entry in tokenizer["added_tokens"]:
        tokens[entry["id"]] = entry["content"]
        kinds[entry["id"]] = TOKEN_UNKNOWN if entry["content"] == model["unk_token"] else TOKEN_CONTROL
    keys.put("tokenizer.ggml.model", STRING, "llama" if pieces else "gpt2")
    if pieces:
        ranks = {"".join(merge): i for i, merge in enumerate(model["merges"])}
        keys.put("tokenizer.ggml.pre", STRING, "default")
        keys.put_array("tokenizer.ggml.scores", F32, [-float(ranks.get(token, 1000 + i)) for i, token in enumerate(tokens)])
        spaces = json.dumps(tokenizer["normalizer"])
        keys.put("tokenizer.ggml.add_space_prefix", BOOL, "Prepend" in spaces)
    else:
        pre = json.dumps(tokenizer["pre_tokenizer"]).replace("\\\\", "\\")
        keys.put("tokenizer.ggml.pre", STRING, next((name for mark, name in PRE if mark in pre), "gpt-2"))
        keys.put_array("tokenizer.ggml.merges", STRING, [" ".join(merge) for merge in model["merges"]])
    keys.put_array("tokenizer.ggml.tokens", STRING, tokens)
    keys.put_array("tokenizer.ggml.token_type", I32, kinds)
    for name in ("bos", "eos", "padding", "unknown"):
        token = config.get({"padding": "pad", "unknown": "unk"}.get(name, name) + "_token")
        keys.put(f"tokenizer.ggml.{name}_token_id", U32, token and tokens.index(token))
    other = [i for i in ids["eos_token_id"] if tokens[i] != config["eos_token"]] if isinstance(ids["eos_token_id"], list) else []
    keys.put("tokenizer.ggml.eot_token_id", U32, other[0] if other else None)
    keys.put("tokenizer.ggml.add_bos_token", BOOL, config["add_bos_token"])
    keys.put("tokenizer.chat_template", STRING, config["chat_template"])


# --- the file -----------------------------------------------------------------------------------------------------------------

def plain(name, tensor):
    """Whether a tensor is F32 in any file."""
    return not name.endswith(".weight") or len(tensor.shape) == 1 or name.endswith(("ffn_gate_inp.weight", "position_embd.weight"))


def encoded(tensor, kind):
    if kind == "MXFP4":
        return b"".join(tensor.rows)
    if kind == "F32":
        return tensor.data.tobytes()
    if kind == "F16":
        return struct.pack(f"<{len(tensor.data)}e", *tensor.data)
    data = tensor.data.tobytes()
    out = bytearray(len(data) // 2)
    out[::2], out[1::2] = data[2::4], data[3::4]
    return out


def convert(folder, path, kind="F32"):
    """Writes the GGUF file of a directory. kind: of the matrices."""
    config = load_json(folder, "config.json")
    arch = ARCHITECTURES.get(config["model_type"], config["model_type"])
    head_dim = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    keys = Keys()
    put_model(keys, arch, config, head_dim)
    put_pooling(keys, arch, config, folder)
    put_tokenizer(keys, folder, config["vocab_size"])
    tensors = convert_tensors(arch, config, load_tensors(folder))
    if arch != "opt":
        base, scaling = rope_of(config)
        tensors.update(rope_tensors(base, rotated(config, head_dim), scaling))
    head, body = bytearray(), bytearray()
    for name, tensor in tensors.items():
        own = "MXFP4" if isinstance(tensor, Blocks) else "F32" if plain(name, tensor) else kind
        head += text(name) + struct.pack("<I", len(tensor.shape)) + struct.pack(f"<{len(tensor.shape)}Q", *reversed(tensor.shape))
        head += struct.pack("<IQ", TENSOR_TYPES[own], len(body))
        body += encoded(tensor, own)
        body += bytes(-len(body) % ALIGN)
    begin = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), keys.count) + keys.data + head
    with open(path, "wb") as file:
        file.write(begin + bytes(-len(begin) % ALIGN) + body)


def main():
    parser = argparse.ArgumentParser(description="Converts a tiny Hugging Face directory to a GGUF file.")
    parser.add_argument("folder")
    parser.add_argument("file")
    parser.add_argument("--type", choices=["F32", "F16", "BF16"], default="F32")
    options = parser.parse_args()
    convert(options.folder, options.file, options.type)


if __name__ == "__main__":
    main()
