"""/v1/responses with the official `openai` package: answers, events, conversations that are kept, and their limits."""
import openai
import pytest

from api_client import call, post
from conftest import seconds

pytestmark = pytest.mark.sanitizer

HELLO = [{"role": "user", "content": "Say hello."}]


def client_of(mesh, key="none"):
    return openai.OpenAI(base_url=mesh.url + "/v1", api_key=key, max_retries=0, timeout=seconds(120))


@pytest.fixture(scope="module")
def client(mesh):
    return client_of(mesh)


def ask(client, text="Say hello.", **fields):
    return client.responses.create(model="default", input=text, temperature=0, **{"max_output_tokens": 8, **fields})


def chat(mesh, messages, **fields):
    return post(mesh, "/v1/chat/completions", {"messages": messages, "temperature": 0, "max_tokens": 8, **fields})


def test_a_response(client, mesh):
    reply = ask(client, instructions="Be brief.", metadata={"a": "b"}, user="me")
    same = chat(mesh, [{"role": "system", "content": "Be brief."}, *HELLO])
    assert reply.id.startswith("resp_") and reply.object == "response" and reply.error is None
    assert reply.output_text == same["choices"][0]["message"]["content"]
    assert reply.instructions == "Be brief." and reply.metadata == {"a": "b"} and reply.max_output_tokens == 8
    assert (reply.status == "incomplete") == (same["choices"][0]["finish_reason"] == "length")
    assert reply.status == "completed" or reply.incomplete_details.reason == "max_output_tokens"
    assert (reply.usage.input_tokens, reply.usage.output_tokens, reply.usage.total_tokens) \
        == tuple(same["usage"][name] for name in ("prompt_tokens", "completion_tokens", "total_tokens"))


def test_items_are_messages(client):
    parts = [{"role": "user", "content": [{"type": "input_text", "text": "Say "}, {"type": "input_text", "text": "hello."}]}]
    assert ask(client, parts).output_text == ask(client).output_text


def test_events(client):
    whole = ask(client)
    events = list(ask(client, stream=True))
    kinds = [event.type for event in events]
    assert kinds[:4] == ["response.created", "response.in_progress", "response.output_item.added", "response.content_part.added"]
    assert kinds[-4:-1] == ["response.output_text.done", "response.content_part.done", "response.output_item.done"]
    assert kinds[-1] == "response." + whole.status and set(kinds[4:-4]) == {"response.output_text.delta"}
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert "".join(event.delta for event in events if event.type == "response.output_text.delta") == whole.output_text
    final = events[-1].response
    assert final.output_text == whole.output_text and final.usage.output_tokens == whole.usage.output_tokens
    assert client.responses.retrieve(final.id) == final


def test_the_clients_own_stream(client):
    whole = ask(client).output_text
    body = {"stop": whole[4:7]}  # so that it ends before its length
    with client.responses.stream(model="default", input="Say hello.", temperature=0, extra_body=body) as stream:
        text = "".join(event.delta for event in stream if event.type == "response.output_text.delta")
        final = stream.get_final_response()
    assert final.status == "completed" and final.output_text == text == whole[:whole.index(whole[4:7])]


def test_a_conversation(client, mesh):
    """The next request has what was said before, and its own instructions only."""
    first = ask(client, instructions="Be brief.")
    second = ask(client, "And now?", previous_response_id=first.id, instructions="Be long.")
    messages = [{"role": "system", "content": "Be long."}, *HELLO, {"role": "assistant", "content": first.output_text},
                {"role": "user", "content": "And now?"}]
    assert second.output_text == chat(mesh, messages)["choices"][0]["message"]["content"]
    assert second.previous_response_id == first.id
    third = ask(client, "Go on.", previous_response_id=second.id)
    assert third.usage.input_tokens > second.usage.input_tokens


def test_kept_and_removed(client):
    reply = ask(client)
    assert client.responses.retrieve(reply.id) == reply
    with pytest.raises(openai.BadRequestError, match="Cannot cancel a synchronous response"):
        client.responses.cancel(reply.id)
    client.responses.delete(reply.id)
    for gone in (lambda: client.responses.retrieve(reply.id), lambda: client.responses.delete(reply.id), lambda: client.responses.cancel(reply.id),
                 lambda: client.responses.input_items.list(reply.id),
                 lambda: ask(client, previous_response_id=reply.id)):
        with pytest.raises(openai.NotFoundError):
            gone()
    for path in ("input_items/more", "more/input_items", "more"):
        with pytest.raises(openai.NotFoundError, match="unknown path"):
            client.get(f"/responses/{reply.id}/{path}", cast_to=object)
    quiet = ask(client, store=False)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(quiet.id)


def test_logprobs(client, mesh):
    """Those of a chat, beside the text: in each delta, and in the whole."""
    tokens = chat(mesh, HELLO, logprobs=True, top_logprobs=2)["choices"][0]["logprobs"]["content"]
    fields = {"include": ["message.output_text.logprobs", "reasoning.encrypted_content", "file_search_call.results"], "top_logprobs": 2}
    whole = ask(client, **fields).output[0].content[0].logprobs
    assert [one.to_dict() for one in whole] == tokens
    events = list(ask(client, stream=True, **fields))
    assert [one.to_dict()["token"] for event in events if event.type == "response.output_text.delta" for one in event.logprobs] == [one["token"] for one in tokens]
    done = next(event for event in events if event.type == "response.output_text.done")
    assert len(done.logprobs) == len(tokens) and events[-1].response.output[0].content[0].logprobs == whole
    assert [one.top_logprobs for one in ask(client, include=fields["include"]).output[0].content[0].logprobs] == [[]] * len(tokens)
    assert ask(client).output[0].content[0].logprobs == [] and ask(client, top_logprobs=0).top_logprobs == 0
    with pytest.raises(openai.BadRequestError, match="top_logprobs"):
        ask(client, top_logprobs=21)


LARGE = {"type": "function", "name": "hash", "parameters": {"type": "object", "properties": {"a": {"type": "integer", "maximum": 10 ** 30}}}, "strict": False}


def test_references_to_items(client):
    """An item of a kept response may be named instead of sent."""
    first = ask(client, metadata={"key": "value"}, tools=[LARGE])
    sent = ask(client, [*HELLO, {"role": "assistant", "content": first.output_text}, {"role": "user", "content": "And now?"}])
    for reference in ({"type": "item_reference", "id": first.output[0].id}, {"id": first.output[0].id}):
        named = ask(client, [*HELLO, reference, {"role": "user", "content": "And now?"}])
        assert (named.output_text, named.usage.input_tokens) == (sent.output_text, sent.usage.input_tokens)
    for wrong in ("msg_1", "msg_" + "0" * 32 + "_0", first.output[0].id[:-1] + "7", "_", "x" * 1000):
        with pytest.raises(openai.NotFoundError, match="not there"):
            ask(client, [{"type": "item_reference", "id": wrong}])


TOOL = {"type": "function", "name": "add", "description": "Adds", "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}}, "strict": False}
CALLS = [{"role": "user", "content": [{"type": "input_text", "text": "1+1?"}]}, {"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]},
         {"type": "function_call", "call_id": "c1", "name": "add", "arguments": '{"a": 1}'}, {"type": "function_call_output", "call_id": "c1", "output": "2"}]


def test_input_items(client):
    """What was asked, with what came before: newest first, in pages."""
    first = ask(client, CALLS, tools=[TOOL])
    second = ask(client, "And now?", previous_response_id=first.id)
    items = list(client.responses.input_items.list(second.id, order="asc"))
    assert [item.type for item in items] == ["message", "reasoning", "function_call", "function_call_output", "message", "message"]
    assert items[0].content[0].text == "1+1?" and items[1].content[0].text == "hm" and (items[2].name, items[2].arguments) == ("add", '{"a": 1}')
    assert (items[3].call_id, items[3].output) == ("c1", "2") and items[4].role == "assistant" and items[4].content[0].text == first.output_text
    assert items[5].role == "user" and len({item.id for item in items}) == 6
    page = client.responses.input_items.list(second.id, limit=4)
    assert page.has_more and [item.id for item in page.data] == [item.id for item in items[:1:-1]]
    assert [item.id for item in client.responses.input_items.list(second.id, limit=4)] == [item.id for item in items[::-1]]  # the client turns the page
    for wrong in ({"limit": 0}, {"limit": 101}, {"order": "up"}, {"after": "msg_0"}):
        with pytest.raises(openai.BadRequestError) as caught:
            client.responses.input_items.list(second.id, **wrong)
        assert caught.value.param == next(iter(wrong))


def test_input_tokens(client, mesh):
    """The same body, counted and not answered."""
    path = "/v1/responses/input_tokens"
    for fields in ({"input": "Say hello."}, {"input": CALLS, "tools": [TOOL], "instructions": "Be brief."}, {"input": "x", "reasoning": {"effort": "low"}},
                   {"input": "And now?", "previous_response_id": ask(client).id}):
        wanted = client.responses.create(model="default", max_output_tokens=1, **fields).usage.input_tokens
        assert post(mesh, path, {"model": "default", **fields}) == {"object": "response.input_tokens", "input_tokens": wanted}, fields
    assert post(mesh, path, {"instructions": "Be brief."})["input_tokens"] > 0
    assert post(mesh, path, {"model": "default"}, 400)["error"]["param"] == "input"
    assert post(mesh, path, {"model": "gpt-17", "input": "x"}, 404)["error"]["code"] == "model_not_found"
    assert call(mesh, "GET", path)[0] == 405


def test_limits_and_owners(start_mesh, tmp_path):
    """A key has its own answers, the oldest of which go; a mesh may keep none."""
    path = tmp_path / "keys"
    path.write_text("sk-one\nsk-two\n")
    path.chmod(0o600)
    mesh = start_mesh(env={"FD_API_KEY_FILE": str(path), "FD_RESPONSES_PER_KEY": "2"})
    one, two = client_of(mesh, "sk-one"), client_of(mesh, "sk-two")
    replies = [ask(one, max_output_tokens=1) for _ in range(3)]
    other = ask(two, max_output_tokens=1)
    with pytest.raises(openai.NotFoundError):
        one.responses.retrieve(replies[0].id)
    assert one.responses.retrieve(replies[2].id).id == replies[2].id and two.responses.retrieve(other.id).id == other.id
    for stranger in (lambda: two.responses.retrieve(replies[2].id), lambda: two.responses.delete(replies[2].id),
                     lambda: ask(two, previous_response_id=replies[2].id)):
        with pytest.raises(openai.NotFoundError):
            stranger()
    none = start_mesh(env={"FD_RESPONSES_MEMORY": "0"})
    reply = ask(client_of(none), max_output_tokens=1)
    with pytest.raises(openai.BadRequestError) as caught:
        ask(client_of(none), previous_response_id=reply.id)
    assert "--responses-memory" in caught.value.body["message"]


def test_errors(client):
    with pytest.raises(openai.BadRequestError) as caught:
        ask(client, max_output_tokens=0)
    assert caught.value.param == "max_output_tokens"
    with pytest.raises(openai.BadRequestError) as caught:
        ask(client, "word " * 20000)
    assert caught.value.code == "context_length_exceeded" and caught.value.param == "input"
