"""What two mini-batches in flight gain: S-part and KV worker each on a core of its own, 2b sequences as one mini-batch and as two.

A step of one mini-batch is S-part, send, R-part, receive, layer by layer; of two, the S-part works on one while the worker has the
other. From a run of b sequences in one mini-batch, by its trace, come T(b) (segments, building and sending messages), r (the worker's
time of a call), the link (what a wait takes beyond that) and the tail (head, sampling, begin, reply). With L layers that predicts

    one of 2b:   L·(T(2b) + R(2b) + link) + tail(2b)                 from its own trace, to show that it is not slow
    two of b:    2·((L - 1)·max(T, R + link) + max(T + tail, R + link))

All three are compared over the same stretch of context, in which every sequence decodes. How long prompts are is chosen, from a run
before, so that the worker takes as long for a mini-batch as the S-part with its tail: both can be busy then. T(b) is to be four
round trips of the link at least, or neither could be.
"""
import bisect
import glob
import os
import tempfile
import time

from clients import check, greedy, run
from end_to_end import model_facts, warm
from figures import figure
from interference import texts
from profile_steps import Trace, read
from servers import MODEL, Ours

B, TOKENS = 20, 240
PROBE, LEAST, MOST = 200, 32, 800  # tokens of a prompt
S_PART_CPU, R_PART_CPU = 0, 1


def pin(pid, cpu):
    for task in glob.glob(f"/proc/{pid}/task/*"):
        os.sched_setaffinity(int(os.path.basename(task)), {cpu})


class Measured:
    """One run: when how many tokens were there, and its trace."""

    def __init__(self, run_, prompts, streams, mini_batches, tokens=TOKENS):
        self.streams, self.rows = streams, streams // mini_batches
        ours, before = set(os.sched_getaffinity(0)), None
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "trace")
            # Long chunks: all have started while the first is still short, whatever a step may take beside running sequences.
            options = ("--kv-workers", 1, "--local-pool", 0, "--threads", 1, "--mini-batches", mini_batches, "--kv-type", "f32",
                       "--chunk", 256, "--trace", path)
            with Ours(*map(str, options)) as mesh:
                for name, pid in mesh.services().items():
                    pin(pid, S_PART_CPU if name == "s-part" else R_PART_CPU)
                os.sched_setaffinity(0, {R_PART_CPU})
                try:
                    warm(mesh, 4)
                    before = time.monotonic()
                    with run_.turn(f"{streams} sequences of {len(prompts[0])} tokens in {mini_batches} "
                                   f"mini-batch{'es' if mini_batches > 1 else ''}"):
                        clients = run(mesh.url, [greedy(ids, tokens) for ids in prompts[:streams]], run_.limit_s())
                finally:
                    os.sched_setaffinity(0, ours)
            self.trace = Trace(read(path))
        check(clients)
        marks = sorted((now, count - earlier) for client in clients
                       for (now, count), (_, earlier) in zip(client.events, [(0, 0)] + client.events))
        self.times, self.counts = [before], [0]
        for now, count in marks:
            self.times.append(now)
            self.counts.append(self.counts[-1] + count)
        self.tokens_each = [self.at(max(c.first for c in clients)) / streams, self.at(min(c.last for c in clients)) / streams]

    def at(self, moment):
        return self.counts[bisect.bisect_right(self.times, moment) - 1]

    def when(self, tokens_each):
        return self.times[bisect.bisect_left(self.counts, tokens_each * self.streams)]

    def window(self, low, high):
        """Tokens a second between two lengths of the sequences, and the parts of a step, microseconds."""
        began, ended = self.when(low), self.when(high)
        rate = (high - low) * self.streams / (ended - began)
        inside = {e["args"]["step"]: e for e in self.trace.named("step")
                  if abs(e["args"]["rows"] - self.rows) <= self.rows // 4 and began * 1e6 <= e["ts"] and e["ts"] + e["dur"] <= ended * 1e6}

        def each(*names):
            spans = [e["dur"] for name in names for e in self.trace.named(name) if e["args"].get("step") in inside]
            return sum(spans) / len(inside)

        busy = {name: sum(e["dur"] for e in self.trace.named(name) if began * 1e6 <= e["ts"] <= ended * 1e6)
                for name in ("segment", "head", "prepare", "send", "call")}
        lasted_us = (ended - began) * 1e6
        return {"rate": rate, "s_part": each("segment", "prepare", "send"), "tail": each("head", "plan", "begin", "reply"),
                "r_part": each("call"), "wait": each("wait"), "steps": len(inside),
                "s_busy": sum(busy[n] for n in ("segment", "head", "prepare", "send")) / lasted_us, "r_busy": busy["call"] / lasted_us}


def link_us(part, layers):
    """A round trip."""
    return max(part["wait"] - part["r_part"], 0) / layers


def predicted_two_us(part, layers):
    """A round of two mini-batches, from the parts of a step of one."""
    work, away = part["s_part"] / layers, part["r_part"] / layers + link_us(part, layers)
    return 2 * ((layers - 1) * max(work, away) + max(work + part["tail"], away))


def balanced(run_, prompts, layers):
    """The prompts, cut so that on the way of TOKENS more the worker takes as long as the S-part in the mean."""
    probe = Measured(run_, [ids[:PROBE] for ids in prompts], B, 1, TOKENS // 2)
    low, high = probe.tokens_each
    part = probe.window(low, high)
    context = (PROBE + (low + high) / 2) * (part["s_part"] + part["tail"]) / part["r_part"]
    tokens = int(min(max(context - TOKENS / 2, LEAST), MOST))
    run_.note(f"T({B}) {part['s_part'] / layers:.0f} us, R {part['r_part'] / layers:.0f} us: prompts of {tokens} tokens")
    return [ids[:tokens] for ids in prompts]


def overlap(run_):
    layers, _ = model_facts(MODEL)
    with Ours("--kv-workers", "0") as mesh:
        prompts = [ids for _, ids in texts(mesh.url, 2 * B, 80, tokens=MOST + 100)]
    prompts = balanced(run_, prompts, layers)
    runs = []
    for streams, mini_batches in ((B, 1), (2 * B, 1), (2 * B, 2)):
        runs.append(Measured(run_, prompts, streams, mini_batches))
        run_.note("done")
    low = max(r.tokens_each[0] for r in runs)
    high = min(r.tokens_each[1] for r in runs)
    if high - low < 50:
        raise RuntimeError(f"the runs have sequences of {low:.0f} to {high:.0f} tokens in common: too few")
    part, one, two = (r.window(low, high) for r in runs)
    one_us = one["s_part"] + one["wait"] + one["tail"]
    two_us = predicted_two_us(part, layers)
    ideal = (2 * B / two_us * 1e6) / one["rate"]
    gain = two["rate"] / one["rate"]
    run_.note(f"of {layers} layers and {low:.0f} to {high:.0f} new tokens: T({B}) {part['s_part'] / layers:.0f} us, R "
              f"{part['r_part'] / layers:.0f} us, link {link_us(part, layers):.0f} us, tail {part['tail']:.0f} us; "
              f"busy with two: S-part {two['s_busy']:.2f}, R-part {two['r_busy']:.2f}")
    run_.add(figure("overlap", f"T({B}) beside four round trips of the link", part["s_part"] / layers, "us",
                    4 * link_us(part, layers), 1))
    run_.add(figure("overlap", f"{2 * B} sequences, one mini-batch", one["rate"], "tokens/s", 2 * B / one_us * 1e6))
    run_.add(figure("overlap", f"{2 * B} sequences, two mini-batches, gain beside the ideal", gain, "times", ideal, 0.9))
    run_.add(figure("overlap", "S-part busy with two mini-batches", two["s_busy"], "of the time", 1, 0.75))
    run_.add(figure("overlap", "R-part busy with two mini-batches", two["r_busy"], "of the time", 1, 0.70))
