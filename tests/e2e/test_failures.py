"""What happens when something fails: the table of failures, row by row, on real processes.

What the streams get on an undisturbed mesh is what they must get again, token for token, when a service is killed, stopped or drained
half-way. How long they pause is `make bench`'s.
"""
import os
import re
import signal
import socket
import subprocess
import time

import pytest

from conftest import BUILD, PACED, SANITIZED, Mesh, free_port, seconds, spawn, tiny, wait_until
from streams import Stream, assert_same, body, join_all, left_places, of_place, run_all, run_whole, samples, start_all, words

STREAMS, TOKENS = (6, 64) if SANITIZED else (16, 96)
REBUILT, FINISHED = "fastdecode_sequences_rebuilt_total", "fastdecode_sequences_finished_total"
REQUESTS = [body(words(24 + 9 * i, i), TOKENS, i, sampled=i % 2 == 1) for i in range(STREAMS)]
WHOLE_PROMPTS = ("--chunk", 512)  # all start together: with small chunks, most streams have ended before the last one is half-way
TWO_WORKERS = ("--kv-workers", 2, "--local-pool", 0, "--kv-memory", "512M", *WHOLE_PROMPTS)
ALL_LOCAL = ("--kv-workers", 0, "--local-pool", "1G", *WHOLE_PROMPTS)
PREFILL, REBUILT_TOKENS = "fastdecode_prefill_tokens_total", "fastdecode_rebuilt_tokens_total"


def needed(mesh):
    """Tokens whose KV was needed by prompts and by what was rebuilt: computed, or found."""
    return mesh.metric(PREFILL) + mesh.metric("fastdecode_prefix_cached_tokens_total")


def idle(mesh, limit_s=10):
    """Nothing runs, nothing waits, no page is held."""
    for name in ("fastdecode_requests_running", "fastdecode_requests_waiting", "fastdecode_kv_pages_used"):
        mesh.wait_metric(name, lambda value: value == 0, limit_s)


@pytest.fixture(scope="module")
def wanted(mesh):
    """The streams with nothing wrong; wherever their pages lie, they are the same."""
    return run_whole(mesh.url, REQUESTS)


def prompt_tokens(streams):
    return sum(stream.usage["prompt_tokens"] for stream in streams)


def silence_s():
    """How long a service may be silent before it is dead: shorter than rows at a worker are waited for."""
    return min(seconds(2), 5)


def half_way(mesh):
    """The streams again, each with half of its tokens or nearly so; the mesh is a paced one."""
    streams = start_all(mesh.url, REQUESTS)
    for stream in streams:
        stream.wait_tokens(TOKENS // 2 - 8)
    return streams


def fuller_worker(mesh):
    """The worker with most sequences, and how many: where one of them seems slow, all may have gone to the other."""
    return max((int(of_place(mesh, "fastdecode_place_sequences", name)), name) for name in ("kv-worker-0", "kv-worker-1"))[::-1]


def arrived_tokens(streams, wanted):
    """Prompt and generated tokens that each client knows of, which may be fewer than the scheduler does."""
    return [len(stream.tokens) + whole.usage["prompt_tokens"] for stream, whole in zip(streams, wanted)]


def known_tokens(mesh):
    """Tokens that the scheduler knows of all streams, which are the first of this mesh."""
    return mesh.metric("fastdecode_prompt_tokens_total") + mesh.metric("fastdecode_generated_tokens_total")


def at_most(known, arrived, rebuilt):
    """Tokens of sequences that were rebuilt: of all that are known after the loss, those of the others are no fewer than had arrived before."""
    return known - sum(sorted(arrived)[:STREAMS - rebuilt])


def wait_for_log(mesh, service, pattern, limit_s=20, since=0):
    """The match in what a service has logged after its first `since` characters."""
    def found():
        with open(os.path.join(mesh.run_dir, service + ".log"), encoding="utf-8", errors="replace") as file:
            return re.search(pattern, file.read()[since:])

    return wait_until(found, limit_s, lambda: f"{service} has not logged {pattern!r}\n" + mesh.logs())


def wait_for_output(mesh, pattern, limit_s=20):
    """What `up` itself says."""
    wait_until(lambda: re.search(pattern, "".join(mesh.output)), limit_s, lambda: f"no {pattern!r} in:\n" + "".join(mesh.output[-20:]))


def assert_used_again(mesh, place, streams):
    """After the worker is back it takes part: rows are attended over there."""
    mesh.wait_metric("fastdecode_place_up", lambda _: of_place(mesh, "fastdecode_place_up", place) == 1)
    # with a salt of their own, or all would go where their prompts' pages are
    again = start_all(mesh.url, [{**request, "cache_salt": "again"} for request in REQUESTS])
    wait_until(lambda: of_place(mesh, "fastdecode_place_sequences", place) > 0 or all(stream.done for stream in again), 30,
               lambda: f"nothing was placed on {place}")
    assert not all(stream.done for stream in again), f"nothing was placed on {place}"
    assert_same(join_all(again), streams)
    idle(mesh)


# --- kv-worker ----------------------------------------------------------------------------------------------------------------


def test_worker_killed(start_mesh, wanted):
    """kill -9 of one of two workers under 16 streams: all complete with the text they would have had."""
    mesh = start_mesh(*TWO_WORKERS, **PACED)
    streams = half_way(mesh)
    departed = left_places(mesh)
    victim, lost_count = fuller_worker(mesh)
    assert 0 < lost_count, f"none of {STREAMS} sequences is on the worker that is to be killed"  # all are, where the other looks slow
    arrived = arrived_tokens(streams, wanted)
    old_pid = mesh.kill(victim)
    wait_for_log(mesh, "scheduler", f"PLACE-DOWN name={victim}")
    known = known_tokens(mesh)
    departed = left_places(mesh) - departed  # between the count and the kill
    assert_same(join_all(streams), wanted)

    rebuilt, lost = int(mesh.metric(REBUILT)), mesh.metric(REBUILT_TOKENS)
    extra = needed(mesh) - prompt_tokens(wanted)
    most = at_most(known, arrived, rebuilt)
    print(f"{rebuilt} rebuilt, {lost:.0f} tokens, at most {most:.0f}")
    assert abs(rebuilt - lost_count) <= departed and 0 < rebuilt <= STREAMS, f"{rebuilt} rebuilt of {lost_count}, {departed:.0f} had left"
    assert 0 < extra <= lost <= most, f"{extra:.0f} rows were computed anew, {lost:.0f} tokens were lost, at most {most:.0f} could be"

    idle(mesh)
    assert mesh.pid(victim) != old_pid
    assert of_place(mesh, "fastdecode_place_lost_total", victim) == 1
    assert_used_again(mesh, victim, wanted)


def test_worker_killed_with_sparse_attention(start_mesh, mesh):
    """What is rebuilt after kill -9, in chunks and beside other rows, attends to the same parts of its context as when it was generated."""
    requests = [body(words(1250 + 30 * i, i), 48, i, sampled=i % 2 == 1) for i in range(4)]
    victims = start_mesh(*TWO_WORKERS, "--sparse-attention", "10%", **PACED)
    sparse = run_whole(victims.url, requests)
    assert any(a.logprobs != b.logprobs for a, b in zip(sparse, run_whole(mesh.url, requests))), "sparse attention changed nothing"
    streams = start_all(victims.url, requests)
    for stream in streams:
        stream.wait_tokens(24)
    victim, held = fuller_worker(victims)
    assert held > 0
    victims.kill(victim)
    assert_same(join_all(streams), sparse)
    assert victims.metric(REBUILT) > 0


@pytest.mark.sanitizer
def test_worker_stopped(start_mesh, wanted):
    """SIGSTOP: its connections stand, but it says nothing. It is dead after the time-out, and used again when it wakes."""
    mesh = start_mesh(*TWO_WORKERS, "--worker-timeout-ms", round(1000 * silence_s()), **PACED)
    streams = half_way(mesh)
    departed = left_places(mesh)
    victim, lost_count = fuller_worker(mesh)
    assert lost_count > 0
    arrived = arrived_tokens(streams, wanted)
    pid = mesh.kill(victim, signal.SIGSTOP)
    try:
        wait_for_log(mesh, "scheduler", f"PLACE-DOWN name={victim}")
        known = known_tokens(mesh)
        departed = left_places(mesh) - departed
        assert_same(join_all(streams), wanted)
        assert of_place(mesh, "fastdecode_place_up", victim) == 0
        assert of_place(mesh, "fastdecode_place_lost_total", victim) == 1
        rebuilt, lost = int(mesh.metric(REBUILT)), mesh.metric(REBUILT_TOKENS)
        extra = needed(mesh) - prompt_tokens(wanted)
        assert abs(rebuilt - lost_count) <= departed, f"{rebuilt} rebuilt of {lost_count}, {departed:.0f} had left"
        assert 0 < extra <= lost <= at_most(known, arrived, rebuilt)
        assert_same(run_all(mesh.url, REQUESTS[:4]), wanted[:4])
    finally:
        os.kill(pid, signal.SIGCONT)
    idle(mesh)
    assert_used_again(mesh, victim, wanted)
    assert mesh.pid(victim) == pid


def warnings(mesh, service):
    with open(os.path.join(mesh.run_dir, f"{service}.log"), encoding="utf-8", errors="replace") as file:
        return [line for line in file if " warn " in line]


def stop_only_worker(mesh, wanted):
    """Stops it until it is declared down, and lets it go on. Returns how many sequences waited for it, or 0 where the s-part gave their rows up first,
    3 s after it asked for them (then they are to be rebuilt, wherever their KV lies), or where a busy machine silenced the worker another time."""
    streams = half_way(mesh)
    log, before = os.path.getsize(os.path.join(mesh.run_dir, "scheduler.log")), mesh.metric(REBUILT)  # a busy machine kept it from beating
    pid = mesh.kill("kv-worker-0", signal.SIGSTOP)
    try:
        wait_for_log(mesh, "scheduler", "PLACE-DOWN name=kv-worker-0", since=log)
        left = STREAMS - mesh.metric(FINISHED)  # a client that got no core for a while stops the worker late
        assert left > 0
        mesh.wait_metric(REBUILT, lambda count: count == before + left)
        mesh.wait_metric("fastdecode_requests_waiting", lambda count: count == left)
    finally:
        os.kill(pid, signal.SIGCONT)
    assert_same(join_all(streams), wanted)
    downs = sum("PLACE-DOWN" in line for line in warnings(mesh, "scheduler"))
    given_up = any("status=DEADLINE_EXCEEDED" in line for line in warnings(mesh, "s-part"))
    return left if downs == 1 and not given_up else 0


def test_only_worker_stopped(start_mesh, wanted):
    """There is no other: its streams wait, and when it comes back they go on with what it holds. Nothing is computed anew."""
    for _ in range(3):
        mesh = start_mesh("--kv-workers", 1, "--local-pool", 0, *WHOLE_PROMPTS, "--worker-timeout-ms", round(250 * silence_s()), **PACED)
        left = stop_only_worker(mesh, wanted)
        if left:
            break
        mesh.stop()
    assert left, "each time the s-part gave up the rows before the scheduler noticed that the worker was silent, or it was silent again"
    reclaimed = mesh.metric("fastdecode_sequences_reclaimed_total")
    assert reclaimed >= left  # more where a busy machine kept it from beating once more
    extra = needed(mesh) - prompt_tokens(wanted)
    told = "".join(warnings(mesh, "scheduler") + warnings(mesh, "s-part") + warnings(mesh, "kv-worker-0"))
    assert extra <= 8 * reclaimed, f"{extra:.0f} rows were computed anew although the worker held them:\n{told}"
    idle(mesh)


def test_worker_hangs(start_mesh, wanted):
    """The thread that attends hangs, the others go on: its connections stand and it beats. Each mini-batch waits for it once, then it is
    down; when it goes on, it is used again."""
    mesh = start_mesh(*TWO_WORKERS, **PACED)
    streams = half_way(mesh)
    victim, lost_count = fuller_worker(mesh)
    assert lost_count > 0
    pid = mesh.kill(victim, signal.SIGWINCH)
    try:
        assert_same(join_all(streams), wanted)
        wait_for_log(mesh, "scheduler", f'PLACE-DOWN name={victim} .*hangs')
        assert_same(run_all(mesh.url, REQUESTS[:4]), wanted[:4])
        assert of_place(mesh, "fastdecode_place_up", victim) == 0
        assert of_place(mesh, "fastdecode_place_lost_total", victim) == 1
        with open(os.path.join(mesh.run_dir, "s-part.log"), encoding="utf-8") as file:
            given_up = re.findall("ATTEND-FAILED worker=", file.read())
        assert len(given_up) <= 2, "steps waited for it again"
    finally:
        os.kill(pid, signal.SIGWINCH)
    idle(mesh)
    assert_used_again(mesh, victim, wanted)


@pytest.mark.sanitizer
def test_worker_drains(start_mesh, wanted):
    """SIGTERM: its pages are handed over, nothing is computed anew, it ends with status 0, and its successor is used."""
    mesh = start_mesh(*TWO_WORKERS, **PACED)
    streams = half_way(mesh)
    victim, held = fuller_worker(mesh)
    assert held > 0
    log = os.path.getsize(os.path.join(mesh.run_dir, "scheduler.log"))
    pid = mesh.kill(victim, signal.SIGTERM)
    drained = wait_for_log(mesh, "scheduler", rf"(?s).*PLACE-DRAINED name={victim}", since=log).group()
    ended = mesh.metric(FINISHED)  # these may have had nothing left to hand over
    moved = set(re.findall(r"MOVED sequence=(\w+) .* ok=1", drained))  # some may have been on their way to the victim
    assert max(1, held - ended) <= len(moved) <= STREAMS
    assert_same(join_all(streams), wanted)
    assert mesh.metric(REBUILT) == 0
    assert needed(mesh) == prompt_tokens(wanted), "something was computed anew"
    wait_for_log(mesh, victim, rf"END name={victim}")
    wait_for_output(mesh, rf"CHILD-DIED name={victim} pid={pid} status=0 ")
    idle(mesh)
    assert of_place(mesh, "fastdecode_place_lost_total", victim) == 0
    assert_used_again(mesh, victim, wanted)


# --- s-part and scheduler ------------------------------------------------------------------------------------------------------


@pytest.mark.sanitizer
def test_scheduler_stopped(start_mesh, wanted):
    """SIGSTOP of the scheduler for longer than a member may be silent: nobody was dead, so nothing is lost or computed anew."""
    mesh = start_mesh(*TWO_WORKERS, "--worker-timeout-ms", round(1000 * silence_s()), **PACED)
    streams = half_way(mesh)
    pid = mesh.kill("scheduler", signal.SIGSTOP)
    time.sleep(1.5 * silence_s())  # the stall itself
    os.kill(pid, signal.SIGCONT)
    assert_same(join_all(streams), wanted)
    wait_for_log(mesh, "scheduler", "SCHEDULER-STALLED")
    for place in ("local", "kv-worker-0", "kv-worker-1"):
        assert of_place(mesh, "fastdecode_place_lost_total", place) == 0
    assert mesh.metric(REBUILT) == 0
    assert needed(mesh) == prompt_tokens(wanted), "something was computed anew"
    idle(mesh)


@pytest.mark.sanitizer
def test_s_part_killed_with_everything_local(start_mesh, wanted):
    """Its pool is gone with it: all is rebuilt from token logs."""
    mesh = start_mesh(*ALL_LOCAL, **PACED)
    streams = half_way(mesh)
    mesh.kill("s-part")
    wait_for_log(mesh, "scheduler", "PLACE-DOWN name=s-part")
    known = known_tokens(mesh)
    assert_same(join_all(streams), wanted)
    assert 0 < needed(mesh) - prompt_tokens(wanted) <= known
    idle(mesh)
    assert of_place(mesh, "fastdecode_place_lost_total", "local") == 1 and mesh.metric("fastdecode_spart_up") == 1
    assert_same(run_all(mesh.url, REQUESTS[:2]), wanted[:2])


@pytest.mark.sanitizer
def test_s_part_killed_with_everything_at_workers(start_mesh, wanted):
    """The workers keep their pages: the step is repeated, and nothing else."""
    mesh = start_mesh(*TWO_WORKERS, **PACED)
    streams = half_way(mesh)
    mesh.kill("s-part")
    assert_same(join_all(streams), wanted)
    assert mesh.metric(REBUILT) == 0
    assert needed(mesh) == prompt_tokens(wanted), "pages that workers held were computed anew"
    idle(mesh)
    assert_same(run_all(mesh.url, REQUESTS[:2]), wanted[:2])


def usage(streams):
    return [(stream.usage["prompt_tokens"], stream.usage["completion_tokens"]) for stream in streams]


@pytest.mark.sanitizer
def test_scheduler_killed(start_mesh, wanted):
    """The gateway submits its token logs to the next one; the workers say what they hold, and that is used."""
    mesh = start_mesh(*TWO_WORKERS, **PACED)
    streams = half_way(mesh)
    mesh.kill("scheduler")
    assert_same(join_all(streams), wanted)
    assert usage(streams) == usage(wanted)
    computed = mesh.metric(PREFILL)  # by the new scheduler, which counts from zero
    assert computed <= 8 * STREAMS, f"{computed:.0f} rows were computed anew although workers held them"
    idle(mesh)
    assert_same(run_all(mesh.url, REQUESTS[:2]), wanted[:2])


def test_scheduler_killed_with_everything_local(start_mesh, wanted):
    """As before, with the pages in the s-part's pool."""
    mesh = start_mesh(*ALL_LOCAL, **PACED)
    streams = half_way(mesh)
    mesh.kill("scheduler")
    assert_same(join_all(streams), wanted)
    assert mesh.metric(PREFILL) <= 8 * STREAMS
    idle(mesh)


# --- gateway and its clients -----------------------------------------------------------------------------------------------------


def is_ready(gateway):
    try:
        Mesh.get(gateway, "/ready")
        return True
    except OSError:
        return False


class SecondGateway:
    """Another gateway of the same mesh."""

    def __init__(self, mesh):
        port = free_port()
        self.url, self.output = f"http://127.0.0.1:{port}", open(os.path.join(mesh.run_dir, "second.log"), "wb")
        self.process = spawn(
            [os.path.join(BUILD, "bin", "gateway"), f"--scheduler=ipc://{mesh.run_dir}/scheduler.sock", "--host=127.0.0.1",
             f"--port={port}", f"--model={tiny()}", f"--listen=ipc://{mesh.run_dir}/second.sock",
             f"--mesh-secret-file={mesh.run_dir}/mesh-secret"],
            stdout=self.output, stderr=subprocess.STDOUT)
        wait_until(self.ready, 20, lambda: f"the second gateway is not ready: {self.process.poll()}")

    def ready(self):
        return is_ready(self)

    def close(self):
        self.process.terminate()
        self.process.wait(seconds(30))
        self.output.close()


@pytest.mark.sanitizer
def test_gateway_killed(start_mesh, wanted):
    """Its clients lose their connection and come back; the scheduler cancels what it had; another gateway notices nothing."""
    mesh = start_mesh(**PACED)
    second, services = SecondGateway(mesh), ("scheduler", "s-part", "kv-worker-0")
    try:
        others = start_all(second.url, REQUESTS[:4])
        lost = [Stream(mesh.url, body(words(30, 200 + i), 4000, i)) for i in range(8)]
        for stream in lost + others:
            stream.wait_tokens(8)
        pids = [mesh.pid(service) for service in services]
        mesh.kill("gateway")
        join_all(lost, 10)
        assert all(stream.error for stream in lost)
        assert_same(join_all(others), wanted[:4])
        mesh.wait_metric("fastdecode_requests_running", lambda value: value == 0)  # nor do the dead gateway's
        wait_until(lambda: is_ready(mesh), 30, "the gateway is not back")
        assert_same(run_all(mesh.url, REQUESTS[:4]), wanted[:4])
        assert pids == [mesh.pid(service) for service in services]
    finally:
        second.close()
    idle(mesh)


# a client that leaves in decode, in prefill or while it waits: test_leaving.py

@pytest.mark.sanitizer
def test_client_leaves_before_a_whole_answer(mesh):
    """Not streamed: the connection is suspended and nobody writes to it, so its end must be watched for."""
    idle(mesh)
    with socket.create_connection(("127.0.0.1", int(mesh.url.rsplit(":", 1)[1]))) as client:
        text = b'{"model":"default","prompt":"One","max_tokens":6000,"ignore_eos":true}'
        client.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
                       % len(text) + text)
        mesh.wait_metric("fastdecode_requests_running", lambda value: value == 1, 10)
    idle(mesh)


# --- limits ----------------------------------------------------------------------------------------------------------------------


@pytest.mark.sanitizer
def test_queue_full(start_mesh):
    """What does not fit gets 429 with a time to come back, at once; the others finish."""
    mesh = start_mesh("--max-queue", 2, "--max-batch", 2, **PACED)
    streams = start_all(mesh.url, [body(words(10, i), 120) for i in range(12)])
    refused = [stream for stream in join_all(streams) if stream.status == 429]
    served = [stream for stream in streams if stream.status == 200]
    assert len(refused) + len(served) == 12 and len(served) >= 4 and len(refused) >= 4
    for stream in refused:
        assert re.fullmatch(r"[0-9]+", stream.headers["Retry-After"]) and 1 <= int(stream.headers["Retry-After"]) <= 60
        assert '"error"' in stream.error
    assert all(stream.error is None and len(stream.tokens) == 120 for stream in served)
    idle(mesh)


def test_deadline(start_mesh):
    """The sequence ends with what it has."""
    mesh = start_mesh("--request-timeout", seconds(1), **PACED)
    request = body(words(10, 1), 6000)
    streams = run_all(mesh.url, [request, request])
    whole = mesh.post("/v1/completions", request)["choices"][0]
    for stream in streams:
        assert stream.error is None and 0 < len(stream.tokens) < 6000
        assert (stream.finish_reason, stream.stop_reason) == ("length", "deadline")
    assert (whole["finish_reason"], whole["stop_reason"]) == ("length", "deadline") and whole["text"]
    idle(mesh)


def test_out_of_pages(start_mesh, mesh):
    """Eight sequences that grow to four times what the pages hold together: some pause, all end as if they had been alone."""
    requests = [body(words(40 + i, 300 + i), 300, i, sampled=i % 2 == 1) for i in range(8)]
    wanted = run_all(mesh.url, requests)
    small = start_mesh("--kv-workers", 1, "--local-pool", 0, "--kv-memory", "1M")
    assert 20 <= small.metric("fastdecode_kv_pages") <= 60
    assert_same(run_all(small.url, requests), wanted)
    assert small.metric("fastdecode_sequences_preempted_total") > 0
    idle(small)


@pytest.mark.sanitizer
def test_prompt_larger_than_all_pages(start_mesh):
    """What can never fit is refused with a reason; others go on."""
    mesh = start_mesh("--kv-workers", 1, "--local-pool", 0, "--kv-memory", "1M")
    stream, other = run_all(mesh.url, [body(words(3000, 1), 10), body("One", 10)])
    assert stream.error and "memory" in stream.error and not stream.tokens
    assert other.error is None and len(other.tokens) == 10
    idle(mesh)


@pytest.mark.full
def test_worker_killed_again_and_again(start_mesh, wanted):
    """One worker or the other, every second, under streams that never stop."""
    mesh = start_mesh(*TWO_WORKERS, **PACED)
    for turn in range(6):
        streams = half_way(mesh)
        mesh.kill(f"kv-worker-{turn % 2}")
        assert_same(join_all(streams), wanted)
        mesh.wait_metric("fastdecode_place_up", lambda _: all(samples(mesh, "fastdecode_place_up")[f'place="kv-worker-{i}"'] == 1
                                                              for i in range(2)))
