"""Agents in other forms of the API: what the model thinks, says and calls, and that results reach the next prompt."""
import json

import anthropic
import ollama
import openai
import pytest

from conftest import seconds
from played_scheduler import Played
from test_tools import TEMPLATES, said

FUNCTION = {"name": "get_weather", "description": "Tells the weather.",
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}}
ROUNDS = 3


def written(number):
    call = f"<tool_call>\n{said('get_weather', {'city': f'Aix {number}'})}\n</tool_call>"
    other = f"<tool_call>\n{said('get_weather', {'city': f'Nice {number}'})}\n</tool_call>"
    return f"<think>\nStep {number}\n</think>\n\nLet me see {number}.\n{call}\n{other}"


@pytest.fixture(scope="module")
def played():
    with Played(template=TEMPLATES["qwen3"]) as running:
        yield running


def play(played):
    played.answer(*[written(number) for number in range(ROUNDS)], "<think>\nEnough.\n</think>\n\nIt is blue.")


def check(played, seen, text, thought):
    """What was called, said and thought, and the last prompt."""
    assert seen == [f"{city} {number}" for number in range(ROUNDS) for city in ("Aix", "Nice")]
    assert text == "It is blue." and thought == [*[f"Step {number}" for number in range(ROUNDS)], "Enough."]
    prompt = played.prompt()
    for city in seen:
        assert prompt.count(city) == 2, prompt  # of the call, and of its result
    assert all(prompt.count(f"Let me see {number}.") == 1 for number in range(ROUNDS))


@pytest.mark.parametrize("stream", [False, True])
def test_anthropic(played, stream):
    client = anthropic.Anthropic(base_url=played.url, api_key="none", max_retries=0, timeout=seconds(60))
    tools = [{"name": FUNCTION["name"], "description": FUNCTION["description"], "input_schema": FUNCTION["parameters"]}]
    messages, seen, thought = [{"role": "user", "content": "How is it?"}], [], []
    play(played)
    while True:
        fields = dict(model="default", messages=messages, tools=tools, max_tokens=400)
        if stream:
            with client.messages.stream(**fields) as events:
                reply = events.get_final_message()
        else:
            reply = client.messages.create(**fields)
        thought += [block.thinking for block in reply.content if block.type == "thinking"]
        if reply.stop_reason != "tool_use":
            break
        calls = [block for block in reply.content if block.type == "tool_use"]
        seen += [call.input["city"] for call in calls]
        messages.append({"role": "assistant", "content": [block.to_dict() for block in reply.content]})
        messages.append({"role": "user", "content": [
            {"type": "tool_result", "tool_use_id": call.id, "content": f"{call.input['city']}: blue"} for call in calls]})
    assert reply.stop_reason == "end_turn"
    check(played, seen, "".join(block.text for block in reply.content if block.type == "text"), thought)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("kept", [False, True])
def test_responses(played, stream, kept):
    """The conversation is the server's, found by the last answer's id, or the client's, sent as items."""
    client = openai.OpenAI(base_url=played.url + "/v1", api_key="none", max_retries=0, timeout=seconds(60))
    items, previous, seen, thought = [{"role": "user", "content": "How is it?"}], None, [], []
    play(played)
    while True:
        fields = dict(model="default", input=items, tools=[{"type": "function", **FUNCTION}], store=kept, max_output_tokens=400,
                      **({"previous_response_id": previous} if previous else {}))
        if stream:
            events = list(client.responses.create(**fields, stream=True))
            reply = events[-1].response
            deltas = [event.delta for event in events if event.type == "response.function_call_arguments.delta"]
            assert "".join(deltas) == "".join(item.arguments for item in reply.output if item.type == "function_call")
        else:
            reply = client.responses.create(**fields)
        assert reply.usage.output_tokens_details.reasoning_tokens > 0
        thought += [item.content[0].text for item in reply.output if item.type == "reasoning"]
        calls = [item for item in reply.output if item.type == "function_call"]
        if not calls:
            break
        seen += [json.loads(call.arguments)["city"] for call in calls]
        results = [{"type": "function_call_output", "call_id": call.call_id, "output": f"{json.loads(call.arguments)['city']}: blue"}
                   for call in calls]
        previous, items = (reply.id, results) if kept else (None, [*items, *[item.to_dict() for item in reply.output], *results])
    check(played, seen, reply.output_text, thought)


def test_logprobs_are_of_what_is_said(played):
    """Not of what is thought or called."""
    client = openai.OpenAI(base_url=played.url + "/v1", api_key="none", max_retries=0, timeout=seconds(60))
    fields = {"model": "default", "input": "How is it?", "tools": [{"type": "function", **FUNCTION}], "max_output_tokens": 400, "include": ["message.output_text.logprobs"]}
    played.answer(written(1), written(1))
    reply = client.responses.create(**fields)
    said_text = next(item.content[0] for item in reply.output if item.type == "message")
    assert said_text.text == "Let me see 1." and "".join(one.token for one in said_text.logprobs).strip() == "Let me see 1."
    events = list(client.responses.create(**fields, stream=True))
    assert "".join(one.token for event in events if event.type == "response.output_text.done" for one in event.logprobs).strip() == "Let me see 1."


PATCH = "*** Begin Patch\n+a \"line\"\n\u00e9"
PATCHES = {"name": "apply_patch", "description": "Changes files."}


def patch(text):
    return f"<tool_call>\n{said('apply_patch', {'input': text})}\n</tool_call>"


@pytest.mark.parametrize("stream", [False, True])
def test_custom_tools(played, stream):
    """A tool whose input is a text, in both of OpenAI's forms: what is called, and that it and its result reach the next prompt."""
    client = openai.OpenAI(base_url=played.url + "/v1", api_key="none", max_retries=0, timeout=seconds(60))
    played.answer(patch(PATCH) + "\n" + patch("second"), "It is done.", "It is done.", patch(PATCH) + "\n" + patch("second"), "It is done.")
    fields = {"model": "default", "input": [{"role": "user", "content": "Go."}], "tools": [{"type": "custom", **PATCHES}, {"type": "function", **FUNCTION}], "max_output_tokens": 400}
    if stream:
        events = list(client.responses.create(**fields, stream=True))
        reply = events[-1].response
        assert "".join(event.delta for event in events if event.type == "response.custom_tool_call_input.delta") == PATCH + "second"
        assert [event.input for event in events if event.type == "response.custom_tool_call_input.done"] == [PATCH, "second"]
    else:
        reply = client.responses.create(**fields)
    calls = [item for item in reply.output if item.type == "custom_tool_call"]
    assert [(call.name, call.input) for call in calls] == [("apply_patch", PATCH), ("apply_patch", "second")] and len(reply.output) == 2
    results = [{"type": "custom_tool_call_output", "call_id": call.call_id, "output": "patched"} for call in calls]
    told = client.responses.create(**{**fields, "input": [*fields["input"], *[item.to_dict() for item in reply.output], *results]})
    first_prompt = played.prompt()
    kept = client.responses.create(**{**fields, "input": results}, previous_response_id=reply.id)
    assert played.prompt() == first_prompt
    for later in (told, kept):
        listed = [item.to_dict() for item in client.responses.input_items.list(later.id, order="asc")]
        assert [{key: value for key, value in item.items() if key in ("type", "call_id", "name", "input", "output")} for item in listed[1:]] == [
            *[{"type": "custom_tool_call", "call_id": call.call_id, "name": call.name, "input": call.input} for call in calls], *results]
    assert told.output_text == "It is done." and json.dumps(PATCH, ensure_ascii=False) in first_prompt and first_prompt.count("patched") == 2
    messages, tools = [{"role": "user", "content": "Go."}], [{"type": "custom", "custom": PATCHES}]
    if stream:
        chunks = [chunk.choices[0].delta for chunk in client.chat.completions.create(model="default", messages=messages, tools=tools, max_tokens=400, stream=True)]
        message = {"role": "assistant", "content": None, "tool_calls": [{key: value for key, value in one.to_dict().items() if key != "index"} for delta in chunks for one in delta.tool_calls or []]}
    else:
        message = client.chat.completions.create(model="default", messages=messages, tools=tools, max_tokens=400).choices[0].message.to_dict()
    assert [(one["type"], one["custom"]) for one in message["tool_calls"]] == [("custom", {"name": "apply_patch", "input": text}) for text in (PATCH, "second")]
    messages += [message, *[{"role": "tool", "tool_call_id": one["id"], "content": "patched"} for one in message["tool_calls"]]]
    assert client.chat.completions.create(model="default", messages=messages, tools=tools, max_tokens=400).choices[0].message.content == "It is done."
    assert json.dumps(PATCH, ensure_ascii=False) in played.prompt() and played.prompt().count("patched") == 2


def test_custom_tools_that_are_cut_off(played):
    """There is as much of the input as was written."""
    client = openai.OpenAI(base_url=played.url + "/v1", api_key="none", max_retries=0, timeout=seconds(60))
    most = len(played.ids(patch("a b c d e f g")[:-20]))
    played.answer(patch("a b c d e f g h"))
    reply = client.responses.create(model="default", input="Go.", tools=[{"type": "custom", **PATCHES}], tool_choice={"type": "custom", "name": "apply_patch"}, max_output_tokens=most)
    (item,) = reply.output
    assert reply.status == "incomplete" and item.type == "custom_tool_call" and item.input and "a b c d e f g h".startswith(item.input)
    text = 'a\n\x01"b"\\\x02c'  # cut off within each of its escapes
    begun, whole = (played.ids(f"<tool_call>\n{said('apply_patch', {'input': text})[:-bytes_left]}") for bytes_left in (len(json.dumps(text)), 2))
    for most in range(len(begun), len(whole)):
        played.answer(patch(text))
        message = client.chat.completions.create(model="default", messages=[{"role": "user", "content": "Go."}], tools=[{"type": "custom", "custom": PATCHES}], max_tokens=most).choices[0].message
        assert text.startswith(message.tool_calls[0].custom.input), (most, message)


@pytest.mark.parametrize("stream", [False, True])
def test_ollama(played, stream):
    client = ollama.Client(host=played.url, timeout=seconds(60))
    messages, seen, thought = [{"role": "user", "content": "How is it?"}], [], []
    play(played)
    while True:
        fields = dict(model="default", messages=messages, tools=[{"type": "function", "function": FUNCTION}], options={"num_predict": 400})
        parts = list(client.chat(**fields, stream=True)) if stream else [client.chat(**fields)]
        text = "".join(part.message.content or "" for part in parts)
        thought.append("".join(part.message.thinking or "" for part in parts))
        calls = [call for part in parts for call in part.message.tool_calls or []]
        if not calls:
            break
        seen += [call.function.arguments["city"] for call in calls]
        messages.append({"role": "assistant", "content": text, "tool_calls": [call.model_dump() for call in calls]})
        messages += [{"role": "tool", "content": f"{call.function.arguments['city']}: blue", "tool_name": call.function.name} for call in calls]
    check(played, seen, text, thought)


def test_thinking_is_the_clients_choice(played):
    """A template that thinks by default is told not to."""
    client = anthropic.Anthropic(base_url=played.url, api_key="none", max_retries=0, timeout=seconds(60))
    ask = dict(model="default", messages=[{"role": "user", "content": "How is it?"}], max_tokens=400)
    played.answer("Blue.", "<think>\nHm.\n</think>\n\nBlue.")
    assert [block.type for block in client.messages.create(**ask, thinking={"type": "disabled"}).content] == ["text"]
    assert "<think>\n\n</think>" in played.prompt()
    reply = client.messages.create(**ask, thinking={"type": "enabled", "budget_tokens": 1024})
    assert [block.type for block in reply.content] == ["thinking", "text"]
