"""Grammars: answers have the form that was asked for, whatever the temperature, and the same bytes with drafts, after a failure and in a pipeline."""
import json
import re

import pytest

from api_client import post
from conftest import MODEL, PACED
from streams import Stream, assert_same, assert_same_after_kills, body, join_all, run_all, words

C, H = "/v1/completions", "/v1/chat/completions"
PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "tags": {"type": "array", "items": {"enum": ["red", "green", "blue"]}, "maxItems": 3},
        "home": {"anyOf": [{"type": "null"}, {"type": "object", "properties": {"city": {"type": "string", "maxLength": 8}},
                                              "required": ["city"], "additionalProperties": False}]},
    },
    "required": ["name", "age", "tags", "home"],
    "additionalProperties": False,
}
DATE = "(19|20)[0-9]{2}-[01][0-9]-[0-3][0-9]( at [0-9]{1,2}:[0-9]{2})?"
NUMBERS = 'root ::= "[" number ("," number){0,6} "]"\nnumber ::= "-"? [1-9] [0-9]{0,2}'
CHOICES = ["yes", "no", "maybe later", "maybe", "nö, 不"]


def is_person(text):
    value = json.loads(text)
    return (list(value) == list(PERSON["properties"]) and len(value["name"]) <= 12 and 0 <= value["age"] <= 120
            and set(value["tags"]) <= {"red", "green", "blue"} and len(value["tags"]) <= 3
            and (value["home"] is None or list(value["home"]) == ["city"]))


# name, what is asked, whether a text has the form
FORMS = [
    ("schema", {"response_format": {"type": "json_schema", "json_schema": {"name": "person", "strict": True, "schema": PERSON}}}, is_person),
    ("regex", {"structured_outputs": {"regex": DATE}}, lambda text: re.fullmatch(DATE, text)),
    ("choice", {"guided_choice": CHOICES}, lambda text: text in CHOICES),
    ("gbnf", {"grammar": NUMBERS}, lambda text: all(1 <= abs(n) <= 999 for n in json.loads(text))),
]


@pytest.fixture(scope="module", params=["tiny", "real"])
def served(request, mesh, real_mesh):
    return mesh if request.param == "tiny" else real_mesh


@pytest.mark.parametrize("name,fields,has_form", FORMS, ids=[form[0] for form in FORMS])
def test_form(served, name, fields, has_form):
    """At any temperature, for all choices, whole and streamed. All of these texts are finite, so each ends by itself."""
    for temperature in (0, 1, 2):
        request = {"model": "default", "prompt": "Tell me: ", "max_tokens": 400, "temperature": temperature, "seed": 5, "n": 4, **fields}
        answer = served.post(C, request)
        for choice in answer["choices"]:
            assert has_form(choice["text"]), choice["text"]
            assert choice["finish_reason"] == "stop" and choice["stop_reason"] is None
        streams = run_all(served.url, [{**request, "n": 1}])
        assert streams[0].text == answer["choices"][0]["text"] and streams[0].finish_reason == "stop"


def test_chat_and_logprobs(real_mesh):
    answer = real_mesh.post(H, {"model": "default", "messages": [{"role": "user", "content": "Is Paris in France?"}], "temperature": 0,
                                "logprobs": True, "structured_outputs": {"choice": ["yes", "no"]}})
    choice = answer["choices"][0]
    assert choice["message"]["content"] in ("yes", "no") and choice["finish_reason"] == "stop"
    assert all(entry["logprob"] <= 0 for entry in choice["logprobs"]["content"])


def test_json_object(mesh):
    """It may go on for ever; where it ends, it is an object."""
    answer = mesh.post(C, {"prompt": "{", "max_tokens": 300, "temperature": 1.5, "seed": 1, "n": 8, "response_format": {"type": "json_object"}})
    for choice in answer["choices"]:
        assert choice["text"].startswith("{")
        if choice["finish_reason"] == "stop":
            assert isinstance(json.loads(choice["text"]), dict)


def test_spaces(mesh):
    for more, pattern in (({"disable_any_whitespace": True}, r'\{"a":"[^ ]*","b":\d+\}'), ({}, r'\{"a": ?"[^ ]*", ?"b": ?\d+\}')):
        schema = {"type": "object", "properties": {"a": {"type": "string", "pattern": "^[a-z]{0,5}$"},
                                                   "b": {"type": "integer", "minimum": 0, "maximum": 9}},
                  "required": ["a", "b"], "additionalProperties": False}
        answer = mesh.post(C, {"prompt": "x", "max_tokens": 100, "temperature": 1, "n": 4, "structured_outputs": {"json": schema, **more}})
        assert all(re.fullmatch(pattern, choice["text"]) for choice in answer["choices"]), answer["choices"]


def test_with_other_fields(mesh):
    """ignore_eos goes on for as long as the grammar can; min_tokens gives way to its end; penalties and bans choose among what it allows."""
    ask = {"prompt": "x", "max_tokens": 60, "temperature": 1, "seed": 2}
    one = mesh.post(C, {**ask, "guided_regex": "[ab]{3,9}", "ignore_eos": True})["choices"][0]
    assert len(one["text"]) == 9 and one["finish_reason"] == "stop"
    short = mesh.post(C, {**ask, "guided_regex": "ab", "min_tokens": 20})["choices"][0]
    assert short["text"] == "ab" and short["finish_reason"] == "stop"
    long = mesh.post(C, {**ask, "guided_regex": "[ab]*", "ignore_eos": True})["choices"][0]
    assert set(long["text"]) == {"a", "b"} and long["finish_reason"] == "length"
    chosen = mesh.post(C, {**ask, "guided_choice": ["one", "two"], "bad_words": ["one", "on", "o"], "presence_penalty": 1})["choices"][0]
    assert chosen["text"] in ("two", "one")


def test_nothing_is_left(mesh):
    """Fields that contradict each other end the answer with an error that says so, and nobody else's."""
    letter = mesh.post("/tokenize", {"prompt": "z", "add_special_tokens": False})["tokens"]
    beside = Stream(mesh.url, body(words(20), 60))
    failed = Stream(mesh.url, body("x", 20, guided_regex="[ab]+", allowed_token_ids=letter))
    join_all([beside, failed])
    assert "no token is left" in failed.error and beside.error is None and len(beside.tokens) == 60
    refused = post(mesh, C, {"prompt": "x", "max_tokens": 20, "guided_regex": "[ab]+", "allowed_token_ids": letter}, status=400)
    assert "no token is left" in refused["error"]["message"] and refused["error"]["type"] == "invalid_request_error"


def test_many_at_once(mesh):
    """Different grammars and none, in the same steps: each has its own."""
    requests = [body(words(5, i), 40, i, guided_regex=f"item {i}: [a-c]{{{1 + i % 5}}}\\.", temperature=1) if i % 3 else body(words(5, i), 40)
                for i in range(48)]
    streams = run_all(mesh.url, requests)
    for i, stream in enumerate(streams):
        assert stream.error is None
        if i % 3:
            assert re.fullmatch(f"item {i}: [a-c]{{{1 + i % 5}}}\\.", stream.text) and stream.finish_reason == "stop"
        else:
            assert len(stream.tokens) == 40


PROBES = [body(words(20, i), 150, i, i % 2 == 1, logprobs=0, **{**form[1], **({"temperature": 1.3} if i % 2 else {})})
          for i, form in enumerate(FORMS + FORMS)]
PROBES.append(body(words(20, 30), 60, logprobs=0, guided_regex="[a-z ]*", ignore_eos=True))
PROBES.append(body(words(20, 31), 60, 3, True, logprobs=0, response_format={"type": "json_object"}, ignore_eos=True))


@pytest.fixture(scope="module")
def wanted(mesh):
    streams = [run_all(mesh.url, [probe])[0] for probe in PROBES]
    assert [stream.error for stream in streams if stream.error] == []
    assert_same(run_all(mesh.url, PROBES), streams)
    return streams


def test_same_bytes_after_a_failure(start_mesh, wanted):
    mesh = start_mesh("--kv-workers", 1, "--local-pool", 0, **PACED)
    assert_same_after_kills(mesh, ("kv-worker-0", "s-part"), PROBES, wanted, slice(-2, None))


def test_same_bytes_in_a_pipeline(start_mesh, wanted):
    assert_same(run_all(start_mesh("--s-parts", 2, "--split", "2,2").url, PROBES), wanted)


def test_same_bytes_with_two_mini_batches(start_mesh, wanted):
    assert_same(run_all(start_mesh("--mini-batches", 2, "--kv-workers", 2, "--local-pool", 0).url, PROBES), wanted)


def test_same_bytes_with_drafts(start_mesh):
    """Guesses that the grammar forbids are wrong like others."""
    verse = "[1,2,3,4,5,6,7,8,9],[1,2,3,4,5,6,7,8,9],[1,2,3,4,5,6,7,8,9],["
    free = {"presence_penalty": 0, "frequency_penalty": 0, "repetition_penalty": 1}
    probes = [body(verse, 40, logprobs=0, guided_regex="([1-9],){3,40}0\\]"),
              body(verse, 60, 1, True, logprobs=0, guided_regex="([1-35-9],)*", **free),
              body(verse, 60, logprobs=0, guided_regex="(1,2,3,4,5,6,7,8,9\\],\\[)*", ignore_eos=True),
              body(verse, 60, 2, True, logprobs=0, grammar=NUMBERS, **free)]
    plain = start_mesh("--kv-workers", 0, "--draft-tokens", 0, model=MODEL)
    wanted = [run_all(plain.url, [probe])[0] for probe in probes]
    assert all(stream.error is None for stream in wanted), [stream.error for stream in wanted]
    plain.stop()
    drafting = start_mesh("--kv-workers", 0, model=MODEL, slow_workers=("kv-worker", "s-part"), env={"FD_SLOW_LAYER_US": "500"})
    assert_same([run_all(drafting.url, [probe])[0] for probe in probes], wanted)
    assert_same(run_all(drafting.url, probes), wanted)
    assert drafting.metric("fastdecode_draft_tokens_right_total") > 10


def test_memory_comes_with_the_first_grammar(start_mesh):
    """Who needs no grammar does not pay for the vocabulary."""
    mesh = start_mesh("--kv-workers", 0)
    mesh.post(C, {"prompt": "x", "max_tokens": 4})
    assert "GRAMMARS tokens=" not in mesh.logs(400)
    mesh.post(C, {"prompt": "x", "max_tokens": 4, "guided_regex": "[a-z]+"})
    assert mesh.logs(400).count("GRAMMARS tokens=") == 1
