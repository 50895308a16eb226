"""Balance on real processes: four KV workers, lengths of 16 to 2,000 mixed, two mini-batches; then one worker at half speed.

The S-part has one core, the four workers the other one. Each takes as long as a host that reads READ_MBS of K and V a second
(slow_worker.c): what is left when it has computed is slept, so that four on one core measure the times of four hosts. All that
schedules, places and moves is as it ships. A fixed chunk, so that the batch is full of sequences that decode.

From the workers' traces: the time of a worker in a step is the sum of its attention calls. Largest ÷ mean is of these sums over
WINDOW steps of one mini-batch, as the simulator's test has it (tests/unit/test_sched_balance.c). Slow: what the worker reads
beside the mean of the others, from the step on in which its speed is halved.
"""
import collections
import contextlib
import os
import random
import signal
import statistics
import tempfile
import time

from clients import greedy, run
from figures import figure
from interference import texts
from overlap import R_PART_CPU, S_PART_CPU, pin
from profile_steps import Trace, read
from servers import FarWorker, Ours

WORKERS, B, WINDOW, READ_MBS = 4, 64, 50, 1400
WARM_S, EVEN_S, SLOW_S, MENDED_S = 20, 30, 45, 10
REQUESTS, LEAST, MOST = 320, 8, 1000  # tokens of a prompt and of an answer


def made(run_):
    """Prompts and answers of LEAST to MOST tokens, as many short as long ones by their logarithm."""
    with Ours("--kv-workers", "0") as mesh, run_.turn("prompts"):
        ids = [ids for _, ids in texts(mesh.url, 32, 70, tokens=MOST + 100)]
    run_.note("done")
    rng = random.Random(11)

    def length():
        return int(LEAST * (MOST / LEAST) ** rng.random())

    return [greedy(ids[i % len(ids)][:length()], length()) for i in range(REQUESTS)]


class Steps:
    """{mini-batch: [(when it began, microseconds of each worker)]}, in order."""

    def __init__(self, paths):
        times = collections.defaultdict(lambda: [0.0] * WORKERS)
        began, batch_of = {}, {}
        for worker, path in enumerate(paths):
            trace = Trace(read(path))
            for e in trace.named("attend"):
                step = e["args"]["step"]
                times[step][worker] += e["dur"]
                began[step] = min(began.get(step, e["ts"]), e["ts"])
            batch_of.update((e["args"]["step"], e["args"]["mini_batch"]) for e in trace.named("call"))
        self.of = collections.defaultdict(list)
        for step in sorted(times):
            self.of[batch_of[step]].append((began[step] * 1e-6, times[step]))

    def between(self, batch, began, ended):
        return [us for when, us in self.of[batch] if began <= when < ended]


def largest_to_mean(steps):
    sums = [sum(column) for column in zip(*steps)]
    return max(sums) / statistics.mean(sums)


def windows(steps, began, ended):
    found = []
    for batch in steps.of:
        all_ = steps.between(batch, began, ended)
        found += [largest_to_mean(all_[at:at + WINDOW]) for at in range(0, len(all_) - WINDOW + 1, WINDOW)]
    if len(found) < 2:
        raise RuntimeError(f"{len(found)} windows of {WINDOW} steps: too few")
    return found


def beside_others(steps, slow, slowness, began, ended, first=0, last=None):
    """What the slow worker reads beside the others' mean in a stretch of time, or in steps first to last of it."""
    own = others = 0.0
    for batch in steps.of:
        for us in steps.between(batch, began, ended)[first:last]:
            own += us[slow] / slowness
            others += (sum(us) - us[slow]) / (WORKERS - 1)
    return own / others


def balance(run_):
    requests, ours = made(run_), set(os.sched_getaffinity(0))
    marks, slow = [], WORKERS // 2
    options = ("--kv-workers", 0, "--local-pool", "1M", "--threads", 1, "--mini-batches", 2, "--max-batch", B, "--chunk", 128)
    with tempfile.TemporaryDirectory() as folder:
        paths = [os.path.join(folder, f"far{i}") for i in range(WORKERS)]
        with Ours(*map(str, options)) as mesh, contextlib.ExitStack() as stack:
            far = [stack.enter_context(FarWorker(mesh, f"--trace={path}", name=f"far{i}", read_mbs=READ_MBS))
                   for i, path in enumerate(paths)]
            for name, pid in [*mesh.services().items(), *((f"far{i}", worker.process.pid) for i, worker in enumerate(far))]:
                pin(pid, S_PART_CPU if name == "s-part" else R_PART_CPU)
            os.sched_setaffinity(0, {R_PART_CPU})

            def enough(_):
                now = time.monotonic()
                if not marks or len(marks) == 1 and now > marks[0] + WARM_S + EVEN_S:
                    marks.append(now)
                    if len(marks) == 2:
                        far[slow].process.send_signal(signal.SIGUSR1)
                return len(marks) == 2 and now > marks[1] + SLOW_S

            try:
                with run_.turn(f"{WORKERS} workers, {B} of {len(requests)} sequences at once"):
                    clients = run(mesh.url, requests, run_.limit_s(), enough=enough)
                moved = mesh.metric("fastdecode_sequences_moved_total")
            finally:
                os.sched_setaffinity(0, ours)
        steps = Steps(paths)
    began, halved = marks
    ended = sum(client.ended() for client in clients)
    if ended + B > len(clients):
        raise RuntimeError(f"only {len(clients) - ended} of {len(clients)} sequences were left in the end: more are needed")
    even, after = windows(steps, began + WARM_S, halved), windows(steps, halved + MENDED_S, halved + SLOW_S)
    end = halved + SLOW_S
    shares = [beside_others(steps, slow, 1, halved - EVEN_S, halved), beside_others(steps, slow, 2, halved, end, 0, 10),
              beside_others(steps, slow, 2, halved, end, 40, 60), beside_others(steps, slow, 2, halved, end, 60)]
    run_.note(f"{sum(len(s) for s in steps.of.values())} steps, {ended} sequences ended, {moved:.0f} handed over; the slow one beside the "
              f"others: {shares[0]:.2f} before, {shares[1]:.2f} in the first 10 steps, {shares[2]:.2f} in 40 to 60, then {shares[3]:.2f}; "
              f"largest / mean at most {max(even):.2f}, {max(after):.2f} with the slow one")
    name = f"{WORKERS} workers, lengths of {2 * LEAST} to {2 * MOST}"
    run_.add(figure("balance", f"{name}: largest time of {WINDOW} steps beside the mean", statistics.mean(even), "times", 1, 1.25, at_most=True))
    run_.add(figure("balance", f"{name}: the same with one at half speed", statistics.mean(after), "times", 1, 1.25, at_most=True))
    run_.add(figure("balance", "what the slow one reads beside the others, steps 40 to 60", shares[2], "times", 0.5, 1.25, at_most=True))
