"""One sequence over four KV workers that cannot hold it alone.

Text: 8,192 tokens of the default model on four workers of 64 MiB, by three random splits of the same memory, beside one of 256 MiB; then with
each of the workers killed on the way, with what is computed again beside what lies from the lost part on.

Rate: a context of 16,384 tokens (of a small model with random weights) read by four workers that take as long as hosts that read so many MB of K
and V a second (slow_worker.c), beside one such worker: the time between tokens less that with a short context.
"""
import contextlib
import random
import statistics

from clients import check, greedy, run
from figures import figure
from interference import texts
from servers import FarWorker, Ours
from sparse import LongModel
from streams import Stream, join_all, of_place, run_all

WORKERS, MEMORY_MIB, CONTEXT, TOKENS, SPLITS = 4, 64, 8192, 48, 3
LONG, LONG_TOKEN_BYTES, READ_MBS, RATE_TOKENS, RATE_LEAST = 16384, 2048, 300, 48, 3.0
SEED = 16384
PREFILL = "fastdecode_prefill_tokens_total"


def prompt_of(mesh, tokens):
    (_, ids), = texts(mesh.url, 1, 5, tokens=tokens + tokens // 20)
    return ids[:tokens]


def ask(ids, tokens):
    return {**greedy(ids, tokens), "logprobs": 0}


def workers_of(mesh, stack, sizes, read_mbs=None):
    """Workers of so many MiB each."""
    options = ((f"--kv-memory={size}M",) for size in sizes)
    return [stack.enter_context(FarWorker(mesh, *each, name=f"far{i}", read_mbs=read_mbs)) for i, each in enumerate(options)]


def mesh_with(stack, sizes, *options, read_mbs=None, **settings):
    mesh = stack.enter_context(Ours("--kv-workers", 0, "--local-pool", "1M", *options, **settings))
    return mesh, workers_of(mesh, stack, sizes, read_mbs)


def split(chance):
    """Four sizes around 64 MiB whose sum is that of four such workers."""
    moved = [chance.randint(-16, 16) for _ in range(WORKERS // 2)]
    return [MEMORY_MIB + sign * by for by in moved for sign in (1, -1)]


def answer(run_, mesh, request, label):
    with run_.turn(label):
        stream, = run_all(mesh.url, [request])
    run_.note(stream.error or f"{stream.times[0] - stream.began:.1f} s to the first token")
    return stream.error, stream.tokens, stream.logprobs


def same_text(run_):
    chance = random.Random(SEED)
    with contextlib.ExitStack() as stack:
        mesh, _ = mesh_with(stack, [WORKERS * MEMORY_MIB])
        request = ask(prompt_of(mesh, CONTEXT - TOKENS), TOKENS)
        wanted = answer(run_, mesh, request, f"{CONTEXT} tokens on one worker of {WORKERS * MEMORY_MIB} MiB")
    same = 0
    for sizes in [[MEMORY_MIB] * WORKERS] + [split(chance) for _ in range(SPLITS)]:
        with contextlib.ExitStack() as stack:
            mesh, _ = mesh_with(stack, sizes)
            got = answer(run_, mesh, request, f"workers of {', '.join(map(str, sizes))} MiB")
            same += got == wanted and not got[0] and mesh.metric("fastdecode_extents_total") >= WORKERS - 1
    run_.add(figure(run_.part, f"{CONTEXT} tokens over {WORKERS} workers: splits with the text and log-probabilities of one", same, "splits", SPLITS + 1, 1))
    return request, wanted


def after_a_loss(run_, request, wanted):
    same = computed = wanted_most = 0
    for victim in range(WORKERS):
        with contextlib.ExitStack() as stack:
            mesh, workers = mesh_with(stack, [MEMORY_MIB + 32] * WORKERS, read_mbs=4000)
            stream = Stream(mesh.url, request)
            with run_.turn(f"worker {victim} of {WORKERS} killed"):
                stream.wait_tokens(8)
                loads = [of_place(mesh, "fastdecode_place_load_tokens", f"far{i}") for i in range(WORKERS)]
                before = mesh.metric(PREFILL)
                workers[victim].process.kill()
                join_all([stream])
                again = mesh.metric(PREFILL) - before
            run_.note(f"{again:.0f} tokens computed again, of {loads}; {stream.error}")
            same += (stream.error, stream.tokens, stream.logprobs) == wanted
            computed += again
            # Parts that are lost once each: the last one is computed again each time, the first one once.
            wanted_most += (victim + 1) * (CONTEXT / WORKERS)
    run_.add(figure(run_.part, "tokens computed again, of those from the lost parts on", computed, "tokens", wanted_most, 1.02, at_most=True))
    run_.add(figure(run_.part, f"{CONTEXT} tokens: each worker killed, streams with the same text", same, "streams", WORKERS, 1))


def gap_s(run_, mesh, request):
    """The median time between tokens of one stream."""
    clients = run(mesh.url, [request], run_.limit_s())
    check(clients)
    return statistics.median(b[0] - a[0] for a, b in zip(clients[0].events, clients[0].events[1:]))


def step_s(run_, count):
    """(time between tokens at LONG tokens, that less what a step takes else), with that many workers that together have the memory."""
    share = LONG * LONG_TOKEN_BYTES // 1048576 // count + 2
    with contextlib.ExitStack() as stack:
        mesh, _ = mesh_with(stack, [share] * count, "--threads", 1, read_mbs=READ_MBS, model=stack.enter_context(LongModel()))
        request = greedy(prompt_of(mesh, LONG - RATE_TOKENS), RATE_TOKENS)
        with run_.turn(f"{LONG} tokens, {count} worker{'s' if count > 1 else ''} of {share} MiB"):
            gap, rest = gap_s(run_, mesh, request), gap_s(run_, mesh, greedy(request["prompt"][:16], RATE_TOKENS))
        run_.note(f"{1e3 * gap:.1f} ms between tokens, {1e3 * rest:.1f} with a short context, "
                  f"{mesh.metric('fastdecode_extents_total'):.0f} parts split off")
    return gap, gap - rest


def long_sequence(run_):
    one, many = step_s(run_, 1), step_s(run_, WORKERS)
    run_.add(figure(run_.part, f"{LONG} tokens: attention on {WORKERS} workers beside one", LONG / many[1] / 1e6, "M/s", LONG / one[1] / 1e6, RATE_LEAST))
    run_.add(figure(run_.part, f"{LONG} tokens: tokens/s on {WORKERS} workers beside one", 1 / many[0], "tokens/s", 1 / one[0]))
    request, wanted = same_text(run_)
    after_a_loss(run_, request, wanted)
