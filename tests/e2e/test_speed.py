"""The first marks of speed: 64-word prompts, 128 new tokens, streaming, default settings, on 2 cores with nothing else."""
import os
import sys

import pytest

from conftest import ROOT

sys.path.insert(0, os.path.join(ROOT, "tests", "bench"))

from bench_serve import measure  # noqa: E402

pytestmark = pytest.mark.full


@pytest.mark.parametrize("streams,tokens_per_s", [(1, 105), (32, 300)])
def test_tokens_a_second(mesh, streams, tokens_per_s):
    """In one of up to ten rounds: a round is slower where the machine was taken away in it, never faster."""
    measure(mesh.url, 1, tokens=16, seed=90 + streams)
    reached = []
    for turn in range(10):
        reached.append(round(measure(mesh.url, streams, seed=streams + turn)["tokens_per_s"], 1))
        if turn >= 2 and max(reached) >= tokens_per_s:
            break
    print(f"{streams} streams, tokens/s: {reached}")
    assert max(reached) >= tokens_per_s, reached
