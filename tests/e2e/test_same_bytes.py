"""Same bytes: a request's tokens and log-probabilities do not depend on workers, mini-batches, chunks, instruction sets,
or on what runs beside it.

What is compared comes first from one mesh with the default settings, each probe alone. `make check` then takes a sample in
which every pair of values of two settings occurs at least once; `make check-full` the whole product.
"""
import itertools
import os
import time

import pytest

from conftest import SANITIZED
from streams import Stream, assert_same, body, join_all, of_place, run_all, words

WORKERS, MINI_BATCHES, CHUNKS = (0, 1, 2, 4), (1, 2, 3), (16, 64, 512)
LONG = words(200 if SANITIZED else 1500, 5)  # a word is a token
ALONE, COMPANY = "alone", "company"

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


def pairs_covered(rows):
    return {((i, row[i]), (k, row[k])) for row in rows for i in range(len(row)) for k in range(i)}


def pairwise(*values):
    """Greedy: of all combinations, again and again the one that covers most pairs not yet covered."""
    everything = list(itertools.product(*values))
    open_pairs, chosen = pairs_covered(everything), []
    while open_pairs:
        best = max(everything, key=lambda row: len(open_pairs & pairs_covered([row])))
        chosen.append(best)
        open_pairs -= pairs_covered([best])
    return chosen


def test_the_sample_covers_every_pair():
    rows = pairwise(WORKERS, MINI_BATCHES, CHUNKS)
    assert pairs_covered(rows) == pairs_covered(itertools.product(WORKERS, MINI_BATCHES, CHUNKS)) and len(rows) < 20


@pytest.fixture(scope="session")
def wanted(mesh):
    """Of each probe, alone on the default mesh; asked twice, because a difference there would explain all others."""
    first = [run_all(mesh.url, [probe])[0] for probe in PROBES]
    assert all(stream.error is None and stream.usage for stream in first), [stream.error for stream in first]
    assert first[2].usage["prompt_tokens"] >= len(LONG.split())
    assert len({tuple(stream.tokens) for stream in first}) == len(first)
    assert_same([run_all(mesh.url, [PROBES[0]])[0], run_all(mesh.url, [PROBES[1]])[0]], first[:2])
    return first


def check(mesh, wanted, company=None):
    """The probes one after the other, then all of them among 26 others."""
    if company != COMPANY:
        assert_same([run_all(mesh.url, [probe])[0] for probe in PROBES], wanted)
    beside = [Stream(mesh.url, request) for request in others(6 if SANITIZED else 26)]
    beside[0].wait_tokens(1)
    among = run_all(mesh.url, PROBES)
    join_all(beside)
    assert [stream.error for stream in beside if stream.error] == []
    assert_same(among, wanted)


def busy_seconds(mesh, place, limit_s=5):
    """Of attention there, as a heartbeat says it: twice a second."""
    deadline = time.monotonic() + limit_s
    while (value := of_place(mesh, "fastdecode_place_busy_seconds_total", place)) == 0 and time.monotonic() < deadline:
        time.sleep(0.1)
    return value


def options(workers, mini_batches, chunk):
    """Every row through the workers where there are any."""
    pool = () if workers == 0 else ("--local-pool", 0)
    return ("--kv-workers", workers, "--mini-batches", mini_batches, "--chunk", chunk, *pool, "--kv-memory", "512M")


@pytest.mark.parametrize("workers,mini_batches,chunk", pairwise(WORKERS, MINI_BATCHES, CHUNKS))
def test_settings(start_mesh, wanted, workers, mini_batches, chunk):
    """Among others; the probes alone are in the whole product."""
    check(start_mesh(*options(workers, mini_batches, chunk)), wanted, COMPANY)


@pytest.mark.full
@pytest.mark.parametrize("workers,mini_batches,chunk", itertools.product(WORKERS, MINI_BATCHES, CHUNKS))
def test_settings_product(start_mesh, wanted, workers, mini_batches, chunk):
    check(start_mesh(*options(workers, mini_batches, chunk)), wanted)


def test_instruction_sets(start_mesh, wanted):
    """One worker at AVX2, one at AVX-512, and the probes on both of them at once and in turn."""
    with open("/proc/cpuinfo", encoding="ascii", errors="replace") as file:
        flags = file.read()
    if "avx512bw" not in flags:
        pytest.skip("this CPU has no AVX-512")
    mesh = start_mesh("--kv-workers", 2, "--kv-worker-isa", "avx2,avx512", "--local-pool", 0)
    for name, level in (("kv-worker-0", "avx2"), ("kv-worker-1", "avx512")):
        with open(os.path.join(mesh.run_dir, name + ".log"), encoding="utf-8") as file:
            assert f"kernels={level} " in file.read()
    assert_same(run_all(mesh.url, PROBES + PROBES), wanted + wanted)
    check(mesh, wanted, COMPANY)
    for place in ("kv-worker-0", "kv-worker-1"):
        assert busy_seconds(mesh, place) > 0, f"{place} had no rows"


def test_s_part_instruction_set(start_mesh, wanted):
    """The whole mesh at AVX2."""
    check(start_mesh("--kv-workers", 1, "--local-pool", 0, env={"FD_ISA": "avx2"}), wanted, COMPANY)


@pytest.mark.sanitizer
def test_threads_and_pool(start_mesh, wanted):
    """One thread, two mini-batches, and a local pool too small for all: some sequences here, some there."""
    check(start_mesh("--kv-workers", 1, "--local-pool", "64M", "--threads", 1, "--mini-batches", 2), wanted, COMPANY)
