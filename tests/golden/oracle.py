#!/usr/bin/env python3
"""The oracle: a forward pass of the llama architecture in plain numpy, float64 throughout, written to be read.

It shares nothing with the program that it judges: the file is read and dequantized by PyPI's `gguf`, text is split by
PyPI's `tokenizers`, and every line of the arithmetic is below. Its output, oracle.json, lies beside it. How that was made:

    python3 -m venv /tmp/oracle && /tmp/oracle/bin/pip install numpy gguf tokenizers
    OPENBLAS_NUM_THREADS=1 /tmp/oracle/bin/python tests/golden/oracle.py models/SmolLM2-135M-Instruct.Q4_1.gguf tests/golden/oracle.json

oracle.json:
    model       file, bytes, sha256: what was asked
    scored[]    name, tokens [n], and for each position i of n - 1: log_probability[i] of tokens[i + 1] given tokens[0..i],
                argmax[i] (ties: the lowest id), margin[i] = best logit - second best
    greedy[]    prompt (text), tokens (its ids), and 64 continuations: continuation[i], log_probability[i], margin[i]
    debug       for one position of one scored sequence: the first 10 logits, and the first 8 numbers of the residual stream
                after the embedding, after the first layer and after the last
"""
import hashlib
import json
import sys

import gguf
import numpy as np
import tokenizers

from oracle_texts import DRAWN, GREEDY, SCORED

GREEDY_TOKENS = 64


class Model:
    """Weights and shape; forward() runs tokens through all layers, after what a Cache already holds."""

    def __init__(self, path):
        reader = gguf.GGUFReader(path)
        field = lambda key, default=None: reader.fields[key].contents() if key in reader.fields else default
        assert field("general.architecture") == "llama"
        assert field("llama.rope.scaling.type", "none") == "none"
        self.weights = {t.name: self.load(t) for t in reader.tensors}
        self.layers = field("llama.block_count")
        self.hidden = field("llama.embedding_length")
        self.heads = field("llama.attention.head_count")
        self.kv_heads = field("llama.attention.head_count_kv", self.heads)
        self.head_dim = field("llama.attention.key_length", self.hidden // self.heads)
        self.epsilon = field("llama.attention.layer_norm_rms_epsilon")
        self.vocab = len(field("tokenizer.ggml.tokens"))
        rope_dim = field("llama.rope.dimension_count", self.head_dim)
        assert rope_dim == self.head_dim
        # One frequency for each pair of neighbouring dimensions.
        self.frequencies = field("llama.rope.freq_base", 10000.0) ** (-np.arange(0, rope_dim, 2, dtype=np.float64) / rope_dim)
        if "rope_freqs.weight" in self.weights:
            self.frequencies /= self.weights["rope_freqs.weight"]
        self.output = self.weights.get("output.weight", self.weights["token_embd.weight"])
        self.tokenizer = self.make_tokenizer(field)

    @staticmethod
    def load(tensor):
        values = gguf.dequantize(tensor.data, tensor.tensor_type)  # [outputs][inputs]
        return values.astype(np.float64)

    @staticmethod
    def make_tokenizer(field):
        assert field("tokenizer.ggml.pre") == "smollm"
        tokens = field("tokenizer.ggml.tokens")
        merges = [tuple(m.split(" ")) for m in field("tokenizer.ggml.merges")]
        result = tokenizers.Tokenizer(tokenizers.models.BPE({t: i for i, t in enumerate(tokens)}, merges))
        result.pre_tokenizer = tokenizers.pre_tokenizers.Sequence([
            tokenizers.pre_tokenizers.Digits(individual_digits=True),
            tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)])
        result.decoder = tokenizers.decoders.ByteLevel()
        control = [t for t, kind in zip(tokens, field("tokenizer.ggml.token_type")) if kind == 3]
        result.add_special_tokens(control)
        return result

    def encode(self, text):
        return self.tokenizer.encode(text, add_special_tokens=False).ids

    def norm(self, x, weight):
        return x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + self.epsilon) * weight

    def rope(self, x, positions):
        """x: [rows][heads][head_dim]; rotates each pair (2i, 2i + 1) by position * frequency i."""
        angles = positions[:, None, None] * self.frequencies
        even, odd = x[..., 0::2], x[..., 1::2]
        out = np.empty_like(x)
        out[..., 0::2] = even * np.cos(angles) - odd * np.sin(angles)
        out[..., 1::2] = even * np.sin(angles) + odd * np.cos(angles)
        return out

    def linear(self, x, name):
        out = x @ self.weights[name + ".weight"].T
        return out + self.weights[name + ".bias"] if name + ".bias" in self.weights else out

    def attention(self, q, k, v, positions):
        """q: [rows][heads][head_dim]; k, v: [context][kv_heads][head_dim]; a row sees positions up to its own."""
        group = self.heads // self.kv_heads
        hidden_from = np.arange(k.shape[0])[None, :] > positions[:, None]
        out = np.empty_like(q)
        for head in range(self.heads):
            scores = q[:, head] @ k[:, head // group].T / np.sqrt(self.head_dim)
            scores[hidden_from] = -np.inf
            weights = np.exp(scores - scores.max(axis=1, keepdims=True))
            weights /= weights.sum(axis=1, keepdims=True)
            out[:, head] = weights @ v[:, head // group]
        return out

    def forward(self, tokens, cache, trace=None):
        """Residual stream after the last norm, [rows][hidden], of tokens that follow those in the cache."""
        rows = len(tokens)
        positions = np.arange(cache.length, cache.length + rows)
        x = self.weights["token_embd.weight"][np.array(tokens)].copy()
        if trace is not None:
            trace.append(x.copy())
        for layer in range(self.layers):
            name = "blk.%d." % layer
            h = self.norm(x, self.weights[name + "attn_norm.weight"])
            q = self.linear(h, name + "attn_q").reshape(rows, self.heads, self.head_dim)
            k = self.linear(h, name + "attn_k").reshape(rows, self.kv_heads, self.head_dim)
            v = self.linear(h, name + "attn_v").reshape(rows, self.kv_heads, self.head_dim)
            keys, values = cache.append(layer, self.rope(k, positions), v)
            o = self.attention(self.rope(q, positions), keys, values, positions)
            x += self.linear(o.reshape(rows, -1), name + "attn_output")
            h = self.norm(x, self.weights[name + "ffn_norm.weight"])
            gate = self.linear(h, name + "ffn_gate")
            x += self.linear(gate / (1 + np.exp(-gate)) * self.linear(h, name + "ffn_up"), name + "ffn_down")
            if trace is not None:
                trace.append(x.copy())
        cache.length += rows
        return self.norm(x, self.weights["output_norm.weight"])

    def logits(self, h):
        return h @ self.output.T


class Cache:
    """Keys (already rotated) and values of one sequence, all layers."""

    def __init__(self, model, capacity):
        shape = (model.layers, capacity, model.kv_heads, model.head_dim)
        self.keys, self.values, self.length = np.zeros(shape), np.zeros(shape), 0

    def append(self, layer, k, v):
        end = self.length + len(k)
        self.keys[layer, self.length:end], self.values[layer, self.length:end] = k, v
        return self.keys[layer, :end], self.values[layer, :end]


def log_sum_exp(logits):
    top = logits.max(axis=-1)
    return top + np.log(np.exp(logits - top[..., None]).sum(axis=-1))


def margins(logits):
    two = np.partition(logits, -2, axis=-1)[..., -2:]
    return two[..., 1] - two[..., 0]


def rounded(values):
    return [round(float(v), 6) for v in values]


def score(model, name, tokens, trace=None):
    h = model.forward(tokens, Cache(model, len(tokens)), trace)
    result = {"name": name, "tokens": tokens, "log_probability": [], "argmax": [], "margin": []}
    for begin in range(0, len(tokens) - 1, 128):
        end = min(begin + 128, len(tokens) - 1)
        logits = model.logits(h[begin:end])
        actual = logits[np.arange(end - begin), tokens[begin + 1:end + 1]]
        result["log_probability"] += rounded(actual - log_sum_exp(logits))
        result["argmax"] += [int(i) for i in logits.argmax(axis=1)]
        result["margin"] += rounded(margins(logits))
    print("%-14s %5d tokens, mean log-probability %.4f" % (name, len(tokens), np.mean(result["log_probability"])), flush=True)
    return result, h


def draw(model, text, length, seed):
    """Tokens of the text and of a continuation drawn from the model's own distribution."""
    random = np.random.default_rng(seed)
    tokens = model.encode(text)
    cache = Cache(model, length)
    h = model.forward(tokens, cache)
    while len(tokens) < length:
        logits = model.logits(h[-1])
        cumulative = np.cumsum(np.exp(logits - log_sum_exp(logits)))
        tokens.append(min(int(np.searchsorted(cumulative, random.random() * cumulative[-1], side="right")), model.vocab - 1))
        h = model.forward(tokens[-1:], cache)
    return tokens


def continue_greedily(model, text):
    tokens = model.encode(text)
    cache = Cache(model, len(tokens) + GREEDY_TOKENS)
    result = {"prompt": text, "tokens": tokens, "continuation": [], "log_probability": [], "margin": []}
    h = model.forward(tokens, cache)
    for _ in range(GREEDY_TOKENS):
        logits = model.logits(h[-1])
        best = int(logits.argmax())
        result["continuation"].append(best)
        result["log_probability"].append(round(float(logits[best] - log_sum_exp(logits)), 6))
        result["margin"].append(round(float(margins(logits)), 6))
        h = model.forward([best], cache)
    # The cache must not change the answer: the last step again, without it.
    whole = tokens + result["continuation"]
    again = model.forward(whole, Cache(model, len(whole)))
    assert np.abs(again[-1] - h[-1]).max() < 1e-9
    print(repr(text), "->", repr(model.tokenizer.decode(result["continuation"], skip_special_tokens=False)), flush=True)
    return result


def main(model_path, out_path):
    with open(model_path, "rb") as file:
        data = file.read()
    model = Model(model_path)
    result = {"model": {"file": model_path.rsplit("/", 1)[-1], "bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()},
              "scored": [], "greedy": []}
    trace = []
    for text in SCORED:
        scored, h = score(model, text["name"], model.encode(text["text"]), trace if not trace else None)
        if not result["scored"]:
            position = 20
            result["debug"] = {"name": text["name"], "position": position, "logits": rounded(model.logits(h[position])[:10]),
                               "embedding": rounded(trace[0][position][:8]), "after_first_layer": rounded(trace[1][position][:8]),
                               "after_last_layer": rounded(trace[-1][position][:8])}
        result["scored"].append(scored)
    result["greedy"] = [continue_greedily(model, text) for text in GREEDY]
    for text in DRAWN:
        result["scored"].append(score(model, text["name"], draw(model, text["text"], text["length"], text["seed"]))[0])
    positions = sum(len(s["argmax"]) for s in result["scored"])
    print(positions, "positions,", len(result["greedy"]), "greedy continuations")
    assert positions >= 4096
    with open(out_path, "w") as file:
        rows = lambda items: ",\n".join(json.dumps(item, separators=(",", ":")) for item in items)
        file.write('{"model":%s,\n"debug":%s,\n"scored":[\n%s],\n"greedy":[\n%s]}\n' % (
            json.dumps(result["model"]), json.dumps(result["debug"]), rows(result["scored"]), rows(result["greedy"])))


if __name__ == "__main__":
    main(*sys.argv[1:])
