"""The parts of `make bench` that drive whole servers: each takes a Run (bench.py) and adds figures to it.

Ours and a peer run in turns, one measured while the other sleeps, ours before and after each of the peer's rounds, so that
what else the machine does hits both. A ratio is of one such turn; what is judged is the median of the turns, beside the best of the peers that are
there (peers.py).
"""
import os
import re
import statistics
import subprocess
import time

from clients import check, completion, measure, run
from figures import figure, of_rounds
from kernel_parts import bench
from peers import PEERS, Peer, PeerKv8, PeerMissing, present
from servers import BUILD, MODEL, Ours, wait_quiet

WARM_TOKENS = 16
KV_BYTES_A_VALUE = 2  # f16


def by_level(avx512, avx2):
    """Of two targets, the one for the kernels that ours has here."""
    with open("/proc/cpuinfo", encoding="ascii", errors="replace") as file:
        has_avx512 = " avx512bw " in file.read()
    return avx512 if has_avx512 and os.environ.get("FD_ISA") not in ("avx2", "avxvnni") else avx2


def warm(server, streams, prompt_words=64):
    measure(server.url, min(streams, 4), prompt_words, WARM_TOKENS, 900)


def one_round(run_, label, server, streams, words, tokens, seed):
    """A measured round, shown as it ends."""
    with run_.turn(f"{streams} streams, {label}"):
        got = measure(server.url, streams, words, tokens, seed, run_.limit_s())
    run_.note(f"{got['tokens_per_s']:.1f} tokens/s, first token after {got['first_s']:.2f} s, "
              f"{1e3 * got['between_p50_s']:.1f} ms between tokens")
    return got


def sleeping(run_, servers):
    """Those that are not measured must use no processor time."""
    for server in servers:
        if not wait_quiet(server):
            run_.note(f"a server that has nothing to do keeps using processor time: {server.services()}")


def in_turns(run_, ours, peer, streams, words, tokens, rounds):
    """[(ours, the peer's) tokens a second of each turn]; ours of a turn is the mean of the rounds before and after."""
    def measured(label, server, other, turn):
        sleeping(run_, [other])
        return one_round(run_, label, server, streams, words, tokens, 10 * turn + 1)["tokens_per_s"]

    pairs, before = [], measured("ours", ours, peer, 0)
    for turn in range(1, rounds + 1):
        peers = measured(peer.label, peer, ours, turn)
        after = measured("ours", ours, peer, turn)
        pairs.append(((before + after) / 2, peers))
        before = after
    return pairs


def against_peers(run_, part, cases, words, tokens, model=MODEL, same_file=False, slot_tokens=512, what="", kinds=PEERS):
    """cases: [(streams, rounds, target)]; kinds: of peers, all with KV of one type, which ours has, too. Without any peer ours is measured by
    itself, and PeerMissing raised at the end."""
    kv_type, = {kind.kv_type for kind in kinds}
    peers, missing = present(model, kinds)
    run_.without += [f"{part}, {what.rstrip(' ,')}: {why}" for why in missing]
    with Ours("--max-batch", 128, "--kv-type", kv_type, model=model) as ours:
        warm(ours, 4, words)
        for streams, rounds, target in cases:
            name = f"{what}{streams} stream{'s' if streams > 1 else ''}"
            if not peers:
                got = one_round(run_, "ours", ours, streams, words, tokens, 1)["tokens_per_s"]
                run_.add(figure(part, f"{name}, no peer", got, "tokens/s"))
                continue
            measured = []
            for peer in list(peers):
                try:
                    pairs = beside(run_, ours, lambda kind=peer: kind.best(model, streams, slot_tokens), streams, rounds, words, tokens)
                    measured.append((peer.label, pairs))
                except PeerMissing as problem:  # it does not start: the others are measured
                    peers.remove(peer)
                    missing.append(str(problem))
                    run_.without.append(f"{part}, {name}: {problem}")
            if not measured:
                continue
            add_rows(run_, part, name, measured, target)
            if same_file and Peer in peers:
                pairs = beside(run_, ours, lambda: Peer(model, streams, slot_tokens), streams, 1, words, tokens)
                run_.add(of_rounds(part, f"{name}, beside llama-server, same file", "tokens/s", pairs))
    if not peers:
        raise PeerMissing(missing[0])


def add_rows(run_, part, name, measured, target):
    """A row beside each peer, [(label, (ours, the peer's) of each turn)]; the last names the best of them, and is the one that is judged."""
    ordered = sorted(measured, key=lambda peer: statistics.median(theirs for _, theirs in peer[1]))
    for label, pairs in ordered[:-1]:
        run_.add(of_rounds(part, f"{name}, beside {label}", "tokens/s", pairs))
    label, pairs = ordered[-1]
    best = f"the best of {len(ordered)} peers, " if len(ordered) > 1 else ""
    run_.add(of_rounds(part, f"{name}, beside {best}{label}", "tokens/s", pairs, target))


def beside(run_, ours, start, streams, rounds, words, tokens):
    """(ours, the peer's) tokens a second of each turn; start(): a running peer"""
    with start() as peer:
        warm(peer, streams, words)
        return in_turns(run_, ours, peer, streams, words, tokens, rounds)


def short(run_):
    """Prompts of 64 words, 128 new tokens."""
    targets = by_level((2.0, 3.0, 3.2, 3.0), (1.3, 2.0, 2.0, 2.0))
    cases = list(zip((1, 8, 32, 128), (5, 3, 3, 1), targets))
    against_peers(run_, "short", run_.chosen(cases), 64, 128, same_file=True, what="64-word prompts, ")


def long(run_):
    """Prompts of 2,000 words, 256 new tokens, with KV of 16 bits on both sides, then of 8."""
    target = by_level(3.5, 2.2)
    cases = run_.chosen([(8, 1, target), (32, 1, target)])
    against_peers(run_, "long", cases, 2000, 256, slot_tokens=4096, what="2,000-word prompts, ")
    against_peers(run_, "long", cases, 2000, 256, slot_tokens=4096, what="2,000-word prompts, 8-bit KV, ", kinds=(PeerKv8,))


def synthetic(shape):
    path = os.path.join(BUILD, "bench", f"synthetic-{shape}.gguf")
    if not os.path.exists(path):
        os.makedirs(os.path.dirname(path), exist_ok=True)
        subprocess.run([os.path.join(BUILD, "bin", "fastdecode"), "model", "--synthetic", shape, path + ".new"], check=True,
                       stdout=subprocess.DEVNULL)
        os.replace(path + ".new", path)
    return path


def synthetic_1b():
    return os.environ.get("FD_BENCH_1B") or synthetic("llama-1b")


def one_b(run_):
    """A Llama of 1.1 G parameters with random weights."""
    against_peers(run_, "1b", run_.chosen([(1, 3, 1.3), (8, 1, 2.0), (32, 1, 2.3)]), 64, 128, model=synthetic_1b(),
                 what="1 B shape, ")


def model_facts(path, value_bytes=KV_BYTES_A_VALUE):
    """(layers, KV bytes of a token)"""
    text = subprocess.run([os.path.join(BUILD, "bin", "fastdecode"), "model", path], check=True, capture_output=True,
                          text=True).stdout
    layers, head_dim, kv_heads = map(int, re.search(r"(\d+) layers.* heads of (\d+), (\d+) KV heads", text).groups())
    return layers, 2 * layers * head_dim * kv_heads * value_bytes


def sockets(run_):
    """The same mesh with all KV behind sockets, beside the local pool."""
    workers = 2
    layers, _ = model_facts(MODEL)
    bench(run_, ("bench_rpc",))  # what a call costs by itself
    with Ours("--kv-workers", 0) as local, Ours("--local-pool", 0, "--kv-workers", workers) as far:
        warm(local, 4)
        warm(far, 4)
        for streams, target in run_.chosen([(32, 0.7), (128, 0.8)]):
            pairs, extra = [], []
            for turn in range(3):
                cpu, steps = {}, 0
                for label, server in (("local pool", local), ("sockets", far)):
                    sleeping(run_, [local if server is far else far])
                    before, steps_before = sum(server.cpu().values()), server.metric("fastdecode_steps_total")
                    got = one_round(run_, label, server, streams, 64, 128, turn + 1)
                    steps = server.metric("fastdecode_steps_total") - steps_before
                    cpu[label] = (got["tokens_per_s"], sum(server.cpu().values()) - before)
                pairs.append((cpu["sockets"][0], cpu["local pool"][0]))
                extra.append(1e6 * (cpu["sockets"][1] - cpu["local pool"][1]) / (steps * layers * workers))
            name = f"sockets, {streams} streams, {workers} workers"
            run_.add(of_rounds("sockets", f"{name}, beside the local pool", "tokens/s", pairs, target))
            run_.add(figure("sockets", f"{name}, calls a step", layers * workers, "calls"))
            run_.add(figure("sockets", f"{name}, processor time a call, over the local pool's", statistics.median(extra), "us"))


def decoding(run_, ours, streams, words, tokens, window_s, seed, requests=None):
    """(tokens a second, mean context) while all streams decode and none is in its prompt: prompts end one after the other, so
    those that are done first go on until the last one is."""
    marks = []

    def mark(clients):
        marks.append((time.monotonic(), ours.metric("fastdecode_decode_tokens_total"), sum(c.event_count for c in clients)))

    def enough(clients):
        if not marks and all(client.first for client in clients):
            mark(clients)
        elif marks and time.monotonic() - marks[0][0] >= window_s:
            mark(clients)
        return len(marks) == 2

    with run_.turn(f"{streams} streams with prompts of {words} words"):
        requests = requests or [completion(words, tokens, seed + i) for i in range(streams)]
        clients = run(ours.url, requests, run_.limit_s(), enough=enough)
    if len(marks) < 2 or any(not client.first or client.ended() for client in clients):
        raise RuntimeError(f"not all of {streams} streams decoded at once for {window_s} s: more than {tokens} tokens are needed")
    (began, rows, grown), (ended, rows_after, grown_after) = marks
    rate, grown = (rows_after - rows) / (ended - began), (grown + grown_after) / 2 / streams
    run_.note(f"{rate:.1f} tokens/s, {grown:.0f} tokens beyond the prompts")
    return rate, grown


def context(run_):
    """Does a step cost what it reads? 16 streams at 4 k of context beside 256."""
    streams = 16
    _, kv_bytes = model_facts(MODEL)
    with Ours("--kv-workers", 0) as ours:
        warm(ours, 4)
        probe = run(ours.url, [completion(200, 4, 5)], 60)[0]
        a_word = int(re.search(rb'"prompt_tokens":\s*(\d+)', probe.tail).group(1)) / 200
        rates, held, read = {}, {}, []
        for turn, (near, words, tokens) in enumerate(((True, 120, 1000), (False, 3650, 4000), (True, 120, 1000))):
            rate, grown = decoding(run_, ours, streams, words, tokens, 4, 600 + 100 * turn)
            rates.setdefault(near, []).append(rate)
            held.setdefault(near, []).append(words * a_word + grown)
            read.append(run_.read_bandwidth())
    rate, far_rate = statistics.mean(rates[True]), rates[False][0]
    few, many = statistics.mean(held[True]), held[False][0]
    more_s = streams * (many - few) * kv_bytes / (statistics.median(read) * 1e9)
    run_.add(figure("context", f"{streams} streams with {few:.0f} tokens of context", rate, "tokens/s"))
    item = figure("context", f"{streams} streams with {many:.0f}, beside what the bytes read predict", far_rate, "tokens/s",
                  streams / (streams / rate + more_s), 0.8)
    item["pass"] = 0.8 <= item["ratio"] <= 1.25
    run_.add(item)


def streams(run_):
    """1 to 4,096 open streams, short ones, most of them queued: memory a stream and the scheduler's share of a step."""
    with Ours("--max-queue", 4096, "--kv-workers", 0) as ours:
        warm(ours, 4)
        before, a_stream = memory_of_requests(ours), {}
        for (count,) in run_.chosen([(1,), (64,), (512,), (2048,), (4096,)]):
            held, tokens = [], max(8, 128 // count)
            busy, steps = ours.metric("fastdecode_scheduler_seconds_total"), ours.metric("fastdecode_steps_total")
            with run_.turn(f"{count} open streams"):
                clients = run(ours.url, [completion(16, tokens, 7000 + 5000 * count + i) for i in range(count)], run_.limit_s(),
                              lambda _, seen=held: seen.append(memory_of_requests(ours)))
            check(clients)
            lasted = max(c.last for c in clients) - min(c.began for c in clients)
            busy = ours.metric("fastdecode_scheduler_seconds_total") - busy
            steps = ours.metric("fastdecode_steps_total") - steps
            run_.note(f"{count * tokens / lasted:.0f} tokens/s")
            run_.add(figure("streams", f"{count} open stream{'s' if count > 1 else ''}, scheduler time a step beside the step",
                            1e6 * busy / steps, "us", 1e6 * lasted / steps, 0.02, at_most=True))
            a_stream[count] = (held[0] - before) / 1024 / count
        if 512 in a_stream and 4096 in a_stream:
            run_.add(figure("streams", "memory an open stream, gateway and scheduler, 4,096 beside 512", a_stream[4096], "KiB",
                            a_stream[512], 1.2, at_most=True))


def memory_of_requests(mesh):
    """Bytes in those that hold requests, whether they run or wait."""
    held = mesh.memory()
    return held["gateway"] + held["scheduler"]
