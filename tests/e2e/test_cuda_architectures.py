"""Each architecture on the emulated device (test_cuda.py): those that the CUDA backend takes give transformers' log-probabilities, the others
are refused, and the message says for which piece.

What the arithmetic allows: weights are exact in f16 (weights.py), but what a product is given is rounded to f16, by up to 2^-11 of each
value and by 1.4e-4 of it on average, independently. A product keeps that relative size. There are four roundings a layer that reach x (h
and o of attention, h and gate, up and act of the MLP), and q, k, v in the pool: some six each of four layers and one before the head,
which add up like a walk, to sqrt(25) * 1.4e-4 = 7e-4 of a logit. Logits of these models are up to 10 large, and a log-probability has the
error of its own logit and of the sum: 0.01. Sharp attention (q and k have gain 1.5, or norms of 1.5) makes errors of scores larger, by as
much as scores are: LIMIT is twice that. Leaving out any feature costs nine times LIMIT, as `matters` of the golden files says.
"""
import os
import statistics

import pytest

from conftest import BUILD, SANITIZED
from test_architectures import file_of
from test_cuda import device, s_part
from test_golden import names_of

import to_gguf
import weights

LIMIT, CLEAR = 0.02, 0.1  # mean |d|; a margin between the two best tokens that errors do not turn round
AGREEMENT = 0.965

TAKEN = ("granite", "llama", "olmo2", "opt", "qwen2", "qwen3", "smollm3")
REFUSED = {
    "gemma2": "window of attention", "gemma3": "window of attention", "gemma3_linear": "window of attention", "gpt_oss": "window of attention",
    "mistral": "window of attention", "phi3": "window of attention", "phi3_short": "window of attention",
    "mixtral": "router of experts", "qwen3_moe": "router of experts"}
ARCHITECTURE = {"gemma3_linear": "gemma3", "gpt_oss": "gpt-oss", "mistral": "llama", "mixtral": "llama", "phi3_short": "phi3", "qwen3_moe": "qwen3moe"}

pytestmark = pytest.mark.skipif(SANITIZED, reason="the emulated device switches stacks, which sanitizers do not follow")


def check(mesh, name, golden, count):
    """The first `count` tokens through a mesh. top: the golden's best tokens, at some positions."""
    tokens = golden["tokens"][:count]
    reply = mesh.post("/v1/completions", {"model": "default", "prompt": tokens, "max_tokens": 0, "echo": True, "logprobs": 1})
    found = reply["choices"][0]["logprobs"]
    apart = [abs(a - b) for a, b in zip(found["token_logprobs"][1:], golden["log_probability"][:count - 1], strict=True)]
    clear = [entry for entry in golden["top"] if entry["after"] + 1 < count and entry["log_probability"][0] - entry["log_probability"][1] >= CLEAR]
    names = names_of(mesh, [entry["ids"][0] for entry in clear])
    best = [max(top, key=top.get) for top in (found["top_logprobs"][entry["after"] + 1] for entry in clear)]
    agreed = sum(token == names[entry["ids"][0]] for token, entry in zip(best, clear))
    print(f"{name}: mean |d| {statistics.fmean(apart):.2e}, largest {max(apart):.2e}, best token the same at {agreed} of {len(clear)}")
    assert len(clear) >= count // 64 and agreed >= AGREEMENT * len(clear)
    assert statistics.fmean(apart) <= LIMIT
    assert all(LIMIT < cost / 9 for cost in golden["matters"].values())


def start(start_mesh, model, *options):
    return start_mesh("--device", "cuda", "--chunk", 16, "--max-batch", 8, "--prefix-cache", "off", *options, model=model, env=device())


def test_all_are_named():
    assert sorted([*TAKEN, *REFUSED]) == weights.names()


@pytest.mark.parametrize("name", TAKEN)
def test_log_probabilities(start_mesh, name):
    golden = weights.golden(name)
    mesh = start(start_mesh, file_of(name), "--kv-workers", 0)
    assert "level=f16/cuda" in mesh.logs(200)
    check(mesh, name, golden, len(golden["tokens"]))


def test_at_a_worker(start_mesh):
    """Norms and the scale of q come before what a worker is sent."""
    golden = weights.golden("qwen3")
    check(start(start_mesh, file_of("qwen3"), "--kv-workers", 1, "--local-pool", 0), "qwen3", golden, 200)


def without_window(name):
    """The golden as a file that names no window. Up to the window's length it gives the same."""
    what = weights.golden(name)
    what["config"] = {key: value for key, value in what["config"].items() if key != "sliding_window"}
    folder = os.path.join(BUILD, "tests", "golden", name + "_whole")
    if not os.path.exists(folder + ".gguf"):
        weights.write(folder, what)
        to_gguf.convert(folder, folder + ".gguf.part")
        os.replace(folder + ".gguf.part", folder + ".gguf")
    return folder + ".gguf"


def test_fused_tensors(start_mesh):
    """phi3 has q, k and v in one tensor, and gate and up: without a window it is taken."""
    golden = weights.golden("phi3")
    golden["matters"].pop("window")
    check(start(start_mesh, without_window("phi3"), "--kv-workers", 0), "phi3", golden, golden["config"]["sliding_window"])


@pytest.mark.parametrize("name", REFUSED)
def test_refusals(name):
    said = s_part("--model", file_of(name), "--device", "cuda", env=device())
    line = f"the {REFUSED[name]} of architecture '{ARCHITECTURE.get(name, name)}' is not computed on CUDA"
    assert said.returncode == 2 and line in said.stderr, said.stderr
