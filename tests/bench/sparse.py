"""Sparse attention beside dense: what a worker's attention takes at a long context, and whether what lies in it is still found.

The first half is a mesh whose worker has a core of its own, and a model with random weights that takes 16 k tokens: time in attention
and bytes read of the same generated tokens. The second half is the default model: a number is told somewhere in a text and asked for at
its end. The prompt is dense either way; the answer begins before the number, so that generated tokens have to find it.
"""
import os
import random
import time

from clients import greedy
from figures import figure
from overlap import R_PART_CPU, S_PART_CPU, pin
from servers import BUILD, MODEL, Ours
from streams import of_place, run_all
import tiny_model

PERCENT, CONTEXT, TOKENS, FASTER, BYTES = 10, 16384, 192, 4, 0.2
LENGTHS, DEPTHS = (1500, 2048, 4096, 7000), (0.05, 0.25, 0.5, 0.75, 0.95)
BEATS_S = 1.2  # a worker says what it has done twice a second
SENTENCES = ("The ferry left the harbour before noon.", "A clerk wrote the price of bread into the book.",
             "Rain fell on the gardens behind the station.", "Two boys carried a ladder across the bridge.",
             "The lamp in the window was lit again.", "Nobody had painted the fence that year.",
             "She closed the letter and put it into the drawer.", "The old engine was sold for its copper.")


class LongModel:
    """tiny_model.py's model with a longer context."""

    def __enter__(self):
        self.before, tiny_model.CONTEXT = tiny_model.CONTEXT, 2 * CONTEXT
        folder = os.path.join(BUILD, "bench", "long")
        return tiny_model.path(folder, MODEL)

    def __exit__(self, *_):
        tiny_model.CONTEXT = self.before


def measured(run_, mesh, ids):
    """(seconds in attention, bytes read, tokens a second) of TOKENS tokens behind the prompt, which is computed before."""
    def now():
        time.sleep(BEATS_S)
        return [of_place(mesh, f"fastdecode_{name}", "kv-worker-0") for name in ("place_busy_seconds_total", "kv_read_bytes_total")]

    answer(run_, mesh, greedy(ids, 1))
    before = now()
    stream = answer(run_, mesh, greedy(ids, TOKENS))
    after = now()
    return after[0] - before[0], after[1] - before[1], (TOKENS - 1) / (stream.event_times[-1] - stream.event_times[0])


def answer(run_, mesh, request):
    stream = run_all(mesh.url, [request])[0]
    run_.limit_s()
    if stream.error:
        raise RuntimeError(f"the stream went wrong: {stream.error}")
    return stream


def attention(run_):
    ids = [random.Random(1).randrange(1000, 40000) for _ in range(CONTEXT - TOKENS)]
    got = {}
    with LongModel() as model:
        for name, options in (("dense", ()), ("sparse", ("--sparse-attention", f"{PERCENT}%"))):
            with run_.turn(f"{len(ids)} tokens of context, {name}"):
                with Ours("--kv-workers", 1, "--threads", 1, "--local-pool", 0, "--kv-memory", "1G", "--prefix-cache", "on",
                          "--max-batch", 4, *options, model=model) as mesh:
                    for service, pid in mesh.services().items():
                        pin(pid, R_PART_CPU if service == "kv-worker-0" else S_PART_CPU)
                    got[name] = measured(run_, mesh, ids)
            run_.note("{0:.2f} s in attention, {2:.1f} tokens/s".format(*got[name]))
    (dense_s, dense_bytes, dense_rate), (sparse_s, sparse_bytes, sparse_rate) = got["dense"], got["sparse"]
    what = f"decode at {CONTEXT} tokens, sparse {PERCENT} % beside dense"
    run_.add(figure(run_.part, f"{what}: tokens in a second of the worker's attention", TOKENS / sparse_s, "tokens/s", TOKENS / dense_s,
                    FASTER))
    run_.add(figure(run_.part, f"{what}: bytes read", sparse_bytes / 1e6, "MB", dense_bytes / 1e6, BYTES, at_most=True))
    run_.add(figure(run_.part, f"{what}: the whole mesh", sparse_rate, "tokens/s", dense_rate))


def haystack(length, depth, seed):
    """(prompt, number): so many words, about, with the number at that depth."""
    source = random.Random(seed)
    number = str(source.randrange(10000, 100000))
    sentences = [source.choice(SENTENCES) for _ in range(length // 10)]
    sentences.insert(int(depth * len(sentences)), f"The secret number of the harbour is {number}.")
    return " ".join(sentences) + "\n\nQuestion: What is the secret number of the harbour?\nAnswer:", number


def needles(run_):
    found = {}
    for name, options in (("dense", ()), ("sparse", ("--sparse-attention", f"{PERCENT}%"))):
        with Ours("--kv-workers", 0, *options) as mesh:
            for length in LENGTHS:
                with run_.turn(f"needles in {length} tokens, {name}"):
                    for at, depth in enumerate(DEPTHS):
                        prompt, number = haystack(length, depth, length + at)
                        found[name, length, depth] = number in answer(run_, mesh, greedy(prompt, 24)).text
                run_.note(f"{sum(found[name, length, depth] for depth in DEPTHS)} of {len(DEPTHS)}")
    print(f"\n{'needle at':>18} " + " ".join(f"{depth:>6.0%}" for depth in DEPTHS))
    for length in LENGTHS:
        for name in ("dense", "sparse"):
            print(f"{length:>8} {name:>9} " + " ".join(f"{'found' if found[name, length, depth] else '-':>6}" for depth in DEPTHS))
    for length in LENGTHS:
        dense, sparse_ = (sum(found[name, length, depth] for depth in DEPTHS) for name in ("dense", "sparse"))
        run_.add(figure(run_.part, f"a number told in {length} tokens, {len(DEPTHS)} depths: found, sparse beside dense", sparse_, "of 5",
                        dense or None))


def sparse(run_):
    attention(run_)
    needles(run_)
