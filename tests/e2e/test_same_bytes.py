"""Same bytes: a request's tokens and log-probabilities do not depend on workers, mini-batches, chunks, instruction sets,
or on what runs beside it.

What is compared comes first from one mesh with the default settings, each probe alone. `make check` then takes a sample of the settings,
another one for each commit (FD_SEED); `make check-full` the whole product.
"""
import itertools
import os
import re

import pytest

from conftest import MODEL, SANITIZED, shard, wait_until
from streams import Stream, assert_same, body, join_all, of_place, run_all, words

WORKERS, MINI_BATCHES, CHUNKS = (0, 1, 2, 4), (1, 2, 3), (16, 64, 512)
LONG = words(200 if SANITIZED else 1500, 5)  # a word is a token

PROBES = [
    body("The sea is", 40, logprobs=5),
    body(words(60, 1), 40, 1, True, logprobs=5),
    body(LONG, 16, logprobs=5),
    body(words(100 if SANITIZED else 700, 6), 16, 3, True, logprobs=5, top_p=0.9),
    body(words(150, 2), 12, 4, True, logprobs=5, echo=True),
    body("7", 40, 5, True, logprobs=5, top_k=50, min_p=0.02, logit_bias={"260": 1.5}),
]


def others(count):
    """What runs beside the probes: short and long, greedy and sampled, ending at different times."""
    return [body(words(3 + 37 * i % 200, 100 + i), 12 + 5 * i % 40, i, i % 2 == 0) for i in range(count)]


@pytest.fixture(scope="module")
def wanted(mesh):
    """Of each probe, alone on the default mesh; asked twice, because a difference there would explain all others."""
    first = [run_all(mesh.url, [probe])[0] for probe in PROBES]
    assert all(stream.error is None and stream.usage for stream in first), [stream.error for stream in first]
    assert first[2].usage["prompt_tokens"] >= len(LONG.split())
    assert len({tuple(stream.tokens) for stream in first}) == len(first)
    assert_same([run_all(mesh.url, [PROBES[0]])[0], run_all(mesh.url, [PROBES[1]])[0]], first[:2])
    return first


def check(mesh, wanted, alone=False):
    """All probes among 26 others; before that, where it is asked for, one after the other."""
    if alone:
        assert_same([run_all(mesh.url, [probe])[0] for probe in PROBES], wanted)
    beside = [Stream(mesh.url, request) for request in others(6 if SANITIZED else 26)]
    beside[0].wait_tokens(1)
    among = run_all(mesh.url, PROBES)
    join_all(beside)
    assert [stream.error for stream in beside if stream.error] == []
    assert_same(among, wanted)


def options(workers, mini_batches, chunk):
    """Every row through the workers where there are any."""
    pool = () if workers == 0 else ("--local-pool", 0)
    return ("--kv-workers", workers, "--mini-batches", mini_batches, "--chunk", chunk, *pool, "--kv-memory", "512M")


PRODUCT = list(itertools.product(WORKERS, MINI_BATCHES, CHUNKS))


@pytest.mark.parametrize("workers,mini_batches,chunk", shard(PRODUCT, 3))
def test_settings(start_mesh, wanted, workers, mini_batches, chunk):
    """A part of the product, another one for each commit."""
    check(start_mesh(*options(workers, mini_batches, chunk)), wanted)


@pytest.mark.full
@pytest.mark.parametrize("workers,mini_batches,chunk", PRODUCT)
def test_settings_product(start_mesh, wanted, workers, mini_batches, chunk):
    check(start_mesh(*options(workers, mini_batches, chunk)), wanted, alone=True)


@pytest.mark.parametrize("workers,mini_batches,chunk", shard(PRODUCT, 36))
def test_sparse(start_mesh, wanted, workers, mini_batches, chunk):
    """With sparse attention a long context gives another text than without, and a short one the same; either in every setting. What was
    generated is computed anew where it comes again in a prompt."""
    on = ("--sparse-attention", "10%")
    mesh = start_mesh("--kv-workers", 1, "--kv-memory", "512M", *on)
    sparse = [run_all(mesh.url, [probe])[0] for probe in PROBES]
    assert_same(sparse[:1], wanted[:1])
    assert sparse[2].tokens != wanted[2].tokens or sparse[2].logprobs != wanted[2].logprobs
    again = {**PROBES[2], "prompt": LONG + sparse[2].text}
    assert_same(run_all(mesh.url, [again]), run_all(mesh.url, [{**again, "cache_salt": "of its own"}]))
    check(start_mesh(*options(workers, mini_batches, chunk), *on), sparse)


def needs_two_levels():
    with open("/proc/cpuinfo", encoding="ascii", errors="replace") as file:
        if "avx512bw" not in file.read():
            pytest.skip("this CPU has no AVX-512: there is one instruction level, and nothing to compare it with")


def level(mesh, service):
    with open(os.path.join(mesh.run_dir, service + ".log"), encoding="utf-8") as file:
        return re.search(r"(?:kernels=|level=\w+/)(\w+)", file.read()).group(1)


def test_instruction_sets(start_mesh, wanted):
    """One worker at AVX2, one at AVX-512, and the probes on both of them at once and in turn."""
    needs_two_levels()
    mesh = start_mesh("--kv-workers", 2, "--kv-worker-isa", "avx2,avx512", "--local-pool", 0)
    assert [level(mesh, "kv-worker-0"), level(mesh, "kv-worker-1")] == ["avx2", "avx512"]
    assert_same(run_all(mesh.url, PROBES + PROBES), wanted + wanted)
    check(mesh, wanted)
    for place in ("kv-worker-0", "kv-worker-1"):  # a heartbeat says so, twice a second
        wait_until(lambda: of_place(mesh, "fastdecode_place_busy_seconds_total", place) > 0, 5, f"{place} had no rows")  # noqa: B023


def test_s_part_instruction_set(start_mesh, mesh, wanted):
    """The whole mesh at AVX2."""
    needs_two_levels()
    lower = start_mesh("--kv-workers", 1, "--local-pool", 0, env={"FD_ISA": "avx2"})
    assert level(lower, "s-part") == level(lower, "kv-worker-0") == "avx2" != level(mesh, "s-part")
    check(lower, wanted)


@pytest.mark.sanitizer
def test_threads_and_pool(start_mesh, wanted):
    """Two threads, two mini-batches, and a local pool too small for all: some sequences here, some there."""
    check(start_mesh("--kv-workers", 1, "--local-pool", "6M", "--mini-batches", 2, threads=2), wanted)


@pytest.mark.full
@pytest.mark.parametrize("threads,workers,chunk", [(2, 0, 64), (2, 2, 512)])
def test_of_the_default_model(start_mesh, real_mesh, threads, workers, chunk):
    """The same with weights of other sizes, on several threads."""
    wanted = [run_all(real_mesh.url, [probe])[0] for probe in PROBES]
    check(start_mesh(*options(workers, 2, chunk), model=MODEL, threads=threads), wanted, alone=True)
