"""Tools and reasoning at the gateway: what the models of ten families write is forced, what clients get is looked at, whole and streamed."""
import json
import os
import random
import re

import openai
import pytest

from api_client import call, events, post
from conftest import BUILD, MODEL, ROOT, SEED, fastdecode, run, seconds, wait_until
from played_scheduler import FINISH_EOS, Played
from rpc_client import decode
from rpc_client import one as last

H = "/v1/chat/completions"
with open(os.path.join(ROOT, "tests", "golden", "chat_tools.json"), encoding="ascii") as golden:
    GOLDEN = json.load(golden)
TEMPLATES, TOOLS = GOLDEN["templates"], GOLDEN["tools"]
ASK = [{"role": "user", "content": "How is it in Aix?"}]
SUN = {"city": "Aix \"é\"", "days": 3}
FIND = {"query": "sun\n<b>", "where": ["a", "b"], "more": {"exact": True, "n": None}}


def said(name, arguments, key="arguments"):
    return json.dumps({"name": name, key: arguments}, ensure_ascii=False)


def tagged(name, arguments):
    lines = "".join(f"<parameter={key}>\n{value if isinstance(value, str) else json.dumps(value)}\n</parameter>\n" for key, value in arguments.items())
    return f"<tool_call>\n<function={name}>\n{lines}</function>\n</tool_call>"


def gemma(value):
    if isinstance(value, str):
        return f"<escape>{value}<escape>"
    if isinstance(value, dict):
        return "{" + ",".join(f"{key}:{gemma(inner)}" for key, inner in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(gemma, value)) + "]"
    return json.dumps(value)


def deepseek(name, arguments):
    return f"<｜tool▁call▁begin｜>function<｜tool▁sep｜>{name}\n```json\n{json.dumps(arguments)}\n```<｜tool▁call▁end｜>"


THINK = "<think>\nI must look.\n</think>\n\n"
BOTH = [("get_weather", SUN), ("search", FIND)]
# template, what the model writes, reasoning, content, calls
FAMILIES = {
    "hermes": ("Let me see.\n" + "\n".join(f"<tool_call>\n{said(*one)}\n</tool_call>" for one in BOTH), None, "Let me see.", BOTH),
    "qwen3": (THINK + f"<tool_call>\n{said(*BOTH[0])}\n</tool_call>", "I must look.", None, BOTH[:1]),
    "llama3": (said("search", FIND, "parameters"), None, None, BOTH[1:]),
    "mistral": ("[TOOL_CALLS] [" + ", ".join(said(*one) for one in BOTH) + "]", None, None, BOTH),
    "mistral_tekken": ("[THINK]I must look.[/THINK]Well.[TOOL_CALLS]get_weather[ARGS]" + json.dumps(SUN), "I must look.", "Well.", BOTH[:1]),
    "deepseek": ("I must look.\n</think>\n\n<｜tool▁calls▁begin｜>" + "\n".join(deepseek(*one) for one in BOTH) + "<｜tool▁calls▁end｜>", "I must look.", None, BOTH),
    "granite": ("<think>I must look.</think><response><|tool_call|>[" + ", ".join(said(*one) for one in BOTH) + "]", "I must look.", None, BOTH),
    "harmony": ("<|channel|>analysis<|message|>I must look.<|end|><|start|>assistant<|channel|>commentary to=functions.search <|constrain|>json<|message|>" + json.dumps(FIND),
                "I must look.", None, BOTH[1:]),
    "functiongemma": ("".join(f"<start_function_call>call:{name}{gemma(arguments)}<end_function_call>" for name, arguments in BOTH), None, None, BOTH),
    "phi4": ("<|tool_call|>[" + said(*BOTH[0]) + "]<|/tool_call|>", None, None, BOTH[:1]),
    "smollm3": (THINK + f"Well.\n<tool_call>\n{said(*BOTH[1])}\n</tool_call>\n", "I must look.", "Well.", BOTH[1:]),
    "qwen3-coder": ("I call.\n" + "\n".join(tagged(*one) for one in BOTH), None, "I call.", BOTH),
}
LIMIT = {"max_tokens": 400, "tools": TOOLS}
SAMPLING_GRAMMAR = 28  # the field of Sampling


def calls_of(message):
    return [(one["function"]["name"], json.loads(one["function"]["arguments"])) for one in message.get("tool_calls") or []]


def joined(chunks):
    """The message that a client puts together from a stream, and the reason of its end."""
    message, reason = {"role": "assistant", "content": None}, None
    for chunk in chunks:
        for choice in chunk["choices"]:
            assert choice["index"] == 0
            delta, reason = choice["delta"], choice["finish_reason"] or reason
            for key in ("content", "reasoning_content", "reasoning"):
                if delta.get(key) is not None:
                    message[key] = (message.get(key) or "") + delta[key]
            for one in delta.get("tool_calls", []):
                calls = message.setdefault("tool_calls", [])
                if one["index"] == len(calls):
                    assert one["id"] and one["type"] == "function" and one["function"]["name"]
                    calls.append({"id": one["id"], "type": "function", "function": dict(one["function"])})
                else:
                    assert one["index"] == len(calls) - 1 and set(one) == {"index", "function"}
                    calls[-1]["function"]["arguments"] += one["function"]["arguments"]
    return message, reason


@pytest.mark.parametrize("name", FAMILIES)
def test_families(name):
    text, reasoning, content, calls = FAMILIES[name]
    with Played(template=TEMPLATES[name]) as played:
        played.answer(text, text)
        whole = post(played, H, {"messages": ASK, **LIMIT})
        message = whole["choices"][0]["message"]
        assert calls_of(message) == calls and whole["choices"][0]["finish_reason"] == "tool_calls"
        assert message.get("reasoning_content") == message.get("reasoning") == reasoning and (message["content"] or None) == content
        assert len({one["id"] for one in message["tool_calls"]}) == len(calls)
        *chunks, done = events(played, H, {"messages": ASK, **LIMIT, "stream_options": {"include_usage": True}})
        assert done == "[DONE]" and chunks[-1]["usage"] == whole["usage"]
        streamed, reason = joined(chunks)
        assert reason == "tool_calls"
        for one in message["tool_calls"] + streamed["tool_calls"]:
            del one["id"]  # of each answer its own
        assert (streamed["content"] or None) == (message["content"] or None) and streamed["tool_calls"] == message["tool_calls"]
        assert streamed.get("reasoning_content") == reasoning
        if reasoning:
            assert 0 < whole["usage"]["completion_tokens_details"]["reasoning_tokens"] < whole["usage"]["completion_tokens"]


def weather(**arguments):
    return json.dumps({"sky": "blue", **arguments})


@pytest.mark.parametrize("name", ["qwen3", "mistral", "deepseek", "functiongemma", "qwen3-coder"])
@pytest.mark.parametrize("stream", [False, True])
def test_agent_loop(name, stream):
    """Five calls, one after the other, by the official client: each result reaches the next prompt, in the family's own form."""
    def write(number):
        arguments = {"city": f"Aix {number}", "days": 3}
        return {"qwen3": f"<think>\nStep {number}\n</think>\n\n<tool_call>\n{said('get_weather', arguments)}\n</tool_call>",
                "mistral": f"[TOOL_CALLS] [{said('get_weather', arguments)}]",
                "deepseek": f"Step {number}</think><｜tool▁calls▁begin｜>{deepseek('get_weather', arguments)}<｜tool▁calls▁end｜>",
                "functiongemma": f"<start_function_call>call:get_weather{gemma(arguments)}<end_function_call>",
                "qwen3-coder": tagged("get_weather", arguments)}[name]

    with Played(template=TEMPLATES[name]) as played:
        client = openai.OpenAI(base_url=played.url + "/v1", api_key="none", max_retries=0, timeout=seconds(60))
        messages, seen = list(ASK), []
        played.answer(*[write(number) for number in range(5)], "It is blue.")
        while True:
            if stream:
                with client.chat.completions.stream(model="default", messages=messages, tools=TOOLS, max_tokens=400) as chunks:
                    for _ in chunks:
                        pass
                    choice = chunks.get_final_completion().choices[0]
            else:
                choice = client.chat.completions.create(model="default", messages=messages, tools=TOOLS, max_tokens=400).choices[0]
            if choice.finish_reason != "tool_calls":
                break
            (called,) = choice.message.tool_calls
            seen.append(json.loads(called.function.arguments)["city"])
            messages.append({"role": "assistant", "content": choice.message.content, "tool_calls": [
                {"id": called.id, "type": "function", "function": {"name": called.function.name, "arguments": called.function.arguments}}]})
            messages.append({"role": "tool", "tool_call_id": called.id, "content": weather(city=seen[-1])})
        assert choice.finish_reason == "stop" and choice.message.content == "It is blue." and not choice.message.tool_calls
        assert seen == [f"Aix {number}" for number in range(5)]
        prompt = played.prompt()
        for number in range(5):
            assert prompt.count(f"Aix {number}") >= 2, prompt  # of the call, and of its result


@pytest.fixture(scope="module")
def qwen():
    with Played(template=TEMPLATES["qwen3"]) as played:
        yield played


CALL = f"<tool_call>\n{said('get_weather', SUN)}\n</tool_call>"


def ask(played, text, *, finish=FINISH_EOS, **fields):
    played.answer(text, finish=finish)
    return post(played, H, {"messages": ASK, **LIMIT, **fields})["choices"][0]


def python_value(source, depth):
    if depth and source.random() < 0.6:
        many = [python_value(source, depth - 1) for _ in range(source.randint(0, 3))]
        return source.choice([many, tuple(many), {f"k{i}'": one for i, one in enumerate(many)}])
    return source.choice([True, False, None, 0, -7, 2.5, 1e30, "", "it's", 'say "so"', "a\\b\n\té", "日本\x00🌞", "True"])


def test_values_that_are_written_as_python_has_them():
    """In notations with a tag for each argument, by the parameter's type; strings stay as they are."""
    types = {"any": {"anyOf": [{"type": "object"}, {"$ref": "#/$defs/Other"}]}, "text": {"type": "string"}}
    schema = {"type": "object", "properties": types, "$defs": {"Other": {"type": ["array", "boolean", "null", "number"]}}}
    tools = [{"type": "function", "function": {"name": "f", "parameters": schema}}]
    source = random.Random(SEED)
    with Played("--tool-parser=qwen3-coder") as played:
        for _ in range(60):
            value = source.choice([python_value(source, 3), [python_value(source, 2)], {"a": python_value(source, 3)}])
            said = "".join(f"<parameter={name}>\n{value!r}\n</parameter>\n" for name in types)
            choice = ask(played, f"<tool_call>\n<function=f>\n{said}</function>\n</tool_call>", tools=tools)
            got = json.loads(choice["message"]["tool_calls"][0]["function"]["arguments"])
            assert got == {"any": json.loads(json.dumps(value)), "text": repr(value)}, repr(value)


def test_references_to_what_is_no_text():
    """A parameter's type is found wherever its schema has it; of what a reference does not lead to nothing is known."""
    lists = {"Other": {"type": "null"}, "a/b~%": {"type": "null"}, "é": {"type": "null"}}
    finds = ["#/$defs/Other", "#/definitions/Other", "#/definitions/a~1b~0%25", "#/$defs/a~1b~0%", "#/%24defs/%C3%A9", "#/allOf/1/items"]
    loses = ["#/definitions/none", "#/allOf/2", "#/allOf/x", "#Other", "Other", "#/$defs/" + "a" * 5000, "#/$defs/Other/", "#/%", "#/properties/14"]
    types = {str(i): {"$ref": reference} for i, reference in enumerate(finds + loses)}
    schema = {"type": "object", "properties": types, "$defs": lists, "definitions": lists, "allOf": [{}, {"items": {"type": "null"}}]}
    tools = [{"type": "function", "function": {"name": "f", "parameters": schema}}]
    said = "".join(f"<parameter={name}>\nNone\n</parameter>\n" for name in types)
    with Played("--tool-parser=qwen3-coder") as played:
        choice = ask(played, f"<tool_call>\n<function=f>\n{said}</function>\n</tool_call>", tools=tools)
    got = json.loads(choice["message"]["tool_calls"][0]["function"]["arguments"])
    assert got == {str(i): None if i < len(finds) else "None" for i in range(len(types))}


def test_none_means_none(qwen):
    """The model is not told of the tools, and what it writes is content."""
    choice = ask(qwen, "Well. " + CALL, tool_choice="none")
    assert choice["message"]["content"] == "Well. " + CALL and choice["finish_reason"] == "stop" and "get_weather" not in qwen.prompt()
    choice = ask(qwen, CALL)
    assert choice["finish_reason"] == "tool_calls" and "get_weather" in qwen.prompt()


def test_one_call_at_a_time(qwen):
    before = len(qwen.scheduler.cancelled)
    choice = ask(qwen, CALL + CALL + "x" * 300, parallel_tool_calls=False)
    assert calls_of(choice["message"]) == BOTH[:1] and choice["finish_reason"] == "tool_calls" and choice["message"]["content"] is None
    wait_until(lambda: len(qwen.scheduler.cancelled) > before, 10, "the sequence goes on")
    assert len(calls_of(ask(qwen, CALL + CALL)["message"])) == 2


def test_what_only_looks_like_a_call(qwen):
    for text in ("<tool_call>\nnot JSON\n</tool_call>", "a <tool_call", "<tool_call>{\"name\": 5}</tool_call>", "{\"name\": \"get_weather\"}"):
        choice = ask(qwen, text)
        assert choice["message"]["content"] == text and "tool_calls" not in choice["message"] and choice["finish_reason"] == "stop"


def test_cut_off(qwen):
    whole = len(qwen.ids(CALL))
    choice = ask(qwen, CALL, max_tokens=whole - 12)
    assert choice["finish_reason"] == "length"
    (one,) = choice["message"]["tool_calls"]
    assert one["function"]["name"] == "get_weather" and json.dumps(SUN, ensure_ascii=False).startswith(one["function"]["arguments"])
    assert ask(qwen, CALL, max_tokens=6)["message"]["content"].startswith("<tool_call>")  # not known to be a call yet


@pytest.mark.parametrize("fields", [{"tool_choice": "required"}, {}], ids=["required", "auto"])
def test_cut_off_in_a_second_call(qwen, fields):
    """What there is of a call whose name is not known is no content: not behind other calls, nor where there is nothing but calls; in all forms."""
    most = len(qwen.ids(CALL + "\n")) + 5
    choice = ask(qwen, CALL + "\n" + CALL, max_tokens=most, **fields)
    assert choice["finish_reason"] == "length" and choice["message"]["content"] is None and calls_of(choice["message"]) == BOTH[:1]
    qwen.answer(CALL + "\n" + CALL)
    streamed, reason = joined(chunk for chunk in events(qwen, H, {"messages": ASK, **LIMIT, "max_tokens": most, **fields}) if chunk != "[DONE]")
    assert reason == "length" and not streamed["content"] and calls_of(streamed) == BOTH[:1]
    tools = [{"name": one["function"]["name"], "input_schema": one["function"]["parameters"]} for one in TOOLS]
    qwen.answer(CALL + "\n" + CALL)
    blocks = post(qwen, "/v1/messages", {"messages": ASK, "tools": tools, "max_tokens": most, **({"tool_choice": {"type": "any"}} if fields else {})})["content"]
    assert [block["type"] for block in blocks] == ["tool_use"]
    if fields:
        assert not ask(qwen, CALL, max_tokens=6, **fields)["message"]["content"]


def test_allowed_tools(qwen):
    """The model is told of those that it may call; with the mode "required" it must call one of them."""
    for mode, forced in (("auto", False), ("required", True)):
        allowed = {"mode": mode, "tools": [{"type": "function", "function": {"name": "get_weather"}}]}
        choice = ask(qwen, CALL, tool_choice={"type": "allowed_tools", "allowed_tools": allowed})
        assert calls_of(choice["message"]) == BOTH[:1] and "get_weather" in qwen.prompt() and "search" not in qwen.prompt()
        assert (SAMPLING_GRAMMAR in decode(last(qwen.scheduler.requests[-1], 3))) == forced


def test_stop_strings_are_of_the_content(qwen):
    choice = ask(qwen, "<think>STOP</think>Well, STOP here. " + CALL, stop=["STOP"])
    assert choice["message"]["reasoning_content"] == "STOP" and choice["message"]["content"] == "Well, "
    assert choice["finish_reason"] == "stop" and choice["stop_reason"] == "STOP"
    choice = ask(qwen, CALL, stop=["city"])
    assert calls_of(choice["message"]) == BOTH[:1] and choice["finish_reason"] == "tool_calls"


def test_reasoning_may_be_left_out(qwen):
    choice = ask(qwen, THINK + "Blue.", include_reasoning=False)
    assert choice["message"] == {"role": "assistant", "content": "Blue.", "refusal": None}
    assert ask(qwen, THINK + "Blue.")["message"]["reasoning"] == "I must look."


def test_logprobs_are_of_all_tokens(qwen):
    qwen.answer(THINK + CALL)
    reply = post(qwen, H, {"messages": ASK, **LIMIT, "logprobs": True})
    assert "".join(token["token"] for token in reply["choices"][0]["logprobs"]["content"]) == THINK + CALL
    qwen.answer(THINK + CALL)
    tokens = []
    for chunk in events(qwen, H, {"messages": ASK, **LIMIT, "logprobs": True}):
        if chunk != "[DONE]" and chunk["choices"][0]["logprobs"]:
            tokens += chunk["choices"][0]["logprobs"]["content"]
    assert tokens == reply["choices"][0]["logprobs"]["content"]


def test_ids_and_usage_are_of_all_tokens(qwen):
    """In a stream, too, and of what is thought and called as of what is said."""
    text = THINK + "Well." + f"<tool_call>\n{said(*BOTH[0])}\n</tool_call>"
    body = {"messages": ASK, **LIMIT, "return_token_ids": True}
    qwen.answer(text, text)
    whole = post(qwen, H, body)["choices"][0]
    *chunks, _ = events(qwen, H, {**body, "stream_options": {"include_usage": True, "continuous_usage_stats": True}})
    assert sum((chunk["choices"][0].get("token_ids", []) for chunk in chunks if chunk["choices"]), []) == whole["token_ids"] == qwen.ids(text)
    counts = [chunk["usage"]["completion_tokens"] for chunk in chunks]
    assert counts == sorted(counts) and counts[-1] == len(whole["token_ids"])


def test_ids_of_calls_are_new_in_each_request(qwen):
    """Even if a client gives all of its requests one id."""
    ids = set()
    for _ in range(2):
        qwen.answer(CALL)
        status, _, text = call(qwen, "POST", "/v1/chat/completions", {"messages": ASK, **LIMIT}, {"X-Request-Id": "same"})
        assert status == 200
        ids.update(called["id"] for called in json.loads(text)["choices"][0]["message"]["tool_calls"])
    assert len(ids) == 2


def test_variables_reach_the_template(qwen):
    assert ask(qwen, "Blue.", chat_template_kwargs={"enable_thinking": False})["message"]["content"] == "Blue."
    assert qwen.prompt().endswith("<think>\n\n</think>\n\n")
    ask(qwen, "Blue.", reasoning_effort="none")
    assert qwen.prompt().endswith("<think>\n\n</think>\n\n")
    ask(qwen, "Blue.", reasoning_effort="high")
    assert qwen.prompt().endswith("assistant\n")
    with Played(template=TEMPLATES["harmony"]) as played:
        ask(played, "Hi", reasoning_effort="high")
        assert "Reasoning: high" in played.prompt()
    with Played(template=TEMPLATES["granite"]) as played:
        ask(played, "Hi", documents=[{"doc_id": 7, "text": "The sky."}])
        assert 'document {"document_id": "7"}' in played.prompt() and "The sky." in played.prompt()


def test_reasoning_goes_back_to_the_template(qwen):
    messages = ASK + [{"role": "assistant", "content": "", "reasoning_content": "I must look.", "tool_calls": [
        {"id": "1", "type": "function", "function": {"name": "get_weather", "arguments": json.dumps(SUN)}}]},
        {"role": "tool", "tool_call_id": "1", "content": "blue"}]
    ask(qwen, "Blue.", messages=messages)
    assert "<think>\nI must look.\n</think>" in qwen.prompt() and '"arguments": {"city": "Aix \\"é\\"", "days": 3}' in qwen.prompt()
    assert "<tool_response>\nblue\n</tool_response>" in qwen.prompt()


NUMBERS = '{"low": 0.1, "high": 18446744073709551615, "list": [1e+22, -0.5, 2.0, 123456789012345678901234567890]}'
HISTORIES = {  # of a call with these numbers in its arguments, for each form of the API: path, body, text
    "chat": (H, f'''{{"messages": [{{"role": "user", "content": "x"}}, {{"role": "assistant", "tool_calls": [{{"id": "1", "function":
        {{"name": "f", "arguments": {json.dumps(NUMBERS)}}}}}]}}, {{"role": "tool", "tool_call_id": "1", "content": "y"}}], "max_tokens": 9,
        "tools": [{{"type": "function", "function": {{"name": "f", "parameters": {{"default": {NUMBERS}}}}}}}]}}'''),
    "chat with objects": (H, f'''{{"messages": [{{"role": "user", "content": "x"}}, {{"role": "assistant", "tool_calls": [{{"id": "1", "function":
        {{"name": "f", "arguments": {NUMBERS}}}}}]}}, {{"role": "tool", "tool_call_id": "1", "content": "y"}}], "max_tokens": 9,
        "tools": [{{"type": "function", "function": {{"name": "f", "parameters": {{"default": {NUMBERS}}}}}}}]}}'''),
    "responses": ("/v1/responses", f'''{{"input": [{{"role": "user", "content": "x"}}, {{"type": "function_call", "call_id": "1", "name": "f",
        "arguments": {json.dumps(NUMBERS)}}}, {{"type": "function_call_output", "call_id": "1", "output": "y"}}], "max_output_tokens": 16,
        "tools": [{{"type": "function", "name": "f", "parameters": {{"default": {NUMBERS}}}}}]}}'''),
    "messages": ("/v1/messages", f'''{{"messages": [{{"role": "user", "content": "x"}}, {{"role": "assistant", "content": [{{"type": "tool_use",
        "id": "1", "name": "f", "input": {NUMBERS}}}]}}, {{"role": "user", "content": [{{"type": "tool_result", "tool_use_id": "1", "content": "y"}}]}}],
        "model": "m", "max_tokens": 9, "tools": [{{"name": "f", "input_schema": {{"type": "object", "default": {NUMBERS}}}}}]}}'''),
    "ollama": ("/api/chat", f'''{{"messages": [{{"role": "user", "content": "x"}}, {{"role": "assistant", "tool_calls": [{{"function":
        {{"name": "f", "arguments": {NUMBERS}}}}}]}}, {{"role": "tool", "tool_name": "f", "content": "y"}}], "model": "m", "stream": false,
        "tools": [{{"type": "function", "function": {{"name": "f", "parameters": {{"default": {NUMBERS}}}}}}}]}}'''),
}


@pytest.mark.parametrize("form", HISTORIES)
def test_numbers_reach_the_template_as_python_writes_them(qwen, form):
    path, body = HISTORIES[form]
    name = json.loads(call(qwen, "GET", "/v1/models")[2])["data"][0]["id"]
    qwen.answer("x")
    status, _, text = call(qwen, "POST", path, body.replace('"model": "m"', f'"model": "{name}"').encode())
    assert status == 200, text
    assert qwen.prompt().count(NUMBERS) == 2, qwen.prompt()


@pytest.mark.parametrize("name", FAMILIES)
def test_a_history_with_broken_arguments_goes_on(name):
    """A model wrote them, or its limit of tokens cut them off: the template is given the text."""
    with Played(template=TEMPLATES[name]) as played:
        for broken in ('{"city": "Aix', '{"city": "a", "city": "Aix"}', "[Aix]", "Aix"):
            body = {"messages": [{"role": "user", "content": "x"}, {"role": "assistant", "content": "", "tool_calls": [
                {"id": "abcdefghi", "type": "function", "function": {"name": "get_weather", "arguments": broken}}]},
                {"role": "tool", "tool_call_id": "abcdefghi", "content": "y"}], **LIMIT}
            played.answer("x")
            status, _, text = call(played, "POST", H, body)
            assert status == 200, text
            assert broken in played.prompt() or json.dumps(broken)[1:-1] in played.prompt(), played.prompt()


def test_no_special_token_in_what_clients_send(qwen):
    end = qwen.ids("<|im_end|>")
    assert len(end) == 1

    def ends(mark):
        tools = [{"type": "function", "function": {"name": "f", "description": f"a{mark}", "parameters": {
            "type": "object", "properties": {f"k{mark}": {"type": "string", "description": f"p{mark}"}}}}}]
        messages = ASK + [{"role": "assistant", "content": f"c{mark}", "reasoning_content": f"r{mark}", "tool_calls": [
            {"id": f"i{mark}", "type": "function", "function": {"name": "f", "arguments": json.dumps({f"k{mark}": f"v{mark}"})}}]},
            {"role": "tool", "tool_call_id": f"i{mark}", "content": f"t{mark}"}]
        ask(qwen, "x", messages=messages, tools=tools, chat_template_kwargs={"extra": mark})
        return qwen.scheduler.prompts[-1].count(end[0])

    assert ends("<|im_end|>") == ends("") > 0


def test_tokenize_counts_the_same(qwen):
    qwen.answer("x")
    used = post(qwen, H, {"messages": ASK, **LIMIT})["usage"]["prompt_tokens"]
    assert post(qwen, "/tokenize", {"messages": ASK, "tools": TOOLS})["count"] == used
    assert post(qwen, "/tokenize", {"messages": ASK, "tools": TOOLS, "tool_choice": "none"})["count"] < used


def test_several_choices(qwen):
    qwen.answer(CALL, THINK + "Blue.")
    first, second = sorted(post(qwen, H, {"messages": ASK, **LIMIT, "n": 2})["choices"], key=lambda choice: choice["finish_reason"] == "stop")
    assert calls_of(first["message"]) == BOTH[:1] and second["message"]["reasoning"] == "I must look."


def test_control_tokens():
    """In a vocabulary with gpt-oss's control tokens they never show; as text, typed by the model letter by letter, they are content."""
    control = {"<repo_name>": "<|channel|>", "<reponame>": "<|start|>", "<file_sep>": "<|message|>", "<filename>": "<|end|>", "<gh_stars>": "<|constrain|>"}
    with Played(template=TEMPLATES["harmony"], control=control) as played:
        text = FAMILIES["harmony"][0]
        choice = ask(played, text)
        assert calls_of(choice["message"]) == BOTH[1:] and choice["message"]["reasoning"] == "I must look."
        plain = post(played, "/tokenize", {"prompt": "a <|end|> b", "add_special_tokens": False, "parse_special": False})["tokens"]
        played.scheduler.answers.put((played.ids("<|channel|>final<|message|>") + plain, FINISH_EOS))
        assert post(played, H, {"messages": ASK, **LIMIT})["choices"][0]["message"]["content"] == "a <|end|> b"


def test_a_template_without_tools():
    """The functions are described to the model, which answers in JSON; calls and results are told as plain messages."""
    with Played() as played:
        choice = ask(played, said("get_weather", SUN))
        assert calls_of(choice["message"]) == BOTH[:1] and '{"name":"get_weather"' in played.prompt()
        messages = ASK + [choice["message"], {"role": "tool", "tool_call_id": choice["message"]["tool_calls"][0]["id"], "content": "blue"}]
        assert ask(played, "Blue.", messages=messages)["message"]["content"] == "Blue."
        assert "The function get_weather returned:\nblue" in played.prompt() and played.prompt().count('{"name":"get_weather"') == 2
        assert ask(played, '{"answer": 42}')["message"]["content"] == '{"answer": 42}'
        assert ask(played, said("unknown", {}))["message"]["content"] == said("unknown", {})


def test_overrides():
    with Played("--tool-parser=none", "--reasoning-parser=none", template=TEMPLATES["qwen3"]) as played:
        assert ask(played, THINK + CALL)["message"]["content"] == THINK + CALL
    with Played("--tool-parser=llama3", "--reasoning-parser=seed", template=TEMPLATES["qwen3"]) as played:
        choice = ask(played, "<seed:think>hm</seed:think>" + said("get_weather", SUN, "parameters"))
        assert calls_of(choice["message"]) == BOTH[:1] and choice["message"]["reasoning"] == "hm"
    for option in ("tool", "reasoning"):
        done = run([os.path.join(BUILD, "bin", "gateway"), "--check", f"--{option}-parser=nope", f"--model={MODEL}", "--scheduler=ipc:///nowhere"])
        assert done.returncode != 0 and f"--{option}-parser: there is none called 'nope'; there are auto, none, " in done.stdout + done.stderr


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "search"}}])
@pytest.mark.parametrize("parallel", [False, True])
def test_calls_that_are_required(real_mesh, choice, parallel):
    """A real model, which would rather talk, is held to the notation and to the functions' schemas."""
    tools = [{"type": "function", "function": {**tool["function"], "strict": parallel}} for tool in TOOLS]  # others are closed by default
    body = {"messages": ASK, "tools": tools, "tool_choice": choice, "parallel_tool_calls": parallel, "max_tokens": 300, "seed": 5}
    whole = post(real_mesh, H, body)["choices"][0]
    streamed, reason = joined(chunk for chunk in events(real_mesh, H, body) if chunk != "[DONE]")
    assert [one["function"] for one in streamed["tool_calls"]] == [one["function"] for one in whole["message"]["tool_calls"]]
    assert reason == whole["finish_reason"] and whole["message"]["content"] is None
    calls = whole["message"]["tool_calls"]
    assert len(calls) == 1 or (parallel and choice == "required")
    if whole["finish_reason"] == "length":
        calls = calls[:-1]  # the last one was cut off
    else:
        assert whole["finish_reason"] == "tool_calls"
    for one in calls:
        name, arguments = one["function"]["name"], json.loads(one["function"]["arguments"])
        schema = next(tool["function"]["parameters"] for tool in tools if tool["function"]["name"] == name)
        assert choice == "required" or name == "search"
        assert set(schema["required"]) <= set(arguments) <= set(schema["properties"])


def test_a_custom_tool_with_a_grammar(real_mesh):
    """Where the call is forced, its input is what the regular expression matches, whole."""
    tool = {"type": "custom", "custom": {"name": "dial", "format": {"type": "grammar", "grammar": {"syntax": "regex", "definition": "[0-9]{2,3}-[a-c]|x{4}"}}}}
    for choice in ("required", {"type": "custom", "custom": {"name": "dial"}}):
        body = {"messages": ASK, "tools": [tool], "tool_choice": choice, "parallel_tool_calls": False, "max_tokens": 100, "seed": 5}
        (one,) = post(real_mesh, H, body)["choices"][0]["message"]["tool_calls"]
        assert one["type"] == "custom" and re.fullmatch("[0-9]{2,3}-[a-c]|x{4}", one["custom"]["input"]), one


def test_what_is_required_is_a_grammar(qwen):
    for choice, wanted in (("auto", False), ("none", False), ("required", True), ({"type": "function", "function": {"name": "search"}}, True)):
        ask(qwen, THINK + CALL, tool_choice=choice)
        assert (SAMPLING_GRAMMAR in decode(last(qwen.scheduler.requests[-1], 3))) == wanted
    status, _, text = call(qwen, "POST", H, {"messages": ASK, "tool_choice": "required", "tools": [
        {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {"a": {"type": "odd"}}}}}]})
    assert status == 400 and json.loads(text)["error"]["param"] == "tools" and "#/properties/a/type" in text


def test_the_chat_command_shows_what_is_thought(qwen):
    qwen.answer(THINK + "Blue.")
    said = fastdecode("chat", "--url", qwen.url, input="How is it?\n", timeout=60)
    assert said.returncode == 0 and "I must look.\n\nBlue." in said.stdout


def test_template_errors_are_the_clients():
    with Played(template="{% for m in messages %}{{ m.content }}{% if m.content == 'no' %}{{ raise_exception('not this') }}{{ m|nosuch }}{% endif %}{% if m.content == 'odd' %}\n{{ m|nosuch }}{% endif %}{% endfor %}") as played:
        for said, error in (("no", "not this"), ("odd", "chat template line 2: unknown filter 'nosuch' (supported: ")):
            status, _, text = call(played, "POST", H, {"messages": [{"role": "user", "content": said}], **LIMIT})
            assert status == 400 and json.loads(text)["error"]["message"].startswith(error)


def prompt_of(played, messages, **fields):
    ask(played, "x", messages=messages, **fields)
    return played.prompt()


def test_a_template_of_parts():
    """A template that looks through parts gets text as a part; messages of a role of which it shows nothing are refused."""
    parts = "{% for p in m['content'] %}{% if p['type'] == 'text' %}{{ p['text'] }}{% endif %}{% endfor %}"
    with Played(template="{% for m in messages %}<{{ m.role }}>{% if m.role != 'assistant' %}" + parts + "{% endif %}{% endfor %}") as played:
        for content in ("How is it?", [{"type": "text", "text": "How "}, {"type": "text", "text": "is it?"}]):
            assert prompt_of(played, [{"role": "system", "content": "Be brief."}, {"role": "user", "content": content}],
                             tools=[]) == "<system>Be brief.<user>How is it?"
        status, _, text = call(played, "POST", H, {"messages": ASK + [{"role": "assistant", "content": "Blue."}] + ASK})
        assert status == 400 and "shows nothing of what messages of role 'assistant' say" in text
        assert "CHAT-CONTENT-LOST template=default role=assistant" in played.log()


def test_named_templates():
    """`tool_use` is for requests with tools, others are for those that name them, and a broken one is for nobody."""
    says = "{% for m in messages %}{{ m.content or '' }}{% endfor %}"
    templates = {"default": "D" + says, "tool_use": "T{{ tools|length }}" + says + "<tool_call>{{ tools and '' }}", "rag": "R{{ documents|length }}" + says,
                 "broken": "{% if %}", "rerank": "{query}{document}"}
    with Played("--pooling=none", templates=templates) as played:
        assert prompt_of(played, ASK, tools=[]) == "D" + ASK[0]["content"]
        assert prompt_of(played, ASK, tool_choice="none") == "D" + ASK[0]["content"]
        assert prompt_of(played, ASK) == "T2" + ASK[0]["content"] + "<tool_call>"
        assert prompt_of(played, ASK, chat_template="default").startswith("D")
        assert prompt_of(played, ASK, chat_template="rag", documents=[{"text": "a"}] * 3, tools=[]) == "R3" + ASK[0]["content"]
        choice = ask(played, "<tool_call>\n" + said("get_weather", SUN) + "\n</tool_call>")
        assert calls_of(choice["message"]) == BOTH[:1]  # in the notation of that template
        tokens = {name: post(played, "/tokenize", {"messages": ASK, "chat_template": name, "documents": [{}]})["tokens"] for name in ("default", "rag")}
        assert tokens["default"] != tokens["rag"]
        for name in ("broken", "rerank", "nope"):
            status, _, text = call(played, "POST", H, {"messages": ASK, "chat_template": name})
            error = json.loads(text)["error"]
            assert status == 400 and error["param"] == "chat_template", text
            assert error["message"] == f"'chat_template': this model has none called '{name}'; there are default, tool_use, rag"
        for path, body in (("/v1/responses", {"input": "hi", "tools": [{"type": "function", "name": "f", "parameters": {}}]}),
                           ("/v1/messages", {"messages": ASK, "max_tokens": 4, "tools": [{"name": "f", "input_schema": {"type": "object"}}]})):
            for name, begins in ((None, "T"), ("default", "D")):
                played.answer("x")
                post(played, path, {"model": "default", **body, "chat_template": name})
                assert played.prompt().startswith(begins)
            assert call(played, "POST", path, {"model": "default", **body, "chat_template": "nope"})[0] == 400
        assert "CHAT-TEMPLATE-IGNORED template=broken" in played.log()
    with Played(templates=templates, template="own" + says) as played:  # one for all
        assert prompt_of(played, ASK, tools=[]) == "own" + ASK[0]["content"]
        status, _, text = call(played, "POST", H, {"messages": ASK, "chat_template": "rag"})
        assert status == 400 and "there are default" in text


def test_a_template_that_checks_ids():
    """Ids of other makers, or none, are no error where a template wants nine letters: a call and its result have the same new one."""
    template = ("{% for m in messages %}{% for c in m.tool_calls or [] %}{% if c.id is not defined or c.id|length != 9 %}{{ raise_exception('nine') }}{% endif %}"
                "[{{ c.id }} {{ c.function.arguments|tojson }}]{% endfor %}{% if m.role == 'tool' %}({{ m.tool_call_id }}){% endif %}{{ m.content or '' }}{% endfor %}{{ tools and '' }}")
    with Played(template=template) as played:
        for given in ({"id": "call_abc"}, {"id": "toolu_0123456789"}, {}):
            calls = [{**given, "type": "function", "function": {"name": "f", "arguments": "{}"}}]
            result = {"role": "tool", "content": "blue", **({"tool_call_id": given["id"]} if given else {})}
            prompt = prompt_of(played, ASK + [{"role": "assistant", "content": None, "tool_calls": calls}, result])
            new = prompt[prompt.index("[") + 1:prompt.index(" {")]
            assert len(new) == 9 and f"({new})blue" in prompt
            assert prompt == prompt_of(played, ASK + [{"role": "assistant", "content": None, "tool_calls": calls}, result])
        ollama = ASK + [{"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "f", "arguments": {"a": 1}}}]},
                        {"role": "tool", "tool_name": "f", "content": "blue"}]
        played.answer("x")
        post(played, "/api/chat", {"model": "default", "messages": ollama, "stream": False})
        new = played.prompt()[played.prompt().index("[") + 1:played.prompt().index(" {")]
        assert len(new) == 9 and f"({new})blue" in played.prompt()


KEEPS = "{% for m in messages %}<{{ m.role }}>\n{{ m.content }}</s>\n{% endfor %}{{ '<assistant>' if add_generation_prompt }}"
TRIMS = KEEPS.replace("m.content", "m.content|trim")
PARTED = KEEPS.replace("{{ m.content }}", "{% for p in m.content %}{{ p.text }}{% endfor %}")
ASKS_FIRST = KEEPS.replace("{{ m.content }}", "{% if m.content %}{{ m.content|trim }}{% endif %}")


@pytest.mark.parametrize("template,content,ends", [
    (KEEPS, "", ""), (KEEPS, None, ""), (KEEPS, " \n", " \n"), (KEEPS, " a b ", " a b "), (KEEPS, "Hi", "Hi"), (KEEPS, "</s>\n", "</s>\n"),
    (TRIMS, "", ""), (TRIMS, " \n", ""), (TRIMS, " a b ", "a b"), (TRIMS, "Hi", "Hi"),
    (PARTED, "", ""), (PARTED, " \n", " \n"), (PARTED, "Hi", "Hi"), (PARTED, [{"type": "text", "text": ""}], ""),
    (ASKS_FIRST, "", ""), (ASKS_FIRST, "\n", ""), (ASKS_FIRST, "Hi ", "Hi")])
def test_a_last_message_is_continued(template, content, ends):
    """The prompt ends with the content as the template writes it; where that is blank, where it would begin."""
    with Played(template=template) as played:
        prompt = prompt_of(played, ASK + [{"role": "assistant", "content": content}], tools=[], continue_final_message=True)
        assert prompt == f"<user>\n{ASK[0]['content']}</s>\n<assistant>\n" + ends


def test_what_a_template_hides_is_not_continued(qwen):
    template = "{% for m in messages %}{{ m.content.split('</think>')[-1] }}{% endfor %}"
    with Played(template=template) as played:
        body = {"messages": ASK + [{"role": "assistant", "content": "<think>a</think>b"}], "continue_final_message": True}
        status, _, text = call(played, "POST", H, body)
        assert status == 400 and "does not show the last message's content as it is" in text
    whole = {"messages": ASK + [{"role": "assistant", "content": "<think>\na\n</think>\n\nb"}], "continue_final_message": True}
    assert prompt_of(qwen, **whole).endswith("<think>\na\n</think>\n\nb")


def test_a_template_that_wants_turns():
    """Without a system, with turns, and with one call a message: no message is refused, and no word is lost."""
    with Played(template=TEMPLATES["llama3"]) as played:
        two = [{"id": str(i), "type": "function", "function": {"name": "f", "arguments": json.dumps({"n": i})}} for i in range(2)]
        results = [{"role": "tool", "tool_call_id": str(i), "content": f"result {i}"} for i in range(2)]
        prompt = prompt_of(played, ASK + [{"role": "assistant", "content": None, "tool_calls": two}] + results)
        marks = [prompt.index(text) for text in ('"n": 0', "result 0", '"n": 1', "result 1")]
        assert marks == sorted(marks)
    template = ("{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('no system') }}{% endif %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}"
                "{{ raise_exception('turns') }}{% endif %}<{{ m.role }}>{{ m.content }}{% endfor %}")
    with Played(template=template) as played:
        messages = [{"role": role, "content": text} for role, text in (("system", "s"), ("user", "a"), ("user", "b"), ("assistant", "c"), ("assistant", "d"), ("user", "e"))]
        assert prompt_of(played, messages, tools=[]) == "<user>s\n\na\n\nb<assistant>c\n\nd<user>e"
