"""What is slow, and not broken: a stream that says nothing for a while, and kernels that anyone can read."""
import os
import re
import signal

import pytest

from conftest import MODEL, PACED, seconds, wait_until
from streams import Stream, assert_same, body, run_all, words


def test_a_silent_stream_is_kept_open(start_mesh):
    """The s-part is stopped in the middle of a stream: after a while comes a comment, and another; then the rest. None comes while
    tokens do, although they take longer than that in all."""
    silence_s = seconds(0.5)
    mesh = start_mesh(slow_workers=PACED["slow_workers"], env={**PACED["env"], "FD_KEEP_ALIVE": str(silence_s)})
    request = body(words(30, 2), round(2 * silence_s / 0.012), 1, sampled=True)
    wanted = run_all(mesh.url, [request])
    assert wanted[0].times[-1] - wanted[0].began > silence_s and not wanted[0].comment_times
    stream = Stream(mesh.url, request)
    stream.wait_tokens(10)
    pid = mesh.kill("s-part", signal.SIGSTOP)
    try:
        wait_until(lambda: len(stream.comment_times) >= 2 or stream.done, 10, "no comments")
    finally:
        os.kill(pid, signal.SIGCONT)
    stream.join(seconds(60))
    assert_same([stream], wanted)
    assert len(stream.comment_times) >= 2 and mesh.pid("s-part") == pid


def levels(mesh):
    found = {}
    for service, pattern in (("s-part", r"level=\w+/(\w+)"), ("kv-worker-0", r"kernels=(\w+)")):
        with open(os.path.join(mesh.run_dir, service + ".log"), encoding="utf-8") as file:
            found[service] = re.search(pattern, file.read()).group(1)
    return found


def test_reference_kernels_answer(start_mesh, real_mesh):
    """FD_ISA=ref: plain loops everywhere. Other bits than the fast kernels', and the same answer."""
    request = body("The capital of France is", 4)
    wanted = run_all(real_mesh.url, [request])[0]
    reference = start_mesh("--local-pool", 0, model=MODEL, threads=0, env={"FD_ISA": "ref"})
    assert levels(reference) == {"s-part": "ref", "kv-worker-0": "ref"}
    stream = run_all(reference.url, [request])[0]
    assert stream.error is None and stream.tokens == wanted.tokens and "Paris" in stream.text
    assert all(abs(a - b) < 0.1 for a, b in zip(stream.logprobs, wanted.logprobs)), (stream.logprobs, wanted.logprobs)


@pytest.mark.full
def test_reference_kernels_take_a_prompt_of_some_minutes(start_mesh):
    """One step of it takes longer than a minute: it is waited for, not begun again and again."""
    mesh = start_mesh(model=MODEL, threads=0, env={"FD_ISA": "ref"})
    stream = run_all(mesh.url, [body(words(320, 1), 1)], 400)[0]
    assert stream.error is None and len(stream.tokens) == 1
    assert mesh.metric("fastdecode_steps_failed_total") == 0
