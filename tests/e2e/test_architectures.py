"""Each architecture beside `transformers`: log-probabilities of a tiny random model with every feature switched on (tests/golden/NAME.json, which
make.py wrote; weights.py makes the weights again), by way of both kinds of file, in chunks of several sizes, at places of all kinds.
"""
import os
import statistics
import sys

import pytest

from conftest import BUILD, ROOT, shard

sys.path.insert(0, os.path.join(ROOT, "tests", "golden"))

import weights  # noqa: E402  pylint: disable=wrong-import-position

LIMIT, INT8_AGREEMENT, CLEAR = 1e-4, 0.965, 0.05
# (chunk, workers, local pool)
PLACES = [(1, 0, "32M"), (16, 1, "0"), (64, 2, "0")]


def file_of(name):
    """The golden as a GGUF file, made once a build."""
    folder = os.path.join(BUILD, "tests", "golden", name)
    path = folder + ".gguf"
    if not os.path.exists(path):
        import to_gguf  # pylint: disable=import-outside-toplevel
        weights.write(folder, name)
        to_gguf.convert(folder, path + ".part")
        os.replace(path + ".part", path)
    return path


def scores(mesh, tokens):
    """The log-probabilities of a prompt's tokens."""
    reply = mesh.post("/v1/completions", {"model": "default", "prompt": tokens, "max_tokens": 0, "echo": True, "logprobs": 1})
    return reply["choices"][0]["logprobs"]["token_logprobs"][1:]


@pytest.mark.parametrize("name", shard(weights.names(), 1))
def test_log_probabilities(start_mesh, name):
    golden = weights.golden(name)
    original = golden["config"].get("original_max_position_embeddings")
    context = ("--context", original) if original and len(golden["tokens"]) <= original else ()  # RoPE is scaled by the context asked for
    for chunk, workers, pool in PLACES:
        mesh = start_mesh("--compute", "f32", "--kv-type", "f32", "--chunk", chunk, "--kv-workers", workers, "--local-pool", pool,
                          "--kv-memory", "32M", "--prefix-cache", "off", *context, model=file_of(name))
        apart = [abs(a - b) for a, b in zip(scores(mesh, golden["tokens"]), golden["log_probability"], strict=True)]
        print(f"{name}, chunks of {chunk}, {workers} workers: largest {max(apart):.2e}, mean {statistics.fmean(apart):.2e}")
        assert max(apart) < LIMIT, (name, chunk, apart.index(max(apart)))
        mesh.stop()
