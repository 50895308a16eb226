"""Never slower, never idle: local memory, batch held and tokens a second, with KV workers and without.

B sequences hold B·(p + S/2) tokens at any time; `--local-pool` is all of that, half, a quarter. Without workers the rest waits. Two workers, on the same
cores, hold what the local pool does not; `--placement auto` decides what goes where. Measured while sequences wait: from the moment
at which as many run as the run reaches, to the last start. What the model predicts is its prediction of the very steps that ran
(fastdecode_step_predicted_seconds_total beside measured), with workers and without; the better one is what it promises.

Each of the six meshes runs once a round, ROUNDS rounds, with workers and without in turn; figures are medians, a ratio is the median of
the rounds' ratios. It ends with the table of README.md, as it stands there. --streams 1,4: only these shares.
"""
import statistics
import time

from clients import check, greedy, run
from end_to_end import model_facts, warm
from figures import of_rounds
from interference import texts
from servers import MODEL, Ours

B, PROMPT, TOKENS, REQUESTS, PAGE = 32, 96, 160, 80, 16
SHARES = {1: "all", 2: "a half", 4: "a quarter"}  # of what B sequences hold
WORKERS = (0, 2)
ROUNDS = 6  # as many in either order


class Sample:
    def __init__(self, mesh):
        self.time = time.monotonic()
        self.running = mesh.metric("fastdecode_requests_running")
        self.tokens = mesh.metric("fastdecode_generated_tokens_total")
        self.predicted = mesh.metric("fastdecode_step_predicted_seconds_total")
        self.measured = mesh.metric("fastdecode_step_measured_seconds_total")


class Outcome:
    def __init__(self, samples, last_start, least_s=1):
        waiting = [sample for sample in samples if sample.time <= last_start]
        most = max(sample.running for sample in waiting)
        began = next(i for i, sample in enumerate(waiting) if sample.running >= 0.8 * most)
        first, last = waiting[began], waiting[-1]
        if last.time - first.time < least_s:
            raise RuntimeError(f"sequences waited for less than {least_s} s: too few are asked for")
        self.held = statistics.mean(sample.running for sample in waiting[began:])
        self.tokens_per_s = (last.tokens - first.tokens) / (last.time - first.time)
        self.predicted = self.tokens_per_s * (last.measured - first.measured) / (last.predicted - first.predicted)


def one(run_, pool_bytes, workers, requests, options=("--max-batch", B, "--kv-memory", "512M"), least_s=1, warm_words=64, seen=None,
        **settings):
    """An Outcome. seen(mesh): called once it is up; settings: the mesh's."""
    with Ours(*map(str, ("--local-pool", pool_bytes, "--kv-workers", workers, *options)), **settings) as mesh:
        if seen:
            seen(mesh)
        warm(mesh, 4, warm_words)
        samples = []

        def sample(_):
            if not samples or time.monotonic() - samples[-1].time >= 0.1:
                samples.append(Sample(mesh))
            return []

        with run_.turn(f"{pool_bytes / 1e6:.0f} MB of local pool, {workers} workers"):
            clients = run(mesh.url, requests, run_.limit_s(), more=sample)
    check(clients)
    got = Outcome(samples, max(client.first for client in clients), least_s)
    run_.note(f"{got.held:.1f} held, {got.tokens_per_s:.0f} tokens/s, {got.predicted:.0f} predicted")
    return got


def sweep(run_):
    _, token_bytes = model_facts(MODEL)
    pages = B * (PROMPT + TOKENS // 2) // PAGE
    with Ours("--kv-workers", 0) as mesh:
        ids = [ids[:PROMPT] for _, ids in texts(mesh.url, REQUESTS, 60, tokens=PROMPT + 24)]
    requests = [greedy(prompt, TOKENS) for prompt in ids]
    outcomes, pools = {}, {share: pages // share * PAGE * token_bytes for share, in run_.chosen([(share,) for share in SHARES])}
    for round_ in range(ROUNDS):
        for share, pool in pools.items():
            for workers in WORKERS if round_ % 2 == 0 else WORKERS[::-1]:
                outcomes.setdefault((share, workers), []).append(one(run_, pool, workers, requests))
    for share, pool in pools.items():
        name = f"local pool of {pool / 1e6:.0f} MB (1/{share} of what {B} sequences need)"
        rounds = list(zip(outcomes[share, 0], outcomes[share, 2]))
        run_.add(of_rounds("sweep", f"{name}: sequences that two workers hold beside none", "",
                           [(two.held, none.held) for none, two in rounds], 3.5 if share == 4 else None))
        run_.add(of_rounds("sweep", f"{name}: tokens/s with two workers beside none", "tokens/s",
                           [(two.tokens_per_s, none.tokens_per_s) for none, two in rounds], 0.97 if share == 1 else None))
        run_.add(of_rounds("sweep", f"{name}: tokens/s with two workers, beside the better prediction", "tokens/s",
                           [(two.tokens_per_s, max(two.predicted, none.predicted)) for none, two in rounds], 0.9 if share == 4 else None))
    print(opening_table(pools, outcomes), flush=True)


def opening_table(pools, outcomes):
    """The table of README.md."""
    lines = [f"| local memory, of what {B} sequences hold | workers | batch held | tokens/s |", "| --- | --- | --- | --- |"]
    for share, pool in pools.items():
        for workers in WORKERS:
            runs = outcomes[share, workers]
            held, speed = (statistics.median(values) for values in zip(*((run.held, run.tokens_per_s) for run in runs)))
            where = f"{SHARES[share]} ({pool / 1e6:.0f} MB)" if workers == 0 else ""
            lines.append(f"|{f' {where}' if where else ''} | {workers} | {held:.1f} | {speed:.0f} |")
    return "\n".join(lines)
