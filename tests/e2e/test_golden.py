"""Right answers: log-probabilities and greedy tokens of the served model against tests/golden/oracle.json, which a numpy
program made (oracle.py beside it).

Log-probabilities of given tokens come from echo with max_tokens 0, the best token at each position from its first
alternative. Tokens are called by their ids.
"""
import json
import os
import statistics

import pytest

from conftest import MODEL, ROOT, shard

REAL = {"model": MODEL, "threads": 0}
UNSURE = 0.005  # logits this close may come out either way

with open(os.path.join(ROOT, "tests", "golden", "oracle.json"), encoding="utf-8") as file:
    ORACLE = json.load(file)

pytestmark = pytest.mark.skipif(os.path.basename(MODEL) != ORACLE["model"]["file"], reason="the golden file is of another model")


def echo(mesh, tokens):
    """The log-probabilities of a prompt's tokens, by names, values and best alternatives; the first is without."""
    reply = mesh.post("/v1/completions", {"model": "default", "prompt": tokens, "max_tokens": 0, "echo": True, "logprobs": 1,
                                          "return_tokens_as_token_ids": True})
    found = reply["choices"][0]["logprobs"]
    assert len(found["tokens"]) == len(tokens) and found["token_logprobs"][0] is None
    return found


def name_of(token):
    return f"token_id:{token}"


class Scores:
    """Scored texts through one mesh."""

    def __init__(self, mesh, texts=ORACLE["scored"]):
        self.differences, self.agreed, self.sure_disagreed, self.positions = [], 0, [], 0
        for text in texts:
            found = echo(mesh, text["tokens"])
            for i, (want, best, margin) in enumerate(zip(text["log_probability"], text["argmax"], text["margin"])):
                self.differences.append(abs(found["token_logprobs"][i + 1] - want))
                top = found["top_logprobs"][i + 1]
                same = max(top, key=top.get) == name_of(best)
                self.agreed += same
                self.positions += 1
                if not same and margin >= UNSURE:
                    self.sure_disagreed.append((text["name"], i, margin))
        self.mean = statistics.fmean(self.differences)
        print(f"{self.positions} positions: mean |d| {self.mean:.2e}, largest {max(self.differences):.2e}, "
              f"greedy agreement {100 * self.agreed / self.positions:.2f} %, {len(self.sure_disagreed)} others with a margin")


def check_greedy(mesh):
    """64 greedy tokens of each prompt, all prompts at once; after a place where the oracle was unsure anything may follow."""
    reply = mesh.post("/v1/completions", {"model": "default", "prompt": [item["tokens"] for item in ORACLE["greedy"]],
                                          "max_tokens": 64, "temperature": 0, "ignore_eos": True, "logprobs": 1,
                                          "return_tokens_as_token_ids": True}, timeout=600)  # an emulated device takes one minute alone
    assert len(reply["choices"]) == len(ORACLE["greedy"]) >= 10
    unsure = 0
    for item, choice in zip(ORACLE["greedy"], reply["choices"]):
        got, want = choice["logprobs"]["tokens"], [name_of(i) for i in item["continuation"]]
        assert len(got) == len(want) == 64
        first = next((i for i in range(64) if got[i] != want[i]), None)
        if first is not None:
            assert item["margin"][first] < UNSURE, f"{item['prompt']!r}: token {first} is {got[first]!r}, want {want[first]!r}"
            unsure += 1
    assert unsure <= 2, "the oracle is unsure at 3 tokens of all"


@pytest.mark.parametrize("texts", [pytest.param(shard(ORACLE["scored"], 4), id="some"),
                                   pytest.param(ORACLE["scored"], id="all", marks=pytest.mark.full)])
def test_f32(start_mesh, texts):
    """The reference: float weights, float KV, everything in the local pool."""
    mesh = start_mesh("--compute", "f32", "--kv-type", "f32", "--kv-workers", 0, **REAL)
    scores = Scores(mesh, texts)
    assert scores.positions == sum(len(text["tokens"]) - 1 for text in texts) and scores.mean <= 5e-4
    assert not scores.sure_disagreed
    check_greedy(mesh)


@pytest.mark.parametrize("texts", [pytest.param(shard(ORACLE["scored"], 6), id="some"),
                                   pytest.param(ORACLE["scored"], id="all", marks=pytest.mark.full)])
def test_f32_with_f16_kv(start_mesh, texts):
    """KV rounded to f16, and held by a worker."""
    mesh = start_mesh("--compute", "f32", "--kv-type", "f16", "--kv-workers", 1, "--local-pool", 0, **REAL)
    scores = Scores(mesh, texts)
    assert scores.positions == sum(len(text["tokens"]) - 1 for text in texts) and scores.mean <= 5e-3


@pytest.mark.full
def test_f32_at_a_worker(start_mesh):
    """The same figures where the pages are a worker's."""
    mesh = start_mesh("--compute", "f32", "--kv-type", "f32", "--kv-workers", 2, "--local-pool", 0, **REAL)
    assert Scores(mesh).mean <= 5e-4
    check_greedy(mesh)


@pytest.mark.parametrize("texts,least", [pytest.param(shard(ORACLE["scored"], 2), 1500, id="some"),
                                         pytest.param(ORACLE["scored"], 4000, id="all", marks=pytest.mark.full)])
def test_int8(real_mesh, texts, least):
    """The default for quantized files."""
    scores = Scores(real_mesh, texts)
    assert scores.positions >= least
    assert scores.agreed >= 0.965 * scores.positions
    assert scores.mean <= 0.033
