"""Fields of the sampler, seen from outside: what may not be generated is not, what ends an answer ends it, and bytes stay the same with drafts
and after a failure."""
import pytest

from conftest import MODEL, PACED
from streams import assert_same, body, join_all, run_all, words, Stream

C = "/v1/completions"
VERSE = "The wheels on the bus go round and round, round and round, round and round. The wheels on the bus go round and round,"
BREAKS = {"dry_multiplier": 0.8, "dry_allowed_length": 2, "dry_base": 1.75}
PROBES = [
    body(words(30, 1), 40, 1, True, logprobs=0, typical_p=0.5, presence_penalty=0, frequency_penalty=0, repetition_penalty=1),
    body(words(30, 2), 40, 2, True, logprobs=0, xtc_probability=0.5, xtc_threshold=0.05, presence_penalty=0, frequency_penalty=0,
         repetition_penalty=1),
    body(words(30, 3) * 2, 40, logprobs=0, **BREAKS),
    body(words(30, 4), 40, logprobs=0, bad_words=["the", " and the", "river"]),
    body(words(30, 5), 40, logprobs=0, allowed_token_ids=list(range(500, 900)), ignore_eos=False, min_tokens=10),
]


def ask(mesh, **fields):
    request = {"model": "default", "prompt": "The sea is", "max_tokens": 24, "temperature": 0, **fields}
    answer = mesh.post(C, request)
    return answer["choices"][0], answer["usage"]["completion_tokens"]


def ids(mesh, text):
    return mesh.post("/tokenize", {"prompt": text, "add_special_tokens": False})["tokens"]


def test_stop_token_ids(mesh):
    """The token is counted and not shown; its id is the reason, whole and streamed, and with ignore_eos."""
    plain, _ = ask(mesh)
    tokens = ids(mesh, plain["text"])
    stop = next(token for i, token in enumerate(tokens) if i >= 5 and token not in tokens[:i])
    at = tokens.index(stop)
    for more in ({}, {"ignore_eos": True}, {"min_tokens": at}, {"stop": ["never that"]}):
        choice, count = ask(mesh, stop_token_ids=[stop, 3], **more)
        assert (choice["finish_reason"], choice["stop_reason"], count) == ("stop", stop, at + 1), more
        assert plain["text"].startswith(choice["text"]) and ids(mesh, choice["text"]) == tokens[:at]
    stream = run_all(mesh.url, [body("The sea is", 24, stop_token_ids=[stop])])[0]
    assert (stream.finish_reason, stream.stop_reason, len(stream.tokens)) == ("stop", stop, at + 1)
    assert stream.text == choice["text"]


def test_min_tokens(mesh):
    """No token ends the answer before, whatever the client or the model names; then the next one does."""
    plain, _ = ask(mesh)
    tokens = ids(mesh, plain["text"])
    choice, count = ask(mesh, stop_token_ids=tokens, min_tokens=15)
    assert choice["finish_reason"] in ("stop", "length") and count > 15
    common = sorted(range(0, 4000))  # one of these always comes at once
    choice, count = ask(mesh, stop_token_ids=common[:100], logit_bias={str(token): 100 for token in common[:100]}, min_tokens=7)
    assert (choice["finish_reason"], count) == ("stop", 8)
    choice, count = ask(mesh, stop=["e", "a", "i", "o"], min_tokens=9)  # stop strings begin behind it, too
    assert count > 9


def test_allowed_and_bad(mesh):
    allowed = list(range(300, 340))
    choice, _ = ask(mesh, allowed_token_ids=allowed, ignore_eos=True, logprobs=0)
    wanted = {mesh.post("/detokenize", {"tokens": [token]})["prompt"] for token in allowed}
    assert set(choice["logprobs"]["tokens"]) <= wanted
    plain, _ = ask(mesh, max_tokens=60)
    for _ in range(3):
        bad = [word for word in plain["text"].split() if len(word) > 3][:8]
        choice, _ = ask(mesh, max_tokens=60, bad_words=bad)
        assert choice["text"] != plain["text"] and not any(f" {word} " in choice["text"] for word in bad)


def test_dry_ends_a_repetition(real_mesh):
    plain, _ = ask(real_mesh, prompt=VERSE)
    choice, _ = ask(real_mesh, prompt=VERSE, **BREAKS, dry_sequence_breakers=[])
    assert "round and round, round and round" in plain["text"] and "round and round, round and round" not in choice["text"]
    other, _ = ask(real_mesh, prompt=VERSE, **BREAKS, dry_sequence_breakers=[" "])  # a space is in nearly every token
    assert other["text"] == plain["text"]
    assert ask(real_mesh, prompt=VERSE, **BREAKS, dry_penalty_last_n=0)[0]["text"] == plain["text"]


@pytest.fixture(scope="module")
def wanted(mesh):
    streams = [run_all(mesh.url, [probe])[0] for probe in PROBES]
    assert [stream.error for stream in streams if stream.error] == []
    assert_same(run_all(mesh.url, PROBES), streams)  # in company
    return streams


def test_same_bytes_after_a_failure(start_mesh, wanted):
    """The worker and the s-part are killed in mid-stream: what was seen is seen again by their successors."""
    mesh = start_mesh("--kv-workers", 1, "--local-pool", 0, **PACED)
    for service in ("kv-worker-0", "s-part"):
        streams = [Stream(mesh.url, probe) for probe in PROBES]
        for stream in streams:
            stream.wait_tokens(8)
        mesh.kill(service)
        join_all(streams)
        assert_same(streams, wanted)


def test_same_bytes_in_a_pipeline(start_mesh, wanted):
    assert_same(run_all(start_mesh("--s-parts", 2, "--split", "2,2").url, PROBES), wanted)


def test_same_bytes_with_drafts(start_mesh):
    """What is pure is guessed ahead, what looks back is not; neither changes a byte."""
    probes = [body(VERSE, 48, 3, True, logprobs=0, presence_penalty=0, frequency_penalty=0, repetition_penalty=1, temperature=0.3, **more)
              for more in ({"typical_p": 0.8}, {"xtc_probability": 0.2}, {"dry_multiplier": 0.5}, {"bad_words": ["town", "all through"]},
                           {"allowed_token_ids": list(range(0, 3000))}, {"ignore_eos": False, "min_tokens": 20})]
    plain = start_mesh("--kv-workers", 0, "--draft-tokens", 0, model=MODEL)
    wanted = [run_all(plain.url, [probe])[0] for probe in probes]
    plain.stop()
    drafting = start_mesh("--kv-workers", 0, model=MODEL, slow_workers=("kv-worker", "s-part"), env={"FD_SLOW_LAYER_US": "500"})
    assert_same([run_all(drafting.url, [probe])[0] for probe in probes], wanted)
    assert drafting.metric("fastdecode_draft_tokens_right_total") > 10
