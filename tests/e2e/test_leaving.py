"""A client that leaves, in each phase: what it had is free before the second next step of its mini-batch.

Counted in rows, not in seconds: those whose result was not used are what was computed for it after the scheduler knew. A step that was sent
already ends; with the one planned ahead that makes two.
"""
import re

import pytest

from conftest import PACED, Mesh
from streams import Stream, assert_same, body, run_all, words
from test_failures import idle

CHUNK = 64
CANCELLED, PREFILL, WASTED = (f"fastdecode_{name}_total" for name in ("sequences_cancelled", "prefill_tokens", "wasted_rows"))
STEPS_AT_MOST = 2


@pytest.fixture(scope="module", params=[("--kv-workers", 0), ("--local-pool", 0)], ids=["local", "worker"])
def small(request):
    """Few sequences and small chunks: everything takes several steps. The pages are local, or a worker's."""
    with Mesh(*request.param, "--chunk", CHUNK, "--max-batch", 2, "--draft-tokens", 0, **PACED) as mesh:
        yield mesh


def numbers(mesh):
    """All metrics without labels as of one moment, and the pages of all places together."""
    text = mesh.metrics()
    found = {name: float(value) for name, value in re.findall(r"^(fastdecode_\w+) (\S+)$", text, re.M)}
    pages = re.findall(r'^fastdecode_kv_pages_used\{place="[^"]*"\} (\S+)$', text, re.M)
    return {**found, "pages": sum(map(float, pages))}


@pytest.mark.sanitizer
def test_in_decode(small):
    """Beside one that goes on."""
    wanted = run_all(small.url, [body(words(20, 7), 100)])
    idle(small)
    begun = numbers(small)
    other = Stream(small.url, body(words(20, 7), 100))
    other.wait_tokens(2)
    stream = Stream(small.url, body(words(300, 3), 4000))
    stream.wait_tokens(5)
    stream.leave()
    small.wait_metric(CANCELLED, lambda value: value == begun[CANCELLED] + 1)
    small.wait_metric("fastdecode_requests_running", lambda value: value <= 1)
    other.join()
    assert_same([other], wanted)
    idle(small)
    wasted = numbers(small)[WASTED] - begun[WASTED]
    print(f"{wasted:.0f} rows for nothing")
    assert wasted <= STEPS_AT_MOST + 1, "of the other stream's end one more"
    assert len(stream.tokens) < 100


def test_in_prefill(small):
    """A prompt of 4,000 tokens, left when some of its chunks are done."""
    idle(small)
    begun = numbers(small)
    stream = Stream(small.url, body(words(4000, 4), 10))
    small.wait_metric(PREFILL, lambda value: value > begun[PREFILL] + 2 * CHUNK, 10)
    stream.leave()
    idle(small)
    end = numbers(small)
    print(f"{end[PREFILL] - begun[PREFILL]:.0f} rows of prefill, {end[WASTED] - begun[WASTED]:.0f} of them after it was known")
    assert end[WASTED] - begun[WASTED] <= STEPS_AT_MOST * CHUNK and end[PREFILL] - begun[PREFILL] < 4000
    assert end[CANCELLED] == begun[CANCELLED] + 1 and not stream.tokens


def test_while_waiting(small):
    """It has never been in a step: nothing is computed for it, and those behind it are not held up."""
    idle(small)
    running = [Stream(small.url, body(words(20, i), 200)) for i in range(2)]
    for stream in running:
        stream.wait_tokens(1)
    waiting = Stream(small.url, body(words(1000, 9), 10))
    small.wait_metric("fastdecode_requests_waiting", lambda value: value == 1)
    begun = numbers(small)
    waiting.leave()
    small.wait_metric("fastdecode_requests_waiting", lambda value: value == 0)
    assert numbers(small)[CANCELLED] == begun[CANCELLED] + 1
    for stream in running:
        stream.join()
        assert stream.error is None and len(stream.tokens) == 200
    idle(small)
    assert numbers(small)[PREFILL] == begun[PREFILL] and not waiting.tokens


def test_two_choices_of_four_are_left_alone(small):
    """One request of several prompts ends as a whole; what others asked for does not."""
    idle(small)
    other = Stream(small.url, body(words(20, 1), 100))
    other.wait_tokens(3)  # it came first: behind the several it would wait for thousands of steps
    several = Stream(small.url, body([words(30, i) for i in range(4)], 4000))
    several.wait_tokens(1)
    several.leave()
    other.join()
    assert other.error is None and len(other.tokens) == 100
    idle(small)
