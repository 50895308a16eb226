"""The load-stabilizing schedule on real processes: `--admission sls` beside `greedy`, which starts whoever waits.

S-part and KV worker each have a core; the worker says that it shares none, as one on another machine would, and takes as long as a host
that reads so many MB of K and V a second (slow_worker.c): what is left when it has computed is slept. All sequences have S tokens after a
prompt of S/32, two mini-batches of b hold B = 2b, F = S/32, and 22·B are asked for at once, so that most of the
time more than 10·B wait (fewer, and starting together may be through sooner). x is the worker's time for a step at the
start-together peak, b·(p + S) tokens, over the S-part's for a step, head included; that host's speed is chosen so that x is 2 by
the bytes of a token, from a first run, and again from the run itself where the S-part was faster or slower in it, so that x is not
within a tenth; the x of a figure is what the mesh has measured. b: those of a mini-batch start S/b steps
apart at least, so the even peak is (p + (S + max(F, S/b))/2)/(p + S), which must leave room below 0.55.

Everything is measured from step 2·S of each mini-batch to the last start. Load: context of the sequences that run, from what the
clients have got. The longest step: the largest of the medians of half seconds, so that one hiccup of the machine is none.
"""
import os
import statistics
import time

from clients import check, greedy, run
from end_to_end import model_facts
from figures import figure, of_rounds
from interference import texts
from overlap import R_PART_CPU, S_PART_CPU, pin
from servers import MODEL, FarWorker, Ours
from streams import of_place

S, PROMPT, SPACING, BATCH, ROUNDS, BIN_S = 128, 4, 4, 24, 22, 0.5
X, OTHER_X, FIRST_MBS, F32_BYTES = 2.0, (1.2, 3.0, 5.0), 4500, 4
NEAR, TRIES = 0.1, 3  # x is as asked for within that share, or is chosen again so many times in all


class Sample:
    """What the mesh and its clients say at one moment."""

    def __init__(self, mesh, clients):
        self.time = time.monotonic()
        self.steps = mesh.metric("fastdecode_steps_total") if mesh else 0
        running = [client for client in clients if client.first and not client.ended()]
        self.running, self.load = len(running), sum(PROMPT + client.event_count for client in running)


class Outcome:
    """One run of a mode; rates of its window."""

    def __init__(self, clients, samples, s_part_us, token_us):
        ids = [i for i, sample in enumerate(samples) if sample.steps >= 2 * 2 * S]
        last = max(client.first for client in clients)
        inside = [samples[i] for i in ids if samples[i].time <= last]
        if len(inside) < 10:
            raise RuntimeError(f"the window has {len(inside)} samples: too few")
        began, ended = inside[0].time, inside[-1].time
        self.seconds = ended - began
        self.tokens_per_s = sum(began <= t < ended for c in clients for t, _ in c.events) / self.seconds
        self.peak = max(sample.load for sample in inside) / (2 * BATCH * (PROMPT + S))
        self.batch = statistics.mean(sample.running for sample in inside) / (2 * BATCH)
        bins = {}
        for client in clients:
            for (before, _), (now, _) in zip(client.events, client.events[1:]):
                if began <= now < ended:
                    bins.setdefault(int(now / BIN_S), []).append(now - before)
        self.longest = max(statistics.median(gaps) for gaps in bins.values())
        self.x = token_us * BATCH * (PROMPT + S) / s_part_us


def one_mode(run_, mode, rounds, ids, read_mbs):
    """Runs rounds·B sequences; returns (clients, samples, s-part's microseconds a step, the worker's a token)."""
    ours = set(os.sched_getaffinity(0))
    options = ("--kv-workers", 0, "--local-pool", "1M", "--threads", 1, "--kv-type", "f32", "--mini-batches", 2, "--max-batch",
               2 * BATCH, "--max-queue", rounds * 2 * BATCH, "--admission", mode, *(("--spacing", SPACING) if mode == "sls" else ()))
    with Ours(*map(str, options)) as mesh, FarWorker(mesh, read_mbs=read_mbs) as far:
        for name, pid in mesh.services().items():
            pin(pid, S_PART_CPU if name == "s-part" else R_PART_CPU)
        pin(far.process.pid, R_PART_CPU)
        os.sched_setaffinity(0, {R_PART_CPU})
        samples, busy = [], []

        def sample(clients):
            if samples and time.monotonic() - samples[-1].time < BIN_S / 2:
                return []
            samples.append(Sample(mesh, clients))
            if samples[-1].running == 2 * BATCH:  # the s-part's time of full steps
                busy.append((samples[-1].steps, mesh.metric("fastdecode_spart_busy_seconds_total")))
            return []

        try:
            requests = [greedy(ids[i % len(ids)], S) for i in range(rounds * 2 * BATCH)]
            with run_.turn(f"{mode}, {len(requests)} sequences, {2 * BATCH} at once, {read_mbs:.0f} MB/s"):
                clients = run(mesh.url, requests, run_.limit_s(), more=sample)
            token_us = 1e6 * of_place(mesh, "fastdecode_place_token_seconds", "far")
        finally:
            os.sched_setaffinity(0, ours)
    check(clients)
    if len(busy) < 2:
        raise RuntimeError(f"{len(busy)} samples of full steps")
    (steps, seconds), (steps_after, seconds_after) = busy[0], busy[-1]
    return clients, samples, 1e6 * (seconds_after - seconds) / (steps_after - steps), token_us


def prompts(run_):
    with Ours("--kv-workers", "0") as mesh, run_.turn("prompts"):
        made = [ids[:PROMPT] for _, ids in texts(mesh.url, 32, 40, tokens=2 * PROMPT)]
    run_.note("done")
    return made


def speed_for(run_, ids):
    """A function of x: MB a second with which the worker takes x times as long as the S-part, as a run of a few rounds has it."""
    _, _, s_part_us, _ = one_mode(run_, "greedy", 5, ids, FIRST_MBS)
    run_.note(f"S-part {s_part_us:.0f} us a step")
    bytes_a_token = model_facts(MODEL, F32_BYTES)[1]
    return lambda x: BATCH * (PROMPT + S) * bytes_a_token / (x * s_part_us)


def both_modes(run_, ids, read_mbs, modes=("greedy", "sls")):
    """{mode: Outcome}"""
    got = {}
    for mode in modes:
        got[mode] = Outcome(*one_mode(run_, mode, ROUNDS, ids, read_mbs))
        run_.note(f"{got[mode].tokens_per_s:.1f} tokens/s over {got[mode].seconds:.0f} s, x {got[mode].x:.2f}, peak load "
                  f"{got[mode].peak:.3f}, batch {got[mode].batch:.3f} of B, longest step {1e3 * got[mode].longest:.1f} ms")
    return got


def together_near_x(run_, ids):
    """The worker's speed at which x is near X, and the run of `greedy` that had it; the nearest of a few."""
    read_mbs, tried = speed_for(run_, ids)(X), []
    for _ in range(TRIES):
        together = both_modes(run_, ids, read_mbs, ("greedy",))["greedy"]
        tried.append((abs(together.x / X - 1), read_mbs, together))
        if tried[-1][0] <= NEAR:
            break
        read_mbs *= together.x / X
    return min(tried, key=lambda run: run[0])[1:]


def stabilize(run_):
    ids = prompts(run_)
    read_mbs, together = together_near_x(run_, ids)
    spaced = both_modes(run_, ids, read_mbs, ("sls",))["sls"]
    x = together.x
    name = f"{2 * BATCH} sequences of {S} tokens, x {x:.2f}"
    model = (x * x + 1) / (2 * x) if x <= 2 else 1 + 1 / (x * x)
    run_.add(figure(run_.part, f"{name}: spaced starts, tokens/s beside together", spaced.tokens_per_s, "tokens/s",
                    together.tokens_per_s, 1.10))
    run_.add(figure(run_.part, f"{name}: that gain beside the model's", spaced.tokens_per_s / together.tokens_per_s, "times", model))
    run_.add(figure(run_.part, f"{name}: longest step beside together", 1e3 * spaced.longest, "ms", 1e3 * together.longest, 0.70,
                    at_most=True))
    run_.add(figure(run_.part, f"{name}: peak load, of all at their end at once", spaced.peak, "", 1, 0.55, at_most=True))
    run_.add(figure(run_.part, f"{name}: mean batch, of B", spaced.batch, "", 1, 0.97))


def other_x(run_):
    """Where one side has most of the work, spaced starts win little, and the default must lose nothing: two turns, in either order."""
    ids = prompts(run_)
    speed = speed_for(run_, ids)
    for x in OTHER_X:
        turns = [both_modes(run_, ids, speed(x), modes) for modes in (("greedy", "auto"), ("auto", "greedy"))]
        name = f"{2 * BATCH} sequences of {S} tokens, x {statistics.mean(got['greedy'].x for got in turns):.2f}"
        run_.add(of_rounds(run_.part, f"{name}: the default, tokens/s beside together", "tokens/s",
                           [(got["auto"].tokens_per_s, got["greedy"].tokens_per_s) for got in turns], 0.99))
