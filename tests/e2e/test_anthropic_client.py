"""The official `anthropic` package against a running mesh: messages, streams, counts, errors, keys."""
import typing

import anthropic
import pydantic
import pytest

from api_client import post
from conftest import seconds

pytestmark = pytest.mark.sanitizer

HELLO = [{"role": "user", "content": "Say hello."}]
GREEDY = {"extra_body": {"temperature": 0}}


@pytest.fixture(scope="module")
def client(mesh):
    return anthropic.Anthropic(base_url=mesh.url, api_key="none", max_retries=0, timeout=seconds(120))


def chat(mesh, messages, **fields):
    return post(mesh, "/v1/chat/completions", {"messages": messages, "temperature": 0, **fields})


def test_a_message(client, mesh):
    reply = client.messages.create(model=mesh.model, max_tokens=8, system="Be brief.", messages=HELLO, **GREEDY)
    same = chat(mesh, [{"role": "system", "content": "Be brief."}, *HELLO], max_tokens=8)
    assert reply.id.startswith("msg_") and reply.type == "message" and reply.role == "assistant"
    assert [block.text for block in reply.content] == [same["choices"][0]["message"]["content"]]
    assert reply.stop_reason == {"length": "max_tokens", "stop": "end_turn"}[same["choices"][0]["finish_reason"]]
    assert reply.usage.input_tokens + reply.usage.cache_read_input_tokens == same["usage"]["prompt_tokens"]
    assert reply.usage.output_tokens == same["usage"]["completion_tokens"]


def test_a_stream_is_the_same_message(client, mesh):
    whole = client.messages.create(model=mesh.model, max_tokens=12, messages=HELLO, **GREEDY)
    with client.messages.stream(model=mesh.model, max_tokens=12, messages=HELLO, **GREEDY) as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    assert text == whole.content[0].text and final.content[0].text == text
    assert final.stop_reason == whole.stop_reason and final.usage.output_tokens == whole.usage.output_tokens
    assert final.usage.input_tokens + final.usage.cache_read_input_tokens \
        == whole.usage.input_tokens + whole.usage.cache_read_input_tokens


def test_events_in_their_order(client, mesh):
    kinds = [event.type for event in client.messages.create(model=mesh.model, max_tokens=4, messages=HELLO, stream=True, **GREEDY)]
    assert kinds[:2] == ["message_start", "content_block_start"]
    assert kinds[-3:] == ["content_block_stop", "message_delta", "message_stop"]
    assert set(kinds[2:-3]) == {"content_block_delta"}


def test_stop_sequence(client, mesh):
    text = client.messages.create(model=mesh.model, max_tokens=12, messages=HELLO, **GREEDY).content[0].text
    stop = text[3:6]
    reply = client.messages.create(model=mesh.model, max_tokens=12, messages=HELLO, stop_sequences=[stop], **GREEDY)
    assert reply.content[0].text == text[:text.index(stop)]
    assert reply.stop_reason == "stop_sequence" and reply.stop_sequence == stop


def test_a_last_message_of_the_assistant_is_continued(client, mesh):
    begun = [*HELLO, {"role": "assistant", "content": "Hello, my dear"}]
    reply = client.messages.create(model=mesh.model, max_tokens=8, messages=begun, **GREEDY)
    same = chat(mesh, begun, max_tokens=8, continue_final_message=True)
    assert reply.content[0].text == same["choices"][0]["message"]["content"]


def test_parse(client, mesh):
    """parse() sends a model's schema as output_config.format, and the answer is one of it."""
    class Place(pydantic.BaseModel):
        kind: typing.Literal["town", "village"]
        seats: int
        open: bool

    hot = {"extra_body": {"temperature": 1.5, "seed": 3}}
    replies = [client.messages.parse(model=mesh.model, max_tokens=400, messages=HELLO, output_format=Place, **hot)]
    with client.messages.stream(model=mesh.model, max_tokens=400, messages=HELLO, output_format=Place, **hot) as stream:
        replies.append(stream.get_final_message())
    for reply in replies:
        assert reply.stop_reason == "end_turn" and isinstance(reply.parsed_output, Place), reply
    assert replies[0].parsed_output == replies[1].parsed_output


@pytest.mark.parametrize("stream", [False, True])
def test_a_prompt_that_is_only_cached(client, mesh, stream):
    """`max_tokens` 0: no answer, and the next request with the same beginning finds it."""
    messages = [{"role": "user", "content": f"It is {stream} that " + "the sea is deep and wide, " * 12}]
    if stream:
        with client.messages.stream(model=mesh.model, max_tokens=0, messages=messages) as events:
            reply = events.get_final_message()
    else:
        reply = client.messages.create(model=mesh.model, max_tokens=0, messages=messages)
    assert reply.content == [] and reply.stop_reason == "max_tokens" and reply.usage.output_tokens == 0 and reply.usage.input_tokens > 0
    assert client.messages.create(model=mesh.model, max_tokens=1, messages=messages).usage.cache_read_input_tokens > 0


def test_count_tokens(client, mesh):
    assert client.messages.count_tokens(model=mesh.model, messages=HELLO).input_tokens \
        == post(mesh, "/tokenize", {"messages": HELLO})["count"]


def test_models(client):
    models = client.models.list().data
    assert [client.models.retrieve(model.id).id for model in models] == [model.id for model in models]


def test_errors(client, mesh):
    with pytest.raises(anthropic.NotFoundError) as caught:
        client.messages.create(model="gpt-17", max_tokens=1, messages=HELLO)
    assert caught.value.body["error"]["type"] == "not_found_error" and caught.value.request_id
    with pytest.raises(anthropic.BadRequestError) as caught:
        client.messages.create(model=mesh.model, max_tokens=1, messages=[{"role": "user", "content": [{"type": "image", "source": {}}]}])
    assert "messages[0].content[0]" in caught.value.body["error"]["message"]
    unknown = {"type": "json_schema", "schema": {"type": "array", "minItems": -1}}
    with pytest.raises(anthropic.BadRequestError) as caught:
        client.messages.create(model=mesh.model, max_tokens=1, messages=HELLO, output_config={"format": unknown})
    assert caught.value.body["error"]["message"].startswith("'output_config.format.schema': #/minItems: ")


def test_a_key_of_its_own_header(start_mesh, tmp_path):
    path = tmp_path / "keys"
    path.write_text("sk-right\n")
    path.chmod(0o600)
    mesh = start_mesh(env={"FD_API_KEY_FILE": str(path)})
    right = anthropic.Anthropic(base_url=mesh.url, api_key="sk-right", max_retries=0, timeout=seconds(120))
    assert right.messages.create(model=mesh.model, max_tokens=1, messages=HELLO).content
    wrong = anthropic.Anthropic(base_url=mesh.url, api_key="sk-wrong", max_retries=0, timeout=seconds(120))
    with pytest.raises(anthropic.AuthenticationError) as caught:
        wrong.messages.create(model=mesh.model, max_tokens=1, messages=HELLO)
    assert caught.value.body["error"]["type"] == "authentication_error"
