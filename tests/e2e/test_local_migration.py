"""Sequences go from the s-part's local pool to a worker and back, pages and all, while they are being answered: nothing is computed anew and
no token changes; and whoever gives or takes, or the scheduler, may be killed half-way.

That the local pool is emptied, and that the worker is, is asked for by signals (moving_scheduler.c; SIGTERM), and that whoever gives
pages takes its time with each of them (slow_worker.c) keeps them on their way for long enough to have somebody killed.
"""
import signal

import pytest

from conftest import PACED, SANITIZED
from streams import assert_same, body, join_all, run_all, run_whole, start_all, words
from test_cuda import device
from test_failures import idle, needed, wait_for_log
from test_migration_failures import Log

STREAMS, WORDS, TOKENS, AT = 4, 60, 120, 8
LOCAL, WORKER = 0, 1  # the places
# without the prefix cache a page in use is somebody's, and all of them must go
MESH = ("--kv-workers", 1, "--local-pool", "256M", "--kv-memory", "256M", "--prefix-cache", "off")
PARTS = ("kv-worker", "s-part", "scheduler")
REQUESTS = [body(words(WORDS + 8 * i, 700 + i), TOKENS, i, sampled=i % 2 == 1) for i in range(STREAMS)]


@pytest.fixture(scope="module")
def wanted(mesh):
    return run_whole(mesh.url, REQUESTS)  # wherever their pages lie, it is the same


def half_way(mesh, at=AT, requests=REQUESTS):
    streams = start_all(mesh.url, requests)
    for stream in streams:
        stream.wait_tokens(at)
    return streams


def empty_pool(mesh, log, count):
    """From the local pool to the worker."""
    mesh.kill("scheduler", signal.SIGUSR1)
    log.wait(rf"(?s)(?:MOVED \S+ from={LOCAL} to={WORKER} [^\n]*ok=1.*?){{{count}}}", 60)


def held_by_nobody(mesh):
    """No page in use: in the ledger, in the worker's store, and in the s-part's (what it says it holds when a scheduler is new)."""
    idle(mesh)
    mesh.wait_metric("fastdecode_place_up", lambda up: up == 2)
    log = Log(mesh)
    mesh.kill("scheduler")
    for name in ("s-part", "kv-worker-0"):
        log.wait(rf"REGISTER name={name} .*held=\d+")
        assert log.find(rf"REGISTER name={name} .*held=(\d+)")[0] == "0", f"{name} holds sequences of nobody"


@pytest.mark.sanitizer
def test_there_and_back(start_mesh, wanted):
    mesh = start_mesh(*MESH, slow_workers=PARTS, env=PACED["env"])
    log, streams = Log(mesh, whole=True), half_way(mesh)
    prompts = needed(mesh)
    empty_pool(mesh, log, STREAMS)
    at = max(len(stream.tokens) for stream in streams)
    for stream in streams:
        stream.wait_tokens(min(at + AT, TOKENS))
    mesh.kill("scheduler", signal.SIGUSR2)
    pid = mesh.kill("kv-worker-0", signal.SIGTERM)
    wait_for_log(mesh, "scheduler", r"PLACE-DRAINED name=kv-worker-0")
    back = len(log.find(rf"MOVED \S+ from={WORKER} to={LOCAL} .*ok=1"))
    assert back >= max(1, sum(not stream.done for stream in streams)), "they were to go on in the local pool"
    assert_same(join_all(streams), wanted)
    assert mesh.metric("fastdecode_sequences_rebuilt_total") == 0
    assert mesh.metric("fastdecode_sequences_moved_total") == STREAMS + back
    assert needed(mesh) == prompts, "something was computed anew"
    assert pid != mesh.pid("kv-worker-0") or wait_for_log(mesh, "kv-worker-0", "END name=kv-worker-0")
    held_by_nobody(mesh)


@pytest.mark.parametrize("kv_type", ["int8", "int4"])
@pytest.mark.full
def test_other_types(start_mesh, kv_type):
    mesh = start_mesh(*MESH, "--kv-type", kv_type, slow_workers=PARTS, env=PACED["env"])
    same, log = run_all(mesh.url, REQUESTS), Log(mesh)
    streams = half_way(mesh)
    empty_pool(mesh, log, STREAMS)
    assert_same(join_all(streams), same)
    assert mesh.metric("fastdecode_sequences_rebuilt_total") == 0


class Travelling:
    """Streams whose pages are on their way: `giving` is the service that gives them."""

    def __init__(self, mesh, to_worker):
        self.mesh, self.log = mesh, Log(mesh, whole=True)
        self.streams = half_way(mesh)
        if not to_worker:
            empty_pool(mesh, self.log, STREAMS)
            mesh.kill("scheduler", signal.SIGUSR2)
        giver, self.path = ("s-part", (LOCAL, WORKER)) if to_worker else ("kv-worker-0", (WORKER, LOCAL))
        mesh.kill(giver, signal.SIGUSR2)
        mesh.kill("scheduler" if to_worker else giver, signal.SIGUSR1 if to_worker else signal.SIGTERM)
        asked = rf"MOVE \S+ from={self.path[0]} to={self.path[1]} "
        self.log.wait(asked)
        assert len(self.log.find(asked)) > len(self.log.find(asked.replace("MOVE", "MOVED"))), "all have arrived already"


@pytest.mark.full
@pytest.mark.parametrize("to_worker", [True, False])
@pytest.mark.parametrize("victim", ["s-part", "kv-worker-0", "scheduler"])
def test_killed_half_way(start_mesh, wanted, victim, to_worker):
    mesh = start_mesh(*MESH, slow_workers=PARTS, env=PACED["env"])
    moving = Travelling(mesh, to_worker)
    mesh.kill(victim)
    assert_same(join_all(moving.streams), wanted)
    held_by_nobody(mesh)


def test_the_taker_is_killed_and_nothing_is_lost(start_mesh, wanted):
    """What was on its way to the worker goes on where it is: it is not computed anew."""
    mesh = start_mesh(*MESH, slow_workers=PARTS, env=PACED["env"])
    moving = Travelling(mesh, to_worker=True)
    mesh.kill("kv-worker-0")
    moving.log.wait("PLACE-DOWN name=kv-worker-0")
    arrived = len(moving.log.find(rf"MOVED \S+ from={LOCAL} to={WORKER} .*ok=1"))
    mesh.kill("s-part", signal.SIGUSR2)  # as fast as before
    assert_same(join_all(moving.streams), wanted)
    assert mesh.metric("fastdecode_sequences_rebuilt_total") <= arrived
    held_by_nobody(mesh)


@pytest.mark.skipif(SANITIZED, reason="the emulated device switches stacks, which sanitizers do not follow")
def test_a_device_gives_and_takes(start_mesh):
    """On an emulated device: everybody gets all of it, nothing is computed anew. (Which tokens follow is not promised there.)"""
    mesh = start_mesh(*MESH, "--device", "cuda", slow_workers=("scheduler",), env=device())
    log = Log(mesh, whole=True)
    streams = half_way(mesh, 4, [body(words(12 + 9 * i, i), 48, i, sampled=i % 2 == 1) for i in range(STREAMS)])
    prompts = needed(mesh)
    empty_pool(mesh, log, STREAMS)
    at = max(len(stream.tokens) for stream in streams)
    for stream in streams:
        stream.wait_tokens(min(at + 4, 48))
    mesh.kill("scheduler", signal.SIGUSR2)
    mesh.kill("kv-worker-0", signal.SIGTERM)
    wait_for_log(mesh, "scheduler", r"PLACE-DRAINED name=kv-worker-0", 60)
    assert log.find(rf"MOVED \S+ from={WORKER} to={LOCAL} .*ok=1")
    join_all(streams)
    assert [(stream.error, len(stream.tokens), stream.finish_reason) for stream in streams] == [(None, 48, "length")] * STREAMS
    assert mesh.metric("fastdecode_sequences_rebuilt_total") == 0
    assert needed(mesh) == prompts
    held_by_nobody(mesh)
