"""What thirty hostile peers at the TLS ports cost a good client: hostile.py says what they do."""
import os
import statistics

import pytest

from conftest import PACED, wait_until
from hostile import Hostile
from streams import body, run_whole, words
from tls_mesh import TlsMesh, certs

STREAMS, TOKENS, ROUNDS, AT_MOST = 4, 60, 5, 1.5
HANDSHAKES_MAX = 128  # of a port, tls_acceptor.c


def p99(streams):
    gaps = sorted(b - a for stream in streams for a, b in zip(stream.times, stream.times[1:]))
    return gaps[int(0.99 * len(gaps))]


def descriptors(pid):
    return len(os.listdir(f"/proc/{pid}/fd"))


@pytest.fixture(name="attacked", scope="module")
def _attacked(tmp_path_factory):
    """A mesh, its addresses, and certificates that it refuses."""
    parent = tmp_path_factory.mktemp("hostile")
    with TlsMesh(certs(parent / "certs"), "--kv-workers", 1, "--local-pool", 0, "--kv-memory", "64M", **PACED) as mesh:
        yield mesh, [mesh.address("scheduler"), mesh.address("kv-worker-0", "tensors")], certs(parent / "others")


def load(mesh, seed):
    return run_whole(mesh.url, [body(words(20, seed + i), TOKENS, i) for i in range(STREAMS)])


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
    ratios = []
    for turn in range(ROUNDS):
        quiet = p99(load(mesh, 200 + 10 * turn))
        with Hostile(addresses, others) as hostile:
            wait_until(lambda: hostile.done() > 60, 60, lambda: f"{hostile.done()} attempts")
            before = hostile.done()
            attacked_s = p99(load(mesh, 205 + 10 * turn))
            assert hostile.done() > before
        ratios.append(attacked_s / quiet)
        print(f"99th percentile between tokens: {1e3 * quiet:.1f} ms, attacked {1e3 * attacked_s:.1f} ms, {hostile.done() - before} attempts")
    assert statistics.median(ratios) <= AT_MOST, ratios
