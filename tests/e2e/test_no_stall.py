"""No stall: a long prompt that arrives beside running streams neither stops them nor waits for ever.

The limits are wider than the bench's (`make bench ONLY=stall`: 3 times and 2.5 times), for a machine that does other things as well.
"""
import os
import sys

import pytest

from conftest import ROOT, SANITIZED, Mesh

sys.path.insert(0, os.path.join(ROOT, "tests", "bench"))

from clients import completion, percentile  # noqa: E402
from stall import alone, beside_streams, plain_streams  # noqa: E402

ROUNDS = 3


def no_stall(url, words, seed, between_limit, first_limit):
    """In one of up to three rounds; a machine that is taken away for half a second spoils one."""
    seen, streams = [], plain_streams(url, seed + 10, 120)
    for turn in range(ROUNDS):
        idle = alone(url, completion(words, 4, seed + 1000 * turn), 120)
        got = beside_streams(url, completion(words, 4, seed + 1000 * turn + 1), streams, 120, before_s=0.5)
        seen.append((round(percentile(got["during"], 0.99) / got["before"], 2), round(got["first"] / idle, 2)))
        if seen[-1][0] <= between_limit and seen[-1][1] <= first_limit:
            break
    print(f"p99 between tokens over the median before, first token over that alone: {seen}")
    assert seen[-1][0] <= between_limit and seen[-1][1] <= first_limit, seen


@pytest.fixture(scope="module")
def plain():
    """Each token by itself: what comes together says nothing of the time between tokens."""
    with Mesh("--draft-tokens", 0) as mesh:
        yield mesh


@pytest.mark.skipif(SANITIZED, reason="times mean nothing there")
def test_a_prompt_of_1000_words(plain):
    no_stall(plain.url, 1000, 300, 8, 4)


@pytest.mark.full
@pytest.mark.skipif(SANITIZED, reason="times mean nothing there")
def test_a_prompt_of_3000_words(plain):
    no_stall(plain.url, 3000, 400, 7, 3.5)
