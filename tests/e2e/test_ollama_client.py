"""The official `ollama` package against a running mesh: chats, generation, lists of models, errors."""
import json

import ollama
import pytest

from api_client import call, post
from conftest import seconds

pytestmark = pytest.mark.sanitizer

HELLO = [{"role": "user", "content": "Say hello."}]
GREEDY = {"temperature": 0, "num_predict": 8}


@pytest.fixture(scope="module")
def client(mesh):
    return ollama.Client(host=mesh.url, timeout=seconds(120))


def chat(mesh, messages):
    return post(mesh, "/v1/chat/completions", {"messages": messages, "temperature": 0, "max_tokens": 8})


def test_chat(client, mesh):
    reply, same = client.chat(model=mesh.model, messages=HELLO, options=GREEDY), chat(mesh, HELLO)
    assert reply.message.content == same["choices"][0]["message"]["content"] and reply.message.role == "assistant"
    assert reply.done and reply.done_reason == same["choices"][0]["finish_reason"]
    assert reply.prompt_eval_count == same["usage"]["prompt_tokens"] and reply.eval_count == same["usage"]["completion_tokens"]
    assert reply.total_duration >= reply.prompt_eval_duration + reply.eval_duration > 0


def test_chat_stream(client, mesh):
    parts = list(client.chat(model=mesh.model + ":latest", messages=HELLO, options=GREEDY, stream=True))
    assert "".join(part.message.content for part in parts) == chat(mesh, HELLO)["choices"][0]["message"]["content"]
    assert [part.done for part in parts] == [False] * (len(parts) - 1) + [True]


def test_lines_and_their_type(mesh):
    status, headers, text = call(mesh, "POST", "/api/chat", {"model": "default", "messages": HELLO, "options": GREEDY})
    assert status == 200 and headers["Content-Type"] == "application/x-ndjson"
    assert all(line.startswith("{") for line in text.splitlines())


def test_generate(client, mesh):
    same = chat(mesh, [{"role": "system", "content": "Be brief."}, *HELLO])["choices"][0]["message"]["content"]
    assert client.generate(model=mesh.model, prompt="Say hello.", system="Be brief.", options=GREEDY).response == same
    parts = client.generate(model=mesh.model, prompt="Say hello.", system="Be brief.", options=GREEDY, stream=True)
    assert "".join(part.response for part in parts) == same
    raw = post(mesh, "/v1/completions", {"prompt": "The sea is", "temperature": 0, "max_tokens": 8})["choices"][0]["text"]
    assert client.generate(model=mesh.model, prompt="The sea is", raw=True, options=GREEDY).response == raw


@pytest.mark.parametrize("stream", [False, True])
def test_nothing_to_answer_loads_the_model(client, mesh, stream):
    """Programs ask so before the first question; `keep_alive=0` asks for the model to be put away, which changes nothing here."""
    for ask in (lambda: client.generate(model=mesh.model, stream=stream, keep_alive="5m"), lambda: client.generate(model=mesh.model, raw=True, stream=stream),
                lambda: client.chat(model=mesh.model, messages=[], stream=stream), lambda: client.generate(model=mesh.model, prompt="", stream=stream, keep_alive=0)):
        reply = list(ask())[-1] if stream else ask()
        assert reply.done and reply.done_reason == "load" and not reply.eval_count
    with pytest.raises(ollama.ResponseError) as caught:
        client.generate(model="gpt-17")
    assert caught.value.status_code == 404


def test_options_are_fields(client, mesh):
    text = client.chat(model=mesh.model, messages=HELLO, options=GREEDY).message.content
    stop = text[2:4]
    reply = client.chat(model=mesh.model, messages=HELLO, options={**GREEDY, "stop": [stop], "num_ctx": 2048})
    assert reply.message.content == text[:text.index(stop)] and reply.done_reason == "stop"
    drawn = {client.chat(model=mesh.model, messages=HELLO, options={"temperature": 1.5, "seed": 4, "num_predict": 8}).message.content
             for _ in range(2)}
    assert len(drawn) == 1


def test_logprobs(client, mesh):
    tokens = post(mesh, "/v1/chat/completions", {"messages": HELLO, "temperature": 0, "max_tokens": 8, "logprobs": True, "top_logprobs": 2})["choices"][0]["logprobs"]["content"]
    for ask in (lambda **more: client.chat(model=mesh.model, messages=HELLO, options=GREEDY, logprobs=True, top_logprobs=2, **more),
                lambda **more: client.generate(model=mesh.model, prompt="Say hello.", options=GREEDY, logprobs=True, top_logprobs=2, **more)):
        whole = ask().logprobs
        assert [(one.token, one.logprob, [top.token for top in one.top_logprobs]) for one in whole] == [
            (one["token"], one["logprob"], [top["token"] for top in one["top_logprobs"]]) for one in tokens]
        assert [one.token for part in ask(stream=True) for one in part.logprobs or []] == [one["token"] for one in tokens]
    assert client.chat(model=mesh.model, messages=HELLO, options=GREEDY, logprobs=False).logprobs is None
    assert client.generate(model=mesh.model, prompt="x", raw=True, options=GREEDY, logprobs=False).response
    with pytest.raises(ollama.ResponseError, match="raw"):
        client.generate(model=mesh.model, prompt="x", raw=True, logprobs=True)


def test_models(client, mesh):
    name = client.list().models[0].model
    assert client.ps().models[0].model == name
    shown = client.show(name)
    assert {"completion", "tools"} <= set(shown.capabilities) <= {"completion", "tools", "insert", "thinking"}
    info, family = shown.modelinfo, shown.details.family
    assert info["general.architecture"] == family and info["general.basename"] == name and shown.details.families == [family]
    assert info[f"{family}.context_length"] == info["general.context_length"] == client.ps().models[0].context_length
    assert info[f"{family}.embedding_length"] > 0 and info[f"{family}.block_count"] > 0 and info["general.parameter_count"] > 0
    listed = client.list().models[0]
    assert listed.details == client.ps().models[0].details == shown.details and listed.size > 0
    assert shown.details.quantization_level and shown.details.parameter_size and shown.details.format == "gguf"
    assert client.show("default:latest").modelinfo == shown.modelinfo
    version = json.loads(call(mesh, "GET", "/api/version")[2])["version"]
    assert tuple(map(int, version.split("."))) >= (0, 6, 4), "Visual Studio Code takes no older one"


@pytest.mark.parametrize("status,ask", [
    (404, lambda client: client.chat(model="gpt-17", messages=HELLO)),
    (404, lambda client: client.show("gpt-17")),
    (400, lambda client: client.embed(model="default", input="x")),  # this model makes no vectors
    (400, lambda client: client.chat(model="default", messages=HELLO, options={"temperature": 101})),
    (400, lambda client: client.generate(model="default", prompt="x", images=[b"x"])),
])
def test_errors(client, status, ask):
    with pytest.raises(ollama.ResponseError) as caught:
        ask(client)
    assert caught.value.status_code == status and caught.value.error


@pytest.mark.parametrize("path,body", [("/api/chat", {"messages": HELLO}), ("/api/generate", {"prompt": "Say hello."})])
def test_templates_are_not_taken_silently(mesh, path, body):
    """Ollama's own, in Go's notation, is a 400; where Ollama has none it is named as ignored, and the prompt is as without."""
    body = {"model": "default", "stream": False, **body}
    status, _, text = call(mesh, "POST", path, {**body, "options": GREEDY, "template": "{{ .Prompt }}"})
    assert status == 400 and "'template' is not supported" in text
    plain = post(mesh, path, {**body, "options": GREEDY})
    for more in ({"chat_template": "x", "options": GREEDY}, {"options": {**GREEDY, "template": "x"}}, {"options": {**GREEDY, "chat_template": "x"}}):
        status, headers, text = call(mesh, "POST", path, {**body, **more})
        assert status == 200 and headers["x-ignored-fields"] == ("template" if "template" in more["options"] else "chat_template"), (more, headers)
        assert json.loads(text)["prompt_eval_count"] == plain["prompt_eval_count"]
