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
