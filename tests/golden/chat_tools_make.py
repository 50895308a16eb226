#!/usr/bin/env python3
"""Makes chat_tools.json: what jinja2 renders of conversations with tools, calls, reasoning, documents and variables.

  chat_tools_make.py                     the file beside it: templates in the formats that families of models document, written for this test
  chat_tools_make.py --published DIR OUT   published templates (*.jinja of a folder, such as the one in the source package of llama-cpp-python), which
                                         are not kept here: FD_PUBLISHED_TEMPLATES=OUT build/tests/unit/test_chat_template

Needs PyPI jinja2 3.1. The environment is that of chat_template_make.py.
"""
import json
import sys
from pathlib import Path

import jinja2

from chat_template_make import NOW, env


def function(name, description, **properties):
    return {"type": "function", "function": {"name": name, "description": description, "parameters": {
        "type": "object", "properties": properties, "required": sorted(properties)[:1]}}}


def call(id, name, **arguments):
    return {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}


TOOLS = [
    function("get_weather", "Says how the weather <is> & will be in a city \"é\".", city={"type": "string", "description": "The city's name"},
             days={"type": "integer", "enum": [1, 3, 7], "default": 1}),
    function("search", "Finds pages", query={"type": "string"}, where={"type": "array", "items": {"type": "string"}},
             more={"type": "object", "properties": {"exact": {"type": "boolean"}}}, share={"type": "number", "minimum": 0.5}),
]
USER = {"role": "user", "content": "How is it in Aix? <|im_end|>"}
SYSTEM = {"role": "system", "content": "Be brief."}


def called(*calls, content=None, **more):
    return {"role": "assistant", "content": content, "tool_calls": list(calls), **more}


def answer(id, name, content):
    return {"role": "tool", "tool_call_id": id, "name": name, "content": content}


ONE = call("call00001", "get_weather", city="Aix \"é\"\n", days=3)
TWO = call("call00002", "search", query="sun", where=["a", "b"], more={"exact": True, "n": None}, share=0.5)
MESSAGES = {
    "ask": [USER],
    "system": [SYSTEM, USER],
    "answered": [SYSTEM, USER, called(ONE), answer("call00001", "get_weather", "{\"sky\": \"blue\"}")],
    "said": [USER, called(ONE, content="I will look."), answer("call00001", "get_weather", "blue"), {"role": "assistant", "content": "Blue."}, USER],
    "twice": [USER, called(ONE, TWO), answer("call00001", "get_weather", "blue"), answer("call00002", "search", "nothing")],
    "thought": [USER, {"role": "assistant", "content": "It is.", "reasoning_content": "Hm.", "thinking": "Hm."}, USER],
    "thought and called": [USER, called(ONE, content="", reasoning_content="I must look.", thinking="I must look."), answer("call00001", "get_weather", "blue")],
}
DOCUMENTS = [{"title": "Skies", "text": "Blue <s>.", "doc_id": 1}]
VARIABLES = [{}, {"enable_thinking": False, "thinking": True, "reasoning_effort": "high", "extra": {"a": [1, 2.5, None, True, "<s>"]}}]

FAMILIES = {
    "hermes": """{%- if tools %}{{- '<|im_start|>system\\n' }}{%- if messages[0]['role'] == 'system' %}{{- messages[0]['content'] + '\\n\\n' }}{%- endif %}
{{- "You may call functions:\\n<tools>" }}{%- for tool in tools %}{{- "\\n" }}{{- tool | tojson }}{%- endfor %}{{- "\\n</tools>\\nAnswer with <tool_call></tool_call>.<|im_end|>\\n" }}
{%- elif messages[0]['role'] == 'system' %}{{- '<|im_start|>system\\n' + messages[0]['content'] + '<|im_end|>\\n' }}{%- endif %}
{%- for message in messages %}
    {%- if message.role == "user" or (message.role == "assistant" and not message.tool_calls) %}{{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}
    {%- elif message.role == "assistant" %}{{- '<|im_start|>assistant' }}{%- if message.content %}{{- '\\n' + message.content }}{%- endif %}
        {%- for tool_call in message.tool_calls %}{%- if tool_call.function is defined %}{%- set tool_call = tool_call.function %}{%- endif %}
            {{- '\\n<tool_call>\\n{"name": "' }}{{- tool_call.name }}{{- '", "arguments": ' }}{{- tool_call.arguments | tojson }}{{- '}\\n</tool_call>' }}{%- endfor %}{{- '<|im_end|>\\n' }}
    {%- elif message.role == "tool" %}{%- if loop.first or messages[loop.index0 - 1].role != "tool" %}{{- '<|im_start|>user' }}{%- endif %}
        {{- '\\n<tool_response>\\n' + message.content + '\\n</tool_response>' }}{%- if loop.last or messages[loop.index0 + 1].role != "tool" %}{{- '<|im_end|>\\n' }}{%- endif %}
    {%- endif %}
{%- endfor %}{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}""",
    "qwen3": """{%- if tools %}{{- '<|im_start|>system\\n' }}{%- if messages[0].role == 'system' %}{{- messages[0].content + '\\n\\n' }}{%- endif %}{{- "# Tools\\n<tools>" }}{%- for tool in tools %}{{- "\\n" }}{{- tool | tojson }}{%- endfor %}{{- "\\n</tools>\\nReturn JSON within <tool_call></tool_call>.<|im_end|>\\n" }}{%- endif %}
{%- set ns = namespace(last=-1) %}{%- for message in messages[::-1] %}{%- set index = (messages|length - 1) - loop.index0 %}
{%- if ns.last < 0 and message.role == "user" %}{%- set ns.last = index %}{%- endif %}{%- endfor %}
{%- for message in messages %}{%- set content = message.content if message.content is string else '' %}
{%- if message.role == "assistant" %}{%- set reasoning = message.reasoning_content if message.reasoning_content is string else '' %}
{{- '<|im_start|>assistant\\n' }}{%- if loop.index0 > ns.last and (loop.last or reasoning) %}{{- '<think>\\n' + reasoning.strip('\\n') + '\\n</think>\\n\\n' }}{%- endif %}{{- content.lstrip('\\n') }}
{%- for tool_call in message.tool_calls or [] %}{%- if (loop.first and content) or (not loop.first) %}{{- '\\n' }}{%- endif %}{{- '<tool_call>\\n{"name": "' ~ tool_call.function.name ~ '", "arguments": ' }}
{%- if tool_call.function.arguments is string %}{{- tool_call.function.arguments }}{%- else %}{{- tool_call.function.arguments | tojson }}{%- endif %}{{- '}\\n</tool_call>' }}{%- endfor %}{{- '<|im_end|>\\n' }}
{%- elif message.role == "tool" %}{{- '<|im_start|>user\\n<tool_response>\\n' + content + '\\n</tool_response><|im_end|>\\n' }}
{%- elif message.role != "system" or not tools %}{{- '<|im_start|>' + message.role + '\\n' + content + '<|im_end|>\\n' }}{%- endif %}{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- if enable_thinking is defined and enable_thinking is false %}{{- '<think>\\n\\n</think>\\n\\n' }}{%- endif %}{%- endif %}""",
    "llama3": """{{- bos_token }}{%- if not tools is defined %}{%- set tools = none %}{%- endif %}{%- set user_tools = tools_in_user_message | default(true) %}
{%- if messages[0]['role'] == 'system' %}{%- set system = messages[0]['content']|trim %}{%- set messages = messages[1:] %}{%- else %}{%- set system = "" %}{%- endif %}
{{- "<|start_header_id|>system<|end_header_id|>\\n\\n" }}{%- if tools is not none %}{{- "Environment: ipython\\n" }}{%- endif %}{{- "Today Date: " + strftime_now("%d %b %Y") + "\\n\\n" + system + "<|eot_id|>" }}
{%- if user_tools and tools is not none %}{%- if messages | length != 0 %}{%- set first = messages[0]['content']|trim %}{%- set messages = messages[1:] %}{%- else %}{{- raise_exception("no first message") }}{%- endif %}
{{- '<|start_header_id|>user<|end_header_id|>\\n\\n' -}}{{- 'Respond in the format {"name": function name, "parameters": dictionary of argument name and its value}.\\n\\n' }}
{%- for t in tools %}{{- t | tojson(indent=4) }}{{- "\\n\\n" }}{%- endfor %}{{- first + "<|eot_id|>"}}{%- endif %}
{%- for message in messages %}{%- if not (message.role == 'ipython' or message.role == 'tool' or 'tool_calls' in message) %}{{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n'+ message['content'] | trim + '<|eot_id|>' }}
{%- elif 'tool_calls' in message %}{%- if not message.tool_calls|length == 1 %}{{- raise_exception("one call at once") }}{%- endif %}{%- set tool_call = message.tool_calls[0].function %}
{{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' -}}{{- '{"name": "' + tool_call.name + '", ' }}{{- '"parameters": ' }}{{- tool_call.arguments | tojson }}{{- "}" }}{{- "<|eot_id|>" }}
{%- elif message.role == "tool" or message.role == "ipython" %}{{- "<|start_header_id|>ipython<|end_header_id|>\\n\\n" }}{%- if message.content is mapping or message.content is iterable %}{{- message.content | tojson }}{%- else %}{{- message.content }}{%- endif %}{{- "<|eot_id|>" }}{%- endif %}{%- endfor %}
{%- if add_generation_prompt %}{{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{%- endif %}""",
    "mistral": """{%- set loop_messages = messages[1:] if messages[0].role == "system" else messages %}{%- set user_messages = loop_messages | selectattr("role", "equalto", "user") | list %}{{- bos_token }}
{%- for message in loop_messages %}{%- if message["role"] == "user" %}{%- if tools is not none and (message == user_messages[-1]) %}{{- "[AVAILABLE_TOOLS][" }}
{%- for tool in tools %}{%- set tool = tool.function %}{{- '{"type": "function", "function": {' }}{%- for key, val in tool.items() if key != "return" %}{%- if val is string %}{{- '"' + key + '": "' + val + '"' }}{%- else %}{{- '"' + key + '": ' + val|tojson }}{%- endif %}{%- if not loop.last %}{{- ", " }}{%- endif %}{%- endfor %}{{- "}}" }}{%- if not loop.last %}{{- ", " }}{%- else %}{{- "]" }}{%- endif %}{%- endfor %}{{- "[/AVAILABLE_TOOLS]" }}{%- endif %}{{- "[INST]" + message["content"] + "[/INST]" }}
{%- elif message.tool_calls is defined and message.tool_calls is not none %}{{- "[TOOL_CALLS][" }}{%- for tool_call in message.tool_calls %}{%- set out = tool_call.function|tojson %}{{- out[:-1] }}{%- if not tool_call.id is defined or tool_call.id|length != 9 %}{{- raise_exception("ids have nine letters and digits") }}{%- endif %}{{- ', "id": "' + tool_call.id + '"}' }}{%- if not loop.last %}{{- ", " }}{%- else %}{{- "]" + eos_token }}{%- endif %}{%- endfor %}
{%- elif message["role"] == "assistant" %}{{- message["content"]|trim + eos_token}}
{%- elif message["role"] == "tool_results" or message["role"] == "tool" %}{%- if message.content is defined and message.content.content is defined %}{%- set content = message.content.content %}{%- else %}{%- set content = message.content %}{%- endif %}{{- '[TOOL_RESULTS]{"content": ' + content|string + ", " }}{{- '"call_id": "' + message.tool_call_id + '"}[/TOOL_RESULTS]' }}{%- endif %}{%- endfor %}""",
    "mistral_tekken": """{%- macro show(content) %}{%- if content is string %}{{- content }}{%- elif content %}{%- for part in content %}{{- part.text }}{%- endfor %}{%- endif %}{%- endmacro %}{{- bos_token }}
{%- if tools %}{{- '[AVAILABLE_TOOLS]' + (tools | tojson) + '[/AVAILABLE_TOOLS]' }}{%- endif %}
{%- for message in messages %}{%- if message.role == 'system' %}{{- '[SYSTEM_PROMPT]' + show(message.content) + '[/SYSTEM_PROMPT]' }}{%- elif message.role == 'user' %}{{- '[INST]' + show(message.content) + '[/INST]' }}
{%- elif message.role == 'assistant' %}{%- if message.reasoning_content %}{{- '[THINK]' + message.reasoning_content + '[/THINK]' }}{%- endif %}{{- show(message.content) }}{%- for call in message.tool_calls or [] %}{%- set arguments = call.function.arguments %}{%- if arguments is not string %}{%- set arguments = arguments | tojson | string %}{%- endif %}{{- '[TOOL_CALLS]' + call.function.name + '[ARGS]' + arguments }}{%- endfor %}{{- eos_token }}
{%- elif message.role == 'tool' %}{{- '[TOOL_RESULTS]' + message.content|string + '[/TOOL_RESULTS]' }}{%- else %}{{- raise_exception('Only user, assistant, system and tool are roles, not ' + message.role + '.') }}{%- endif %}{%- endfor %}""",
    "deepseek": """{% set ns = namespace(is_first=true, is_tool=false, is_output_first=true) %}{{ bos_token }}{% for message in messages %}{%- if message['role'] == 'system' %}{{ message['content'] }}{%- endif %}{%- if loop.first and tools %}{{ '\\n\\n## Tools\\n' }}{%- for tool in tools %}{{ '### ' + tool.function.name + '\\n' + (tool.function.parameters | tojson) + '\\n' }}{%- endfor %}{%- endif %}
{%- if message['role'] == 'user' %}{%- set ns.is_tool = false -%}{{'<｜User｜>' + message['content']}}{%- endif %}
{%- if message['role'] == 'assistant' and 'tool_calls' in message %}{%- set ns.is_tool = false -%}{%- for tool in message['tool_calls'] %}{%- if loop.first %}{{'<｜Assistant｜>' + (message['content'] or '') + '<｜tool▁calls▁begin｜>'}}{%- else %}{{'\\n'}}{%- endif %}{{'<｜tool▁call▁begin｜>' + tool['type'] + '<｜tool▁sep｜>' + tool['function']['name'] + '\\n' + '```json' + '\\n' + (tool['function']['arguments']|tojson) + '\\n' + '```' + '<｜tool▁call▁end｜>'}}{%- endfor %}{{'<｜tool▁calls▁end｜><｜end▁of▁sentence｜>'}}{%- endif %}
{%- if message['role'] == 'assistant' and 'tool_calls' not in message %}{% set content = message['content'] %}{% if '</think>' in content %}{% set content = content.split('</think>')[-1] %}{% endif %}{{'<｜Assistant｜>' + content + '<｜end▁of▁sentence｜>'}}{%- endif %}
{%- if message['role'] == 'tool' %}{%- if ns.is_output_first or not ns.is_tool %}{{'<｜tool▁outputs▁begin｜>'}}{%- set ns.is_output_first = false %}{%- endif %}{%- set ns.is_tool = true -%}{{'<｜tool▁output▁begin｜>' + message['content'] + '<｜tool▁output▁end｜>'}}{%- endif %}{%- endfor -%}{% if ns.is_tool %}{{'<｜tool▁outputs▁end｜>'}}{% endif %}
{%- if add_generation_prompt and not ns.is_tool %}{{'<｜Assistant｜>' ~ ('<think>\\n' if thinking is not defined or thinking else '</think>')}}{% endif %}""",
    "granite": """{%- if messages[0]['role'] == 'system' %}{%- set system_message = messages[0]['content'] %}{%- set loop_messages = messages[1:] %}{%- else %}{%- set system_message = "Today's Date: " ~ strftime_now('%B %d, %Y') ~ "." %}
{%- if tools and documents %}{%- set system_message = system_message + " Respond with <|tool_call|> and a list, by the documents." %}{%- elif tools %}{%- set system_message = system_message + " Respond with <|tool_call|> and a list." %}{%- elif documents %}{%- set system_message = system_message + " Go by the documents." %}{%- elif thinking %}{%- set system_message = system_message + " Think between <think></think>, respond between <response></response>." %}{%- endif %}{%- set loop_messages = messages %}{%- endif %}
{{- '<|start_of_role|>system<|end_of_role|>' + system_message + '<|end_of_text|>\\n' }}{%- if tools %}{{- '<|start_of_role|>available_tools<|end_of_role|>' }}{{- tools | tojson(indent=4) }}{{- '<|end_of_text|>\\n' }}{%- endif %}
{%- if documents %}{%- for document in documents %}{{- '<|start_of_role|>document {"document_id": "' + document['doc_id'] | string + '"}<|end_of_role|>\\n' }}{{- document['text'] }}{{- '<|end_of_text|>\\n' }}{%- endfor %}{%- endif %}
{%- for message in loop_messages %}{{- '<|start_of_role|>' + message['role'] + '<|end_of_role|>' }}{%- if message.tool_calls %}{{- '<|tool_call|>' + (message.tool_calls | map(attribute='function') | list | tojson) }}{%- else %}{{- message['content'] }}{%- endif %}{{- '<|end_of_text|>\\n' }}
{%- if loop.last and add_generation_prompt %}{{- '<|start_of_role|>assistant' }}{%- if controls %}{{- ' ' + controls | tojson()}}{%- endif %}{{- '<|end_of_role|>' }}{%- endif %}{%- endfor %}""",
    "harmony": """{%- macro type_of(spec, required, depth=0) -%}{%- if spec.type == "array" -%}{{- type_of(spec['items'], [], depth + 1) + "[]" if spec['items'] else "any[]" }}{%- elif spec.type == "object" and spec.properties -%}{{- "{\\n" }}{%- for name, inner in spec.properties.items() -%}{{- name ~ ("" if name in (required or []) else "?") ~ ": " ~ type_of(inner, inner.required or [], depth + 1) }}{%- if not loop.last -%}{{- ", " }}{%- endif -%}{%- endfor -%}{{- "}" }}
{%- elif spec.enum and spec.type == "string" -%}{{- '"' + spec.enum|join('" | "') + '"' -}}{%- elif spec.type in ["integer", "number"] -%}{{- "number" }}{%- else -%}{{- spec.type or "any" }}{%- endif -%}{%- endmacro -%}
{{- "<|start|>system<|message|>Knowledge cutoff: 2024-06\\nCurrent date: " + strftime_now("%Y-%m-%d") + "\\n\\nReasoning: " + (reasoning_effort | default("medium")) + "\\n\\n# Valid channels: analysis, commentary, final.<|end|>" }}
{%- if messages[0].role == "developer" or messages[0].role == "system" %}{%- set developer = messages[0].content %}{%- set turns = messages[1:] %}{%- else %}{%- set developer = "" %}{%- set turns = messages %}{%- endif %}
{%- if developer or tools %}{{- "<|start|>developer<|message|>" }}{%- if developer %}{{- "# Instructions\\n\\n" + developer + "\\n\\n" }}{%- endif %}{%- if tools -%}{{- "# Tools\\n\\n## functions\\n\\nnamespace functions {\\n\\n" }}{%- for tool in tools %}{%- set tool = tool.function %}{{- "// " + tool.description + "\\ntype " + tool.name + " = (_: {\\n" }}{%- for name, spec in tool.parameters.properties.items() %}{%- if spec.description %}{{- "// " + spec.description + "\\n" }}{%- endif %}{{- name ~ ("" if name in (tool.parameters.required or []) else "?") ~ ": " ~ type_of(spec, tool.parameters.required or []) }}{%- if spec.default is defined %}{{- ", // default: " ~ spec.default|tojson }}{%- endif %}{{- ",\\n" }}{%- endfor %}{{- "}) => any;\\n\\n" }}{%- endfor %}{{- "} // namespace functions" }}{%- endif -%}{{- "<|end|>" }}{%- endif %}
{%- set last = namespace(name=none) %}{%- for message in turns -%}{%- if message.role == 'assistant' -%}{%- if message.content and "<|channel|>" in message.content %}{{- raise_exception("channels in the content") }}{%- endif %}
{%- if "tool_calls" in message %}{%- set call = message.tool_calls[0].function %}{%- if message.thinking or message.content %}{{- "<|start|>assistant<|channel|>analysis<|message|>" + (message.thinking or message.content) + "<|end|>" }}{%- endif %}{{- "<|start|>assistant to=functions." + call.name + "<|channel|>commentary json<|message|>" + call.arguments|tojson + "<|call|>" }}{%- set last.name = call.name %}
{%- else %}{{- "<|start|>assistant<|channel|>final<|message|>" + message.content + "<|end|>" }}{%- set last.name = none %}{%- endif %}
{%- elif message.role == 'tool' -%}{%- if last.name is none %}{{- raise_exception("a tool answers that nobody called") }}{%- endif %}{{- "<|start|>functions." + last.name + " to=assistant<|channel|>commentary<|message|>" + message.content|tojson + "<|end|>" }}{%- elif message.role == 'user' -%}{{- "<|start|>user<|message|>" + message.content + "<|end|>" }}{%- endif -%}{%- endfor -%}{%- if add_generation_prompt -%}<|start|>assistant{%- endif -%}""",
    "functiongemma": """{%- macro value_of(x) -%}{%- if x is string -%}{{- '<escape>' + x + '<escape>' -}}{%- elif x is boolean -%}{{- 'true' if x else 'false' -}}{%- elif x is mapping -%}{{- '{' -}}{%- for k, v in x | dictsort -%}{{- k + ':' + value_of(v) -}}{%- if not loop.last %},{% endif -%}{%- endfor -%}{{- '}' -}}{%- elif x is sequence -%}{{- '[' -}}{%- for v in x -%}{{- value_of(v) -}}{%- if not loop.last %},{% endif -%}{%- endfor -%}{{- ']' -}}{%- else -%}{{- x -}}{%- endif -%}{%- endmacro -%}
{{- bos_token -}}{%- set ns = namespace(previous='') -%}{%- if tools or messages[0]['role'] in ['system', 'developer'] -%}{{- '<start_of_turn>developer\\n' -}}{%- if messages[0]['role'] in ['system', 'developer'] -%}{{- messages[0]['content'] | trim -}}{%- set messages = messages[1:] -%}{%- endif -%}{%- for tool in tools or [] -%}{{- '<start_function_declaration>declaration:' + tool['function']['name'] + '{description:<escape>' + tool['function']['description'] + '<escape>,parameters:' + value_of(tool['function']['parameters']) + '}<end_function_declaration>' -}}{%- endfor -%}{{- '<end_of_turn>\\n' -}}{%- endif -%}
{%- for message in messages -%}{%- set role = 'model' if message['role'] == 'assistant' else message['role'] -%}{%- if role != 'tool' and ns.previous != 'tool' -%}{{- '<start_of_turn>' + role + '\\n' -}}{%- endif -%}{%- if role == 'tool' -%}{{- '<start_function_response>response:' + message['name'] + '{value:' + value_of(message['content']) + '}<end_function_response>' -}}{%- elif message['content'] is string -%}{{- message['content'] | trim -}}{%- endif -%}
{%- if message['tool_calls'] -%}{%- for call in message['tool_calls'] -%}{{- '<start_function_call>call:' + call['function']['name'] + '{' -}}{%- for k, v in call['function']['arguments'] | dictsort -%}{{- k + ':' + value_of(v) -}}{%- if not loop.last %},{% endif -%}{%- endfor -%}{{- '}<end_function_call>' -}}{%- endfor -%}{%- elif role != 'tool' -%}{{- '<end_of_turn>\\n' -}}{%- endif -%}{%- set ns.previous = role -%}{%- endfor -%}{%- if add_generation_prompt and ns.previous != 'tool' -%}{{- '<start_of_turn>model\\n' -}}{%- endif -%}""",
    "phi4": """{% for message in messages %}{% if message['role'] == 'system' and tools is not none %}{{ '<|system|>' + message['content'] + '<|tool|>' + (tools | map(attribute='function') | list | tojson) + '<|/tool|>' + '<|end|>' }}{% elif message['role'] == 'assistant' and message.tool_calls %}{{ '<|assistant|><|tool_call|>' + (message.tool_calls | map(attribute='function') | list | tojson) + '<|/tool_call|><|end|>' }}{% else %}{{ '<|' + message['role'] + '|>' + message['content'] + '<|end|>' }}{% endif %}{% endfor %}{% if add_generation_prompt %}{{ '<|assistant|>' }}{% else %}{{ eos_token }}{% endif %}""",
    "smollm3": """{%- if enable_thinking is not defined -%}{%- set enable_thinking = true -%}{%- endif -%}{%- set mode = "/think" if enable_thinking else "/no_think" -%}{{- "<|im_start|>system\\n## Metadata\\n\\nToday Date: " ~ strftime_now("%d %B %Y") ~ "\\nReasoning Mode: " + mode + "\\n\\n" -}}{%- if messages[0].role == "system" -%}{{- messages[0].content.rstrip() + "\\n\\n" -}}{%- endif -%}
{%- if tools -%}{{- "### Tools\\n\\n" -}}{%- set ns = namespace(text="Return a JSON object within <tool_call></tool_call>:\\n<tools>\\n") -%}{%- for tool in tools -%}{%- set ns.text = ns.text ~ (tool | string) ~ "\\n" -%}{%- endfor -%}{{- ns.text + "</tools>\\n\\n" -}}{%- endif -%}{{- "<|im_end|>\\n" -}}
{%- for message in messages -%}{%- set content = message.content if message.content is string else "" -%}{%- if message.role == "user" -%}{{ "<|im_start|>" + message.role + "\\n"  + content + "<|im_end|>\\n" }}{%- elif message.role == "assistant" -%}{% generation %}{{ "<|im_start|>assistant\\n" + ("" if mode == "/think" else "<think>\\n\\n</think>\\n") + content.lstrip("\\n") + "<|im_end|>\\n" }}{% endgeneration %}{%- elif message.role == "tool" -%}{{ "<|im_start|>" + "user\\n"  + content + "<|im_end|>\\n" }}{%- endif -%}{%- endfor -%}{%- if add_generation_prompt -%}{{ "<|im_start|>assistant\\n" ~ ("" if mode == "/think" else "<think>\\n\\n</think>\\n") }}{%- endif -%}""",
    "qwen3-coder": """{%- macro more(dict, done) %}{%- if dict is mapping %}{%- for key in dict if key not in done %}{{- '\\n<' ~ key ~ '>' ~ (dict[key] | tojson | safe if dict[key] is mapping or dict[key] is sequence and dict[key] is not string else dict[key] | string) ~ '</' ~ key ~ '>' }}{%- endfor %}{%- endif %}{%- endmacro %}
{%- if tools is iterable and tools | length > 0 %}{{- "<|im_start|>system\\n<tools>" }}{%- for tool in tools %}{%- set tool = tool.function %}{{- "\\n<function>\\n<name>" ~ tool.name ~ "</name>" }}{%- for name, fields in (tool.parameters.properties | items) %}{{- '\\n<parameter>\\n<name>' ~ name ~ '</name>' }}{{- more(fields, ['name', 'type']) }}{{- '\\n</parameter>' }}{%- endfor %}{{- more(tool.parameters, ['type', 'properties']) }}{{- "\\n</function>" }}{%- endfor %}{{- "\\n</tools>\\nCall with <tool_call>\\n<function=f>\\n<parameter=p>\\nvalue\\n</parameter>\\n</function>\\n</tool_call><|im_end|>\\n" }}{%- endif %}
{%- for message in messages %}{{- '<|im_start|>' ~ message.role ~ '\\n' ~ (message.content if message.content is string else '') }}{%- for call in message.tool_calls or [] %}{{- '\\n<tool_call>\\n<function=' ~ call.function.name ~ '>\\n' }}{%- for name, value in call.function.arguments|items %}{{- '<parameter=' ~ name ~ '>\\n' ~ (value if value is string else value | tojson) ~ '\\n</parameter>\\n' }}{%- endfor %}{{- '</function>\\n</tool_call>' }}{%- endfor %}{{- '<|im_end|>\\n' }}{%- endfor %}{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}""",
    "values": "{{ [2, 1]|min }}{{ ['b', 'A']|max }}{{ []|min }}{{ '<{}|{{x}}>'.format(1) }}{{ none|selectattr('x')|list }}{{ none|map(attribute='x')|list }}{{ extra }}{{ extra|tojson }}{{ (extra or {}).a }}{% for t in tools or [] %}{{ t.function.parameters.properties.keys()|list }}{{ t.function|tojson(indent=2) }}{{ t.function.parameters.properties|dictsort|length }}{{ t['function']['name'][1:3] }}{% endfor %}{{ documents|tojson }}{{ messages|length }}{{ messages[-1]|tojson }}{{ tools|tojson(separators=(',', ':')) }}{{ tools|tojson(indent=1, separators=(', ', ':')) }}{{ messages[0]|tojson(sort_keys=true) }}{{ messages[0]|tojson(ensure_ascii=false) }}",
}


# Published templates that are not rendered as jinja2 does.
UNSUPPORTED = {
    "deepseek-ai-DeepSeek-V3.2": "filter from_json, which the reference renderer does not have",
    "deepseek-ai-DeepSeek-V4": "filter from_json",
    "deepseek-ai-DeepSeek-V4-Flash-0731": "filter from_json",
    "meetkai-functionary-medium-v3.1": "text that is added to the result of safe, which jinja2 then escapes for HTML",
}


def cases(templates, messages=MESSAGES):
    made = []
    for name, template in templates.items():
        try:
            compiled = env.from_string(template)
        except jinja2.exceptions.TemplateError as error:
            print(f"{name}: {error}", file=sys.stderr)
            continue
        for label, conversation in messages.items():
            for tools in (TOOLS, None):
                for variables in VARIABLES:
                    if not tools and label in ("answered", "said", "twice", "thought and called"):
                        continue
                    case = {"template": name, "messages": label, "add_generation_prompt": label != "thought", "variables": variables,
                            "tools": "tools" if tools else "none", "documents": "documents" if variables else "none"}
                    try:
                        case["output"] = compiled.render(messages=conversation, tools=tools, documents=DOCUMENTS if variables else None, bos_token="<s>",
                                                         eos_token="</s>", add_generation_prompt=case["add_generation_prompt"], **variables)
                    except (jinja2.exceptions.UndefinedError, jinja2.exceptions.SecurityError):
                        case["raises"] = None  # any error
                    except jinja2.exceptions.TemplateError as error:
                        case["raises"] = str(error)
                    except (TypeError, AttributeError, ValueError, KeyError):
                        case["raises"] = None
                    made.append(case)
    return made


def write(path, templates):
    made = cases(templates)
    path.write_text(json.dumps({"now": NOW, "templates": templates, "messages": MESSAGES, "tools": TOOLS, "documents": DOCUMENTS, "cases": made},
                               ensure_ascii=True, indent=0) + "\n")
    print(f"{path.name}: {len(templates)} templates, {len(made)} cases, {sum('raises' in case for case in made)} raise, {path.stat().st_size} bytes")


if __name__ == "__main__":
    if len(sys.argv) == 4 and sys.argv[1] == "--published":
        write(Path(sys.argv[3]), {path.stem: path.read_text() for path in sorted(Path(sys.argv[2]).glob("*.jinja")) if path.stem not in UNSUPPORTED})
    else:
        write(Path(__file__).with_name("chat_tools.json"), FAMILIES)
