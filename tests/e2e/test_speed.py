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
    """The best of three rounds: a round is slower where the machine was taken away in it, never faster."""
    measure(mesh.url, 1, tokens=16, seed=90 + streams)
    rounds = [measure(mesh.url, streams, seed=streams + turn) for turn in range(3)]
    best = max(rounds, key=lambda figures: figures["tokens_per_s"])
    print([round(figures["tokens_per_s"], 1) for figures in rounds], best)
    assert best["tokens_per_s"] >= tokens_per_s, rounds
