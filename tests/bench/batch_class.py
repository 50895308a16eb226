"""Latency class batch: what a job costs streams that run beside it, and what it costs the job that it is one.

Streams beside a job, and the same without, in turns: the 99th percentile of the times between their tokens. The job alone: its
tokens a second beside those of as many ordinary requests. Its clients are those of a flood (interference.py): they run at SCHED_IDLE.
"""
import json
import statistics
import time

from end_to_end import sleeping, warm
from figures import figure, of_rounds
from interference import Flood, NoFlood, gaps_between_tokens
from servers import Ours
from streams import words

STREAMS, ROUNDS, REQUESTS, JOB_CONNECTIONS, JOB_WORDS, JOB_TOKENS = 8, 5, 400, 32, 100, 48
WINDOW_S, LEAD_S = 4.0, 1.0


def bodies(batch, seed):
    """Requests of a job: all different, each to its last token."""
    tier = {"service_tier": "flex"} if batch else {}
    return [json.dumps({"model": "default", "prompt": words(JOB_WORDS, seed + i), "max_tokens": JOB_TOKENS, "ignore_eos": True,
                        "temperature": 0, **tier}) for i in range(REQUESTS)]


class Job(Flood):
    """What it has done are its rows."""

    def __init__(self, ours, batch, seed):
        super().__init__(ours.url, "/v1/completions", bodies(batch, seed), JOB_CONNECTIONS)
        self.mesh = ours

    def answered(self):
        super().answered()
        return self.mesh.metric("fastdecode_batch_rows_total")


def rate_alone(ours, batch, seed):
    """Tokens a second of a job that has the mesh to itself."""
    with Job(ours, batch, seed) as flood:
        flood.begin()
        time.sleep(LEAD_S)
        before, began = ours.metric("fastdecode_generated_tokens_total"), time.monotonic()
        time.sleep(WINDOW_S)
        tokens, seconds = ours.metric("fastdecode_generated_tokens_total") - before, time.monotonic() - began
        flood.answered()
    return tokens / seconds


def percentile(values, share):
    return sorted(values)[min(int(share * len(values)), len(values) - 1)]


def batch_class(run_):
    with Ours() as ours:
        warm(ours, STREAMS)
        pairs, medians, alone, rates = [], [], [], []
        for turn in range(ROUNDS):
            got, seed = {}, 9000 + 1000 * turn
            for label, flood in (("without", NoFlood()), ("beside a job", Job(ours, True, seed)))[::1 if turn % 2 else -1]:
                sleeping(run_, [ours])
                with run_.turn(f"{STREAMS} streams, {label}"):
                    gaps, rows = gaps_between_tokens(ours.url, flood, seed + 500, run_.limit_s(), STREAMS, WINDOW_S)
                got[label] = gaps
                run_.note(f"{1e3 * percentile(gaps, 0.99):.2f} ms in the 99th percentile, {1e3 * statistics.median(gaps):.2f} in the "
                          f"median; {rows:.0f} rows of the job computed")
                if label != "without":
                    rates.append(rows / WINDOW_S)
            for share, into in ((0.99, pairs), (0.5, medians)):
                into.append(tuple(1e3 * percentile(got[label], share) for label in ("beside a job", "without")))
            for label in ("normal", "batch")[::1 if turn % 2 else -1]:
                sleeping(run_, [ours])
                with run_.turn(f"a job alone, {label}"):
                    got[label] = rate_alone(ours, label == "batch", seed + 200)
                run_.note(f"{got[label]:.1f} tokens a second")
            alone.append((got["batch"], got["normal"]))
    run_.add(of_rounds("batch-class", f"{STREAMS} streams: 99th percentile between tokens beside a job of class batch", "ms", pairs, 1.15,
                       at_most=True))
    run_.add(of_rounds("batch-class", f"{STREAMS} streams: median between tokens beside a job of class batch", "ms", medians, 1.15,
                       at_most=True))
    run_.add(of_rounds("batch-class", "a job of class batch alone, beside ordinary requests", "tok/s", alone, 0.95))
    run_.add(figure("batch-class", "rows of the job meanwhile", statistics.median(rates), "a second"))
