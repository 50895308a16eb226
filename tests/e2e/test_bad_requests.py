"""Bad requests: each gets its status, and an error that names the parameter and says what is wrong; the server goes on."""
import json
import re
import socket

import pytest

from api_client import call, connect, post, raw_socket, server  # noqa: F401 (a fixture)
from conftest import pace

pytestmark = pytest.mark.sanitizer

C, H, T, D, R = "/v1/completions", "/v1/chat/completions", "/tokenize", "/detokenize", "/v1/responses"
HELLO = [{"role": "user", "content": "hi"}]


def completion(**fields):
    return {"model": "default", "prompt": "hi", "max_tokens": 2, **fields}


def chat(**fields):
    return {"model": "default", "messages": HELLO, "max_tokens": 2, **fields}


def function(**fields):
    return {"type": "function", "function": fields}


TOOL = function(name="f", description="Does it", parameters={"type": "object", "properties": {}})
CALL = {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}


def arguments(value):
    return {**CALL, "function": {"name": "f", "arguments": value}}


def called(calls):
    return chat(messages=HELLO + [{"role": "assistant", "content": None, "tool_calls": calls}])


# name, path, body (bytes are sent as they are), status, param, part of the message
BAD = [
    # not JSON, or not an object
    ("empty body", C, b"", 400, None, "body is empty"),
    ("cut off", C, b'{"prompt": "hi"', 400, None, "not valid JSON"),
    ("trailing text", C, b'{"prompt": "hi"} }', 400, None, "not valid JSON"),
    ("an array", C, b"[]", 400, None, "must be a JSON object"),
    ("a string", H, b'"hi"', 400, None, "not valid JSON|must be a JSON object"),
    ("single quotes", C, b"{'prompt': 'hi'}", 400, None, "not valid JSON"),
    ("a comma too many", C, b'{"prompt": "hi",}', 400, None, "not valid JSON"),
    ("NaN", C, b'{"prompt": "hi", "temperature": NaN}', 400, None, "not valid JSON"),
    ("huge number", C, b'{"prompt": "hi", "seed": 123456789012345678901234567890}', 400, "seed", "must be an integer"),
    ("same key twice", C, b'{"prompt": "hi", "prompt": "ho"}', 400, None, "duplicate"),
    ("broken UTF-8", C, b'{"prompt": "\xff\xfe"}', 400, None, "not valid JSON"),
    ("UTF-8 cut off", C, b'{"prompt": "\xe2\x82"}', 400, None, "not valid JSON"),
    ("overlong UTF-8", H, b'{"messages": [{"role": "user", "content": "\xc0\xaf"}]}', 400, None, "not valid JSON"),
    ("lone surrogate", C, b'{"prompt": "\\ud83d"}', 400, None, "not valid JSON"),
    ("raw control character", C, b'{"prompt": "a\nb"}', 400, None, "not valid JSON"),
    ("nested too deep", C, b'{"prompt": ' + b"[" * 5000 + b"]" * 5000 + b"}", 400, None, "nested deeper"),
    ("too many values", C, b'{"prompt": [' + b"1," * 1_500_000 + b"1]}", 400, None, "more than"),
    # prompts
    ("no prompt", C, {"model": "default"}, 400, "prompt", "required"),
    ("prompt null", C, completion(prompt=None), 400, "prompt", "required"),
    ("prompt a number", C, completion(prompt=5), 400, "prompt", "not an integer"),
    ("prompt an object", C, completion(prompt={}), 400, "prompt", "not an object"),
    ("prompt empty list", C, completion(prompt=[]), 400, "prompt", "must not be empty"),
    ("prompt mixed", C, completion(prompt=["a", 1]), 400, "prompt[1]", "must be a string"),
    ("ids mixed", C, completion(prompt=[1, "a"]), 400, "prompt[1]", "token id"),
    ("id negative", C, completion(prompt=[5, -1]), 400, "prompt[1]", "no token"),
    ("id too large", C, completion(prompt=[10_000_000]), 400, "prompt[0]", "no token"),
    ("id a float", C, completion(prompt=[1.5]), 400, "prompt[0]", "token id"),
    ("ids empty", C, completion(prompt=[[]]), 400, "prompt", "no tokens"),
    ("too long", C, completion(prompt="word " * 20000), 400, "prompt", "This model's maximum context length is "),
    ("too many tokens wanted", C, completion(max_tokens=10_000_000), 400, "max_tokens",
     "This model's maximum context length is "),
    ("too many prompts", C, completion(prompt=["a"] * 2049), 400, "prompt", "at most 2048"),
    # types and ranges
    ("max_tokens negative", C, completion(max_tokens=-1), 400, "max_tokens", "from 0"),
    ("max_tokens text", C, completion(max_tokens="2"), 400, "max_tokens", "not a string"),
    ("max_tokens float", C, completion(max_tokens=1.5), 400, "max_tokens", "an integer"),
    ("max_tokens zero", H, chat(max_tokens=0), 400, "max_tokens", "at least 1"),
    ("max_completion_tokens zero", H, {"messages": HELLO, "max_completion_tokens": 0}, 400, "max_completion_tokens", "at least 1"),
    ("temperature high", C, completion(temperature=2.5), 400, "temperature", "at most 2"),
    ("temperature negative", H, chat(temperature=-0.1), 400, "temperature", "at least 0"),
    ("temperature text", H, chat(temperature="hot"), 400, "temperature", "a number"),
    ("top_p below zero", C, completion(top_p=-0.01), 400, "top_p", "at least 0"),
    ("top_p high", C, completion(top_p=1.01), 400, "top_p", "at most 1"),
    ("top_k", C, completion(top_k=-2), 400, "top_k", "from -1"),
    ("min_p", C, completion(min_p=-0.5), 400, "min_p", "at least 0"),
    ("n zero", C, completion(n=0), 400, "n", "from 1"),
    ("n huge", H, chat(n=100000), 400, "n", "from 1 to 128"),
    ("n times prompts", C, completion(prompt=["a"] * 100, n=2), 400, "n", "at most 128"),
    ("seed text", C, completion(seed="1"), 400, "seed", "an integer"),
    ("presence_penalty", C, completion(presence_penalty=3), 400, "presence_penalty", "at most 2"),
    ("frequency_penalty", C, completion(frequency_penalty=-3), 400, "frequency_penalty", "at least -2"),
    ("repetition_penalty", C, completion(repetition_penalty=0), 400, "repetition_penalty", "above 0"),
    ("logit_bias list", C, completion(logit_bias=[1]), 400, "logit_bias", "an object"),
    ("logit_bias key", C, completion(logit_bias={"cat": 1}), 400, "logit_bias", "no token id"),
    ("logit_bias id", C, completion(logit_bias={"10000000": 1}), 400, "logit_bias", "no token of this model"),
    ("logit_bias value", C, completion(logit_bias={"5": 1000}), 400, "logit_bias", "from -100 to 100"),
    ("stop empty", C, completion(stop=""), 400, "stop", "1 to"),
    ("stop a number", C, completion(stop=3), 400, "stop", "array of strings"),
    ("stop too many", C, completion(stop=[str(i) for i in range(17)]), 400, "stop", "at most 16"),
    ("stream text", C, completion(stream="yes"), 400, "stream", "a boolean"),
    ("stream_options alone", C, completion(stream_options={"include_usage": True}), 400, "stream_options", "only allowed"),
    ("stream_options type", C, completion(stream=True, stream_options=5), 400, "stream_options", "an object"),
    ("logprobs high", C, completion(logprobs=1000), 400, "logprobs", "from 0 to 20"),
    ("chat logprobs number", H, chat(logprobs=5), 400, "logprobs", "a boolean"),
    ("top_logprobs alone", H, chat(top_logprobs=5), 400, "top_logprobs", "needs 'logprobs'"),
    ("top_logprobs high", H, chat(logprobs=True, top_logprobs=21), 400, "top_logprobs", "from 0 to 20"),
    ("echo text", C, completion(echo="true"), 400, "echo", "a boolean"),
    ("model a number", C, completion(model=1), 400, "model", "a string"),
    ("unknown model", C, completion(model="gpt-17"), 404, "model", "'gpt-17' does not exist"),
    ("unknown chat model", H, chat(model="../../etc/passwd"), 404, "model", "does not exist"),
    # messages
    ("no messages", H, {"model": "default"}, 400, "messages", "required"),
    ("messages empty", H, chat(messages=[]), 400, "messages", "must not be empty"),
    ("messages text", H, chat(messages="hi"), 400, "messages", "an array"),
    ("message text", H, chat(messages=["hi"]), 400, "messages[0]", "an object"),
    ("no role", H, chat(messages=[{"content": "hi"}]), 400, "messages[0].role", "required"),
    ("unknown role", H, chat(messages=HELLO + [{"role": "wizard", "content": "hi"}]), 400, "messages[1].role", "must be"),
    ("no content", H, chat(messages=[{"role": "user"}]), 400, "messages[0].content", "required"),
    ("content a number", H, chat(messages=[{"role": "user", "content": 7}]), 400, "messages[0].content", "not an integer"),
    ("an image", H, chat(messages=[{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]), 400,
     "messages[0].content[0]", "'text'"),
    ("part without text", H, chat(messages=[{"role": "user", "content": [{"type": "text"}]}]), 400,
     "messages[0].content[0]", "must be a string"),
    ("chat too long", H, chat(messages=[{"role": "user", "content": "word " * 20000}]), 400, "messages",
     "This model's maximum context length is "),
    # would change the answer, and is not built
    ("functions", H, chat(functions=[{"name": "f"}]), 400, "functions", "use 'tools'"),
    ("function_call", H, chat(function_call={"name": "f"}), 400, "function_call", "use 'tool_choice'"),
    ("tools of a completion", C, completion(tools=[TOOL]), 400, "tools", "not supported"),
    ("tool_choice of a completion", C, completion(tool_choice="required"), 400, "tool_choice", "not supported"),
    ("reasoning_effort of a completion", C, completion(reasoning_effort="high"), 400, "reasoning_effort", "not supported"),
    ("response_format", H, chat(response_format={"type": "xml"}), 400, "response_format.type", "must be 'text'"),
    ("json schema", H, chat(response_format={"type": "json_schema", "json_schema": {}}), 400, "response_format.json_schema.schema", "required"),
    ("schema of no type", H, chat(json_schema={"properties": {"a": {"type": "strin"}}}), 400, "json_schema", "#/properties/a/type"),
    ("schema without instance", H, chat(json_schema={"type": "integer", "minimum": 2, "maximum": 1}), 400, "json_schema", ""),
    ("regex", C, completion(guided_regex="a(b"), 400, "guided_regex", "byte 1"),
    ("left recursion", C, completion(grammar="root ::= root \"a\" | \"b\""), 400, "grammar", "root"),
    ("two forms", C, completion(guided_regex="a", guided_choice=["b"]), 400, "guided_choice", "at most one"),
    ("too many states", C, completion(guided_regex="((a{1000}){1000}){1000}"), 400, "guided_regex", ""),
    ("modalities", H, chat(modalities=["text", "audio"]), 400, "modalities", "not supported"),
    ("audio", H, chat(audio={"voice": "alloy"}), 400, "audio", "not supported"),
    # fields beyond OpenAI's, and those that go with them
    ("suffix of a model that fills no gaps", C, completion(suffix="."), 400, "suffix", "no tokens for filling in the middle"),
    ("suffix a number", C, completion(suffix=5), 400, "suffix", "a string"),
    ("suffix with echo", C, completion(suffix=".", echo=True), 400, "suffix", "not possible with 'echo'"),
    ("suffix with a zero byte", C, completion(suffix="a\0b"), 400, "suffix", "zero byte"),
    ("best_of below zero", C, completion(best_of=-1), 400, "best_of", "from 0 to 128"),
    ("best_of text", C, completion(best_of="2"), 400, "best_of", "an integer"),
    ("best_of below n", C, completion(best_of=2, n=3), 400, "best_of", "less than 'n'"),
    ("best_of streamed", C, completion(best_of=2, stream=True), 400, "best_of", "known at the end"),
    ("best_of times prompts", C, completion(prompt=["a"] * 100, best_of=2), 400, "best_of", "at most 128"),
    ("prompt_logprobs high", C, completion(prompt_logprobs=21), 400, "prompt_logprobs", "from 0 to 20"),
    ("prompt_logprobs all", H, chat(prompt_logprobs=-1), 400, "prompt_logprobs", "from 0 to 20"),
    ("prompt_logprobs true", C, completion(prompt_logprobs=True), 400, "prompt_logprobs", "an integer"),
    ("prompt_logprobs streamed", C, completion(prompt_logprobs=1, stream=True), 400, "prompt_logprobs", "not possible with 'stream'"),
    ("truncation below -1", C, completion(truncate_prompt_tokens=-2), 400, "truncate_prompt_tokens", "from -1"),
    ("truncation text", H, chat(truncate_prompt_tokens="5"), 400, "truncate_prompt_tokens", "an integer"),
    ("truncation beyond the context", C, completion(truncate_prompt_tokens=10_000_000), 400, "truncate_prompt_tokens",
     "maximum context length"),
    ("include_stop text", C, completion(include_stop_str_in_output="yes"), 400, "include_stop_str_in_output", "a boolean"),
    ("return_token_ids a number", C, completion(return_token_ids=1), 400, "return_token_ids", "a boolean"),
    ("return_tokens_as_token_ids text", H, chat(return_tokens_as_token_ids="x"), 400, "return_tokens_as_token_ids", "a boolean"),
    ("priority text", C, completion(priority="high"), 400, "priority", "an integer"),
    ("priority huge", H, chat(priority=1e12), 400, "priority", "from -2147483648"),
    ("continue both", H, chat(continue_final_message=True, add_generation_prompt=True), 400, "continue_final_message", "cannot both"),
    ("continue a call", H, chat(messages=[*HELLO, {"role": "assistant", "content": "a", "tool_calls": [
        {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}]}], continue_final_message=True), 400,
     "continue_final_message", "without 'tool_calls'"),
    ("continue text", H, chat(continue_final_message="yes"), 400, "continue_final_message", "a boolean"),
    ("continue a prompt", T, {"prompt": "a", "continue_final_message": True}, 400, "continue_final_message", "needs 'messages'"),
    ("generation prompt a number", H, chat(add_generation_prompt=1), 400, "add_generation_prompt", "a boolean"),
    ("continuous usage text", C, completion(stream=True, stream_options={"continuous_usage_stats": 1}), 400,
     "stream_options.continuous_usage_stats", "a boolean"),
    ("continuous usage alone", C, completion(stream_options={"continuous_usage_stats": True}), 400, "stream_options", "only allowed"),
    # responses
    ("response of nothing", R, {"model": "default"}, 400, "input", "required"),
    ("response of broken JSON", R, b"{", 400, None, "not valid JSON"),
    ("response of a number", R, {"input": 5}, 400, "input", "not an integer"),
    ("response of no items", R, {"input": []}, 400, "input", "must not be empty"),
    ("response of a strange item", R, {"input": [{"type": "computer_call"}]}, 400, "input[0]", "only items of type"),
    ("response of an unknown role", R, {"input": [{"role": "wizard", "content": "x"}]}, 400, "input", "must be"),
    ("response of another model", R, {"model": "gpt-17", "input": "x"}, 404, "model", "does not exist"),
    ("response temperature", R, {"input": "x", "temperature": 9}, 400, "temperature", "at most 2"),
    ("response too long", R, {"input": "x", "max_output_tokens": 10_000_000}, 400, "max_output_tokens", "maximum context length"),
    ("response format", R, {"input": "x", "text": {"format": 5}}, 400, "text.format", "an object with a 'type'"),
    ("response to none", R, {"input": "x", "previous_response_id": "resp_1"}, 404, "previous_response_id", "no such response"),
    ("response metadata", R, {"input": "x", "metadata": 5}, 400, "metadata", "an object"),
    # tools
    ("tools text", H, chat(tools="f"), 400, "tools", "an array of tools"),
    ("tools an object", H, chat(tools={"f": {}}), 400, "tools", "an array of tools"),
    ("tool a string", H, chat(tools=["f"]), 400, "tools[0]", "an object"),
    ("tool without type", H, chat(tools=[{"function": {"name": "f"}}]), 400, "tools[0].type", "required"),
    ("tool of another type", H, chat(tools=[TOOL, {"type": "web_search"}]), 400, "tools[1].type", "type 'function'"),
    ("custom tool without custom", H, chat(tools=[{"type": "custom", "name": "f"}]), 400, "tools[0].custom", "an object"),
    ("custom tool without name", H, chat(tools=[{"type": "custom", "custom": {}}]), 400, "tools[0].custom.name", "required"),
    ("custom tool named as another", H, chat(tools=[TOOL, {"type": "custom", "custom": {"name": "f"}}]), 400, "tools[1].function.name", "as is that of tools[0]"),
    ("custom tool of a Lark grammar", H, chat(tools=[{"type": "custom", "custom": {"name": "f", "format": {"type": "grammar", "grammar": {"syntax": "lark", "definition": "start: /x/"}}}}]),
     400, "tools[0].custom.format", "syntax 'regex'"),
    ("custom tool of another format", H, chat(tools=[{"type": "custom", "custom": {"name": "f", "format": {"type": "xml"}}}]), 400, "tools[0].custom.format", "'text' or 'grammar'"),
    ("custom tool of a broken expression", H, chat(tool_choice="required", tools=[
        {"type": "custom", "custom": {"name": "f", "format": {"type": "grammar", "grammar": {"syntax": "regex", "definition": "("}}}}]), 400, "tools", "pattern"),
    ("response with a hosted tool", R, {"input": "x", "tools": [{"type": "web_search"}]}, 400, "tools[0]", "runs none itself"),
    ("response with a Lark grammar", R, {"input": "x", "tools": [{"type": "custom", "name": "f", "format": {"type": "grammar", "syntax": "lark", "definition": "x"}}]}, 400,
     "tools[0].custom.format", "syntax 'regex'"),
    ("tool without function", H, chat(tools=[{"type": "function"}]), 400, "tools[0].function", "required"),
    ("function a string", H, chat(tools=[{"type": "function", "function": "f"}]), 400, "tools[0].function", "an object"),
    ("function without name", H, chat(tools=[function()]), 400, "tools[0].function.name", "required"),
    ("function name a number", H, chat(tools=[function(name=5)]), 400, "tools[0].function.name", "a string"),
    ("function name empty", H, chat(tools=[function(name="")]), 400, "tools[0].function.name", "1 to 64"),
    ("function name long", H, chat(tools=[function(name="f" * 65)]), 400, "tools[0].function.name", "1 to 64"),
    ("function name with a space", H, chat(tools=[function(name="f g")]), 400, "tools[0].function.name", "letters, digits"),
    ("function name with a quote", H, chat(tools=[function(name='f"')]), 400, "tools[0].function.name", "letters, digits"),
    ("function name with a zero", H, chat(tools=[function(name="f\0")]), 400, "tools[0].function.name", "letters, digits"),
    ("function twice", H, chat(tools=[TOOL, TOOL]), 400, "tools[1].function.name", "as is that of tools[0]"),
    ("description a number", H, chat(tools=[function(name="f", description=1)]), 400, "tools[0].function.description", "a string"),
    ("parameters a list", H, chat(tools=[function(name="f", parameters=[])]), 400, "tools[0].function.parameters", "a JSON Schema"),
    ("strict text", H, chat(tools=[function(name="f", strict="yes")]), 400, "tools[0].function.strict", "a boolean"),
    ("too many tools", H, chat(tools=[function(name=f"f{i}") for i in range(129)]), 400, "tools", "at most 128"),
    ("tool_choice alone", H, chat(tool_choice="required"), 400, "tool_choice", "needs 'tools'"),
    ("tool_choice another word", H, chat(tools=[TOOL], tool_choice="any"), 400, "tool_choice", "must be 'auto'"),
    ("tool_choice a number", H, chat(tools=[TOOL], tool_choice=1), 400, "tool_choice", "a string or an object"),
    ("tool_choice of another type", H, chat(tools=[TOOL], tool_choice={"type": "mcp"}), 400, "tool_choice.type", "must be 'function'"),
    ("tool_choice of no custom tool", H, chat(tools=[TOOL], tool_choice={"type": "custom"}), 400, "tool_choice.function", "an object"),
    ("allowed_tools of no mode", H, chat(tools=[TOOL], tool_choice={"type": "allowed_tools", "allowed_tools": {"tools": [TOOL]}}), 400,
     "tool_choice.allowed_tools.mode", "'auto' or 'required'"),
    ("allowed_tools without any", H, chat(tools=[TOOL], tool_choice={"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": []}}), 400,
     "tool_choice.allowed_tools.tools", "at least one"),
    ("allowed_tools of another", H, chat(tools=[TOOL], tool_choice={"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [function(name="g")]}}), 400,
     "tool_choice.allowed_tools.tools", "none of 'tools'"),
    ("allowed_tools without itself", H, chat(tools=[TOOL], tool_choice={"type": "allowed_tools"}), 400, "tool_choice.allowed_tools", "not nothing"),
    ("allowed_tools alone", H, chat(tool_choice={"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [TOOL]}}), 400, "tool_choice", "needs 'tools'"),
    ("tool_choice without function", H, chat(tools=[TOOL], tool_choice={"type": "function"}), 400, "tool_choice.function", "an object"),
    ("tool_choice without name", H, chat(tools=[TOOL], tool_choice={"type": "function", "function": {}}), 400, "tool_choice.function.name", "required"),
    ("tool_choice of none", H, chat(tools=[TOOL], tool_choice={"type": "function", "function": {"name": "g"}}), 400, "tool_choice.function.name",
     "none of 'tools'"),
    ("parallel_tool_calls text", H, chat(tools=[TOOL], parallel_tool_calls="no"), 400, "parallel_tool_calls", "a boolean"),
    # calls and their results in messages
    ("tool_calls an object", H, called({}), 400, "messages[1].tool_calls", "an array of calls"),
    ("tool_calls of a user", H, chat(messages=[{"role": "user", "content": "x", "tool_calls": [CALL]}]), 400, "messages[0].tool_calls", "role 'assistant'"),
    ("too many calls", H, called([CALL] * 129), 400, "messages[1].tool_calls", "at most 128"),
    ("call a string", H, called(["f"]), 400, "messages[1].tool_calls[0]", "an object"),
    ("call of another type", H, called([CALL, {**CALL, "type": "mcp"}]), 400, "messages[1].tool_calls[1].type", "must be 'function'"),
    ("custom call without input", H, called([{"id": "1", "type": "custom", "custom": {"name": "f"}}]), 400, "messages[1].tool_calls[0].custom", "'input'"),
    ("call without function", H, called([{"id": "1", "type": "function"}]), 400, "messages[1].tool_calls[0].function", "required"),
    ("call's function a list", H, called([{"id": "1", "function": []}]), 400, "messages[1].tool_calls[0].function", "an object"),
    ("call without name", H, called([{"id": "1", "function": {"arguments": "{}"}}]), 400, "messages[1].tool_calls[0].function.name", "required"),
    ("call with a bad name", H, called([{"id": "1", "function": {"name": "<|im_end|>", "arguments": "{}"}}]), 400,
     "messages[1].tool_calls[0].function.name", "letters, digits"),
    ("call's id a number", H, called([{**CALL, "id": 7}]), 400, "messages[1].tool_calls[0].id", "a string"),
    ("call's id long", H, called([{**CALL, "id": "1" * 257}]), 400, "messages[1].tool_calls[0].id", "the most is 256"),
    ("arguments a number", H, called([arguments(5)]), 400, "messages[1].tool_calls[0].function.arguments", "not an integer"),
    ("result without content", H, chat(messages=HELLO + [{"role": "tool", "tool_call_id": "1"}]), 400, "messages[1].content", "required"),
    ("result's id a number", H, chat(messages=HELLO + [{"role": "tool", "content": "x", "tool_call_id": 1}]), 400, "messages[1].tool_call_id", "a string"),
    ("a function's message", H, chat(messages=HELLO + [{"role": "function", "name": "f", "content": "x"}]), 400, "messages[1].role", "must be"),
    ("function_call of a message", H, chat(messages=[{"role": "assistant", "content": None, "function_call": {"name": "f"}}]), 400,
     "messages[0].function_call", "use 'tool_calls'"),
    ("name a number", H, chat(messages=[{"role": "user", "content": "x", "name": 5}]), 400, "messages[0].name", "a string"),
    ("reasoning a list", H, chat(messages=HELLO + [{"role": "assistant", "content": "x", "reasoning_content": []}]), 400,
     "messages[1].reasoning_content", "a string"),
    # what the template is given
    ("a template", H, chat(chat_template="{{ messages }}"), 400, "chat_template", "is not supported but for the name of one"),
    ("an unknown template", H, chat(chat_template="nope"), 400, "chat_template", "none called 'nope'; there are default"),
    ("a template's name as a number", H, chat(chat_template=7), 400, "chat_template", "the name of a chat template"),
    ("kwargs a list", H, chat(chat_template_kwargs=[]), 400, "chat_template_kwargs", "an object"),
    ("kwargs of its own", H, chat(chat_template_kwargs={"messages": []}), 400, "chat_template_kwargs", "'chat_template_kwargs.messages' is not allowed"),
    ("too many kwargs", H, chat(chat_template_kwargs={str(i): 1 for i in range(65)}), 400, "chat_template_kwargs", "at most 64"),
    ("reasoning_effort another word", H, chat(reasoning_effort="much"), 400, "reasoning_effort", "must be 'none'"),
    ("reasoning_effort a number", H, chat(reasoning_effort=1), 400, "reasoning_effort", "a string"),
    ("include_reasoning text", H, chat(include_reasoning="no"), 400, "include_reasoning", "a boolean"),
    ("documents text", H, chat(documents="x"), 400, "documents", "an array of documents"),
    ("document text", H, chat(documents=["x"]), 400, "documents[0]", "an object"),
    ("tokenize with bad tools", T, {"messages": HELLO, "tools": [{}]}, 400, "tools[0].type", "required"),
    ("guided_json", C, completion(guided_json=5), 400, "guided_json", "a JSON Schema"),
    # the helpers' endpoints
    ("tokenize nothing", T, {}, 400, "prompt", "exactly one"),
    ("tokenize both", T, {"prompt": "a", "messages": HELLO}, 400, "prompt", "exactly one"),
    ("tokenize a list", T, {"prompt": ["a"]}, 400, "prompt", "must be a string"),
    ("detokenize nothing", D, {}, 400, "tokens", "required"),
    ("detokenize text", D, {"tokens": "a"}, 400, "tokens", "an array"),
    ("detokenize a bad id", D, {"tokens": [0, 99_999_999]}, 400, "tokens[1]", "no token"),
    # too large
    ("10 MB", C, completion(prompt="x" * 10_000_000), 413, None, "larger than"),
]


def check_error(text, param, part):
    error = json.loads(text)["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["param"] == param, error
    assert any(one in error["message"] for one in part.split("|")), error
    assert error["type"]


@pytest.mark.parametrize("name,path,body,status,param,part", BAD, ids=[row[0] for row in BAD])
def test_bad_request(server, name, path, body, status, param, part):
    got, headers, text = call(server, "POST", path, body)
    assert got == status, text
    check_error(text, param, part)
    assert headers["Content-Type"].startswith("application/json")


FORMS = {"/v1/messages": lambda error: error["type"] == "error" and {"type", "message"} == set(error["error"]),
         "/v1/messages/count_tokens": lambda error: error["type"] == "error" and {"type", "message"} == set(error["error"]),
         "/api/chat": lambda error: isinstance(error["error"], str), "/api/nowhere": lambda error: isinstance(error["error"], str)}


@pytest.mark.parametrize("path,body,words", [
    ("/v1/messages", chat(messages=[{"role": "user", "content": "word " * 20000}]), r"prompt is too long: \d+ tokens > \d+ maximum"),
    ("/v1/messages", chat(max_tokens=10_000_000), r"input length and `max_tokens` exceed context limit: \d+ \+ 10000000 > \d+, decrease"),
    ("/v1/messages", chat(model="gpt-17"), "model: gpt-17"),
    ("/api/chat", chat(model="gpt-17"), "model 'gpt-17' not found"),
    ("/api/show", {"model": "gpt-17"}, "model 'gpt-17' not found")])
def test_words_that_clients_look_for(server, path, body, words):
    error = json.loads(call(server, "POST", path, body)[2])["error"]
    assert re.match(words, error if isinstance(error, str) else error["message"]), error


@pytest.mark.parametrize("path", FORMS)
@pytest.mark.parametrize("method,body,headers,status", [
    ("POST", b"{", {}, 400), ("POST", b"[]", {}, 400), ("POST", b'{"model": 5}', {}, 400), ("PUT", b"{}", {}, 405), ("POST", b"{}", {"Content-Encoding": "gzip"}, 415),
    ("POST", b" " * 10_000_000, {}, 413)])
def test_errors_in_other_forms(server, path, method, body, headers, status):
    """Whoever refuses the request, its parser or the server before it, the client reads its own kind of error."""
    got, _, text = call(server, method, path, body, headers)
    assert got == (404 if path == "/api/nowhere" else status), text
    assert FORMS[path](json.loads(text)), text


def test_context_code(server):
    _, _, text = call(server, "POST", C, completion(prompt="word " * 20000))
    assert json.loads(text)["error"]["code"] == "context_length_exceeded"
    _, _, text = call(server, "POST", C, completion(model="nobody"))
    assert json.loads(text)["error"]["code"] == "model_not_found"


@pytest.mark.parametrize("method,path,status,allow", [
    ("GET", "/nowhere", 404, None), ("GET", "/v1/models/none", 404, None), ("POST", "/v1", 404, None),
    ("GET", C, 405, "POST"), ("PUT", H, 405, "POST"), ("POST", "/v1/models", 405, "GET"), ("DELETE", "/health", 405, "GET"),
])
def test_paths_and_methods(server, method, path, status, allow):
    got, headers, text = call(server, method, path, b"{}" if method in ("POST", "PUT") else None)
    assert got == status
    assert headers.get("Allow") == allow
    assert json.loads(text)["error"]["message"]


@pytest.mark.parametrize("headers", [{"Content-Type": "multipart/form-data; boundary=x"}, {"Content-Encoding": "gzip"}])
def test_media_type(server, headers):
    got, _, text = call(server, "POST", C, completion(), headers)
    assert got == 415
    check_error(text, None, "the body must")


def test_chunked_body_over_the_limit(server):
    connection = connect(server)

    def pieces():
        yield b'{"prompt": "'
        for _ in range(100):
            yield b"x" * 100_000
        yield b'"}'

    connection.request("POST", C, pieces(), {"Content-Type": "application/json"}, encode_chunked=True)
    reply = connection.getresponse()
    assert reply.status == 413
    check_error(reply.read().decode(), None, "larger than")


def test_expect_continue_is_refused_before_the_body(server):
    with raw_socket(server) as connection:
        connection.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 20000000\r\nExpect: 100-continue\r\n\r\n")
        assert connection.recv(4096).startswith(b"HTTP/1.1 413 ")


def read_all(connection):
    data = b""
    try:
        while piece := connection.recv(65536):
            data += piece
    except ConnectionResetError:
        pass
    return data


@pytest.mark.parametrize("sent", [
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" * 20, b"GET\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n",
    b"GET /health HTTP/1.1\r\n" + b"X: " + b"a" * 100_000 + b"\r\n\r\n",
    b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: -5\r\n\r\n",
    b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
], ids=["TLS", "no path", "version", "long header", "negative length", "bad chunk"])
def test_not_http(server, sent):
    with raw_socket(server, timeout=30) as connection:
        try:
            connection.sendall(sent)
            connection.shutdown(socket.SHUT_WR)
            data = read_all(connection)
        except OSError:  # reset, or closed before all was sent
            data = b""
    assert data == b"" or data.split(b" ")[1][:1] in (b"4", b"5"), data[:200]
    assert call(server, "GET", "/health")[0] == 200


@pytest.mark.parametrize("headers", [
    ("Content-Length: 60", "Content-Length: 3"), ("Content-Length: 3", "Content-Length: 60"), ("Content-Length: 60", "Content-Length: 60"),
    ("Content-Length: 60", "Transfer-Encoding: chunked"), ("Transfer-Encoding: gzip, chunked",), ("Transfer-Encoding: gzip",),
    ("Transfer-Encoding: chunked", "Transfer-Encoding: gzip"),
])
def test_a_body_of_uncertain_length(server, headers):
    """A proxy in front may cut it elsewhere, and a second request hide in it: refused, and the connection ends."""
    body = b'{"model": "default", "prompt": "a", "max_tokens": 1}'.ljust(60)
    if headers[-1].endswith("chunked") or headers[0].endswith("chunked"):
        body = b"3c\r\n" + body + b"\r\n0\r\n\r\n"
    with raw_socket(server, timeout=10) as connection:
        connection.sendall("\r\n".join(["POST /v1/completions HTTP/1.1", "Host: x", "Content-Type: application/json", *headers, "", ""])
                           .encode() + body + b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
        data = read_all(connection)
    assert data.startswith(b"HTTP/1.1 400 ") and data.count(b"HTTP/1.1 ") == 1, data[:300]


def test_slow_loris(start_mesh):
    """A header byte now and then keeps no connection: it is told 408 and closed, and others are served meanwhile."""
    mesh = start_mesh(env={"FD_HEADER_TIMEOUT": str(pace.seconds(1))})
    with raw_socket(mesh, timeout=30) as connection:
        connection.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\n")
        connection.settimeout(pace.seconds(0.1))
        deadline, data, served = pace.Deadline(20), None, 0
        while data is None and not deadline.passed():
            try:
                connection.sendall(b"X-Slow: 1\r\n")
                data = connection.recv(4096)
            except TimeoutError:
                assert call(mesh, "GET", "/health")[0] == 200
                served += 1
            except (BrokenPipeError, ConnectionResetError):
                data = b""
    assert data is not None, "the connection is still open"
    assert data == b"" or data.startswith(b"HTTP/1.1 408 "), data
    assert served > 0


def test_a_bad_request_disturbs_nobody(server):
    """While one request streams, every bad one is refused; the stream's text is what it is alone."""
    body = completion(prompt="The sea is", max_tokens=24, temperature=0)
    alone = post(server, C, body)["choices"][0]["text"]
    connection = connect(server)
    connection.request("POST", C, json.dumps({**body, "stream": True}), {"Content-Type": "application/json"})
    for _, path, bad, status, *_ in BAD[:40]:
        assert call(server, "POST", path, bad)[0] == status
    lines = connection.getresponse().read().decode().splitlines()
    chunks = [json.loads(line[6:]) for line in lines if line.startswith("data: {")]
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == alone
