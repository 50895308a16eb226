"""`--trace FILE`: one file of all services that shows where each step's time went."""
import collections
import json
import os
import signal
import statistics
import subprocess
import sys

import pytest

from conftest import PACED, ROOT, seconds, wait_until
from streams import body, run_all, start_all, words
from test_up import folder, up  # noqa: F401

TOOL = os.path.join(ROOT, "tests", "bench", "profile_steps.py")
sys.path.append(os.path.dirname(TOOL))
import profile_steps  # noqa: E402

STREAMS, TOKENS = 3, 40


def ask(mesh):
    streams = run_all(mesh.url, [body(words(40, i), TOKENS, i) for i in range(STREAMS)])
    assert [stream.error for stream in streams] == [None] * STREAMS


def assert_nested(trace):
    """Two spans of a track are apart, or one holds the other."""
    tracks = collections.defaultdict(list)
    for e in trace.spans:
        tracks[e["pid"], e["tid"]].append((e["ts"], -e["dur"], e["name"]))
    for track, spans in tracks.items():
        open_until = []
        for begin, minus_dur, name in sorted(spans):
            while open_until and open_until[-1][0] <= begin + 0.002:
                open_until.pop()
            end = begin - minus_dur
            assert not open_until or end <= open_until[-1][0] + 0.002, f"{trace.track[track]}: {name} crosses {open_until[-1][1]}"
            open_until.append((end, name))


AT_WORKERS, LOCAL = ("--local-pool", 0, "--kv-workers", 2, "--mini-batches", 2), ("--kv-workers", 0)


@pytest.mark.parametrize("place", [pytest.param(AT_WORKERS, id="workers"), pytest.param(LOCAL, id="local")])
def test_a_trace_says_where_steps_went(start_mesh, tmp_path, place):
    path = str(tmp_path / "trace.json")
    mesh = start_mesh(*place, "--trace", path, "--context", 1024, "--draft-tokens", 0)  # a step a token
    ask(mesh)
    pids = {name: mesh.pid(name) for name in ("gateway", "scheduler", "s-part")}
    assert mesh.stop() == 0
    with open(path, encoding="utf-8") as file:
        trace = profile_steps.Trace(json.load(file))
    assert trace.dropped == 0
    for name, pid in pids.items():
        assert trace.process[pid] == name
    names = collections.Counter((trace.process[e["pid"]], trace.track[e["pid"], e["tid"]], e["name"]) for e in trace.spans)
    wanted = [("s-part", "S-part", name) for name in ("plan", "begin", "segment", "head", "reply")]
    wanted += [("scheduler", "scheduler", name) for name in ("tick", "schedule", "send step", "results")]
    wanted += [("gateway", "answers", "tokens"), ("gateway", "answers", "write"), ("gateway", "parse and tokenize", "parse")]
    wanted += [("s-part", "mini-batch 0", name) for name in ("step", "queued")]
    if place == LOCAL:
        wanted += [("s-part", "R-part, local pool", "attend")]
    else:
        wanted += [("s-part", "S-part", "prepare"), ("s-part", "S-part", "send"), ("s-part", "mini-batch 1", "wait")]
        workers = [name for name in trace.process.values() if name.startswith("kv-worker-")]
        assert len(workers) == 2
        busy = [name for name in workers if names[name, "R-part", "call"]]  # few streams may all be placed on one
        assert busy and all(names[name, "R-part", "call"] == names[name, "R-part", "attend"] for name in busy)
    assert not [name for name in wanted if not names[name]], names
    assert_nested(trace)
    assert len(trace.durations("request")) == len(trace.durations("first token")) == STREAMS
    assert len(trace.durations("step")) == names["scheduler", "scheduler", "send step"] >= TOKENS

    steps = profile_steps.steps_of(trace)
    assert len(steps) >= TOKENS and sum(step["outputs"] for step in steps) >= STREAMS * TOKENS
    assert all(step["rest"] >= -0.01 * step["us"] for step in steps), "parts overlap"
    # of most steps; from some the machine takes the time between two spans
    assert statistics.median(step["rest"] / step["us"] for step in steps) <= 0.05, profile_steps.summarize(trace)
    layers = {e["args"]["layer"] for e in trace.named("segment")}
    assert layers == set(range(max(layers) + 1)) and len(trace.named("segment")) == len(steps) * len(layers)
    said = subprocess.run([TOOL, "--decode", path], capture_output=True, text=True, check=True).stdout
    assert "S-part: segments" in said and "HTTP: first token" in said


def test_a_trace_that_was_cut_off_can_be_read(start_mesh, tmp_path):
    """Killed: the closing bracket is missing and nothing else, as the format allows. Then the file of the next mesh is new."""
    path = str(tmp_path / "trace.json")
    mesh = start_mesh("--kv-workers", 0, "--trace", path, "--context", 1024, "--draft-tokens", 0, **PACED)
    first = mesh.pid("s-part")
    ask(mesh)
    begun = os.path.getsize(path)
    streams = start_all(mesh.url, [body(words(10), 500)])
    wait_until(lambda: os.path.getsize(path) >= begun + 10000, 60, "nothing was written while a stream ran")
    mesh.process.kill()  # its services die with it
    streams[0].join(seconds(60))
    mesh.process.wait(seconds(10))
    with open(path, encoding="utf-8") as file:
        text = file.read()
    assert text.startswith("[\n")
    events = json.loads(text[:text.rindex("}") + 1] + "]")
    assert profile_steps.summarize(profile_steps.Trace(events))["steps"] > TOKENS
    assert len(profile_steps.read(path)) == len(events)

    mesh = start_mesh("--kv-workers", 0, "--trace", path, "--context", 1024, "--draft-tokens", 0)
    ask(mesh)
    second = mesh.kill("s-part", signal.SIGKILL)  # and one that starts again appends
    ask(mesh)
    assert mesh.stop() == 0
    with open(path, encoding="utf-8") as file:
        processes = profile_steps.Trace(json.load(file)).process
    assert first not in processes and second in processes and len([1 for name in processes.values() if name == "s-part"]) == 2


def test_a_file_that_cannot_be_written(folder):
    done = up(folder, "--port", "0", "--trace", str(folder))
    assert done.returncode == 2 and f"--trace {folder}: Is a directory" in done.stderr and "CHILD-START" not in done.stderr
