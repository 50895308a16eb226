"""The API of a running mesh: what answers look like, whole and streamed, and that they agree with each other."""
import json
import math
from urllib.parse import urlsplit

import pytest

from api_client import call, connect, events, post, raw_socket, server  # noqa: F401 (a fixture)

C, H = "/v1/completions", "/v1/chat/completions"
SEA = {"model": "default", "prompt": "The sea is", "max_tokens": 12, "temperature": 0}
HELLO = {"model": "default", "messages": [{"role": "user", "content": "Say hello."}], "max_tokens": 12, "temperature": 0}


def count_tokens(server, text):
    return post(server, "/tokenize", {"prompt": text})["count"]


def test_health_ready_version(server):
    assert call(server, "GET", "/health")[0] == 200
    assert json.loads(call(server, "GET", "/ready")[2])["ready"] is True
    assert json.loads(call(server, "GET", "/version")[2])["version"]
    assert call(server, "HEAD", "/health")[2] == ""


def test_models(server):
    listed = json.loads(call(server, "GET", "/v1/models")[2])
    assert listed["object"] == "list" and len(listed["data"]) == 1
    model = listed["data"][0]
    assert model["object"] == "model" and model["max_model_len"] > 0 and model["created"] > 1_500_000_000
    for name in (model["id"], "default"):
        assert json.loads(call(server, "GET", "/v1/models/" + name)[2])["object"] == "model"
        assert post(server, C, {**SEA, "model": name, "max_tokens": 1})["model"] == model["id"]


def test_completion(server):
    reply = post(server, C, SEA)
    assert reply["object"] == "text_completion" and reply["id"].startswith("cmpl-")
    choice = reply["choices"][0]
    assert choice["index"] == 0 and choice["text"] and choice["logprobs"] is None
    assert choice["finish_reason"] in ("length", "stop")
    usage = reply["usage"]
    assert usage["prompt_tokens"] == count_tokens(server, SEA["prompt"])
    if choice["finish_reason"] == "length":
        assert usage["completion_tokens"] == SEA["max_tokens"]
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]


def test_chat(server):
    reply = post(server, H, HELLO)
    assert reply["object"] == "chat.completion" and reply["id"].startswith("chatcmpl-")
    assert reply["choices"][0]["message"]["role"] == "assistant" and reply["choices"][0]["message"]["content"]
    assert reply["usage"]["prompt_tokens"] == post(server, "/tokenize", {"messages": HELLO["messages"]})["count"]


def test_completion_stream_is_the_same_text(server):
    whole = post(server, C, SEA)
    chunks = list(events(server, C, {**SEA, "stream_options": {"include_usage": True}}))
    assert chunks[-1] == "[DONE]"
    assert chunks[-2]["choices"] == [] and chunks[-2]["usage"] == whole["usage"]
    body = chunks[:-2]
    assert all(chunk["usage"] is None and chunk["object"] == "text_completion" for chunk in body)
    assert "".join(chunk["choices"][0]["text"] for chunk in body) == whole["choices"][0]["text"]
    reasons = [chunk["choices"][0]["finish_reason"] for chunk in body]
    assert reasons[-1] == whole["choices"][0]["finish_reason"] and set(reasons[:-1]) <= {None}
    assert len({chunk["id"] for chunk in body}) == 1


def test_chat_stream_is_the_same_text(server):
    whole = post(server, H, HELLO)
    chunks = list(events(server, H, HELLO))
    assert chunks[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert chunks[-1] == "[DONE]"
    assert all("usage" not in chunk for chunk in chunks[:-1])
    text = "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chunks[:-1])
    assert text == whole["choices"][0]["message"]["content"]
    assert chunks[-2]["choices"][0]["delta"] == {}
    assert chunks[-2]["choices"][0]["finish_reason"] == whole["choices"][0]["finish_reason"]


def test_prompt_forms_agree(server):
    """A string, its ids, and lists of both give the same answer; choices are numbered by prompt, then by n."""
    ids = post(server, "/tokenize", {"prompt": SEA["prompt"]})["tokens"]
    text = post(server, C, SEA)["choices"][0]["text"]
    assert post(server, C, {**SEA, "prompt": ids})["choices"][0]["text"] == text
    other = post(server, C, {**SEA, "prompt": "One two three"})["choices"][0]["text"]
    for prompts in (["The sea is", "One two three"], [ids, post(server, "/tokenize", {"prompt": "One two three"})["tokens"]]):
        reply = post(server, C, {**SEA, "prompt": prompts, "n": 2})
        assert [choice["index"] for choice in reply["choices"]] == [0, 1, 2, 3]
        assert [choice["text"] for choice in reply["choices"]] == [text, text, other, other]


def test_n_streams_by_index(server):
    body = {**SEA, "n": 3, "temperature": 1, "seed": 7}
    whole = [choice["text"] for choice in post(server, C, body)["choices"]]
    texts = [""] * 3
    for chunk in events(server, C, body):
        if chunk != "[DONE]":
            texts[chunk["choices"][0]["index"]] += chunk["choices"][0]["text"]
    assert texts == whole


def test_seed(server):
    body = {**SEA, "temperature": 1.2, "max_tokens": 16}
    same = {post(server, C, {**body, "seed": 11})["choices"][0]["text"] for _ in range(3)}
    assert len(same) == 1
    assert len({post(server, C, {**body, "seed": seed})["choices"][0]["text"] for seed in range(8)}) > 1
    assert len({post(server, C, body)["choices"][0]["text"] for _ in range(8)}) > 1


def test_stop_strings(server):
    text = post(server, C, SEA)["choices"][0]["text"]
    stop = text[4:7]
    whole = post(server, C, {**SEA, "stop": [stop, "never there"]})
    choice = whole["choices"][0]
    assert choice["text"] == text[:text.index(stop)]
    assert choice["finish_reason"] == "stop" and choice["stop_reason"] == stop
    assert 0 < whole["usage"]["completion_tokens"] <= SEA["max_tokens"]
    streamed = "".join(chunk["choices"][0]["text"] for chunk in events(server, C, {**SEA, "stop": stop}) if chunk != "[DONE]")
    assert streamed == choice["text"]


def test_stop_that_never_comes_changes_nothing(server):
    text = post(server, C, SEA)["choices"][0]["text"]
    assert post(server, C, {**SEA, "stop": text + "!!"})["choices"][0]["text"] == text


def test_completion_logprobs(server):
    choice = post(server, C, {**SEA, "logprobs": 3})["choices"][0]
    logprobs = choice["logprobs"]
    count = len(logprobs["tokens"])
    assert count == len(logprobs["token_logprobs"]) == len(logprobs["top_logprobs"]) == len(logprobs["text_offset"])
    assert "".join(logprobs["tokens"]) == choice["text"]
    assert logprobs["text_offset"] == [len("".join(logprobs["tokens"][:i])) for i in range(count)]
    for token, value, top in zip(logprobs["tokens"], logprobs["token_logprobs"], logprobs["top_logprobs"]):
        assert value <= 0 and len(top) == 3
        assert math.isclose(top[token], max(top.values())) and math.isclose(top[token], value)  # greedy


def test_chat_logprobs(server):
    choice = post(server, H, {**HELLO, "logprobs": True, "top_logprobs": 2})["choices"][0]
    content = choice["logprobs"]["content"]
    assert bytes(byte for token in content for byte in token["bytes"]).decode() == choice["message"]["content"]
    assert all(token["logprob"] <= 0 and len(token["top_logprobs"]) == 2 for token in content)
    streamed = []
    for chunk in events(server, H, {**HELLO, "logprobs": True, "top_logprobs": 2}):
        if chunk != "[DONE]" and chunk["choices"][0]["logprobs"]:
            streamed += chunk["choices"][0]["logprobs"]["content"]
    assert streamed == content


def test_echo_with_prompt_logprobs(server):
    body = {**SEA, "echo": True, "logprobs": 1, "max_tokens": 0}
    reply = post(server, C, body)
    choice = reply["choices"][0]
    assert choice["text"] == SEA["prompt"] and choice["finish_reason"] == "length"
    assert reply["usage"]["completion_tokens"] == 0
    logprobs = choice["logprobs"]
    assert "".join(logprobs["tokens"]) == SEA["prompt"]
    assert logprobs["token_logprobs"][0] is None and logprobs["top_logprobs"][0] is None
    assert all(value <= 0 for value in logprobs["token_logprobs"][1:])
    for token, value, top in list(zip(logprobs["tokens"], logprobs["token_logprobs"], logprobs["top_logprobs"]))[1:]:
        assert top[token] == value and len(top) <= 2  # the best one, and the token itself
    longer = post(server, C, {**body, "max_tokens": 5})["choices"][0]
    assert longer["text"].startswith(SEA["prompt"]) and len(longer["text"]) > len(SEA["prompt"])
    assert longer["logprobs"]["token_logprobs"][:len(logprobs["tokens"])] == logprobs["token_logprobs"]
    assert "".join(longer["logprobs"]["tokens"]) == longer["text"]
    streamed = "".join(chunk["choices"][0]["text"] for chunk in events(server, C, {**body, "max_tokens": 5}) if chunk != "[DONE]")
    assert streamed == longer["text"]


def test_tokens_that_are_not_shown_move_no_offset(server):
    end = post(server, "/tokenize", {"prompt": "<|im_end|>"})["tokens"]
    assert len(end) == 1
    choice = post(server, C, {**SEA, "ignore_eos": True, "logit_bias": {str(end[0]): 100}, "logprobs": 0, "max_tokens": 3})["choices"][0]
    assert choice["text"] == "" and choice["logprobs"]["tokens"] == ["<|im_end|>"] * 3
    assert choice["logprobs"]["text_offset"] == [0, 0, 0]


def test_echo_without_logprobs(server):
    reply = post(server, C, {**SEA, "echo": True, "max_tokens": 0})
    assert reply["choices"][0]["text"] == SEA["prompt"] and reply["usage"]["completion_tokens"] == 0


def test_logit_bias_and_ignore_eos(server):
    token = post(server, "/tokenize", {"prompt": "sea", "add_special_tokens": False})["tokens"][0]
    text = post(server, "/detokenize", {"tokens": [token]})["prompt"]
    assert post(server, C, {**SEA, "max_tokens": 3, "logit_bias": {str(token): 100}})["choices"][0]["text"] == text * 3
    reply = post(server, H, {**HELLO, "max_tokens": 60, "ignore_eos": True})
    assert reply["usage"]["completion_tokens"] == 60


def test_content_is_never_a_special_token(server):
    """The end of a turn, written by a user, is text; in a completion's prompt it is the token."""
    def content(text):
        return post(server, "/tokenize", {"messages": [{"role": "user", "content": text}]})["tokens"]

    special = post(server, "/tokenize", {"prompt": "<|im_end|>"})["tokens"]
    plain = post(server, "/tokenize", {"prompt": "<|im_end|>", "parse_special": False})["tokens"]
    if len(special) == 1:
        assert len(plain) > 1
        assert content("<|im_end|>").count(special[0]) == content("x").count(special[0])


def test_content_parts_are_joined(server):
    parts = [{"type": "text", "text": "Say "}, {"type": "text", "text": "hello."}]
    reply = post(server, H, {**HELLO, "messages": [{"role": "user", "content": parts}]})
    assert reply["choices"][0]["message"] == post(server, H, HELLO)["choices"][0]["message"]


@pytest.mark.parametrize("text", ["plain", "naïve café ☕ 日本語 🎉", "tabs\tand\nlines\r\n", "  spaces  ", "\x01control\x7f"])
def test_tokenize_and_back(server, text):
    reply = post(server, "/tokenize", {"prompt": text, "add_special_tokens": False, "return_token_strs": True})
    assert reply["count"] == len(reply["tokens"]) == len(reply["token_strs"]) and reply["max_model_len"] > 0
    assert post(server, "/detokenize", {"tokens": reply["tokens"]})["prompt"] == text


def test_request_id_is_echoed(server):
    assert call(server, "POST", C, {**SEA, "max_tokens": 1}, {"X-Request-Id": "abc-123"})[1]["X-Request-Id"] == "abc-123"
    first, second = (call(server, "GET", "/health")[1]["X-Request-Id"] for _ in range(2))
    assert first and first != second


def test_keep_alive(server):
    connection = connect(server)
    local = None
    for path, body in [(C, SEA), (C, {**SEA, "stream": True}), (H, {"bad": 1}), ("/tokenize", {"prompt": "x"})]:
        connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
        connection.getresponse().read()
        assert local in (None, connection.sock.getsockname())
        local = connection.sock.getsockname()


def test_unknown_fields_are_ignored(server):
    assert post(server, C, {**SEA, "no_such_field": {"deep": [1, 2]}, "user": "u", "metadata": {"a": "b"}}) \
        ["choices"][0]["text"] == post(server, C, SEA)["choices"][0]["text"]


def test_metrics(server):
    post(server, C, SEA)
    text = call(server, "GET", "/metrics")[2]
    names = {line.split("{")[0].split(" ")[0] for line in text.splitlines() if line and not line.startswith("#")}
    for name in ("fastdecode_time_to_first_token_seconds_bucket", "fastdecode_time_between_tokens_seconds_sum",
                 "fastdecode_request_seconds_count", "fastdecode_gateway_queue_seconds_count", "fastdecode_requests_running",
                 "fastdecode_requests_waiting", "fastdecode_kv_pages_used", "fastdecode_prefill_tokens_total",
                 "vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:kv_cache_usage_perc"):
        assert name in names, name
    series = [line.rsplit(" ", 1)[0] for line in text.splitlines() if line and not line.startswith("#")]
    assert len(series) == len(set(series)), "a series is there twice"
    families = [line.split(" ")[2] for line in text.splitlines() if line.startswith("# TYPE ")]
    assert len(families) == len(set(families))
    for name, kind in (("kv_pages", "gauge"), ("place_up", "gauge"), ("place_lost_total", "counter")):
        assert f"# TYPE fastdecode_{name} {kind}\n" in text


@pytest.mark.parametrize("method,target,status,part", [
    ("GET", "http://{host}/v1/models", 200, '"object":"list"'), ("GET", "HTTP://{host}/v1/models?x=1", 200, '"object":"list"'),
    ("GET", "https://elsewhere.example:1/health", 200, "ok"), ("GET", "http://{host}/nowhere", 404, "unknown path"), ("PUT", "http://{host}/v1/models", 405, "only GET"),
    ("GET", "http:///v1/models", 400, "without a host"), ("GET", "http://user@{host}/v1/models", 400, "user's name"), ("GET", "ftp://{host}/v1/models", 404, "unknown path"),
    ("GET", "http://x%2Fv1/models", 400, "without a host"), ("GET", "http://x:abc/v1/models", 400, "without a host"), ("GET", "http://x:65536/v1/models", 400, "without a host"),
    ("GET", "http://[::1]:80/v1/models", 200, '"object":"list"'), ("GET", "http://[::1/v1/models", 400, "without a host"), ("GET", "http://x:/v1/models", 200, '"object":"list"'),
    ("GET", "http://{host}/v1%2Fmodels", 200, '"object":"list"'),
    ("OPTIONS", "*", 204, ""), ("OPTIONS", "http://{host}", 204, ""), ("GET", "*", 404, "unknown path"), ("GET", "http://{host}", 200, "<html")])
def test_targets(server, method, target, status, part):
    """A target may be a whole URL, as to a proxy (RFC 9112, 3.2.2): its host stands for the header's."""
    host = urlsplit(server.url).netloc
    with raw_socket(server) as connection:
        connection.sendall(f"{method} {target.format(host=host)} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n".encode())
        answer = b"".join(iter(lambda: connection.recv(65536), b"")).decode()
    assert answer.startswith(f"HTTP/1.1 {status} ") and part in answer, answer
    assert status != 204 or "Allow: GET, HEAD, POST" in answer
