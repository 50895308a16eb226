"""Fields of the API beside OpenAI's: what each does to the answer, whole and streamed."""
import json
import math
import os
import re

import pytest

from api_client import call, connect, events, post, server  # noqa: F401 (a fixture)
from conftest import tiny

C, H, T = "/v1/completions", "/v1/chat/completions", "/tokenize"
SEA = {"model": "default", "prompt": "The sea is", "max_tokens": 12, "temperature": 0}
HELLO = {"model": "default", "messages": [{"role": "user", "content": "Say hello."}], "max_tokens": 12, "temperature": 0}


def ids_of(server, text):
    return post(server, T, {"prompt": text})["tokens"]


def check_prompt_logprobs(listed, ids, most):
    """One entry a token: null, then the token itself and its alternatives, by id."""
    assert len(listed) == len(ids) and listed[0] is None
    for token, entry in zip(ids[1:], listed[1:]):
        own = entry[str(token)]
        assert own["logprob"] <= 0 and isinstance(own["decoded_token"], str)
        ranks = {score["rank"]: score["logprob"] for score in entry.values() if score["rank"] is not None}
        assert set(range(1, most + 1)) <= set(ranks) and len(entry) in (max(most, 1), most + 1)
        assert [ranks[rank] for rank in sorted(ranks)] == sorted(ranks.values(), reverse=True)


@pytest.mark.parametrize("most", [0, 2])
def test_prompt_logprobs(server, most):
    ids = ids_of(server, SEA["prompt"])
    choices = post(server, C, {**SEA, "prompt_logprobs": most, "n": 2, "max_tokens": 2})["choices"]
    for choice in choices:
        check_prompt_logprobs(choice["prompt_logprobs"], ids, most)
        assert choice["logprobs"] is None
    echoed = post(server, C, {**SEA, "echo": True, "logprobs": 0, "max_tokens": 0})["choices"][0]["logprobs"]["token_logprobs"]
    scores = [entry and entry[str(token)]["logprob"] for token, entry in zip(ids, choices[0]["prompt_logprobs"])]
    assert scores == echoed
    assert post(server, C, {**SEA, "prompt_logprobs": most, "max_tokens": 0})["choices"][0]["prompt_logprobs"] == choices[0]["prompt_logprobs"]
    plain = post(server, C, {**SEA, "max_tokens": 2})["choices"][0]
    assert "prompt_logprobs" not in plain and plain["text"] == choices[0]["text"]


def test_prompt_logprobs_of_a_chat(server):
    ids = post(server, T, {"messages": HELLO["messages"]})["tokens"]
    reply = post(server, H, {**HELLO, "prompt_logprobs": 1})
    check_prompt_logprobs(reply["prompt_logprobs"], ids, 1)
    assert "prompt_logprobs" not in reply["choices"][0]


def test_prompt_logprobs_beside_those_of_the_answer(server):
    """Each list has as many alternatives as was asked for, whichever is more."""
    for answer, prompt in ((3, 1), (1, 3)):
        choice = post(server, C, {**SEA, "echo": True, "logprobs": answer, "prompt_logprobs": prompt, "max_tokens": 3})["choices"][0]
        alone = post(server, C, {**SEA, "echo": True, "logprobs": answer, "max_tokens": 3})["choices"][0]
        assert choice["logprobs"] == alone["logprobs"]
        check_prompt_logprobs(choice["prompt_logprobs"], ids_of(server, SEA["prompt"]), prompt)


def test_truncation_keeps_the_end(server):
    ids = ids_of(server, "One two three four five six")
    for prompt in ("One two three four five six", ids):
        cut = post(server, C, {**SEA, "prompt": prompt, "truncate_prompt_tokens": 3, "echo": True})
        same = post(server, C, {**SEA, "prompt": ids[-3:], "echo": True})
        assert cut["usage"] == same["usage"] and cut["usage"]["prompt_tokens"] == 3
        assert cut["choices"] == same["choices"]
    assert post(server, C, {**SEA, "truncate_prompt_tokens": 1000})["choices"] == post(server, C, SEA)["choices"]
    model = json.loads(call(server, "GET", "/v1/models")[2])["data"][0]["max_model_len"]
    if model <= 16384:
        long = {**SEA, "prompt": "word " * (model + 50), "max_tokens": 1}
        assert post(server, C, {**long, "truncate_prompt_tokens": -1})["usage"]["prompt_tokens"] == model - 1


def test_truncation_of_a_chat(server):
    reply = post(server, H, {**HELLO, "truncate_prompt_tokens": 4})
    assert reply["usage"]["prompt_tokens"] == 4


def test_the_stop_string_stays(server):
    text = post(server, C, SEA)["choices"][0]["text"]
    stop = text[4:7]
    body = {**SEA, "stop": stop, "include_stop_str_in_output": True}
    choice = post(server, C, body)["choices"][0]
    assert choice["text"] == text[:text.index(stop) + len(stop)]
    assert choice["finish_reason"] == "stop" and choice["stop_reason"] == stop
    assert "".join(chunk["choices"][0]["text"] for chunk in events(server, C, body) if chunk != "[DONE]") == choice["text"]


def test_token_ids(server):
    whole = post(server, C, {**SEA, "return_token_ids": True, "n": 2, "prompt": [SEA["prompt"], "One two"]})
    for choice, prompt in zip(whole["choices"], [SEA["prompt"]] * 2 + ["One two"] * 2):
        assert choice["prompt_token_ids"] == ids_of(server, prompt)
        assert post(server, "/detokenize", {"tokens": choice["token_ids"]})["prompt"].startswith(choice["text"])
    ids = whole["choices"][0]["token_ids"]
    assert len(ids) == post(server, C, SEA)["usage"]["completion_tokens"]
    chunks = [chunk["choices"][0] for chunk in events(server, C, {**SEA, "return_token_ids": True}) if chunk != "[DONE]"]
    assert [token for chunk in chunks for token in chunk["token_ids"]] == ids
    assert chunks[0]["prompt_token_ids"] == ids_of(server, SEA["prompt"]) and "prompt_token_ids" not in chunks[-1]
    assert "token_ids" not in post(server, C, SEA)["choices"][0]


def test_token_ids_of_a_chat(server):
    prompt = post(server, T, {"messages": HELLO["messages"]})["tokens"]
    whole = post(server, H, {**HELLO, "return_token_ids": True})
    assert whole["prompt_token_ids"] == prompt
    assert len(whole["choices"][0]["token_ids"]) == whole["usage"]["completion_tokens"]
    chunks = [chunk for chunk in events(server, H, {**HELLO, "return_token_ids": True}) if chunk != "[DONE]"]
    assert chunks[0]["prompt_token_ids"] == prompt and all("prompt_token_ids" not in chunk for chunk in chunks[1:])
    assert [token for chunk in chunks for token in chunk["choices"][0].get("token_ids", [])] == whole["choices"][0]["token_ids"]


def test_tokens_as_ids(server):
    body = {**SEA, "logprobs": 2, "return_token_ids": True}
    named, plain = post(server, C, {**body, "return_tokens_as_token_ids": True})["choices"][0], post(server, C, body)["choices"][0]
    assert named["logprobs"]["tokens"] == [f"token_id:{token}" for token in plain["token_ids"]]
    assert all(name.startswith("token_id:") for top in named["logprobs"]["top_logprobs"] for name in top)
    for name in ("token_logprobs", "text_offset"):
        assert named["logprobs"][name] == plain["logprobs"][name]
    chat = {**HELLO, "logprobs": True, "top_logprobs": 1, "return_token_ids": True, "return_tokens_as_token_ids": True}
    choice = post(server, H, chat)["choices"][0]
    assert [token["token"] for token in choice["logprobs"]["content"]] \
        == [f"token_id:{token}" for token in choice["token_ids"][:len(choice["logprobs"]["content"])]]


def test_logprobs_true_is_one(server):
    assert post(server, C, {**SEA, "logprobs": True})["choices"] == post(server, C, {**SEA, "logprobs": 1})["choices"]


def test_best_of(server):
    """The best by the sum of log-probabilities come first; all that were made are counted."""
    body = {**SEA, "prompt": ["The sea is", "One two"], "temperature": 1.5, "seed": 5, "ignore_eos": True, "max_tokens": 6}
    made = post(server, C, {**body, "n": 6, "logprobs": 0})
    for n in (1, 3):
        reply = post(server, C, {**body, "n": n, "best_of": 6, "logprobs": 0})
        assert [choice["index"] for choice in reply["choices"]] == list(range(2 * n))
        assert reply["usage"] == made["usage"]
        for prompt in range(2):
            ranked = sorted(made["choices"][6 * prompt:6 * prompt + 6], key=lambda one: -math.fsum(one["logprobs"]["token_logprobs"]))
            assert [one["text"] for one in reply["choices"][n * prompt:n * prompt + n]] == [one["text"] for one in ranked[:n]]
    quiet = post(server, C, {**body, "best_of": 6})["choices"]
    assert quiet[0]["logprobs"] is None and quiet[0]["text"] == post(server, C, {**body, "best_of": 6, "logprobs": 0})["choices"][0]["text"]


def test_usage_in_each_chunk(server):
    options = {"include_usage": True, "continuous_usage_stats": True}
    chunks = [chunk for chunk in events(server, C, {**SEA, "stream_options": options}) if chunk != "[DONE]"]
    counts = [chunk["usage"]["completion_tokens"] for chunk in chunks]
    assert counts == sorted(counts) and counts[-1] == post(server, C, SEA)["usage"]["completion_tokens"]
    assert all(chunk["usage"]["prompt_tokens"] == len(ids_of(server, SEA["prompt"])) for chunk in chunks)
    without = [chunk for chunk in events(server, C, {**SEA, "stream_options": {"continuous_usage_stats": True}}) if chunk != "[DONE]"]
    assert all("usage" not in chunk for chunk in without)


def test_continuing_the_last_message(server):
    """The prompt ends where the message's content does, and the answer goes on from there."""
    messages = [*HELLO["messages"], {"role": "assistant", "content": "Hello, my dear"}]
    plain = post(server, T, {"messages": messages, "add_generation_prompt": False})["tokens"]
    going_on = post(server, T, {"messages": messages, "continue_final_message": True})["tokens"]
    assert len(going_on) < len(plain) and plain[:len(going_on)] == going_on
    assert post(server, "/detokenize", {"tokens": going_on})["prompt"].endswith("Hello, my dear")
    body = {**HELLO, "messages": messages, "continue_final_message": True}
    text = post(server, H, body)["choices"][0]["message"]["content"]
    assert text == post(server, C, {**SEA, "prompt": going_on})["choices"][0]["text"]


def test_priority_is_the_class(server):
    """A positive one takes the time that others leave; it changes no answer, and is no tier."""
    for priority in (-3, 0, 7):
        reply = post(server, C, {**SEA, "priority": priority})
        assert reply["choices"] == post(server, C, SEA)["choices"] and "service_tier" not in reply


@pytest.mark.parametrize("priority,running", [(1, 1), (0, 0), (-1, 0)])
def test_priority_chooses_the_class(mesh, priority, running):
    """While the answer is streamed, the gateway counts it in its class."""
    connection = connect(mesh)
    body = {**SEA, "priority": priority, "stream": True, "max_tokens": 2000, "ignore_eos": True}
    connection.request("POST", C, json.dumps(body), {"Content-Type": "application/json"})
    assert connection.getresponse().readline().startswith(b"data: ")
    counted = re.search(r"^fastdecode_gateway_batch_class_running(?:\{[^}]*\})? (\d+)$", mesh.get("/metrics"), re.M).group(1)
    connection.close()
    assert int(counted) == running


def gap_model(folder):
    """The tiny model with names of tokens changed to those of a model that fills gaps."""
    with open(tiny(), "rb") as file:
        data = file.read()
    for old, new in ((b"<jupyter_text>", b"<|fim_prefix|>"), (b"<jupyter_code>", b"<|fim_suffix|>"), (b"<issue_closed>", b"<|fim_middle|>")):
        assert data.count(old) == 1 and len(old) == len(new)
        data = data.replace(old, new)
    path = os.path.join(folder, "gap.gguf")
    with open(path, "wb") as file:
        file.write(data)
    return path


def test_suffix(start_mesh, tmp_path):
    """The prompt is that of a gap: prefix, suffix, middle, each with its token before it."""
    mesh = start_mesh(model=gap_model(tmp_path))
    body = {**SEA, "return_token_ids": True}
    reply = post(mesh, C, {**body, "suffix": " and blue."})["choices"][0]
    written = "<|fim_prefix|>The sea is<|fim_suffix|> and blue.<|fim_middle|>"
    assert reply["prompt_token_ids"] == ids_of(mesh, written)
    assert reply["text"] == post(mesh, C, {**SEA, "prompt": written})["choices"][0]["text"]
    ids = ids_of(mesh, "The sea is")
    assert post(mesh, C, {**body, "prompt": ids, "suffix": " and blue."})["choices"][0] == reply
    assert post(mesh, C, {**body, "suffix": ""})["choices"] == post(mesh, C, body)["choices"]
    cut = post(mesh, C, {**body, "suffix": " and blue.", "truncate_prompt_tokens": 1})["choices"][0]
    assert cut["prompt_token_ids"] == [reply["prompt_token_ids"][0], *reply["prompt_token_ids"][len(ids):]]
