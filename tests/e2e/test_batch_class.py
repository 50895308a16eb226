"""Latency class batch: a request is served beside a full job, and the job's texts are those of ordinary requests. What the job costs
streams is `make bench ONLY=batch-class`'s."""
import pytest

from conftest import PACED, Mesh
from streams import Stream, assert_same, body, join_all, run_whole, words

JOB, TOKENS = 6, 40


def requests(**more):
    return [body(words(20 + 5 * i, i), TOKENS, index=i, sampled=i % 2 == 1, **more) for i in range(JOB)]


@pytest.fixture(scope="module")
def two():
    """Two sequences of a class run, four may wait."""
    with Mesh("--max-batch", 2, "--batch-queue", 4, **PACED) as mesh:
        yield mesh


def test_a_request_does_not_queue_behind_a_job(two):
    job = [Stream(two.url, body(words(20, i), 2500, service_tier="flex")) for i in range(JOB)]
    two.wait_metric("fastdecode_batch_requests_waiting", lambda value: value == JOB - 2, 20)
    refused = Stream(two.url, body(words(20, 90), 5, service_tier="flex"))
    join_all([refused])
    asked = Stream(two.url, body(words(20, 91), TOKENS))
    asked.wait_tokens(TOKENS, 60)
    waiting = two.metric("fastdecode_batch_requests_waiting")
    for stream in job:
        stream.leave()
    assert refused.status == 429 and waiting == JOB - 2
    two.wait_metric("fastdecode_batch_requests_running", lambda value: value == 0, 20)


def test_texts_are_those_of_ordinary_requests(two):
    """Beside a stream, which takes most of the time, and then alone."""
    ordinary = run_whole(two.url, requests()[:4])
    before = two.metric("fastdecode_batch_rows_total")
    beside = Stream(two.url, body(words(20, 92), 200))
    beside.wait_tokens(1)
    job = run_whole(two.url, requests(service_tier="flex")[:4])
    join_all([beside])
    assert two.metric("fastdecode_batch_rows_total") - before >= 4 * TOKENS
    assert len(beside.tokens) == 200 and not beside.error
    assert_same(job, ordinary)
