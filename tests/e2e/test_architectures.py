"""Each architecture beside `transformers`: log-probabilities of a tiny random model with every feature switched on (tests/golden/NAME.json, which
make.py wrote; weights.py makes the weights again), by way of both kinds of file, in chunks of several sizes, at places of all kinds.
"""
import itertools
import os
import signal
import statistics
import sys

import pytest

from conftest import BUILD, ROOT, shard, wait_until
from streams import assert_same, body, join_all, run_all, start_all, words

sys.path.insert(0, os.path.join(ROOT, "tests", "golden"))

import weights  # noqa: E402  pylint: disable=wrong-import-position

LIMIT = 1e-4
# Random weights have no habits that rounding would leave alone, so a choice is clear from a larger lead on than with real ones; and where a row
# goes through another expert, which rounding of the weights alone does, all that follows changes.
CLEAR, AGREEMENT, EXPERTS_AGREEMENT = 0.4, 0.965, 0.85
INT8 = ("--quantize", 8, "--kv-memory", "32M")
# With windows, with experts, with both and sinks, with windows in all layers; prompts are longer than the windows.
CHOSEN = ("gemma3", "qwen3_moe", "gpt_oss", "mistral")
PROBES = [body(words(70, 1), 30, logprobs=2), body(words(9, 2), 40, 1, True, logprobs=2), body(words(40, 3), 24, 2, True, logprobs=2)]
# (chunk, workers, local pool, from a directory instead of a GGUF file)
PLACES = [(1, 0, "32M", False), (16, 1, "0", True), (64, 2, "0", False)]


def file_of(name):
    """The golden as a GGUF file, made once a build."""
    folder = os.path.join(BUILD, "tests", "golden", name)
    path = folder + ".gguf"
    if not os.path.exists(path):
        import to_gguf  # pylint: disable=import-outside-toplevel
        weights.write(folder, name, "BF16", 2)
        to_gguf.convert(folder, path + ".part")
        os.replace(path + ".part", path)
    return path


def scores(mesh, tokens):
    """The log-probabilities of a prompt's tokens."""
    reply = mesh.post("/v1/completions", {"model": "default", "prompt": tokens, "max_tokens": 0, "echo": True, "logprobs": 1})
    return reply["choices"][0]["logprobs"]["token_logprobs"][1:]


@pytest.mark.parametrize("name", shard(weights.names(), 2))
def test_log_probabilities(start_mesh, name):
    golden = weights.golden(name)
    original = golden["config"].get("original_max_position_embeddings")
    context = ("--context", original) if original and len(golden["tokens"]) <= original else ()  # RoPE is scaled by the context asked for
    for chunk, workers, pool, is_directory in PLACES:
        file = file_of(name)
        mesh = start_mesh("--compute", "f32", "--kv-type", "f32", "--chunk", chunk, "--kv-workers", workers, "--local-pool", pool,
                          "--kv-memory", "32M", "--prefix-cache", "off", *context,
                          model=file.removesuffix(".gguf") if is_directory else file)
        apart = [abs(a - b) for a, b in zip(scores(mesh, golden["tokens"]), golden["log_probability"], strict=True)]
        print(f"{name}, chunks of {chunk}, {workers} workers: largest {max(apart):.2e}, mean {statistics.fmean(apart):.2e}")
        assert max(apart) < LIMIT, (name, chunk, apart.index(max(apart)))
        mesh.stop()


def best(mesh, tokens):
    """[(the best token's name, its lead)] after each of a prompt's tokens."""
    reply = mesh.post("/v1/completions", {"model": "default", "prompt": tokens, "max_tokens": 0, "echo": True, "logprobs": 2})
    found = []
    for top in reply["choices"][0]["logprobs"]["top_logprobs"][1:]:
        first, second, *_ = sorted(top.items(), key=lambda item: -item[1])
        found.append((first[0], first[1] - second[1]))
    return found


@pytest.mark.parametrize("name", shard(weights.names(), 4))
def test_eight_bits(start_mesh, name):
    """Activations of 8 bits choose the same tokens as exact ones, with the same weights of 8 bits, where the choice is clear."""
    golden = weights.golden(name)
    tokens, has_experts = golden["tokens"][:512], any("expert" in tensor for tensor, _ in golden["tensors"])
    exact = best(start_mesh("--compute", "f32", "--quantize", 8, "--kv-workers", 0, model=file_of(name)), tokens)
    coarse = best(start_mesh(*INT8, "--kv-workers", 0, model=file_of(name)), tokens)
    clear = [a[0] == b[0] for a, b in zip(exact, coarse, strict=True) if a[1] >= CLEAR]
    print(f"{name}: {sum(clear)} of {len(clear)} clear choices agree")
    assert len(clear) > len(tokens) / 3 and sum(clear) >= (EXPERTS_AGREEMENT if has_experts else AGREEMENT) * len(clear)


SETTINGS = list(itertools.product((0, 1, 2), (16, 64), (1, 2), (0, 8)))


@pytest.mark.parametrize("name", shard(CHOSEN, 3))
def test_same_bytes(start_mesh, name):
    """A request's bytes do not depend on workers, chunks, stages, drafts or what runs beside it."""
    wanted = None
    for workers, chunk, stages, drafts in [(0, 64, 1, 8), *shard(SETTINGS, 12)]:
        pool = () if workers == 0 else ("--local-pool", 0)
        mesh = start_mesh(*INT8, "--kv-workers", workers, *pool, "--chunk", chunk, "--s-parts", stages, "--draft-tokens", drafts,
                          model=file_of(name))
        mesh.wait_metric("fastdecode_stages", lambda up, stages=stages: up == stages)
        if wanted is None:
            wanted = [run_all(mesh.url, [probe])[0] for probe in PROBES]
            assert not [stream.error for stream in wanted if stream.error] and len({stream.text for stream in wanted}) == len(wanted)
        assert_same(run_all(mesh.url, PROBES * 3), wanted * 3)
        mesh.stop()


@pytest.mark.sanitizer
@pytest.mark.parametrize("name", shard(CHOSEN, 3))
def test_failures(start_mesh, name):
    """A worker and the s-part are killed while streams run: nothing lost, nothing changed."""
    requests = [body(words(20 + 4 * i, 10 + i), 60, i, sampled=i % 2 == 1) for i in range(8)]
    mesh = start_mesh(*INT8, "--kv-workers", 2, "--local-pool", 0, model=file_of(name), slow_workers=True, env={"FD_SLOW_LAYER_US": "1500"})
    mesh.wait_metric("fastdecode_place_up", lambda up: up >= 2)
    wanted = run_all(mesh.url, requests)
    for victim in ("kv-worker-1", "s-part"):
        streams = start_all(mesh.url, requests)
        wait_until(lambda streams=streams: all(len(stream.tokens) > 5 for stream in streams))
        mesh.kill(victim)
        join_all(streams)
        assert_same(streams, wanted)


def test_a_directorys_own_sampling(start_mesh, tmp_path):
    """generation_config.json says how to sample; a request may say otherwise."""
    folder = str(tmp_path / "model")
    weights.write(folder, "qwen2")
    weights.write_json(folder, "generation_config.json", {"do_sample": True, "temperature": 0.0, "top_k": 7, "repetition_penalty": 1.3})
    mesh = start_mesh("--kv-workers", 0, model=folder)
    asked = {"model": "default", "prompt": "Rivers", "max_tokens": 24, "ignore_eos": True, "seed": 5}
    said = [mesh.post("/v1/completions", {**asked, **more})["choices"][0]["text"] for more in (
        {}, {"temperature": 0, "repetition_penalty": 1.3}, {"temperature": 1.5, "top_k": 0, "repetition_penalty": 1})]
    assert said[0] == said[1] != said[2]
    assert "SAMPLING-DEFAULTS temperature=0 top_k=7 repetition_penalty=1.3" in mesh.logs(200)


@pytest.mark.parametrize("workers", [0, 1])
def test_passed_pages_are_given_back(start_mesh, workers):
    """Where all layers have windows, sequences that are longer than the KV memory have the bytes that they have with enough of it."""
    config = weights.golden("mistral")["config"]
    page_bytes = 16 * 2 * 4 * config["num_hidden_layers"] * config["num_key_value_heads"] * config["head_dim"]
    requests = [body(words(150, 5), 100, logprobs=2), body(words(15, 6), 520, 1, True, logprobs=2)]
    found = []
    for pages in (200, 32):
        pool = pages * page_bytes if workers == 0 else 0
        mesh = start_mesh("--kv-type", "f32", "--chunk", 64, "--kv-workers", workers, "--local-pool", pool, "--kv-memory", pages * page_bytes,
                          model=file_of("mistral"))
        found.append(run_all(mesh.url, requests))
        assert not [stream.error for stream in found[-1] if stream.error]
        mesh.stop()
    assert all(stream.usage["total_tokens"] > 32 * 16 for stream in found[1]), [stream.usage for stream in found[1]]
    assert_same(found[1], found[0])


def test_drained_in_mid_ring(start_mesh):
    """A worker that leaves hands over what is left of sequences whose first pages it has given back: nothing is computed again."""
    requests = [body(words(90 + 5 * i, 20 + i), 80, i, sampled=i % 2 == 1) for i in range(4)]
    mesh = start_mesh("--kv-workers", 2, "--local-pool", 0, "--kv-memory", "32M", model=file_of("mistral"), slow_workers=True,
                      env={"FD_SLOW_LAYER_US": "1500"})
    mesh.wait_metric("fastdecode_place_up", lambda up: up >= 2)
    wanted = run_all(mesh.url, requests)
    streams = start_all(mesh.url, requests)
    wait_until(lambda: all(len(stream.tokens) > 5 for stream in streams))
    mesh.kill("kv-worker-1", signal.SIGTERM)
    join_all(streams)
    assert_same(streams, wanted)
    assert mesh.metric("fastdecode_sequences_moved_total") > 0 and mesh.metric("fastdecode_sequences_rebuilt_total") == 0
