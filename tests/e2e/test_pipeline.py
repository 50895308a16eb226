"""Several s-parts in a pipeline, each with a part of the layers: the same bytes as from one, wherever KV is, and through every failure."""
import os
import re
import signal
import time

import pytest

from conftest import BUILD, Mesh, fastdecode, seconds, shard, spawn, tiny, wait_until
from streams import Stream, assert_same, body, join_all, run_all, words

LAYERS = 4  # of the tiny model
PROBES = [
    body("The sea is", 40, logprobs=3),
    body(words(60, 1), 30, 1, True, logprobs=3),
    body(words(700, 6), 12, 3, True, logprobs=3),
    body(words(150, 2), 8, 4, True, logprobs=3, echo=True),
    body(words(150, 2) + " and then", 20, 5, logprobs=3),  # begins like the one before
    body("one two three one two three one two three one two", 60, 6),  # what drafts find
]


@pytest.fixture(scope="module")
def wanted(mesh):
    streams = run_all(mesh.url, PROBES)
    assert [stream.error for stream in streams if stream.error] == []
    return streams


def ready(mesh, stages):
    mesh.wait_metric("fastdecode_stages", lambda count: count == stages)


PLACES = [(0, "64M"), (1, "0"), (1, "64M"), (2, "0")]


@pytest.mark.parametrize("stages,places", shard([(stages, places) for stages in (2, 3) for places in PLACES], 4))
def test_same_bytes(start_mesh, wanted, stages, places):
    workers, pool = places
    mesh = start_mesh("--s-parts", stages, "--kv-workers", workers, "--local-pool", pool, "--kv-memory", "64M")
    ready(mesh, stages)
    assert_same(run_all(mesh.url, PROBES), wanted)
    assert_same([run_all(mesh.url, [probe])[0] for probe in PROBES[:2]], wanted[:2])
    assert mesh.metric("fastdecode_sequences_rebuilt_total") == 0
