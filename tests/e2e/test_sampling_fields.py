"""Fields of the sampler, seen from outside: what may not be generated is not, what ends an answer ends it, and bytes stay the same with drafts
and after a failure."""
import json

import pytest

from api_client import call
from conftest import MODEL, PACED
from streams import assert_same, assert_same_after_kills, body, run_all, words

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
    assert_same_after_kills(mesh, ("kv-worker-0", "s-part"), PROBES, wanted)


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


HI = [{"role": "user", "content": "hi"}]
SHORT = ["e", "a", "i", "o", " ", "t", "s", "n"]  # where no number ends the answer
TABLE = [  # path, least body, field, values that the API's reference allows, values that it does not
    (path, body, field, good, bad) for path, body in ((C, {"prompt": "hi", "max_tokens": 1, "stop": SHORT}), ("/v1/chat/completions", {"messages": HI, "max_tokens": 1, "stop": SHORT})) for field, good, bad in (
        ("temperature", (0, 0.0, 1, 2, 2.0, 1e-300), (-0.1, 2.1, "1", True)),
        ("top_p", (0, 0.0, 1e-300, 0.5, 1, 1.0), (-0.1, 1.1, "1", [])),
        ("n", (1, 1.0, 2), (0, -1, 1.5, "1", True)),
        ("presence_penalty", (-2, 2, 0, -2.0), (-2.1, 2.1, "0")),
        ("frequency_penalty", (-2, 2, 0, 2.0), (-2.1, 2.1, "0")),
        ("seed", (0, 1, -1, 42.0, 2**63 - 1, -2**63, 2**53 + 1), (1.5, "1", True)),
        ("max_tokens", (1, 2.0), (-1, 1.5, "1", True)),
        ("max_completion_tokens", (1, 2.0), (-1, 1.5, "1")),
        ("logit_bias", ({}, {"5": -100, "6": 100.0}), ({"5": 101}, {"5": "1"})),
        ("top_k", (0, -1, 1, 40.0, 10**9), (-2, 1.5, "1")),
        ("min_p", (0, 1, 0.5), (-0.1, 1.1)),
        ("repetition_penalty", (1, 1.0, 0.1, 2), (0, -1, "1")),
        ("min_tokens", (0, 0.0, 1), (-1, 0.5)),
        ("prompt_logprobs", (0, 0.0, 20, False), (-1, 21, 0.5)),
        ("truncate_prompt_tokens", (-1, 0, 1, 1.0), (-2, 0.5)),
        ("typical_p", (0, 1, 1.0), (-0.1, 1.1)), ("priority", (0, -5, 5.0), (0.5, "1")))] + [
    (C, {"prompt": "hi"}, "max_tokens", (0, 0.0, 1), (-1,)),
    (C, {"prompt": "hi", "max_tokens": 1}, "best_of", (0, 1, 1.0, 2), (-1, 1.5)),
    (C, {"prompt": "hi", "max_tokens": 1}, "logprobs", (0, 0.0, 5, 20, False, True), (-1, 21, 0.5, "1")),
    ("/v1/chat/completions", {"messages": HI, "stop": SHORT}, "max_completion_tokens", (1,), (0, -1)),
    ("/v1/chat/completions", {"messages": HI, "max_tokens": 1}, "top_logprobs", (0, 0.0), (1, -1)),
    ("/v1/chat/completions", {"messages": HI, "max_tokens": 1, "logprobs": True}, "top_logprobs", (0, 1.0, 20), (-1, 21, 0.5, "1")),
    ("/v1/chat/completions", {"messages": HI, "max_tokens": 1}, "logprobs", (True, False), (0, 1, "true")),
] + [(path, body, field, good, bad) for path, body in (("/v1/responses", {"input": "hi", "max_output_tokens": 1}), ("/v1/messages", {"messages": HI, "max_tokens": 1}))
     for field, good, bad in (("temperature", (0, 1, 1.0), (-0.1, "1")), ("top_p", (0, 0.5, 1), (-0.1, 1.1, "1")), ("top_k", (0, -1, 5, 5.0), (-2, 0.5, "1")))] + [
    ("/v1/responses", {"input": "hi", "stop": SHORT}, "max_output_tokens", (1, 16.0), (0, -1, 0.5, "1")),
    ("/v1/messages", {"messages": HI}, "max_tokens", (0, 0.0, 1, 2.0), (-1, 0.5, "1", None)),
    ("/v1/embeddings", {}, "dimensions", (), (0, -1, 0.5, "1"))]
OPTIONS = [  # Ollama's; a number that is no integer is cut off behind the point where one is wanted
    ("temperature", (0, 0.0, 1, 2, 2.1, 100, 1e-300, -1, -1e300, -10**400), (100.1, 10**400, "1", True)), ("top_p", (0, 0.5, 1, 1.0), (-0.1, 1.1)), ("top_k", (0, -1, 40, 40.0, 40.9), (-2, "1")), ("min_p", (0, 0.05), (-1, 2)),
    ("seed", (-1, 0, 42.0, 2**63 - 1), ("1",)), ("num_predict", (0, -1, -2, 1, 1.0, 1.9, 10**6), ("1", True)), ("repeat_penalty", (0, 0.0, 1, 1.1), (-1, "1")),
    ("presence_penalty", (-2, 0, 2), ("0",)), ("frequency_penalty", (-2, 0, 2), ("0",)), ("typical_p", (0, 1, 0.5), (2,)), ("tfs_z", (0, 1, 1.0), (0.5,)), ("mirostat", (0, 0.0), (2,)),
    ("num_ctx", (0, 1, 4096, 4096.0), ()), ("repeat_last_n", (-1, 0, 64), ()), ("num_keep", (0, -1), ())]
TABLE += [(path, {"model": "default", **body, "stream": False, "options": {"stop": SHORT, "num_predict": 1}}, f"options.{field}", good, bad)
          for path, body in (("/api/chat", {"messages": HI}), ("/api/generate", {"prompt": "hi"})) for field, good, bad in OPTIONS]


@pytest.mark.parametrize("path,body,field,good,bad", TABLE, ids=[f"{row[0]} {row[2]} {i}" for i, row in enumerate(TABLE)])
def test_edges_of_numbers(mesh, path, body, field, good, bad):
    """Each number at the limits that the API's reference has: 1.0 is an integer, and null is as if the field were not there."""
    for value, fits in [*((value, True) for value in (*good, *((None,) if good and None not in bad else ()))), *((value, False) for value in bad)]:
        full = json.loads(json.dumps(body))
        (full["options"] if field.startswith("options.") else full)[field.removeprefix("options.")] = value
        status, headers, text = call(mesh, "POST", path, full)
        assert status == (200 if fits else 400), (field, value, text)
        assert "x-ignored-fields" not in headers
        if not fits and path.startswith("/v1/") and path != "/v1/messages":
            assert json.loads(text)["error"]["param"] == field, (value, text)


def test_the_smallest_nucleus(mesh):
    """`top_p` 0 leaves the best token, whatever the temperature; a completion of no tokens is empty."""
    best = ask(mesh)[0]["text"]
    assert {ask(mesh, top_p=0, temperature=2, seed=seed)[0]["text"] for seed in range(4)} == {best}
    choice, count = ask(mesh, max_tokens=0)
    assert (choice["text"], choice["finish_reason"], count) == ("", "length", 0)


def test_fields_that_are_ignored_are_named(mesh):
    """Clients send fields that change nothing here, and misspell others: neither is an error, and the answer says which were not taken."""
    for path, body, more, names in (
            (C, {"prompt": "hi", "max_tokens": 1}, {"temprature": 0, "user": "u", "evil\r\nx: y": 1}, "evilxy, temprature"),
            ("/v1/chat/completions", {"messages": HI, "max_tokens": 1}, {"verbosity": "low", "reasoning_effort": "none", "store": True, "metadata": {}, "safety_identifier": "s",
             "prompt_cache_key": "k", "prompt_cache_retention": "24h", "service_tier": "auto"}, "verbosity"),
            ("/v1/chat/completions", {"messages": HI, "max_tokens": 1}, {"reasoning_effort": "max"}, None),
            ("/v1/responses", {"input": "hi", "max_output_tokens": 1}, {"text": {"verbosity": "low"}, "reasoning": {"effort": "none", "summary": "auto"}, "service_tier": "auto"},
             "text.verbosity"),
            ("/v1/messages", {"messages": HI, "max_tokens": 1}, {"metadata": {"user_id": "u"}, "output_config": {"effort": "max"}, "speed": "fast"}, "speed"),
            ("/api/chat", {"model": "default", "messages": HI, "options": {"num_predict": 1, "num_ctx": 9, "num_perdict": 2}}, {"think": False, "keep_alive": 5}, "num_perdict")):
        status, headers, text = call(mesh, "POST", path, {**body, **more})
        assert status == 200 and ", ".join(sorted(filter(None, headers.get("x-ignored-fields", "").split(", ")))) == (names or ""), (path, headers, text)
    many = {f"field_{i}": i for i in range(1000)}
    assert len(call(mesh, "POST", C, {"prompt": "hi", "max_tokens": 1, **many})[1]["x-ignored-fields"]) < 100
    log = mesh.logs()
    assert log.count("field=temprature") <= 1 and log.count("API-FIELD-IGNORED") <= 256
