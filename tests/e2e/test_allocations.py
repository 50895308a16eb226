"""No allocation by our own code in a decode step: counted in the real processes (count_allocations.c is preloaded).

Streams run through three windows of as many decode tokens each. A place in the code of the s-part, the KV worker or the scheduler
that allocates in every window allocates as it decodes. What grows once (queues, arenas) has grown in the rounds before; where
processes wait for a core, a queue may become longer than ever before in one window, but not in each of them.
"""
import os
import struct
import subprocess

import pytest

from collector import Collector
from conftest import BUILD, preload
from streams import body, join_all, run_all, start_all, words

PROGRAMS = ("s-part", "kv-worker", "scheduler", "gateway")
MODULES = ("the program", "protobuf-c", "libc")
COUNTER, CALLER = struct.Struct("<3Q"), struct.Struct("<3Q")
STREAMS, FIRST, WINDOW, WINDOWS = 8, 60, 60, 3
LAST = FIRST + WINDOW * WINDOWS


@pytest.fixture(scope="module")
def counter(tmp_path_factory):
    return preload(tmp_path_factory.mktemp("preload"), "count_allocations")


def counts(folder):
    """{program: {(module, address): calls}}, of all its processes."""
    found = {program: {} for program in PROGRAMS}
    for name in os.listdir(folder):
        program = name.rsplit(".", 1)[0]
        with open(os.path.join(folder, name), "rb") as file:
            data = file.read()
        for address, count, module in CALLER.iter_unpack(data[COUNTER.size:]):
            if program in found and address:
                found[program][module, address] = found[program].get((module, address), 0) + count
    return found


def grown(before, after):
    return {program: {key: count - before[program].get(key, 0) for key, count in after[program].items()
                      if count != before[program].get(key, 0)} for program in PROGRAMS}


def told(program, calls):
    lines = []
    for (module, address), count in sorted(calls.items(), key=lambda item: -item[1]):
        where = ""
        if module == 0:
            done = subprocess.run(["addr2line", "-fpse", os.path.join(BUILD, "bin", program), hex(address - 1)], capture_output=True,
                                  text=True, check=False)
            where = done.stdout.strip()
        lines.append(f"  {program}: {count} from {MODULES[module]} at {address:#x} {where}")
    return "\n".join(lines)


def requests(sampled, tokens):
    """Half of them with all that sampling can do; one with log-probabilities of 20 tokens and stop strings that never come."""
    found = [body(words(20 + 5 * i, i), tokens, i, sampled) for i in range(STREAMS)]
    if sampled:
        found[1].update(top_k=40, top_p=0.9)
        found[2].update(top_p=0.95)
        found[3].update(min_p=0.05, logit_bias={"260": 1.5})
        found[4].update(logprobs=20)
        found[5].update(stop=["nothing like this", "nor this"])
        found[6].update(guided_regex="[a-z ,.]*", bad_words=["never said", "nor this"], xtc_probability=0.5)
        found[7].update(structured_outputs={"json": {"type": "array", "items": {"type": "string", "maxLength": 9}, "minItems": 1000}},
                        typical_p=0.9, dry_multiplier=0.5)
    return found


def wait_all(streams, tokens):
    for stream in streams:
        stream.wait_tokens(tokens)


@pytest.fixture
def collector():
    running = Collector()
    yield running
    running.stop()


AT_A_WORKER, LOCAL, NO_DRAFTS = ("--local-pool", 0), ("--kv-workers", 0), ("--draft-tokens", 0)


@pytest.mark.parametrize("place,sampled", [
    pytest.param(AT_A_WORKER, True, id="worker-sampled"), pytest.param((*LOCAL, *NO_DRAFTS), False, id="local-greedy"),
    pytest.param((*AT_A_WORKER, *NO_DRAFTS), False, id="worker-greedy", marks=pytest.mark.full),
    pytest.param(AT_A_WORKER, False, id="worker-drafts", marks=pytest.mark.full),
    pytest.param((*AT_A_WORKER, *NO_DRAFTS, "--trace", os.devnull), False, id="worker-traced", marks=pytest.mark.full),
    pytest.param((*AT_A_WORKER, *NO_DRAFTS, "--otlp-endpoint"), False, id="worker-otlp"),
    pytest.param(LOCAL, True, id="local-sampled", marks=pytest.mark.full)])
def test_no_allocation_in_a_decode_step(start_mesh, counter, collector, tmp_path, place, sampled):
    place = (*place, collector.url) if place[-1] == "--otlp-endpoint" else place  # every sequence is traced
    drafts = not sampled and not set(NO_DRAFTS) <= set(place)
    tokens = LAST + (600 if drafts else 200)  # some of those that are guessed are several times as fast as the others
    mesh = start_mesh(*place, "--context", 1024, env={"LD_PRELOAD": counter, "FD_ALLOCATIONS": str(tmp_path)})
    for _ in range(2):
        assert [stream.error for stream in run_all(mesh.url, requests(sampled, tokens)) if stream.error] == []
    streams = start_all(mesh.url, requests(sampled, tokens))
    seen = []
    for window in range(WINDOWS + 1):
        wait_all(streams, FIRST + window * WINDOW)
        seen.append(counts(tmp_path))
    assert all(seen[0][program] for program in PROGRAMS if program != "kv-worker" or set(AT_A_WORKER) <= set(place)), "nothing was counted"
    assert not any(stream.finish_reason for stream in streams), "a stream ended while it was counted"
    join_all(streams)
    windows = [grown(*pair) for pair in zip(seen, seen[1:])]
    text = "\n".join(f"in decode steps up to {FIRST + (i + 1) * WINDOW}:\n" + "\n".join(told(*item) for item in window.items() if item[1])
                     for i, window in enumerate(windows))
    for program in PROGRAMS:
        always = set.intersection(*(set(window[program]) for window in windows))
        if program == "gateway":  # no allocation a token; a client that reads late makes its stream's buffers grow, once
            assert sum(sum(window[program].values()) for window in windows) <= 2 * STREAMS, text
        else:
            assert not always, text
    print(text)
