"""Failures while pages travel from worker to worker: who gives them, who takes them, or the scheduler is killed half-way.

A drain of the worker that holds most makes pages travel for certain, and that it takes its time with each of them (slow_worker.c)
keeps them on their way for half a second. Then somebody is killed. Every stream must end with the tokens it gets on an undisturbed
mesh, and no page may stay in use: neither in the scheduler's ledger nor, as the workers count them themselves, in their stores.
"""
import os
import re
import signal
from collections import Counter

import pytest

from conftest import PACED, wait_until
from streams import assert_same, body, join_all, of_place, run_whole, start_all, words
from test_failures import idle, wait_for_log

STREAMS, WORDS, TOKENS, AT = 6, 100, 120, 8
WORKERS = ("kv-worker-0", "kv-worker-1", "kv-worker-2")
# without the prefix cache a page in use is somebody's, and all of them must go
MESH = ("--kv-workers", 3, "--local-pool", 0, "--kv-memory", "512M", "--prefix-cache", "off")
REQUESTS = [body(words(WORDS + 8 * i, 900 + i), TOKENS, i, sampled=i % 2 == 1) for i in range(STREAMS)]


@pytest.fixture(scope="module")
def wanted(mesh):
    return run_whole(mesh.url, REQUESTS)  # wherever their pages lie, it is the same


class Log:
    """What the scheduler has logged, or has logged since."""

    def __init__(self, mesh, whole=False):
        self.path = os.path.join(mesh.run_dir, "scheduler.log")
        self.since = 0 if whole else os.path.getsize(self.path)

    def find(self, pattern):
        with open(self.path, encoding="utf-8", errors="replace") as file:
            file.seek(self.since)
            return re.findall(pattern, file.read())

    def wait(self, pattern, limit_s=20):
        wait_until(lambda: self.find(pattern), limit_s, f"the scheduler has not logged {pattern!r}", 0.001)


class Travelling:
    """Streams, and the worker that gives some of them away, while pages of at least one are on their way."""

    def __init__(self, mesh):
        mesh.wait_metric("fastdecode_place_up", lambda up: up == len(WORKERS))
        self.log, self.streams = Log(mesh), start_all(mesh.url, REQUESTS)
        for stream in self.streams:
            stream.wait_tokens(AT)
        self.giver = max(WORKERS, key=lambda name: of_place(mesh, "fastdecode_place_sequences", name))
        self.names = {int(place): name for name, place in Log(mesh, whole=True).find(r"PLACE-UP name=(\S+) place=(\d+)")}
        self.place = next(place for place, name in self.names.items() if name == self.giver)
        mesh.kill(self.giver, signal.SIGUSR2)
        mesh.kill(self.giver, signal.SIGTERM)
        self.log.wait(rf"PLACE-DRAINS name={self.giver}")  # what has travelled before was moved to even out the load
        wait_until(self.under_way, 20, "nothing is on its way", 0.001)

    def under_way(self):
        """The places that sequences of the giver are on their way to."""
        asked = self.log.find(rf"MOVE sequence=\w+ from={self.place} to=(\d+)")
        return list((Counter(asked) - Counter(self.log.find(rf"MOVED sequence=\w+ from={self.place} to=(\d+)"))).elements())

    def landed(self, place):
        return len(self.log.find(rf"MOVED sequence=\w+ from=\d+ to={place} .*ok=1"))


def assert_nothing_is_held(mesh):
    """No page in use, in the ledger and in each worker's store. Afterwards all workers run, and can be asked to end."""
    idle(mesh)
    mesh.wait_metric("fastdecode_place_up", lambda up: up == 3)
    since = {name: os.path.getsize(os.path.join(mesh.run_dir, name + ".log")) for name in WORKERS}
    for name in WORKERS:
        mesh.kill(name, signal.SIGTERM)
        pages = int(wait_for_log(mesh, name, r"DRAINING pages_used=(\d+)", since=since[name]).group(1))
        assert pages == 0, f"{name} holds {pages} pages of nobody"
    for name in WORKERS:
        wait_for_log(mesh, name, r"DRAINING pages_used=0[\s\S]* REGISTERED ", since=since[name])


@pytest.mark.full
def test_giver_killed(start_mesh, wanted):
    """What is there is rebuilt, and what has come of it is freed."""
    mesh = start_mesh(*MESH, **PACED)
    moving = Travelling(mesh)
    mesh.kill(moving.giver)
    assert_same(join_all(moving.streams), wanted)
    assert mesh.metric("fastdecode_sequences_rebuilt_total") >= 1
    assert_nothing_is_held(mesh)


def test_taker_killed(start_mesh, wanted):
    """What it had is rebuilt; what was on its way there goes to the third."""
    mesh = start_mesh(*MESH, **PACED)
    moving = Travelling(mesh)
    place = moving.under_way()[0]
    taker, landed = moving.names[int(place)], moving.landed(place)
    taken = of_place(mesh, "fastdecode_place_sequences", taker)
    mesh.kill(taker)
    moving.log.wait(rf"PLACE-DOWN name={taker}")
    mesh.kill(moving.giver, signal.SIGUSR2)
    assert_same(join_all(moving.streams), wanted)
    rebuilt, lost = mesh.metric("fastdecode_sequences_rebuilt_total"), taken + moving.landed(place) - landed
    assert rebuilt <= lost, "what the worker that gives had was computed anew"
    assert moving.log.find(rf"MOVED .*from={moving.place} to={place} .*ok=0")
    assert moving.log.find(rf"MOVED .*from={moving.place} .*ok=1")
    assert_nothing_is_held(mesh)


@pytest.mark.full
def test_scheduler_killed(start_mesh, wanted):
    """Nobody waits for the pages that arrive after it: who takes them lets them go again."""
    mesh = start_mesh(*MESH, **PACED)
    moving = Travelling(mesh)
    mesh.kill("scheduler")
    assert_same(join_all(moving.streams), wanted)
    assert_nothing_is_held(mesh)
