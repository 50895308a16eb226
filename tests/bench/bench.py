#!/usr/bin/env python3
"""Every figure of the project as one table: kernels beside what the machine can do, servers beside a peer, in the same run.

  tests/bench/bench.py [--build build] [--only kernels,short,long,1b,...] [--streams 1,8] [--out FILE] [--keep]

Parts: kernels (under 3 minutes); short, long, 1b: tokens a second beside llama.cpp's llama-server, ik_llama.cpp's and vLLM's CPU build, those that
are there (tests/bench/peer.sh gets them); the best of them is the one that counts;
sockets: KV workers beside the local pool; overlap: two mini-batches in flight; stabilize: spaced starts beside starts together,
stabilize-x: where one side has most of the work (40 minutes); balance: four workers, and one that becomes slow;
stall: a long prompt beside streams; interference: a flood of prompts beside them; batch-class: a job beside them; batch-lines: batches of many short lines; sweep: local memory, batch held, tokens a second;
never-slower: two workers beside none; drafts: guessed tokens beside none; sparse: a part of a
long context beside all of it, and a number to be found in it; prediction: what `plan` says of this machine beside what a mesh does; context, streams: cost as the work grows;
offload: half of the weights on disk, beside what the disk reads; capacity: requests a second within a limit of the time between tokens,
prompts in chunks, whole prompts, and the peer; pipeline: two s-parts, beside what `sim` and `plan` say; tls: certificates on both sides beside plain tcp; grammar: streams with a JSON Schema beside none; long-sequence: one sequence over four
workers. Writes FILE (build/bench.json), a list of
objects, after every figure: an interrupted run leaves what it has, and says what is missing. --keep: figures of other parts that
the file has already stay, so that long parts can be run one by one. --streams: of the parts with streams, only these counts.
Ends with status 1 where a part is missing; a figure that is short is a figure.
"""
import argparse
import contextlib
import importlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)

PARTS = ("kernels", "short", "long", "1b", "sockets", "overlap", "third", "stabilize", "stabilize-x", "balance", "stall",
         "interference", "batch-class", "batch-lines", "sweep", "never-slower", "drafts", "sparse", "prediction", "context", "streams", "offload",
         "capacity", "pipeline", "tls", "grammar", "long-sequence", "models", "agreement")
LIMIT_S = {"kernels": 175, "short": 3600, "long": 6000, "1b": 2400, "sockets": 600, "overlap": 600, "third": 900, "stabilize": 1200,
           "stabilize-x": 3600, "balance": 300, "stall": 300, "interference": 300, "batch-class": 300, "batch-lines": 900, "sweep": 900,
           "never-slower": 1800, "drafts": 900, "sparse": 1200, "prediction": 1500, "context": 400, "streams": 400, "offload": 900,
           "capacity": 1800, "pipeline": 900, "tls": 600, "grammar": 600, "long-sequence": 1200, "models": 3000, "agreement": 400}


class Run:
    """What a part is given: progress, its time, and where its figures go."""

    def __init__(self, out, kept, counts, build, limits=None):
        self.out, self.items, self.counts, self.build, self.limits = out, kept, counts, build, limits or LIMIT_S
        self.part, self.deadline, self.missing, self.without = "", 0.0, [], []  # without: peers that could not be had, and why
        self.figures = importlib.import_module("figures")

    def begin(self, part):
        self.part, self.deadline = part, time.monotonic() + self.limits[part]

    def limit_s(self):
        left = self.deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError(f"not done after {self.limits[self.part]} s")
        return left

    def chosen(self, cases):
        """Those of the streams that were asked for; the count comes first in each."""
        return [case for case in cases if not self.counts or case[0] in self.counts]

    @contextlib.contextmanager
    def turn(self, what):
        self.limit_s()
        print(f"  [{self.part}] {what} ... ", end="", file=sys.stderr, flush=True)
        try:
            yield
        except BaseException:
            print(file=sys.stderr)
            raise

    def note(self, text):
        print(text, file=sys.stderr, flush=True)

    def add(self, item):
        self.items.append(item)
        self.figures.write(self.out, self.items)
        print(self.figures.row(item), file=sys.stderr, flush=True)

    def read_bandwidth(self):
        """GB/s of memory at this moment."""
        with tempfile.NamedTemporaryFile("r") as lines:
            subprocess.run([os.path.join(self.build, "tests", "bench", "bench_machine")], check=True, stdout=subprocess.DEVNULL,
                           env=dict(os.environ, FD_BENCH_JSON=lines.name))
            return next(item["value"] for item in map(json.loads, lines) if "read bandwidth" in item["name"])


def run_parts(run, names, parts=None):
    """KeyboardInterrupt ends it; any other trouble ends the part. parts: {name: (module, function)}"""
    parts = parts or {"kernels": ("kernel_parts", "kernels"), "1b": ("end_to_end", "one_b"), "stabilize-x": ("stabilize", "other_x"),
                      "never-slower": ("never_slower", "never_slower"), "batch-class": ("batch_class", "batch_class"),
                      "batch-lines": ("batch_lines", "batch_lines"), "long-sequence": ("long_sequence", "long_sequence"),
                      **{name: (name, name) for name in ("overlap", "third", "stabilize", "balance", "stall", "interference", "sweep", "drafts", "offload", "sparse",
                                                         "prediction", "capacity", "pipeline", "tls", "grammar", "models")}, "agreement": ("models", "agreement")}
    peers = importlib.import_module("peers")
    for at, name in enumerate(names):
        run.begin(name)
        module, function = parts.get(name, ("end_to_end", name))
        try:
            getattr(importlib.import_module(module), function)(run)
        except KeyboardInterrupt:
            run.missing += [f"{name}: interrupted"] + [f"{other}: not begun" for other in names[at + 1:]]
            return
        except peers.PeerMissing as problem:
            run.missing.append(f"{name}: {problem}")
        except (OSError, RuntimeError, AssertionError, subprocess.SubprocessError) as problem:
            run.missing.append(f"{name}: {problem}")


def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--build", default="build")
    arguments.add_argument("--only", default=",".join(PARTS))
    arguments.add_argument("--streams", default="")
    arguments.add_argument("--out")
    arguments.add_argument("--keep", action="store_true")
    chosen = arguments.parse_args()
    names = chosen.only.split(",")
    if unknown := set(names) - set(PARTS):
        arguments.error(f"unknown parts: {', '.join(sorted(unknown))} (there are {', '.join(PARTS)})")
    os.environ["FD_BUILD"] = os.path.abspath(chosen.build)
    figures = importlib.import_module("figures")
    out = chosen.out or os.path.join(chosen.build, "bench.json")
    kept = [item for item in figures.read(out) if item["part"] not in names] if chosen.keep else []
    run = Run(out, kept, set(map(int, filter(None, chosen.streams.split(",")))), os.environ["FD_BUILD"])
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    began = time.monotonic()
    run_parts(run, names)
    figures.write(out, run.items)
    print(f"\n{figures.table(run.items)}\n{len(run.items)} figures in {out}, {time.monotonic() - began:.0f} s")
    for text in run.without:
        print(f"without {text}")
    for text in run.missing:
        print(f"missing: {text}")
    return 1 if run.missing else 0


if __name__ == "__main__":
    sys.exit(main())
