"""A sequence that no place can hold: it lies at several workers, its text is that of one place with all of it, and any worker may die."""
import random
import re

import pytest

from conftest import PACED, SEED
from streams import assert_same, body, join_all, run_all, run_whole, start_all, words
from test_failures import PREFILL, idle

# A token's KV takes 2 KiB, so 3 MiB hold three ranges of 512 tokens. The prompt has more than 2,000 tokens.
WORDS, TOKENS, AT, WORKERS = 2100, 60, 6, 4
MEMORY = ("2560K", "3M", "3584K", "4M")
REQUEST = body(words(WORDS, 41), TOKENS)
PARTS = ("kv-worker", "s-part")


def options(memory, *more):
    return ("--kv-workers", WORKERS, "--kv-memory", memory, "--local-pool", 0, "--prefix-cache", "off", *more)


@pytest.fixture(scope="module")
def wanted(mesh):
    return run_whole(mesh.url, [REQUEST])


def loads(mesh):
    """The context tokens that each place reads, by its name."""
    found = re.findall(r'^fastdecode_place_load_tokens\{place="([^"]*)"\} (\S+)$', mesh.metrics(), re.M)
    return {name: float(load) for name, load in found if float(load) > 0}


def tail_of(mesh, stream):
    """The place that reads more as the stream goes on."""
    before = loads(mesh)
    stream.wait_tokens(len(stream.tokens) + AT)
    after = loads(mesh)
    grown = [name for name in after if after[name] > before.get(name, 0)]
    assert len(grown) == 1, f"{before} {after}"
    return grown[0]


def kill_and_check(mesh, stream, name, most):
    """Kills a worker and awaits the stream. most: context that may be computed again, beside what was generated meanwhile."""
    computed = mesh.metric(PREFILL)
    mesh.kill(name)
    join_all([stream])
    again = mesh.metric(PREFILL) - computed
    assert mesh.metric("fastdecode_sequences_rebuilt_total") >= 1
    assert 0 < again <= most + TOKENS + 16, f"{again:.0f} rows for the loss of {name}"


def test_any_worker_may_die(start_mesh, wanted):
    mesh = start_mesh(*options("3M"), slow_workers=PARTS, env=PACED["env"])
    stream, = start_all(mesh.url, [REQUEST])
    stream.wait_tokens(AT)
    parts = loads(mesh)
    assert len(parts) == WORKERS and mesh.metric("fastdecode_sequences_split") == 1 and mesh.metric("fastdecode_extents") == WORKERS - 1
    assert sum(parts.values()) > 2000 and max(parts.values()) <= 1536
    tail = tail_of(mesh, stream)
    kill_and_check(mesh, stream, tail, parts[tail])
    assert_same([stream], wanted)
    idle(mesh)
    mesh.wait_metric("fastdecode_place_up", lambda up: up == WORKERS)
    # and a worker in the middle, or the first one
    stream, = start_all(mesh.url, [REQUEST])
    stream.wait_tokens(AT)
    parts = loads(mesh)
    name = random.Random(SEED).choice(sorted(set(parts) - {tail_of(mesh, stream)}))
    kill_and_check(mesh, stream, name, sum(parts.values()))
    assert_same([stream], wanted)
    assert mesh.metric("fastdecode_sequences_split") == 0


def test_what_is_too_long_for_places_that_cannot_share_it(start_mesh):
    """Each holds an extent and a half, so they hold two and a half of one sequence, and not three, as the error says."""
    mesh = start_mesh("--kv-workers", 1, "--kv-memory", "1536K", "--local-pool", "1536K")
    stream, = run_all(mesh.url, [body(words(40, 3), 1500)])
    needed, held = map(int, re.search(r"a sequence of (\d+) tokens needs .* hold (\d+) tokens \(2 are up\)", stream.error).groups())
    assert held == 1280 < needed


@pytest.mark.full
def test_what_is_too_long_for_all_together(start_mesh):
    mesh = start_mesh(*options("1M"))
    stream, = run_all(mesh.url, [REQUEST])
    assert "needs more KV memory than there is" in stream.error and "--kv-memory" in stream.error
    assert re.search(r'API-FAILED request=\S+ status=500 why="[^"]*needs more KV memory than there is', mesh.logs()), mesh.logs()
    short = body(words(40, 3), 8)
    run_whole(mesh.url, [short])


@pytest.mark.parametrize("memory", MEMORY)
@pytest.mark.full
def test_the_same_text_however_it_is_split(start_mesh, wanted, memory):
    mesh = start_mesh(*options(memory))
    others = [body(words(100 + 90 * i, i), 40, i) for i in range(6)]
    alone = run_whole(mesh.url, others)
    assert_same(run_all(mesh.url, [REQUEST, *others]), [*wanted, *alone])
    assert mesh.metric("fastdecode_extents_total") > 0
    idle(mesh)


@pytest.mark.full
def test_a_worker_drains(start_mesh, wanted):
    """Its part is handed over, and nothing is computed again."""
    mesh = start_mesh(*options("4M"), slow_workers=PARTS, env=PACED["env"])
    stream, = start_all(mesh.url, [body(REQUEST["prompt"], TOKENS)])
    stream.wait_tokens(AT)
    computed, parts = mesh.metric(PREFILL), loads(mesh)
    mesh.kill(random.Random(SEED).choice(sorted(parts)), 15)
    assert_same(join_all([stream]), wanted)
    assert mesh.metric(PREFILL) == computed or len(parts) == WORKERS


@pytest.mark.full
def test_the_scheduler_dies(start_mesh, wanted):
    """The parts that the workers say they hold are used again."""
    mesh = start_mesh(*options("3M"), slow_workers=PARTS, env=PACED["env"])
    stream, = start_all(mesh.url, [REQUEST])
    stream.wait_tokens(AT)
    mesh.kill("scheduler")
    assert_same(join_all([stream]), wanted)
    assert mesh.metric("fastdecode_sequences_rebuilt_total") == 0
    assert mesh.metric(PREFILL) < 600, "only the tail's last range is computed again"


@pytest.mark.full
def test_eight_thousand_tokens_on_four_small_workers(start_mesh):
    """7,900 tokens: 15.5 MiB of KV on four workers of 5 MiB each, and on one of 64."""
    request = body(words(6500, 9), 40)
    whole = run_whole(start_mesh("--kv-workers", 1, "--kv-memory", "64M", "--local-pool", 0).url, [request])
    mesh = start_mesh(*options("5M"))
    assert_same(run_all(mesh.url, [request]), whole)
    assert mesh.metric("fastdecode_extents_total") == WORKERS - 1
