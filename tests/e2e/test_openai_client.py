"""The official `openai` package against a running mesh: answers, streams, errors, cancellation."""
import openai
import pytest

from conftest import seconds, wait_until

pytestmark = pytest.mark.sanitizer

HELLO = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Say hello."}]


@pytest.fixture(scope="module")
def client(server):
    return openai.OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0, timeout=seconds(120))


@pytest.fixture(scope="module")
def server(real_mesh):
    return real_mesh


def test_models(client):
    models = client.models.list().data
    assert len(models) == 1
    assert client.models.retrieve(models[0].id).id == models[0].id


def test_chat(client, server):
    reply = client.chat.completions.create(model=server.model, messages=HELLO, max_tokens=16, temperature=0)
    assert reply.choices[0].message.role == "assistant" and reply.choices[0].message.content
    assert reply.usage.total_tokens == reply.usage.prompt_tokens + reply.usage.completion_tokens


def test_chat_stream(client, server):
    whole = client.chat.completions.create(model=server.model, messages=HELLO, max_tokens=16, temperature=0)
    text, usage, reason = "", None, None
    for chunk in client.chat.completions.create(model=server.model, messages=HELLO, max_completion_tokens=16, temperature=0,
                                                stream=True, stream_options={"include_usage": True}):
        usage = chunk.usage or usage
        for choice in chunk.choices:
            text += choice.delta.content or ""
            reason = choice.finish_reason or reason
    assert text == whole.choices[0].message.content
    assert usage == whole.usage and reason == whole.choices[0].finish_reason


def test_chat_logprobs(client, server):
    reply = client.chat.completions.create(model=server.model, messages=HELLO, max_tokens=4, logprobs=True, top_logprobs=3)
    assert all(len(token.top_logprobs) == 3 and token.bytes for token in reply.choices[0].logprobs.content)


def test_completion(client, server):
    body = dict(model=server.model, prompt=["One two", "The sea"], max_tokens=8, temperature=0)
    reply = client.completions.create(**body, logprobs=2, echo=True)
    assert len(reply.choices) == 2
    assert reply.choices[0].text.startswith("One two") and reply.choices[0].logprobs.token_logprobs[0] is None
    texts = ["", ""]
    for chunk in client.completions.create(**body, echo=True, stream=True):
        for choice in chunk.choices:
            texts[choice.index] += choice.text
    assert texts == [choice.text for choice in reply.choices]


def test_stop_and_penalties(client, server):
    reply = client.completions.create(model=server.model, prompt="1 2 3 4", max_tokens=32, temperature=0.7, seed=3, stop=["\n"],
                                      presence_penalty=0.5, frequency_penalty=0.5, logit_bias={"5": -10}, user="someone",
                                      extra_body={"top_k": 40, "min_p": 0.05, "repetition_penalty": 1.1})
    assert "\n" not in reply.choices[0].text


def test_bad_request(client, server):
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(model=server.model, messages=HELLO, temperature=9)
    assert caught.value.param == "temperature" and caught.value.type == "invalid_request_error"
    with pytest.raises(openai.BadRequestError) as caught:
        client.completions.create(model=server.model, prompt="word " * 20000)
    assert caught.value.code == "context_length_exceeded"
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(model=server.model, messages=HELLO, tools=[
            {"type": "function", "function": {"name": "f g", "parameters": {}}}])
    assert caught.value.param == "tools[0].function.name"


def test_unknown_model(client):
    with pytest.raises(openai.NotFoundError) as caught:
        client.chat.completions.create(model="gpt-17", messages=HELLO)
    assert caught.value.code == "model_not_found"


def running(mesh):
    """Requests of the mesh that run or wait."""
    return mesh.metric("fastdecode_requests_running") + mesh.metric("fastdecode_requests_waiting")


def test_cancel(client, server):
    """Closing a stream ends its sequence in the mesh: nothing goes on generating."""
    stream = client.completions.create(model=server.model, prompt="Once upon a time", max_tokens=1500, temperature=0, stream=True,
                                       extra_body={"ignore_eos": True})
    for number, _ in enumerate(stream):
        if number == 3:
            break
    assert running(server) == 1
    stream.close()
    wait_until(lambda: running(server) == 0, 5, "the sequence still runs although its client has left")


def test_async_streams_beside_each_other(server):
    import asyncio

    async def one(client, number):
        text = ""
        stream = await client.completions.create(model=server.model, prompt=f"Number {number} is", max_tokens=12, temperature=0,
                                                 stream=True)
        async for chunk in stream:
            text += chunk.choices[0].text
        return text

    async def all_of_them():
        async with openai.AsyncOpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0, timeout=seconds(120)) as client:
            return await asyncio.gather(*[one(client, number % 4) for number in range(16)])

    texts = asyncio.run(all_of_them())
    assert len(set(texts)) <= 4 and all(texts[i] == texts[i % 4] for i in range(16))
