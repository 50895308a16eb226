"""What is slow, and not broken: a stream that says nothing for a while, and kernels that anyone can read."""
import os
import re
import signal
import time

import pytest

from streams import Stream, assert_same, body, run_all, words

KEEP_ALIVE_S = 10


def test_a_silent_stream_is_kept_open(start_mesh):
    """The s-part is stopped in the middle of a stream: after 10 s, and not before, comes a comment; then the rest."""
    mesh = start_mesh()
    request = body(words(30, 2), 60, 1, sampled=True)
    wanted = run_all(mesh.url, [request])
    stream = Stream(mesh.url, request)
    stream.wait_tokens(10)
    pid = mesh.kill("s-part", signal.SIGSTOP)
    try:
        deadline = time.monotonic() + KEEP_ALIVE_S + 5
        while not stream.comment_times:
            assert time.monotonic() < deadline and not stream.done, f"nothing for {KEEP_ALIVE_S + 5} s"
            time.sleep(0.02)
    finally:
        os.kill(pid, signal.SIGCONT)
    silent = stream.comment_times[0] - stream.times[-1]
    assert KEEP_ALIVE_S - 0.5 < silent < KEEP_ALIVE_S + 1, f"a comment after {silent:.2f} s"
    stream.join(60)
    assert_same([stream], wanted)
    assert len(stream.comment_times) == 1 and mesh.pid("s-part") == pid
    assert not wanted[0].comment_times


def levels(mesh):
    found = {}
    for service, pattern in (("s-part", r"level=\w+/(\w+)"), ("kv-worker-0", r"kernels=(\w+)")):
        with open(os.path.join(mesh.run_dir, service + ".log"), encoding="utf-8") as file:
            found[service] = re.search(pattern, file.read()).group(1)
    return found


def test_reference_kernels_answer(start_mesh, mesh):
    """FD_ISA=ref: plain loops everywhere. Other bits than the fast kernels', and the same answer."""
    request = body("The capital of France is", 4)
    wanted = run_all(mesh.url, [request])[0]
    reference = start_mesh("--local-pool", 0, env={"FD_ISA": "ref"})
    assert levels(reference) == {"s-part": "ref", "kv-worker-0": "ref"}
    stream = run_all(reference.url, [request])[0]
    assert stream.error is None and stream.tokens == wanted.tokens and "Paris" in stream.text
    assert all(abs(a - b) < 0.1 for a, b in zip(stream.logprobs, wanted.logprobs)), (stream.logprobs, wanted.logprobs)


@pytest.mark.full
def test_reference_kernels_take_a_prompt_of_some_minutes(start_mesh):
    """One step of it takes longer than a minute: it is waited for, not begun again and again."""
    mesh = start_mesh(env={"FD_ISA": "ref"})
    stream = run_all(mesh.url, [body(words(320, 1), 1)], 400)[0]
    assert stream.error is None and len(stream.tokens) == 1
    assert mesh.metric("fastdecode_steps_failed_total") == 0
