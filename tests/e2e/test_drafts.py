"""Drafts (`--draft-tokens`): tokens that are guessed and computed ahead. Answers are the same, token for token and bit for bit, and
take fewer steps."""
import pytest

from conftest import MODEL, Mesh, shard
from streams import assert_same, body, run_all, words

DRAFTED, RIGHT, STEPS = "fastdecode_draft_tokens_total", "fastdecode_draft_tokens_right_total", "fastdecode_steps_total"
FREE = {"presence_penalty": 0, "frequency_penalty": 0, "repetition_penalty": 1}  # only what has no penalties is guessed
VERSE = "The wheels on the bus go round and round, round and round, round and round. The wheels on the bus go round and round,"

PROBES = [
    body(VERSE, 64, logprobs=5),
    body(words(40, 3), 64, logprobs=5),
    body("1 2 3 4 5 6 7 8 1 2 3 4 5 6 7 8 1 2 3 4", 48, 7, True, logprobs=5, **FREE),
    body(VERSE, 48, 8, True, logprobs=5, **FREE, top_p=0.9, top_k=40, logit_bias={"260": 1.5}),
    body(VERSE, 48, 9, True, logprobs=5),
    body(VERSE, 64, logprobs=5, stop=["round and"]),
    body(VERSE, 200, logprobs=5, ignore_eos=False),
    *(body(VERSE, tokens, logprobs=5) for tokens in (1, 2, 3)),
    body(VERSE, 16, logprobs=5, echo=True),
]


@pytest.fixture(scope="module")
def plain():
    """What they are without: each alone."""
    with Mesh("--kv-workers", 0, "--draft-tokens", 0, model=MODEL) as mesh:
        streams = [run_all(mesh.url, [probe])[0] for probe in PROBES]
        assert mesh.metric(DRAFTED) == 0
        yield streams, mesh.metric(STEPS)


PLACES = {"local": ("--kv-workers", 0), "workers": ("--local-pool", 0, "--kv-workers", 2), "mini-batches": ("--mini-batches", 2),
          "int4": ("--kv-type", "int4"), "int8": ("--kv-type", "int8")}


# A step takes 15 ms more whatever its rows, so that drafts pay on any machine.
ROWS_COST_LITTLE = {"slow_workers": ("kv-worker", "s-part"), "env": {"FD_SLOW_LAYER_US": "500"}}
WHERE = ["local", "workers", "mini-batches"]
SOME = shard(WHERE, 3)


@pytest.mark.parametrize("place", [*SOME, *(pytest.param(place, marks=pytest.mark.full) for place in WHERE if place not in SOME)])
def test_the_same_bytes(start_mesh, plain, place):
    wanted, steps = plain
    mesh = start_mesh(*PLACES[place], model=MODEL, threads=0, **ROWS_COST_LITTLE)
    assert_same([run_all(mesh.url, [probe])[0] for probe in PROBES], wanted)
    right, drafted = mesh.metric(RIGHT), mesh.metric(DRAFTED)
    print(f"{right:.0f} of {drafted:.0f} drafts were right; {mesh.metric(STEPS):.0f} steps, {steps:.0f} without")
    # How many are made, the core decides by measured times (unit/test_sched_draft). Each right one saves a step, unless its answer ends before.
    assert 0 < right <= drafted and steps - mesh.metric(STEPS) > right / 2
    together = run_all(mesh.url, PROBES)
    assert_same(together, wanted)
    assert [stream.usage["completion_tokens"] for stream in together] == [stream.usage["completion_tokens"] for stream in wanted]


@pytest.mark.full
@pytest.mark.parametrize("place", ["int4", "int8"])
def test_the_same_bytes_in_other_numbers(start_mesh, place):
    """V in words of four tokens: a wrong draft shares one with what was right."""
    streams = {}
    for drafts in (0, 8):
        mesh = start_mesh("--kv-workers", 0, *PLACES[place], "--draft-tokens", drafts, model=MODEL, **ROWS_COST_LITTLE)
        streams[drafts] = [run_all(mesh.url, [probe])[0] for probe in PROBES[:4]]
        assert (mesh.metric(RIGHT) > 0) == (drafts > 0)
        mesh.stop()
    assert_same(streams[8], streams[0])
