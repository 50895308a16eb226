"""What thirty hostile peers at the TLS ports cost a good client: hostile.py says what they do."""
import os

import pytest

from conftest import PACED, wait_until
from hostile import Hostile
from streams import body, run_whole, words
from tls_mesh import TlsMesh, certs

STREAMS, TOKENS, AT_MOST = 4, 60, 1.5
LONG, TURNS = 120, (False, True, True, False) * 4  # tokens of a turn, attacked or not: all streams share a step, so a turn has this many times
HANDSHAKES_MAX = 128  # of a port, tls_connect.c


def p99(gaps):
    return sorted(gaps)[int(0.99 * len(gaps))]


def descriptors(pid):
    return len(os.listdir(f"/proc/{pid}/fd"))


@pytest.fixture(name="attacked", scope="module")
def _attacked(tmp_path_factory):
    """A mesh, its addresses, and certificates that it refuses."""
    parent = tmp_path_factory.mktemp("hostile")
    with TlsMesh(certs(parent / "certs"), "--kv-workers", 1, "--local-pool", 0, "--kv-memory", "64M", **PACED) as mesh:
        yield mesh, [mesh.address("scheduler"), mesh.address("kv-worker-0", "tensors")], certs(parent / "others")


def load(mesh, seed, tokens=TOKENS):
    """Returns the times between tokens."""
    streams = run_whole(mesh.url, [body(words(20, seed + i), tokens, i) for i in range(STREAMS)])
    return [b - a for stream in streams for a, b in zip(stream.times, stream.times[1:])]


def test_what_they_cost_in_descriptors_and_lines(attacked):
    mesh, addresses, others = attacked
    services = ("scheduler", "kv-worker-0")
    load(mesh, 0)  # every connection is there
    before, pids = {name: descriptors(mesh.pid(name)) for name in services}, {name: mesh.pid(name) for name in services}
    with Hostile(addresses, others) as hostile:
        wait_until(lambda: hostile.done() > 300, 60, lambda: f"{hostile.done()} attempts")
        load(mesh, 1)
        for name in services:
            assert descriptors(mesh.pid(name)) <= before[name] + HANDSHAKES_MAX + 16, name
        attempts = hostile.done()
    wait_until(lambda: all(descriptors(mesh.pid(name)) <= before[name] + 1 for name in services), 30, "they keep descriptors")
    assert {name: mesh.pid(name) for name in services} == pids
    lines = sum(mesh.log(name).count("TLS-REFUSED") for name in services)
    print(f"{attempts} attempts, {lines} lines")
    assert 2 <= lines <= attempts / 5


@pytest.mark.full
@pytest.mark.alone
def test_what_they_cost_in_time(attacked):
    mesh, addresses, others = attacked
    load(mesh, 100)
    gaps = {True: [], False: []}
    for turn, is_attacked in enumerate(TURNS):
        seed = 200 + 10 * turn
        if is_attacked:
            with Hostile(addresses, others) as hostile:
                wait_until(lambda: hostile.done() > 60, 60, lambda: f"{hostile.done()} attempts")
                before = hostile.done()
                gaps[True].append(load(mesh, seed, LONG))
                assert hostile.done() > before
        else:
            gaps[False].append(load(mesh, seed, LONG))
    quiet_s, attacked_s = (p99(sum(gaps[is_attacked], [])) for is_attacked in (False, True))
    print(f"99th percentile between tokens: {1e3 * quiet_s:.1f} ms, attacked {1e3 * attacked_s:.1f} ms: {attacked_s / quiet_s:.2f}; "
          f"of turns {[[round(1e3 * p99(turn)) for turn in gaps[is_attacked]] for is_attacked in (False, True)]}")
    assert attacked_s <= AT_MOST * quiet_s
