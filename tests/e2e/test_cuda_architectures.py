"""Each architecture on the emulated device (test_cuda.py): those that the CUDA backend takes give transformers' log-probabilities, the others
are refused, and the message says for which piece.

What the arithmetic allows: weights are exact in f16 (weights.py); what a product is given is rounded to f16, by 1.4e-4 of each value on
average. Rounding is independent, so that a product keeps that relative size. Some six roundings a layer reach x (before q, k, v, of K and V
in the pool, of o, before the MLP, of gate and up, before `down`), which add up as a random walk does: in four layers and before the head
sqrt(25) * 1.4e-4 = 7e-4 of a logit. Logits are up to 10 large: LIMIT is the error of the largest, and a bit more for attention that is
sharp. bf16 has three bits less, so eight times as much. To leave out a feature costs nineteen times LIMIT at least (`matters`).
"""
import os
import statistics

import pytest

from conftest import BUILD, SANITIZED, shard
from test_architectures import file_of, scores
from test_cuda import device, s_part
from test_golden import echo, name_of

import to_gguf
import weights

LIMIT, BF16 = 0.01, 8  # mean |d|, and times what it is in bf16
CLEAR = 10  # LIMITs between the two best tokens: errors do not turn them round
AGREEMENT = 0.965

TAKEN = ("granite", "llama", "olmo2", "opt", "qwen2", "qwen3", "smollm3")
SOME = shard(TAKEN, 4)
REFUSED = {
    "gemma2": "window of attention", "gemma3": "window of attention", "gemma3_linear": "window of attention",
    "gemma3_wide": "RoPE of some layers apart from others", "gpt_oss": "window of attention", "gpt_oss_mxfp4": "window of attention",
    "mistral": "window of attention",
    "phi3": "window of attention", "phi3_short": "window of attention", "starcoder2": "window of attention",
    "mixtral": "router of experts", "qwen3_moe": "router of experts", "qwen3_moe_sums": "router of experts"}
ARCHITECTURE = {"gemma3_linear": "gemma3", "gemma3_wide": "gemma3", "gpt_oss": "gpt-oss", "gpt_oss_mxfp4": "gpt-oss", "mistral": "llama", "mixtral": "llama",
                "phi3_short": "phi3", "qwen3_moe": "qwen3moe", "qwen3_moe_sums": "qwen3moe"}

pytestmark = pytest.mark.skipif(SANITIZED, reason="the emulated device switches stacks, which sanitizers do not follow")


def check(mesh, name, golden, count, limit=LIMIT):
    """The first `count` tokens through a mesh: mean |d|, and the best token where it is clear which (the golden names it at some positions)."""
    tokens = golden["tokens"][:count]
    found = echo(mesh, tokens)
    apart = [abs(a - b) for a, b in zip(found["token_logprobs"][1:], golden["log_probability"][:count - 1], strict=True)]
    clear = [entry for entry in golden["top"]
             if entry["after"] + 1 < count and entry["log_probability"][0] - entry["log_probability"][1] >= CLEAR * limit]
    best = [max(top, key=top.get) for top in (found["top_logprobs"][entry["after"] + 1] for entry in clear)]
    agreed = sum(token == name_of(entry["ids"][0]) for token, entry in zip(best, clear))
    print(f"{name}: mean |d| {statistics.fmean(apart):.2e}, largest {max(apart):.2e}, best token the same at {agreed} of {len(clear)}")
    assert clear and agreed >= AGREEMENT * len(clear)
    assert statistics.fmean(apart) <= limit


def start(start_mesh, model, *options):
    return start_mesh("--device", "cuda", "--chunk", 16, "--max-batch", 8, "--prefix-cache", "off", *options, model=model, env=device())


def test_all_are_named():
    assert sorted([*TAKEN, *REFUSED]) == weights.names()
    assert all(cost >= 19 * LIMIT for name in TAKEN for cost in weights.golden(name)["matters"].values())


@pytest.mark.parametrize("name", [name if name in SOME else pytest.param(name, marks=pytest.mark.full) for name in TAKEN])
def test_log_probabilities(start_mesh, name):
    golden = weights.golden(name)
    mesh = start(start_mesh, file_of(name), "--kv-workers", 0)
    assert "level=f16/cuda" in mesh.logs(200)
    check(mesh, name, golden, len(golden["tokens"]))


def test_at_a_worker(start_mesh):
    """Norms and the scale of q come before what a worker is sent."""
    golden = weights.golden("qwen3")
    check(start(start_mesh, file_of("qwen3"), "--kv-workers", 1, "--local-pool", 0), "qwen3", golden, 200)


def converted(name, suffix, kind="F32", drop=(), **changed):
    """The golden as another file: of another type, without some keys of its configuration, or with others."""
    what = weights.golden(name)
    what["config"] = {**{key: value for key, value in what["config"].items() if key not in drop}, **changed}
    folder = os.path.join(BUILD, "tests", "golden", name + suffix)
    path = folder + ".gguf"
    if not os.path.exists(path):
        weights.write(folder, what)
        to_gguf.convert(folder, path + ".part", kind)
        os.replace(path + ".part", path)
    return path


@pytest.mark.full
@pytest.mark.parametrize("name", ["olmo2", "opt"])
def test_bf16(start_mesh, name):
    golden = weights.golden(name)
    mesh = start(start_mesh, converted(name, "_bf16", "BF16"), "--kv-workers", 0)
    assert "level=bf16/cuda" in mesh.logs(200)
    check(mesh, name, golden, len(golden["tokens"]), LIMIT * BF16)


@pytest.mark.parametrize("name", ["phi3", "starcoder2"])
def test_without_a_window(start_mesh, name):
    """phi3 has q, k and v in one tensor, and gate and up; starcoder2 GELU without a gate. Without a window they are taken, and up to its length
    they give the same."""
    golden = weights.golden(name)
    mesh = start(start_mesh, converted(name, "_whole", drop=("sliding_window",)), "--kv-workers", 0)
    check(mesh, name, golden, golden["config"]["sliding_window"])


@pytest.mark.parametrize("name", ["gemma2", "gemma3"])
def test_beside_the_cpu(start_mesh, name):
    """GELU, and a soft cap of the logits: of models whose windows, soft cap of attention, and second base of RoPE were taken away, so that no
    golden is theirs."""
    model = converted(name, "_plain", sliding_window=0, attn_logit_softcapping=0.0, rope_theta=10000.0)  # without the keys a Gemma 2 has the usual ones
    tokens = weights.golden(name)["tokens"][:150]
    wanted = scores(start_mesh("--compute", "f32", "--kv-type", "f32", "--kv-workers", 0, model=model), tokens)
    apart = [abs(a - b) for a, b in zip(scores(start(start_mesh, model, "--kv-workers", 0), tokens), wanted, strict=True)]
    print(f"{name}: mean |d| {statistics.fmean(apart):.2e}, largest {max(apart):.2e}")
    assert statistics.fmean(apart) <= LIMIT


@pytest.mark.parametrize("name", shard(sorted(REFUSED), 3))
def test_refusals(name):
    line = f"the {REFUSED[name]} of architecture '{ARCHITECTURE.get(name, name)}' is not computed on CUDA"
    for model in (file_of(name), file_of(name).removesuffix(".gguf")):  # and the directory that it was made of
        said = s_part("--model", model, "--device", "cuda", env=device())
        assert said.returncode == 4 and line in said.stderr, said.stderr  # a model that it does not serve: docs/operations.md
