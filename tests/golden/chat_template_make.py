#!/usr/bin/env python3
"""Makes chat_template.json: what jinja2 itself renders for each (template, messages, flag), byte by byte.

Run: python3 tests/golden/chat_template_make.py [model.gguf]   (needs PyPI jinja2 3.1; gguf for the model's own template)
The environment is the one that Hugging Face's renderer sets up. Templates are reduced to what published families use.
"""
import json
import sys
from datetime import datetime, timezone
from pathlib import Path

import jinja2
from jinja2.ext import Extension, loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

NOW = 1722384000  # 2024-07-31


class Generation(Extension):
    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("_body"), [], [], body).set_lineno(line)

    def _body(self, caller):
        return caller()


def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def raise_exception(message):
    raise jinja2.exceptions.TemplateError(message)


env = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols])
env.filters["tojson"] = tojson
env.globals["raise_exception"] = raise_exception
env.globals["strftime_now"] = lambda f: datetime.fromtimestamp(NOW, timezone.utc).strftime(f)

def compile_as_if(template):
    """The template behind a condition, where jinja2 does not look for the names of filters and tests before they are reached."""
    return env.from_string(template if "nosuch" not in template else "{% if true %}" + template + "{% endif %}")


S, U, A = (lambda c, r=r: {"role": r, "content": c} for r in ("system", "user", "assistant"))
ONE = [U("Hello, world!")]
CHAT = [S(" You are terse. "), U("  Hi\n"), A("<think>\nhm\n</think>\n\nHello!\n"), U("Who <|im_end|> are you? ")]
WORLD = [U("\u3000Grüße, Straße! \u00a0"), A("日本語 🙂 'quoted' \"double\" \\ \x07"), U("É œ Ωmega жук tail\t\n")]
NONE = [U("call it"), {"role": "assistant", "content": None}, {"role": "tool", "content": "42"}]
ODD = [{"role": "critic", "content": "no <s>"}]
NO_SYSTEM = [U("Hi"), A("Yes"), U("More")]

CHATML = ("{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}"
          "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}")

FAMILIES = {
    "chatml": CHATML,
    "zephyr": """{% for message in messages %}
{% if message['role'] == 'user' %}
{{ '<|user|>\n' + message['content'] + eos_token }}
{% elif message['role'] == 'system' %}
{{ '<|system|>\n' + message['content'] + eos_token }}
{% elif message['role'] == 'assistant' %}
{{ '<|assistant|>\n'  + message['content'] + eos_token }}
{% endif %}
{% if loop.last and add_generation_prompt %}
{{ '<|assistant|>' }}
{% endif %}
{% endfor %}
""",
    "llama3": """{{- bos_token }}
{%- if custom_tools is defined %}
    {%- set tools = custom_tools %}
{%- endif %}
{%- if not date_string is defined %}
    {%- if strftime_now is defined %}
        {%- set date_string = strftime_now("%d %b %Y") %}
    {%- else %}
        {%- set date_string = "26 Jul 2024" %}
    {%- endif %}
{%- endif %}
{%- if not tools is defined %}
    {%- set tools = none %}
{%- endif %}
{#- the system message goes first #}
{%- if messages[0]['role'] == 'system' %}
    {%- set system_message = messages[0]['content']|trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system_message = "" %}
{%- endif %}
{{- "<|start_header_id|>system<|end_header_id|>\\n\\n" }}
{%- if tools is not none %}
    {{- "Environment: ipython\\n" }}
{%- endif %}
{{- "Today Date: " + date_string + "\\n\\n" }}
{{- system_message }}
{{- "<|eot_id|>" }}
{%- for message in messages %}
    {%- if not (message.role == 'ipython' or message.role == 'tool' or 'tool_calls' in message) %}
        {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n'+ message['content'] | trim + '<|eot_id|>' }}
    {%- elif 'tool_calls' in message %}
        {%- if not message.tool_calls|length == 1 %}
            {{- raise_exception("one tool call at a time") }}
        {%- endif %}
    {%- elif message.role == "tool" or message.role == "ipython" %}
        {{- "<|start_header_id|>ipython<|end_header_id|>\\n\\n" }}
        {%- if message.content is mapping or message.content is iterable %}
            {{- message.content | tojson }}
        {%- else %}
            {{- message.content }}
        {%- endif %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}
{%- endif %}
""",
    "qwen3": """{%- if tools %}{{- '<tools>' }}{%- for tool in tools %}{{- "\\n" }}{{- tool | tojson }}{%- endfor %}
{%- else %}
    {%- if messages[0].role == 'system' %}
        {{- '<|im_start|>system\\n' + messages[0].content + '<|im_end|>\\n' }}
    {%- endif %}
{%- endif %}
{%- set ns = namespace(multi_step_tool=true, last_query_index=messages|length - 1) %}
{%- for message in messages[::-1] %}
    {%- set index = (messages|length - 1) - loop.index0 %}
    {%- if ns.multi_step_tool and message.role == "user" and message.content is string and not(message.content.startswith('<tool_response>') and message.content.endswith('</tool_response>')) %}
        {%- set ns.multi_step_tool = false %}
        {%- set ns.last_query_index = index %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- set content = message.content if message.content is string else '' %}
    {%- if (message.role == "user") or (message.role == "system" and not loop.first) %}
        {{- '<|im_start|>' + message.role + '\\n' + content + '<|im_end|>' + '\\n' }}
    {%- elif message.role == "assistant" %}
        {%- set reasoning_content = '' %}
        {%- if message.reasoning_content is string %}
            {%- set reasoning_content = message.reasoning_content %}
        {%- elif '</think>' in content %}
            {%- set reasoning_content = content.split('</think>')[0].rstrip('\\n').split('<think>')[-1].lstrip('\\n') %}
            {%- set content = content.split('</think>')[-1].lstrip('\\n') %}
        {%- endif %}
        {%- if loop.index0 > ns.last_query_index or (loop.last or (not loop.last and reasoning_content)) %}
            {{- '<|im_start|>' + message.role + '\\n<think>\\n' + reasoning_content.strip('\\n') + '\\n</think>\\n\\n' + content.lstrip('\\n') }}
        {%- else %}
            {{- '<|im_start|>' + message.role + '\\n' + content }}
        {%- endif %}
        {%- if message.tool_calls %}{%- for tool_call in message.tool_calls %}{{- tool_call.name }}{%- endfor %}{%- endif %}
        {{- '<|im_end|>\\n' }}
    {%- elif message.role == "tool" %}
        {%- if loop.first or (messages[loop.index0 - 1].role != "tool") %}{{- '<|im_start|>user' }}{%- endif %}
        {{- '\\n<tool_response>\\n' }}{{- content }}{{- '\\n</tool_response>' }}
        {%- if loop.last or (messages[loop.index0 + 1].role != "tool") %}{{- '<|im_end|>\\n' }}{%- endif %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}{{- '<think>\\n\\n</think>\\n\\n' }}{%- endif %}
{%- endif %}""",
    "mistral": """{%- if messages[0]["role"] == "system" %}
    {%- set system_message = messages[0]["content"] %}
    {%- set loop_messages = messages[1:] %}
{%- else %}
    {%- set loop_messages = messages %}
{%- endif %}
{%- if not tools is defined %}
    {%- set tools = none %}
{%- endif %}
{%- set user_messages = loop_messages | selectattr("role", "equalto", "user") | list %}
{%- set ns = namespace() %}
{%- set ns.index = 0 %}
{%- for message in loop_messages %}
    {%- if not (message.role == "tool" or message.role == "tool_results" or (message.tool_calls is defined and message.tool_calls is not none)) %}
        {%- if (message["role"] == "user") != (ns.index % 2 == 0) %}
            {{- raise_exception("After the optional system message, conversation roles must alternate user/assistant/user/assistant/...") }}
        {%- endif %}
        {%- set ns.index = ns.index + 1 %}
    {%- endif %}
{%- endfor %}
{{- bos_token }}
{%- for message in loop_messages %}
    {%- if message["role"] == "user" %}
        {%- if tools is not none and (message == user_messages[-1]) %}{{- "[AVAILABLE_TOOLS]" }}{%- endif %}
        {%- if loop.last and system_message is defined %}
            {{- "[INST] " + system_message + "\\n\\n" + message["content"] + "[/INST]" }}
        {%- else %}
            {{- "[INST] " + message["content"] + "[/INST]" }}
        {%- endif %}
    {%- elif message["role"] == "assistant" %}
        {{- " " + message["content"]|trim + eos_token }}
    {%- else %}
        {{- raise_exception("Only user and assistant roles are supported, with the exception of an initial optional system message!") }}
    {%- endif %}
{%- endfor %}
""",
    "gemma": "{{ bos_token }}{% if messages[0]['role'] == 'system' %}{% set first = messages[0]['content'] | trim + '\n\n' %}{% set loop_messages = messages[1:] %}{% else %}{% set first = '' %}{% set loop_messages = messages %}{% endif %}"
             "{% for message in loop_messages %}{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('Conversation roles must alternate') }}{% endif %}"
             "{% if (message['role'] == 'assistant') %}{% set role = 'model' %}{% else %}{% set role = message['role'] %}{% endif %}"
             "{{ '<start_of_turn>' + role + '\n' + (first if loop.first else '') }}"
             "{% if message['content'] is string %}{{ message['content'] | trim }}{% elif message['content'] is iterable %}{% for item in message['content'] %}{{ item['text'] }}{% endfor %}{% endif %}{{ '<end_of_turn>\n' }}{% endfor %}"
             "{% if add_generation_prompt %}{{'<start_of_turn>model\n'}}{% endif %}",
    "phi": "{% for message in messages %}{% if message['role'] == 'system' and message['content'] %}{{'<|system|>\n' + message['content'] + '<|end|>\n'}}{% elif message['role'] in ['user', 'assistant'] %}{{'<|' ~ message.role ~ '|>\n' ~ message['content'] ~ '<|end|>\n'}}{% endif %}{% endfor %}{% if add_generation_prompt %}{{ '<|assistant|>\n' }}{% else %}{{ eos_token }}{% endif %}",
    "deepseek": "{% if not add_generation_prompt is defined %}{% set add_generation_prompt = false %}{% endif %}{% set ns = namespace(is_first=false, is_tool=false, system_prompt='', is_first_sp=true) %}{%- for message in messages %}{%- if message['role'] == 'system' %}{%- if ns.is_first_sp %}{% set ns.system_prompt = ns.system_prompt + message['content'] %}{% set ns.is_first_sp = false %}{%- else %}{% set ns.system_prompt = ns.system_prompt + '\\n\\n' + message['content'] %}{%- endif %}{%- endif %}{%- endfor %}{{ bos_token }}{{ ns.system_prompt }}"
                "{%- for message in messages %}{%- if message['role'] == 'user' %}{%- set ns.is_tool = false -%}{{'<｜User｜>' + message['content']}}{%- endif %}{%- if message['role'] == 'assistant' and message['content'] is not none %}{% set content = message['content'] %}{% if '</think>' in content %}{% set content = content.split('</think>')[-1] %}{% endif %}{{'<｜Assistant｜>' + content + '<｜end▁of▁sentence｜>'}}{%- endif %}{%- endfor -%}{% if add_generation_prompt and not ns.is_tool %}{{'<｜Assistant｜>'}}{% endif %}",
    "smollm3": """{#- defaults -#}
{%- if enable_thinking is not defined -%}
{%- set enable_thinking = true -%}
{%- endif -%}
{%- if messages[0].role == "system" -%}
  {%- set system_message = messages[0].content -%}
  {%- if "/no_think" in system_message -%}{%- set reasoning_mode = "/no_think" -%}
  {%- else -%}{%- set reasoning_mode = "/think" -%}{%- endif -%}
  {%- set custom_instructions = system_message.replace("/no_think", "").replace("/think", "").rstrip() -%}
{%- else -%}
  {%- set reasoning_mode = "/no_think" if not enable_thinking else "/think" -%}
{%- endif -%}
{{- "<|im_start|>system\\n" -}}
{%- set today = strftime_now("%d %B %Y") -%}
{{- "Today Date: " ~ today ~ "\\nReasoning Mode: " + reasoning_mode + "\\n\\n" -}}
{%- if custom_instructions -%}{{- custom_instructions + "\\n\\n" -}}{%- endif -%}
{{- "<|im_end|>\\n" -}}
{%- for message in messages -%}
    {%- set content = message.content if message.content is string else "" -%}
    {%- if message.role == "user" -%}
        {{ "<|im_start|>" + message.role + "\\n"  + content + "<|im_end|>\\n" }}
    {%- elif message.role == "assistant" -%}
        {% generation %}
        {{ "<|im_start|>assistant\\n"  + content.lstrip("\\n") + "<|im_end|>\\n" }}
        {% endgeneration %}
    {%- elif message.role == "tool" -%}
    {{ "<|im_start|>" + "user\\n"  + content + "<|im_end|>\\n" }}
    {%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}
    {{ "<|im_start|>assistant\\n" }}
{%- endif -%}""",
    "harmony": """{#- in the format of gpt-oss, written for this test -#}
{%- macro type_of(spec) -%}
    {%- if spec.type == "array" -%}{{- type_of(spec["items"]) + "[]" -}}
    {%- elif spec.type is defined and spec.type is not string -%}{{- spec.type | join(" | ") -}}
    {%- else -%}{{- spec.type or "any" -}}{%- endif -%}
{%- endmacro -%}
{%- macro opening() -%}
    {%- if identity is not defined %}{%- set identity = "You are a model." %}{%- endif %}
    {{- identity + "\\nCurrent date: " + strftime_now("%Y-%m-%d") + "\\n" }}
    {%- if effort is not defined %}{%- set effort = "medium" %}{%- endif %}
    {{- "Reasoning: " + effort + "; " + type_of({"type": "array", "items": {"type": ["string", "null"]}}) + type_of({}) }}
    {%- if tools -%}{{- "\\n# Tools" }}{%- endif -%}
{%- endmacro -%}
{{- "<|start|>system<|message|>" }}{{- opening() }}{{- "<|end|>" }}
{%- if messages and (messages[0].role == "developer" or messages[0].role == "system") %}
    {%- set instructions = messages[0].content %}{%- set turns = messages[1:] %}
{%- else %}
    {%- set instructions = "" %}{%- set turns = messages %}
{%- endif %}
{%- if instructions or tools %}{{- "<|start|>developer<|message|># Instructions\\n\\n" + instructions + "<|end|>" }}{%- endif %}
{%- set called = namespace(name=none) %}
{%- for message in turns -%}
    {%- if message.role == "assistant" -%}
        {%- if "content" in message and "<|channel|>" in message.content %}{{- raise_exception("a channel in the content") }}{%- endif %}
        {%- set later = namespace(found=false) %}
        {%- for other in turns[loop.index:] %}
            {%- if other.role == "assistant" and "tool_calls" not in other %}{%- set later.found = true %}{%- endif %}
        {%- endfor %}
        {%- if loop.last and not add_generation_prompt %}
            {{- "<|start|>assistant<|channel|>final<|message|>" + message.content + "<|return|>" }}
        {%- else %}
            {{- "<|start|>assistant<|channel|>" + ("analysis" if later.found else "final") + "<|message|>" + message.content + "<|end|>" }}
            {%- set called.name = message.role %}
        {%- endif %}
    {%- elif message.role == "tool" -%}
        {%- if called.name is none %}{{- raise_exception("a tool answers that nobody called") }}{%- endif %}
        {{- "<|start|>functions." + called.name + " to=assistant<|channel|>commentary<|message|>" + message.content|tojson + "<|end|>" }}
    {%- elif message.role == "user" -%}
        {{- "<|start|>user<|message|>" + message.content + "<|end|>" }}
    {%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}<|start|>assistant{%- endif -%}""",
    "macros": """{%- macro visible(content, tag='t', close=none) -%}
  {%- if content is string -%}<{{ tag }}>{{ content }}</{{ close or tag }}>
  {%- elif content is none -%}(none)
  {%- else -%}{{ content|tojson }}{%- endif -%}
{%- endmacro -%}
{%- macro both(x) %}{{ visible(x, tag='b') }}|{{ visible(x, 'i', close='j') }}{% endmacro -%}
{% for m in messages %}{{ both(m.content) }}
{% endfor %}""",
}

# Expressions and statements, each a template of its own, on CHAT and WORLD.
PIECES = [
    "{% for m in messages %}{{ loop.index }},{{ loop.index0 }},{{ loop.revindex }},{{ loop.revindex0 }},{{ loop.first }},{{ loop.last }},{{ loop.length }},{{ loop.depth }},{{ loop.previtem.role if loop.previtem is defined }},{{ loop.nextitem.role if not loop.last else '-' }},{{ loop.cycle('a', 'b') }};{% endfor %}",
    "{% for m in messages if m.role == 'user' %}{{ loop.index }}/{{ loop.length }}:{{ m.content }}{% else %}never{% endfor %}{% for m in [] %}x{% else %}empty{% endfor %}",
    "{% for k, v in messages[0].items() %}{{ k }}={{ v|trim }};{% endfor %}{% for k in messages[0] %}{{ k }}{% endfor %}{{ messages[0].keys()|list }}{{ messages[0].get('nope') }}{{ messages[0].get('nope', 3) }}",
    "{% for i in range(10) %}{% if i == 2 %}{% continue %}{% endif %}{% if i > 5 %}{% break %}{% endif %}{{ i }}{% for j in range(i, 0, -2) %}.{% break %}{% endfor %}{% endfor %}",
    "{{ 7 // 2 }} {{ -7 // 2 }} {{ 7 % 3 }} {{ -7 % 3 }} {{ 7 / 2 }} {{ 1 + 2 * 3 - 4 }} {{ 2.5 + 1 }} {{ 1e20 }} {{ 0.1 + 0.2 }} {{ 1e-7 }} {{ 3.0 }} {{ -2.5 // 1 }} {{ 5.5 % -2 }} {{ true + 1 }} {{ 1_000 }} {{ 123456789012345680.0 }}",
    "{{ 1 < 2 <= 2 }} {{ 1 == 1.0 }} {{ 'a' < 'b' }} {{ not 1 == 2 }} {{ 1 if 0 else 2 }} {{ 'x' if false }} {{ none }} {{ True and 'a' or 'b' }} {{ '' or none }} {{ 3 not in [1, 2] }} {{ 'ell' in 'hello' }} {{ [1] == [1] }} {{ (1,) == [1] }} {{ -1|abs }}",
    "{{ messages[0].content[1:4] }}|{{ messages[0].content[::-1] }}|{{ messages[-1].content[-3:] }}|{{ messages[0].content[0] }}|{{ messages[1:3]|length }}|{{ messages[::2]|length }}|{{ messages[5:]|length }}|{{ 'abcdef'[4:1:-1] }}|{{ 'abc'[9] }}|{{ 'abc'[-9:9] }}|{{ [1,2,3,4][-2::-1] }}",
    "{% for m in messages %}{{ m.content|upper }}|{{ m.content|lower }}|{{ m.content|capitalize }}|{{ m.content|trim|title }}|{{ m.content.title() }}|{{ m.content|length }}\n{% endfor %}",
    "{% for m in messages %}{{ m.content|tojson }} {{ m|tojson(indent=2) }} {{ [m.content] }} {{ m }}\n{% endfor %}",
    "{% for m in messages %}[{{ m.content.strip() }}][{{ m.content.lstrip() }}][{{ m.content.rstrip('\\n !.') }}][{{ m.content|trim }}][{{ m.content.strip('Hi ') }}]{% endfor %}",
    "{% for m in messages %}{{ m.content.split() }}{{ m.content.split('e') }}{{ m.content.split(' ', 1) }}{{ m.content.rsplit(' ', 1) }}{{ m.content.rsplit(none, 1) }}{{ m.content.split(none, 1) }}{% endfor %}",
    "{% for m in messages %}{{ m.content.replace('e', '<E>') }}{{ m.content|replace('H', '') }}{{ 'aaa'.replace('a', 'b', 2) }}{{ 'ab'.replace('', '-') }}{% endfor %}",
    "{{ messages|map(attribute='role')|join(', ') }} {{ messages|map(attribute='nope', default='?')|join }} {{ ['a', 'b']|map('upper')|list }} {{ messages|selectattr('role', 'equalto', 'user')|map(attribute='content')|list }} {{ messages|rejectattr('role', 'in', ['user'])|list|length }} {{ [1, 2, 3, 4]|select('even')|list }} {{ [0, 1, '']|reject|list }} {{ messages|selectattr('content')|list|length }}",
    "{{ [3, 1, 2]|sort }} {{ ['b', 'A', 'c']|sort(reverse=true) }} {{ messages|sort(attribute='role')|map(attribute='role')|list }} {{ ['a', 'A', 'b']|unique|list }} {{ {'b': 1, 'a': 2}|dictsort }} {{ {'b': 1, 'a': 2}|dictsort(false, 'value') }} {{ [1, 2]|reverse|list }} {{ 'abc'|reverse }} {{ [1, 2]|first }} {{ [1, 2]|last }} {{ []|first }}",
    "{{ x|default('d') }} {{ ''|default('d', true) }} {{ none|d('e', boolean=true) }} {{ '42'|int + 1 }} {{ 'x'|int(7) }} {{ '3.9'|int }} {{ ' 12 '|int }} {{ '1.5'|float }} {{ 'x'|float }} {{ 3.99|int }} {{ 5|string + 'a' }} {{ [1, 2]|join }} {{ 'ab'|list }} {{ x|length }} {{ x|trim }}.",
    "{% set a, b = 1, 'two' %}{{ a }}{{ b }}{% set t = 1, 2 %}{{ t }}{{ (1,) }}{{ () }}{{ {} }}{{ {'a': [1, {'b': none}], 2: 'x'} }}{{ {'a': {'b': 1}}.a.b }}{{ {'items': 5}['items'] }}{% for (p, q) in [(1, 2), (3, 4)] %}{{ p + q }}{% endfor %}",
    "{% set x = 'outer' %}{% for m in messages %}{{ x }}{% set x = m.role %}{{ x }}{% endfor %}{{ x }}{% if true %}{% set x = 'if' %}{% endif %}{{ x }}{% set y %}<{{ messages[0].content }}>{% set x = 1 %}{% endset %}{{ y }}{{ x }}{{ y|length }}",
    "{% set ns = namespace(n=0, text='') %}{% for m in messages %}{% set ns.n = ns.n + 1 %}{% set ns.text = ns.text ~ m.content ~ ns.n %}{% set ns.fresh = m.role %}{% endfor %}{{ ns.n }}{{ ns.text }}{{ ns.fresh }}{{ ns.nope is defined }}{% set d = dict(a=1, b='c') %}{{ d }}",
    "{{ nope }}{{ nope is defined }}{{ nope is undefined }}{{ none is none }}{{ 'a' is string }}{{ {} is mapping }}{{ [] is iterable }}{{ 'a' is sequence }}{{ 1 is number }}{{ 1.0 is integer }}{{ true is boolean }}{{ true is true }}{{ 1 is true }}{{ false is false }}{{ 3 is odd }}{{ 4 is even }}{{ 9 is divisibleby 3 }}{{ 1 is eq 1 }}{{ 'a' is in 'abc' }}{{ 'A' is upper }}{{ 'a' is not lower }}{{ 1 is not string }}{{ none is iterable }}{{ range is callable }}",
    "  {% if true %}  \n  yes\n  {% endif %}\n  {%+ if true %}kept{% endif +%}\n  {# note #}  \nend {#- c -#}  \n  tail\n",
    "a\n  {%- if true -%}\n  b  \n  {%- endif %}\n\n  c\n{{ 'd' }}\n  {{- 'e' -}}  \n f\n\n",
    "line\r\n{% if true %}\r\nx\r\n{% endif %}\r\n{{ 'a\\tb\\x41\\u00e9\\'\\\"\\\\\\q' }}{{ \"a\" 'b' }}{{ 'two\nlines' }}",
    "{{ 'one\n\ntwo\nthree'|indent }}|{{ 'a\nb'|indent(2, true) }}|{{ 'a\n\nb'|indent(1, blank=true) }}|{{ ', '.join(['a', 'b']) }}|{{ 'a,b'.split(',')[1] }}|{{ 'Hello'.startswith(('x', 'He')) }}|{{ 'x.y'.endswith('y') }}|{{ 'hello'.find('l') }}{{ 'hello'.find('z') }}{{ 'hello'.count('l') }}|{{ 'x' * 3 }}|{{ 'prefix-a'.removeprefix('prefix-') }}{{ 'a.py'.removesuffix('.py') }}",
    "{% macro f(a, b=2, c=a) %}{{ a }}{{ b }}{{ c }}{% endmacro %}{{ f(1) }}{{ f(1, c=3) }}{{ f(b=1, a=0) }}{{ f() }}{% macro fact(n) %}{{ 1 if n < 2 else n * (fact(n - 1)|int) }}{% endmacro %}{{ fact(5) }}{{ f is defined }}{{ f(x)|upper }}{% set v = 'late' %}{% macro g() %}{{ v }}{% endmacro %}{{ g() }}",
    "{{ {'a': 1}.items()|list }}{{ {'a': 1}.values()|list }}{{ {'a': 1}|items|list }}{% for a in 'xy' %}{{ a }}-{% endfor %}{{ 'a' ~ 1 ~ none ~ true ~ 1.5 ~ [1] ~ nope }}{{ -3 }}{{ +3 }}{{ - 2 * 3 }}{{ 1 - -1 }}{{ [1] + [2] }}{{ (1, 2) + (3,) }}",
    "{{ bos_token }}{{ eos_token }}{{ pad_token }}{{ tools is none }}{{ documents is none }}{{ tools is defined }}{{ strftime_now('%Y-%m-%d %H:%M') }}{{ messages[0]['nope'] is defined }}{{ messages[0].nope }}{{ messages|length > 1 and messages[1].role }}",
    "{{ \"it's\" }}{{ [\"it's\", 'q\"', 'b\"\\'', 'n\\n\\x00', '\\u200b\\u00e9'] }}{{ [1.0, true, none, nope] }}{{ {'k': {'l': []}}|tojson(indent=4) }}{{ [1, 2.5, true, none, 'é\\n\\x01\"']|tojson }}{{ {}|tojson(indent=2) }}",
]
# Statements, filters, tests and methods that few templates use.
RARE = [
    "a\n  {% raw %}\n {{ x }} {% if %} {# c #}\n  {% endraw %}\nb {%- raw -%}  {{ y }}  {%- endraw -%}  c\n{%+ raw %} {% raw %} {% endraw +%}\n{% raw%}{%endraw%}\n  d{% raw %}'{{'{% endraw %}",
    "  {% raw -%}\n\n  kept {% endraw -%}  \n  x\n{% raw %}\n\n{% endraw %}\n\n  {%- raw %} z{% endraw %}",
    "{% macro box(title, n=2) %}[{{ title }}|{{ caller() }}|{{ caller() * n }}]{% endmacro %}{% call box('t') %}in{{ messages|length }}{% endcall %}{% set x = 1 %}{% call box('u', n=1) %}{{ x }}{% set x = 5 %}{% endcall %}{{ x }}",
    "{% macro each(items) %}{% for i in items %}<{{ caller(i, loop.index) }}>{% endfor %}{% endmacro %}{% call(item, at=7) each(['a', 'b']) %}{{ item }}{{ at }}{% endcall %}{% call(x, i) each(messages|map(attribute='content')) %}{{ x|trim }}{% endcall %}",
    "{% macro f() %}{{ caller is defined }}{% if caller %}{{ caller() }}{% endif %}{% endmacro %}{{ f() }}{% call f() %}x{% endcall %}",
    "{% macro f() %}{{ caller() }}{% endmacro %}{% macro g() %}{% call f() %}g{{ caller() }}{% endcall %}{% endmacro %}{% call g() %}outer{% endcall %}",
    "{% macro f(a) %}{{ a }}{{ varargs }}{{ kwargs }}{% endmacro %}{{ f(1) }}{{ f(1, 2, 3) }}{{ f(1, 2, b=3, c='x') }}{{ f(*[1, 2], **{'k': 1}) }}{{ dict(*[], **{'a': 1}) }}{{ f(b=1, *[5]) }}",
    "{% macro f() %}{% endmacro %}{% call f() %}never{% endcall %}",
    "{% macro f(a) %}{% endmacro %}{{ f(1, a=2) }}",
    "{% filter upper %}a{{ messages[0].content }}{% set x = 1 %}{% endfilter %}{{ x }}{% filter trim|replace('b', 'c')|upper %}  b {% if true %}b{% endif %}\n{% endfilter %}|{% filter indent(2, true) %}x\ny\n{% endfilter %}|",
    "{% for m in messages %}{% filter upper %}{% if loop.first %}{% continue %}{% endif %}{{ m.role }}{% if loop.index == 2 %}{% break %}{% endif %}{% endfilter %}-{% endfor %}",
    "{% set x = 'out' %}{% with %}{% set x = 'in' %}{{ x }}{% endwith %}{{ x }}{% with x = 1, y = x %}{{ x }}{{ y }}{% endwith %}{{ x }}{{ y }}{% with a, b = (1, 2), c = 3 %}{{ a + b + c }}{% endwith %}{% with x = 5 %}{% macro m() %}{{ x }}{% endmacro %}{{ m() }}{% endwith %}{% for i in [1, 2] %}{% with j = i %}{% if j == 2 %}{% break %}{% endif %}{{ j }}{% endwith %}{% endfor %}",
    "{% for m in [1, 1, 2, 2, 1] %}{% if loop.changed(m) %}{{ m }}{% endif %}{% if loop.changed(m, 1) %}!{% endif %}{% endfor %}{% for m in messages %}{{ loop.changed(m.role) }}{{ loop.depth }}{{ loop.depth0 }}{% for x in [1] %}{{ loop.depth }}{{ loop.cycle('a', 'b') }}{% endfor %}{% endfor %}",
    "{% for n in [{'v': 1, 'c': [{'v': 2, 'c': [{'v': 3}]}, {'v': 4}]}, {'v': 5}] recursive %}{{ loop.depth }}:{{ n.v }}{% if n.c %}({{ loop(n.c) }}){% endif %}{{ ',' if not loop.last }}{% else %}none{% endfor %}{% for x in [] recursive %}{% else %}e{% endfor %}",
    "{% for x in [] %}{% else %}{% set z = 1 %}else{% endfor %}{{ z }}{% for k, (a, b) in [(1, (2, 3))] %}{{ k + a * b }}{% endfor %}{% set (p, q), r = (1, 2), 3 %}{{ p ~ q ~ r }}",
    "{% if false %}{{ x|nosuch(1) }}{{ x is nosuch }}{{ nosuch(1) }}{{ x.nosuch(2) }}{{ 'a'|tojson(5, 6, 7, 8, 9, 10) }}{{ x|select(name) }}{% endif %}{{ 1 if true else x|nosuch.deep }}{{ (1, 2)|length }}{% if x is defined and x is nosuch 3 %}{% endif %}{{ nosuch is defined }}ok",
    "{% if false %}{% include 'x' %}{% import 'a' as b %}{% from 'a' import b with context %}{% include ['a', 'b'] ignore missing %}{% endif %}{% block head %}{{ messages|length }}{% set q = 1 %}{% endblock head %}{{ q }}{% block last scoped %}z{% endblock %}",
    "{% set x | upper | replace('A', 'b') %}a{{ messages[0].role }}{% endset %}{{ x }}{% set ns = namespace() %}{% set ns.y %}text{% endset %}{{ ns.y }}{% set ns.z|trim %} t {% endset %}{{ ns.z }}",
    "{% for i in [1, 2, 3] %}{% set t %}{% if i == 2 %}{% continue %}{% endif %}{{ i }}{% endset %}{{ t }}{% endfor %}",
    "{{ 2 ** 3 }}{{ 2 ** -1 }}{{ 2.0 ** 2 }}{{ 2 ** 3 ** 2 }}{{ -2 ** 2 }}{{ (-1) ** 5 }}{{ 0 ** 0 }}{{ [1, 2] * 2 }}{{ 2 * (1,) }}{{ 'ab' * 2 }}",
    "{{ 'a %s b %d %5.2f|%-5s|%05d|%x %%' % ('x', 3, 2.5, 'l', 42, 255) }}{{ '%s' % 5 }}{{ '%(a)s-%(b)i' % {'a': 1, 'b': 2} }}{{ '%s and %s'|format('a', [1]) }}{{ '%(k)s'|format(k='v') }}{{ '{} {}'.format(1, 'b') }}{{ '{1}{0}{k}{{}}'.format('a', 'b', k=3) }}{{ '%.3s' % 'abcdef' }}",
    "{{ [1, 2, 3, 4, 5]|batch(2)|list }}{{ [1, 2, 3]|batch(2, 'x')|list }}{{ [1, 2, 3, 4, 5]|slice(2)|list }}{{ [1, 2, 3]|slice(2, 'x')|list }}{{ [1, 2]|slice(2, 'x')|list }}{{ [1, 2, 3]|sum }}{{ [[1], [2]]|sum(start=[]) }}{{ [{'a': 1}, {'a': 2.5}]|sum(attribute='a') }}",
    "{% for role, of in messages|groupby('role') %}{{ role }}{{ of|length }}{% endfor %}{% for g in messages|groupby('role') %}{{ g.grouper }}:{{ g.list|map(attribute='content')|join('/') }};{% endfor %}{{ [{'a': 2}, {}, {'a': 1}]|groupby('a', default=0)|map('first')|list }}",
    "{{ 2.5|round }}{{ 3.5|round }}{{ 2.675|round(2) }}{{ 7|round }}{{ 2.1|round(0, 'ceil') }}{{ 2.19|round(1, 'floor') }}{{ 'one two three four'|truncate(10) }}|{{ 'one two three four'|truncate(10, true) }}|{{ 'abcdefgh'|truncate(5, leeway=0, end='-') }}|{{ 'abc'|truncate(3, leeway=9223372036854775807) }}|{{ 'ab'|center(7) }}|{{ 'a b_c-d é'|wordcount }}{{ '<a href=\"x\">&\\'</a>'|e }}{{ 'b'|attr('upper') is callable }}{{ {'a': 1}|attr('a') is defined }}",
    "{{ messages|selectattr('role', '==', 'user')|list|length }}{{ [1, 2, 3]|select('>', 1)|list }}{{ [1, 2]|select('!=', 1)|list }}{{ [3, 4]|map('string')|map('center', 3)|join('|') }}{% set t = 'even' %}{{ [1, 2]|select(t)|list }}{{ ['a']|map('replace', 'a', 'b')|list }}{{ [{'a': none}]|map(attribute='b', default=none)|list }}{{ 'upper' is filter }}{{ 'nope' is filter }}{{ 'even' is test }}{{ none is sameas none }}{{ 1 is sameas true }}",
    "{{ 'a.b.c'.partition('.') }}{{ 'a.b.c'.rpartition('.') }}{{ 'abc'.partition('x') }}{{ 'abc'.rpartition('x') }}{{ 'a\\nb\\r\\nc\\n'.splitlines() }}{{ 'a\\n\\nb'.splitlines(true) }}{{ ''.splitlines() }}{{ 'x'.ljust(3) }}|{{ 'x'.rjust(3, '*') }}|{{ 'ab'.center(7, '-') }}{{ '-7'.zfill(4) }}{{ '12'.isdigit() }}{{ ''.isdigit() }}{{ 'aé'.isalpha() }}{{ 'a1'.isalnum() }}{{ 'a_'.isalnum() }}{{ ' \\t'.isspace() }}{{ 'hello'.rfind('l') }}{{ 'hello'.find('l', 3) }}{{ 'hello'.find('l', 4) }}{{ 'hello'.find('l', none, none) }}{{ 'hello'.count('l', 0, -2) }}{{ 'hello'.index('e') }}{{ [1, 2, 1].count(1) }}{{ [1, 2].index(2) }}{{ (1, 2).index(1) }}{{ {'a': 1}.copy() }}",
    "{% macro twice(f, x) %}{{ f(f(x)) }}{% endmacro %}{% macro inc(x) %}{{ x|int + 1 }}{% endmacro %}{{ twice(inc, 5) }}{% set f = inc %}{{ f(1) }}{{ [inc, twice][0](2) }}{% set s = messages[0].content.strip %}{{ s() }}{% set ns = namespace(m=inc) %}{{ ns.m(8) }}{{ range is callable }}{% set range = inc %}{{ range(3) }}",
    "{% print 'a', 1 + 1 %}{% print messages|length %}{% set x = 1 %}{% autoescape false %}{{ '<' ~ x }}{% set x = 2 %}{{ x }}{% endautoescape %}{{ x }}{{ 0x1F }}{{ 0b1_01 + 0o17 }}{{ 0xff|string }}",
    "{{ 'abc'.isupper() }}{{ 'ABC1'.isupper() }}{{ '1'.isupper() }}{{ 'abc'.islower() }}",
    "{{ x|nosuch }}",
    "{{ 'a'.nosuch() }}",
    "{{ nosuch() }}",
    "{{ [1]|map('nosuch')|list }}",
    "{% if 1 is nosuch %}{% endif %}",
    "{{ [1].append(2) }}",
    "{{ {'a': 1}.update({'b': 2}) }}",
    "{{ 'a%d' % 'x' }}",
    "{{ '%s %s' % (1,) }}",
    "{{ '%s' % (1, 2) }}",
    "{% for x in [1] %}{{ loop([2]) }}{% endfor %}",
    "{% include 'x' %}",
]
RAISING = [
    ("{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}{% endfor %}", CHAT),
    ("{{ raise_exception('bad: ' ~ messages[0].role) }}", ODD),
]


def main():
    own = []
    if len(sys.argv) > 1:
        import gguf
        field = gguf.GGUFReader(sys.argv[1]).fields["tokenizer.chat_template"]
        own = [("model", bytes(field.parts[field.data[0]]).decode())]
    cases, templates, conversations = [], {}, {}

    def add(name, template, messages, prompt):
        family, label = name.split("/")[0], name.split("/")[1]
        templates[family], conversations[label] = template, messages
        case = {"template": family, "messages": label, "add_generation_prompt": prompt}
        try:
            case["output"] = compile_as_if(template).render(
                messages=messages, add_generation_prompt=prompt, bos_token="<s>", eos_token="</s>", tools=None, documents=None)
        except jinja2.exceptions.TemplateError as e:
            case["raises"] = str(e)
        except (TypeError, AttributeError, ValueError):
            case["raises"] = None  # None + str and the like: any error
        cases.append(case)

    for name, template in own + list(FAMILIES.items()):
        for label, messages in (("one", ONE), ("chat", CHAT), ("world", WORLD), ("none", NONE), ("odd", ODD), ("alternating", NO_SYSTEM)):
            for prompt in (True, False):
                add(f"{name}/{label}/{prompt}", template, messages, prompt)
    for i, template in enumerate(PIECES):
        for label, messages in (("chat", CHAT), ("world", WORLD)):
            add(f"piece{i}/{label}", template, messages, False)
    for i, template in enumerate(RARE):
        add(f"rare{i}/chat", template, CHAT, False)
    for i, (template, messages) in enumerate(RAISING):
        add(f"raise{i}/raise{i}", template, messages, False)
    out = Path(__file__).with_name("chat_template.json")
    out.write_text(json.dumps({"now": NOW, "bos_token": "<s>", "eos_token": "</s>", "templates": templates, "messages": conversations, "cases": cases}, ensure_ascii=True, indent=0) + "\n")
    print(f"{len(cases)} cases, {sum('raises' in c for c in cases)} raise, {out.stat().st_size} bytes")


if __name__ == "__main__":
    main()
