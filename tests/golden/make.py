#!/usr/bin/env python3
"""Makes NAME.json for each architecture: what PyPI's `transformers` computes for a tiny model with every feature switched on.

    python3 -m venv /tmp/golden && /tmp/golden/bin/pip install torch transformers    (6 GB)
    /tmp/golden/bin/python tests/golden/make.py [NAME ...]

A golden file:
    versions         of torch and transformers
    seed             of the weights (weights.py)
    config           config.json, in the form that published models have
    tensors[]        [name, shape] as in model.safetensors
    sha256           of all values, as weights.checksum() has it
    tokens[n]        random ids
    log_probability[i]   of tokens[i + 1] given tokens[0..i], for i of n - 1
    top[]            {"after": i, "ids", "log_probability"}: the three best that follow tokens[0..i], for each 32nd i
    float32          the largest and the mean difference of the same computation in float32
    matters          for each feature: the mean difference of log_probability where the configuration lacks it; a program
                     that ignores the feature is off by so much

The model is built from the files that weights.py writes, by AutoModelForCausalLM.from_pretrained(), with eager attention, and
runs all tokens in one forward pass, in double precision throughout: transformers computes angles of positions in float32 whatever the
model's type, and at position 600 these are wrong by 4e-5, which a tiny model makes 1e-4 of.
"""
import contextlib
import json
import os
import random
import sys
import tempfile

import torch
import transformers
from transformers.integrations.mxfp4 import convert_moe_packed_tensors

import mxfp4
import tiny_tokenizers
import weights

TOKENS = 640
EVERY = 32  # positions between two entries of top

BASE = {"vocab_size": 320, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 4, "num_attention_heads": 4,
        "num_key_value_heads": 2, "max_position_embeddings": 1024, "hidden_act": "silu", "rms_norm_eps": 1e-5,
        "tie_word_embeddings": False, "attention_bias": False, "attention_dropout": 0.0, "initializer_range": 0.02, "use_cache": True}


def config(model_type, architecture, drop=(), **own):
    found = {"architectures": [architecture], "model_type": model_type, **BASE, **own}
    return {key: value for key, value in found.items() if key not in drop}


def without(*keys):
    """A change to a configuration: the keys are left out."""
    return {key: None for key in keys}

LONGROPE = {"type": "longrope", "short_factor": [1.0, 1.02, 1.05, 1.1, 1.3, 1.6, 1.9, 2.2], "long_factor": [1.05, 1.2, 1.6, 2.4, 3.6, 5.0, 7.0, 9.5]}
PHI3 = {"original_max_position_embeddings": 256, "sliding_window": 100, "rope_theta": 10000.0, "embd_pdrop": 0.0, "resid_pdrop": 0.0}
YARN_OSS = {"rope_type": "yarn", "factor": 8.0, "beta_fast": 32.0, "beta_slow": 1.0, "truncate": False, "original_max_position_embeddings": 128}
GPT_OSS = {"head_dim": 32, "attention_bias": True, "num_local_experts": 8, "num_experts_per_tok": 4, "experts_per_token": 4,
           "layer_types": ["sliding_attention", "full_attention"] * 2, "sliding_window": 64, "rope_theta": 150000.0, "rope_scaling": YARN_OSS,
           "initial_context_length": 128, "swiglu_limit": 7.0, "router_aux_loss_coef": 0.9, "output_router_logits": False}
GEMMA3 = {"num_hidden_layers": 7, "head_dim": 32, "hidden_activation": "gelu_pytorch_tanh", "query_pre_attn_scalar": 24, "rms_norm_eps": 1e-6,
          "sliding_window": 100, "attn_logit_softcapping": None, "final_logit_softcapping": None}


# Name: (configuration, {feature: change of the configuration that switches it off}[, number of tokens])
MODELS = {
    "llama": (
        config("llama", "LlamaForCausalLM", head_dim=16, rope_theta=10000.0, mlp_bias=False, pretraining_tp=1,
               rope_scaling={"factor": 8.0, "high_freq_factor": 4.0, "low_freq_factor": 1.0, "original_max_position_embeddings": 256,
                             "rope_type": "llama3"}),
        {"llama3 scaling": {"rope_scaling": None}}),
    "mistral": (
        config("mistral", "MistralForCausalLM", head_dim=32, sliding_window=100, rope_parameters={"rope_type": "default", "rope_theta": 10000.0}),
        {"window": {"sliding_window": None}}),
    "smollm3": (
        config("smollm3", "SmolLM3ForCausalLM", num_hidden_layers=5, rope_theta=50000.0, rope_scaling=None, no_rope_layer_interval=4,
               no_rope_layers=[1, 1, 1, 0, 1], max_window_layers=5, use_sliding_window=False, sliding_window=None, mlp_bias=False,
               layer_types=["full_attention"] * 5, rms_norm_eps=1e-6, pretraining_tp=2, tie_word_embeddings=True),
        {"layer without positions": {"no_rope_layers": [1, 1, 1, 1, 1]}}),
    "opt": (
        config("opt", "OPTForCausalLM", drop=("num_key_value_heads", "intermediate_size", "hidden_act", "rms_norm_eps", "attention_bias"),
               activation_function="relu", ffn_dim=96, word_embed_proj_dim=64, do_layer_norm_before=True, dropout=0.1, layerdrop=0.0,
               init_std=0.02, enable_bias=True, layer_norm_elementwise_affine=True, tie_word_embeddings=True, prefix="</s>",
               _remove_final_layer_norm=False),
        {"relu": {"activation_function": "gelu"}, "last norm": {"_remove_final_layer_norm": True}}),
    "starcoder2": (
        config("starcoder2", "Starcoder2ForCausalLM", drop=("rms_norm_eps", "attention_bias"), hidden_act="gelu_pytorch_tanh", norm_epsilon=0.02,
               rope_theta=1000000.0, sliding_window=100, use_bias=True, residual_dropout=0.1, embedding_dropout=0.1, tie_word_embeddings=True),
        {"window": {"sliding_window": None}, "gelu": {"hidden_act": "silu"}, "biases": {"use_bias": False}, "epsilon": {"norm_epsilon": 1e-5}}),
    "qwen2": (
        config("qwen2", "Qwen2ForCausalLM", drop=("attention_bias",), rope_theta=1000000.0, rms_norm_eps=1e-6, sliding_window=100,
               use_sliding_window=False, max_window_layers=2, tie_word_embeddings=True),
        {"no window though one is named": {"use_sliding_window": True}}),
    "qwen3": (
        config("qwen3", "Qwen3ForCausalLM", head_dim=32, rope_theta=1000000.0, rms_norm_eps=1e-6, sliding_window=None, use_sliding_window=False,
               max_window_layers=4, rope_scaling={"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 256}),
        {"yarn": {"rope_scaling": None},
         "yarn's factor of attention": {"rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 256,
                                                         "attention_factor": 1.0}}}),
    "qwen3_moe": (
        config("qwen3_moe", "Qwen3MoeForCausalLM", head_dim=32, rope_theta=1000000.0, rms_norm_eps=1e-6, num_experts=8, num_experts_per_tok=2,
               moe_intermediate_size=48, norm_topk_prob=True, decoder_sparse_step=1, mlp_only_layers=[], output_router_logits=False,
               router_aux_loss_coef=0.001, sliding_window=None, use_sliding_window=False, max_window_layers=4, rope_scaling=None),
        {"norm_topk_prob": {"norm_topk_prob": False}, "two experts": {"num_experts_per_tok": 1}}),
    # The class's own default.
    "qwen3_moe_sums": (
        config("qwen3_moe", "Qwen3MoeForCausalLM", head_dim=16, rope_theta=1000000.0, rms_norm_eps=1e-6, num_experts=4, num_experts_per_tok=2,
               moe_intermediate_size=32, norm_topk_prob=False, decoder_sparse_step=1, mlp_only_layers=[], output_router_logits=False,
               router_aux_loss_coef=0.001, sliding_window=None, use_sliding_window=False, max_window_layers=4, rope_scaling=None,
               num_hidden_layers=2),
        {"norm_topk_prob": {"norm_topk_prob": True}}, 128),
    "mixtral": (
        config("mixtral", "MixtralForCausalLM", drop=("attention_bias",), num_local_experts=8, num_experts_per_tok=2, output_router_logits=False,
               router_aux_loss_coef=0.02, router_jitter_noise=0.0, rope_theta=1000000.0, sliding_window=None),
        {"two experts": {"num_experts_per_tok": 1}}),
    "phi3": (
        config("phi3", "Phi3ForCausalLM", **PHI3, rope_scaling=LONGROPE),
        {"window": {"sliding_window": None}, "long factors": {"rope_scaling": dict(LONGROPE, long_factor=LONGROPE["short_factor"])},
         "factor of attention": {"rope_scaling": dict(LONGROPE, attention_factor=1.0)}}),
    # No longer than the original length, so that the short factors hold; rotates three quarters of a head, as Phi-4-mini does.
    "phi3_short": (
        config("phi3", "Phi3ForCausalLM", **PHI3, partial_rotary_factor=0.75, tie_word_embeddings=True, rope_scaling={
            "type": "longrope", **{key: LONGROPE[key][:6] for key in ("short_factor", "long_factor")}}),
        {"short factors": {"rope_scaling": {"type": "longrope", **{key: LONGROPE["long_factor"][:6] for key in ("short_factor", "long_factor")}}}},
        256),
    "gemma2": (
        config("gemma2", "Gemma2ForCausalLM", drop=("tie_word_embeddings",), head_dim=32, hidden_act="gelu_pytorch_tanh",
               hidden_activation="gelu_pytorch_tanh", query_pre_attn_scalar=24, rms_norm_eps=1e-6, rope_theta=10000.0, sliding_window=100,
               attn_logit_softcapping=5.0, final_logit_softcapping=4.0, cache_implementation="hybrid"),
        {"window": {"sliding_window": 2000}, "only every second": {"layer_types": ["sliding_attention"] * 4},
         "query_pre_attn_scalar": {"query_pre_attn_scalar": 32}, "cap of scores": {"attn_logit_softcapping": None},
         "cap of logits": {"final_logit_softcapping": None}}),
    "gemma3": (
        config("gemma3_text", "Gemma3ForCausalLM", drop=("hidden_act", "tie_word_embeddings"), **GEMMA3, sliding_window_pattern=6,
               rope_theta=1000000.0, rope_local_base_freq=10000.0, rope_scaling=None),
        {"window": {"sliding_window": 2000}, "sixth layer is global": {"sliding_window_pattern": 8},
         "two bases": {"rope_local_base_freq": 1000000.0}, "query_pre_attn_scalar": {"query_pre_attn_scalar": 32}}),
    "gemma3_wide": (  # no context exceeds the window, but layers that were meant to see one keep their angles
        config("gemma3_text", "Gemma3ForCausalLM", drop=("hidden_act", "tie_word_embeddings"), **{**GEMMA3, "sliding_window": 1024},
               sliding_window_pattern=6, rope_theta=1000000.0, rope_local_base_freq=10000.0, rope_scaling=None),
        {"two bases": {"rope_local_base_freq": 1000000.0}}, 256),
    "gemma3_linear": (
        config("gemma3_text", "Gemma3ForCausalLM", drop=("hidden_act", "tie_word_embeddings"), **GEMMA3,
               layer_types=["sliding_attention"] * 5 + ["full_attention", "sliding_attention"],
               rope_parameters={"full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1000000.0},
                                "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0}}),
        {"scaling of global layers": {"rope_parameters": {"full_attention": {"rope_type": "default", "rope_theta": 1000000.0},
                                                          "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0}}},
         "no scaling of local layers": {"rope_parameters": {
             "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1000000.0},
             "sliding_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 10000.0}}}}),
    "gpt_oss": (
        config("gpt_oss", "GptOssForCausalLM", **GPT_OSS),
        {"windows": {"sliding_window": 2000}, "only every second": {"layer_types": ["sliding_attention"] * 4},
         "yarn": {"rope_scaling": {"rope_type": "default"}}, "yarn's bounds are not rounded": {"rope_scaling": dict(YARN_OSS, truncate=True)},
         "limit of swiglu": {"swiglu_limit": 1e6}, "four experts": {"num_experts_per_tok": 2}}),
    # As published files are: experts in MXFP4 (mxfp4.py). transformers is given what they stand for.
    "gpt_oss_mxfp4": (
        config("gpt_oss", "GptOssForCausalLM", **GPT_OSS, quantization_config={"quant_method": "mxfp4", "modules_to_not_convert": [
            "model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens", "lm_head"]}),
        {"limit of swiglu": {"swiglu_limit": 1e6}, "four experts": {"num_experts_per_tok": 2}}, 256),
    "granite": (
        config("granite", "GraniteForCausalLM", rope_theta=10000.0, rope_scaling=None, mlp_bias=False, tie_word_embeddings=True,
               embedding_multiplier=6.0, logits_scaling=2.0, residual_multiplier=0.4, attention_multiplier=0.4),
        {key: {key: 1.0} for key in ("embedding_multiplier", "logits_scaling", "residual_multiplier", "attention_multiplier")}),
    "olmo2": (
        config("olmo2", "Olmo2ForCausalLM", rope_theta=500000.0, rope_scaling=None, rms_norm_eps=1e-6), {}),
}


def config_of(what):
    """The configuration with the ids of the tokenizer that weights.py writes beside it."""
    return {**what, **tiny_tokenizers.tokenizer_of(what["model_type"])[2]}


def tensors_of(what):
    """[name, shape] of what transformers writes for this configuration: the names of published files, not of its modules."""
    with tempfile.TemporaryDirectory() as folder:
        weights.write_json(folder, "config.json", {key: value for key, value in what.items() if key != "quantization_config"})
        model = transformers.AutoModelForCausalLM.from_config(transformers.AutoConfig.from_pretrained(folder))
        model.save_pretrained(folder)
        with open(os.path.join(folder, "model.safetensors"), "rb") as file:
            header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
    plain = [[name, entry["shape"]] for name, entry in header.items() if name != "__metadata__"]
    return sorted((part for name, shape in plain for part in (
        mxfp4.parts_of(name, shape) if mxfp4.has_parts(what, name) else [[name, shape]])), key=natural)


def check_mxfp4(what):
    """That transformers reads the same values from blocks and scales."""
    for name, shape in what["tensors"]:
        if name.endswith("_blocks"):
            plain, whole = mxfp4.whole_of(name, shape)
            parts = [torch.frombuffer(bytearray(weights.values(part, size, what["config"], what["seed"])), dtype=torch.uint8).reshape(size)
                     for part, size in mxfp4.parts_of(plain, whole)]
            own = torch.frombuffer(bytearray(weights.values(plain, whole, what["config"], what["seed"])), dtype=torch.float32)
            assert torch.equal(convert_moe_packed_tensors(*parts, dtype=torch.float32), own.reshape(whole)), name


def natural(tensor):
    return [part.zfill(6) if part.isdigit() else part for part in tensor[0].split(".")]


@contextlib.contextmanager
def all_double():
    """What asks for float32 gets float64."""
    before = torch.float, torch.float32, torch.Tensor.float
    torch.float = torch.float32 = torch.float64
    torch.Tensor.float = torch.Tensor.double
    try:
        yield
    finally:
        torch.float, torch.float32, torch.Tensor.float = before


def log_probabilities(what, tokens, dtype=torch.float64, change=None):
    """[position][token] by transformers. what: {"config", "seed", "tensors"}. change: of the configuration, after the weights are made."""
    with tempfile.TemporaryDirectory() as folder:
        weights.write(folder, what, plain=True)
        whole = {**what["config"], **(change or {})}
        weights.write_json(folder, "config.json", {key: value for key, value in whole.items() if key != "quantization_config"})
        model, loading = transformers.AutoModelForCausalLM.from_pretrained(
            folder, dtype=dtype, attn_implementation="eager", experts_implementation="eager", output_loading_info=True)
    if not change:
        assert not any(loading.values()), loading
        assert model.config.get_text_config()._attn_implementation == "eager"
    model.eval()
    with torch.no_grad(), all_double() if dtype == torch.float64 else contextlib.nullcontext():
        for name, module in list(model.named_modules()):
            if dtype == torch.float64 and any("inv_freq" in buffer for buffer, _ in module.named_buffers(recurse=False)):
                model.set_submodule(name, type(module)(module.config))
        logits = model(torch.tensor([tokens])).logits[0]
    assert logits.dtype == dtype
    return torch.log_softmax(logits.double(), dim=-1)


def of_next(found, tokens):
    """What each token but the first got."""
    return found[torch.arange(len(tokens) - 1), torch.tensor(tokens[1:])]


def rounded(numbers):
    return [round(float(x), 7) for x in numbers]


def make(name):
    what, features, *count = MODELS[name]
    source = random.Random(name)
    tokens = [source.randint(tiny_tokenizers.FIRST_PLAIN, tiny_tokenizers.LAST_PLAIN) for _ in range(count[0] if count else TOKENS)]
    result = {"versions": {"torch": torch.__version__, "transformers": transformers.__version__}, "seed": 1, "config": config_of(what)}
    result["tensors"] = tensors_of(result["config"])
    result["sha256"] = weights.checksum(result)
    check_mxfp4(result)
    found = log_probabilities(result, tokens)
    own = of_next(found, tokens)
    result.update(tokens=tokens, log_probability=rounded(own), top=[])
    for i in range(EVERY - 1, len(tokens), EVERY):
        best = found[i].topk(3)
        result["top"].append({"after": i, "ids": best.indices.tolist(), "log_probability": rounded(best.values)})
    single = (own - of_next(log_probabilities(result, tokens, torch.float32), tokens)).abs()
    result["float32"] = {"largest": float(f"{single.max():.2e}"), "mean": float(f"{single.mean():.2e}")}
    result["matters"] = {}
    for feature, change in features.items():
        other = of_next(log_probabilities(result, tokens, change=change), tokens)
        result["matters"][feature] = round(float((own - other).abs().mean()), 4)
        assert result["matters"][feature] > 0.01, f"{name}: {feature} changes too little"
    path = os.path.join(weights.HERE, name + ".json")
    with open(path, "w", encoding="utf-8") as file:
        file.write("{\n" + ",\n".join(f'"{key}": {json.dumps(value)}' for key, value in result.items()) + "\n}\n")
    spread = float(own.std())
    print(f"{name}: {os.path.getsize(path)} bytes, {len(result['tensors'])} tensors, log-probability {own.mean():.2f} +- {spread:.2f}, "
          f"best {found.max(dim=-1).values.mean():.2f}, float32 {result['float32']}, {result['matters']}", flush=True)


def main():
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    for name in sys.argv[1:] or MODELS:
        make(name)


if __name__ == "__main__":
    main()
