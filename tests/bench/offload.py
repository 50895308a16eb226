"""Weights that do not fit memory: a Llama of 1.1 G parameters in 4 bits, in a control group with memory for half of its weights.

A step is as long as reading takes, or computing if that is longer, so that the bound is min( B · read rate ÷ bytes a step, the rate with
all weights in memory ), both of steps in which all streams decode: the read rate is measured before, between and after the
meshes by bench_disk, on the packed file itself; the resident rate by a mesh of its own in the same run, with as many mini-batches.

The group's limit is what a mesh with all weights holds, with its pool in full use, less half of the weights; --weights-memory stays auto.
Where no group can be made (it takes version 1, and root) --weights-memory says half, and the peer is left out: llama-server, with the same
file mapped, in the same group.

FD_BENCH_READ_MBS=N slows the disk down to N MB/s for everybody, by a control group (version 1, as root): then the disk is the bound where it is
too fast to be.
"""
import contextlib
import json
import os
import re
import statistics
import subprocess
import tempfile
import time

from clients import greedy, measure
from end_to_end import synthetic_1b, warm
from figures import figure
from groups import forget_pages, held_bytes, memory_group, slow_disk
from peers import Peer, peer_check
from servers import BUILD, Ours
from streams import run_all, words

STREAMS, MINI_BATCHES = (8, 64, 256), (1, 2, 4)
MINI_STREAMS, PEER_STREAMS = 64, 32
WORDS, TOKENS, SLOT_TOKENS, POOL_MIB = 4, 32, 64, 280  # 48 tokens of 256 streams fit the pool
LEAST, PEAK_MOST, WITHIN, PEER_LEAST = 0.9, 1.02, 0.1, 2
BEATS_S = 1.2
MIB = 1048576.0


def disk_rate(run_, path):
    """(MB/s by io_uring, threads beside it): the medians of three passes."""
    with run_.turn("bench_disk"), tempfile.NamedTemporaryFile("r", encoding="utf-8") as lines:
        subprocess.run([os.path.join(BUILD, "tests", "bench", "bench_disk"), path], check=True, stdout=subprocess.DEVNULL,
                       env=dict(os.environ, FD_BENCH_JSON=lines.name))
        item = json.loads(lines.read())
    run_.note(f"the disk reads {item['ceiling']:.0f} MB/s")
    return item


def plan_of(mesh):
    with open(os.path.join(mesh.run_dir, "s-part.log"), encoding="utf-8", errors="replace") as file:
        line = re.findall(r"MEMORY-PLAN (.*)", file.read())[-1]
    return {key: float(value) for key, value in re.findall(r"(\w+)=([0-9.]+)", line)}


def of_s_part(mesh, key):
    """Bytes of a line of its /proc/PID/status."""
    with open(f"/proc/{mesh.services()['s-part']}/status", encoding="ascii") as file:
        return 1024 * int(re.search(rf"{key}:\s+(\d+)", file.read()).group(1))


def disk_read_bytes(peer):
    with open(f"/proc/{peer.process.pid}/io", encoding="ascii") as file:
        return int(re.search(r"^read_bytes: (\d+)$", file.read(), re.M).group(1))


def at_rest(mesh, name):
    """A number that heartbeats carry, twice a second, once nothing runs: unchanged for BEATS_S."""
    seen = None
    while seen != (seen := mesh.metric(name)):
        time.sleep(BEATS_S)
    return seen


def rate(run_, server, streams, label, mini_batches=1):
    with run_.turn(f"{streams} streams, {mini_batches} mini-batch{'es' if mini_batches > 1 else ''}, {label}"):
        got = measure(server.url, streams, WORDS, TOKENS, streams, run_.limit_s())
    run_.note(f"{got['tokens_per_s']:.1f} tokens/s, {got['between_p50_s']:.2f} s between tokens")
    return got


def answers(mesh):
    """The texts of a few streams, which must be the same wherever the weights lie."""
    streams = run_all(mesh.url, [greedy(words(WORDS, seed), TOKENS) for seed in range(PEER_STREAMS // 4)])
    return [(stream.error, stream.text) for stream in streams]


class Bench:
    """What the steps of this part share."""

    def __init__(self, run_, group):
        self.run, self.group = run_, group
        self.path, self.cache = synthetic_1b(), os.path.join(BUILD, "bench")
        self.packed = os.path.join(self.cache, os.path.basename(self.path).replace(".gguf", "-int8.fdw"))
        self.counts = [streams for streams, in run_.chosen([(n,) for n in STREAMS])]
        self.resident, self.streamed, self.reads, self.disk = {}, {}, {}, []
        self.weights_mib, self.texts = 0.0, None

    def start(self, server, *options, **settings):
        """A server in the group, if there is one."""
        with self.group.inside() if self.group else contextlib.nullcontext():
            return server(*options, **settings)

    def mesh(self, mini_batches, *options):
        return self.start(Ours, "--kv-type", "f16", "--kv-workers", 0, "--max-batch", max(STREAMS), "--context", 1024, "--cache-dir", self.cache, "--local-pool",
                          f"{POOL_MIB}M", "--mini-batches", mini_batches, *options, model=self.path, ready_s=300)

    def measure_resident(self):
        """Rates with all weights in memory; then the group's limit."""
        for mini_batches in MINI_BATCHES:
            with self.mesh(mini_batches) as mesh:
                if mini_batches == 1:
                    plan = plan_of(mesh)
                    self.weights_mib, self.limit = plan["weights_mib"], self.limit_beside(mesh, plan)
                warm(mesh, 4, WORDS)
                self.texts = self.texts or answers(mesh)
                for streams in (*self.counts, PEER_STREAMS) if mini_batches == 1 else (MINI_STREAMS,):
                    self.resident[mini_batches, streams] = rate(self.run, mesh, streams, "all weights in memory", mini_batches)

    def limit_beside(self, mesh, plan):
        """Bytes for all services as planned, the pool in full use, and half of the weights."""
        others = held_bytes(self.group) - of_s_part(mesh, "RssAnon") if self.group else 0
        return others + int((plan["process_mib"] + plan["fixed_mib"] + POOL_MIB - plan["weights_mib"] / 2) * MIB)

    def measure_streamed(self):
        """In the group, with --weights-memory auto."""
        options = () if self.group else ("--weights-memory", f"{self.weights_mib / 2:.0f}M")
        if self.group:
            self.group.limit(memory__limit_in_bytes=self.limit)
            self.run.note(f"the group's limit: {self.limit / MIB:.0f} MiB")
        self.disk.append(disk_rate(self.run, self.packed))
        with self.mesh(1, *options) as mesh:
            self.plan = plan_of(mesh)
            warm(mesh, 4, WORDS)
            same = sum(a == b and not a[0] for a, b in zip(answers(mesh), self.texts, strict=True))
            self.run.add(figure(self.run.part, "streams with the very text that they have with all weights in memory", same, "streams",
                                len(self.texts), 1))
            for streams in (*self.counts, PEER_STREAMS):
                self.one_streamed(mesh, 1, streams)
            self.report_memory(mesh)
        self.disk.append(disk_rate(self.run, self.packed))

    def measure_zig_zag(self):
        """As much on disk with each number of mini-batches, whose activations take more than the group allows."""
        if self.group:
            self.group.limit(memory__limit_in_bytes=-1)
        for mini_batches in MINI_BATCHES[1:]:
            with self.mesh(mini_batches, "--weights-memory", f"{self.plan['weights_mib'] + 0.2:.1f}M") as mesh:
                if plan_of(mesh)["streamed_mib"] != self.plan["streamed_mib"]:
                    raise RuntimeError(f"{plan_of(mesh)['streamed_mib']} MiB are streamed, not {self.plan['streamed_mib']}")
                warm(mesh, 4, WORDS)
                self.one_streamed(mesh, mini_batches, MINI_STREAMS)
            self.disk.append(disk_rate(self.run, self.packed))

    def one_streamed(self, mesh, mini_batches, streams):
        names = "fastdecode_weights_read_segments_total", "fastdecode_decode_tokens_total"
        before = [at_rest(mesh, name) for name in names]
        self.streamed[mini_batches, streams] = rate(self.run, mesh, streams, f"{self.plan['streamed_mib']:.0f} MiB read each step", mini_batches)
        self.reads[mini_batches, streams] = [at_rest(mesh, name) - number for name, number in zip(names, before)]

    def report_memory(self, mesh):
        plan, pages = self.plan, mesh.metric("fastdecode_kv_pages_peak")
        planned = plan["process_mib"] + plan["fixed_mib"] + max(plan["start_mib"], pages * plan["page_kib"] / 1024)
        self.run.add(figure(self.run.part, "peak memory of the s-part, beside its plan", of_s_part(mesh, "VmHWM") / MIB, "MiB", planned, PEAK_MOST,
                            at_most=True))
        if self.group:
            self.run.add(figure(self.run.part, "--weights-memory auto in a control group: memory of the weights, beside half of them",
                                plan["weights_mib"], "MiB", self.weights_mib / 2))
            self.run.note(f"the group holds {held_bytes(self.group) / MIB:.0f} MiB, its limit was met {self.group.number('memory.failcnt')} times")

    def report(self):
        reads = statistics.mean(item["ceiling"] for item in self.disk) * 1e6
        for item in self.disk:
            self.run.add({**item, "part": self.run.part})
        read_s = self.plan["streamed_mib"] * MIB / reads
        for streams in self.counts:
            step_s, resident = self.streamed[1, streams]["between_p50_s"], self.resident[1, streams]
            name = f"{streams} streams, half of the weights on disk"
            self.run.add(figure(self.run.part, f"{name}: decode steps, beside disk or resident rate", streams / step_s, "tokens/s",
                                streams / max(read_s, resident["between_p50_s"]), LEAST))
            self.run.add(figure(self.run.part, f"{name}: with prompts, beside all weights in memory",
                                self.streamed[1, streams]["tokens_per_s"], "tokens/s", resident["tokens_per_s"]))
        for mini_batches in MINI_BATCHES if MINI_STREAMS in self.counts else ():
            key, name = (mini_batches, MINI_STREAMS), f"{MINI_STREAMS} streams, {mini_batches} mini-batch{'es' if mini_batches > 1 else ''}"
            predicted = MINI_STREAMS / max(read_s, self.resident[key]["between_p50_s"])
            item = figure(self.run.part, f"{name}: decode steps, beside predicted", MINI_STREAMS / self.streamed[key]["between_p50_s"], "tokens/s",
                          predicted)
            item["pass"] = abs(item["ratio"] - 1) <= WITHIN
            self.run.add(item)
            each, one = (segments / tokens * MINI_STREAMS for segments, tokens in (self.reads[key], self.reads[1, MINI_STREAMS]))
            self.run.add(figure(self.run.part, f"{name}: segments read for a token of all streams, beside one mini-batch", each, "segments", one,
                                1 + WITHIN, at_most=True))

    def beside_peer(self):
        """llama-server in the same group: first as it computes with the mapped file itself, then as it is by default, where it makes copies."""
        peer_check(self.path)
        self.group.limit(memory__limit_in_bytes=self.limit)
        ours = self.streamed[1, PEER_STREAMS]["tokens_per_s"]
        for what, options, target in (("mmap", ("--no-repack",), PEER_LEAST), ("by default", (), None)):
            name = f"{PEER_STREAMS} streams in the same group, beside llama-server ({what})"
            forget_pages(self.path)
            try:
                with self.start(Peer, self.path, PEER_STREAMS, SLOT_TOKENS, "--cache-ram", "0", *options) as peer:
                    warm(peer, 4, WORDS)
                    got = rate(self.run, peer, PEER_STREAMS, f"llama-server, {what}")
                    self.run.note(f"llama-server has read {disk_read_bytes(peer) / MIB:.0f} MiB from the disk")
            except (RuntimeError, OSError) as problem:
                self.run.note(f"{name}: it did not serve: {str(problem)[:300]}")
                continue
            self.run.add(figure(self.run.part, name, ours, "tokens/s", got["tokens_per_s"], target))


def offload(run_):
    group = memory_group()
    if not group:
        run_.note("no control group can be made here: --weights-memory says half, and llama-server is left out")
    mbs = os.environ.get("FD_BENCH_READ_MBS")
    with group or contextlib.nullcontext(), slow_disk(os.path.join(BUILD, "bench"), mbs):
        bench = Bench(run_, group)
        bench.measure_resident()
        bench.measure_streamed()
        if MINI_STREAMS in bench.counts:
            bench.measure_zig_zag()
        bench.report()
        if group:
            bench.beside_peer()

