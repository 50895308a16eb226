"""/openapi.json: it says what the tables of the sources say, and the server does what it says."""
import json
import os
import re

import pytest

from api_client import call, server  # noqa: F401 (a fixture)
from conftest import ROOT

GATEWAY = os.path.join(ROOT, "services", "gateway")
KINDS = {"ChatRequest": ("API_CHAT", "SCHEMA_ANSWERS", "ALL"), "CompletionRequest": ("API_COMPLETION", "SCHEMA_ANSWERS", "ALL"),
         "TokenizeRequest": ("API_TOKENIZE", "ALL"), "DetokenizeRequest": ("API_DETOKENIZE", "ALL"),
         "EmbedRequest": ("API_EMBED", "API_POOLS", "ALL"), "RerankRequest": ("API_RERANK", "API_POOLS", "ALL")}
PATHS = {"ChatRequest": ("/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}], "max_tokens": 1}),
         "CompletionRequest": ("/v1/completions", {"prompt": "x", "max_tokens": 1}),
         "TokenizeRequest": ("/tokenize", {"prompt": "x"}), "DetokenizeRequest": ("/detokenize", {"tokens": [1]})}


@pytest.fixture(scope="module")
def document(server):
    status, headers, text = call(server, "GET", "/openapi.json")
    assert status == 200 and headers["Content-Type"] == "application/json"
    return json.loads(text)


def source(name):
    with open(os.path.join(GATEWAY, name), encoding="utf-8") as file:
        return file.read()


def rows(table, kinds):
    """Names of the rows of one of schema.c's tables that are of one of the kinds."""
    text = re.search(rf"{table}\[\] = \{{\n(.*?)\n\}};", source("api/schema/schema.c"), re.S).group(1)
    named = re.findall(r'[({](?:\.name = )?"(\w+)",\s*(?:\.endpoints = )?([A-Z_ |]+)[,)}]', text)
    return {name for name, endpoints in named if set(endpoints.split(" | ")) & set(kinds)}


@pytest.mark.parametrize("schema", KINDS)
def test_fields_are_those_of_the_tables(document, schema):
    described = document["components"]["schemas"][schema]
    assert set(described["properties"]) == rows("fields", KINDS[schema])
    assert set(described["x-not-supported"]) == rows("refused", KINDS[schema])


def test_paths_are_those_of_the_routes(document):
    """All but the pages, and what is for operators only."""
    table = re.search(r"routes\[\] = \{\n(.*?)\n\};", source("serve/routes.c"), re.S).group(1)
    found = set()
    for path in re.findall(r'ASK\("([^"]*)"', table):
        found.add((path, "post"))
    for at, path, has_suffix, suffix, method in re.findall(r'\.at = (\w+),\s*\.path = "([^"]*)",\s*(\.suffix = "([^"]*)",\s*)?\.method = "(\w+)"', table):
        if at != "ADMIN" and path not in ("/", "/pages/"):
            found.add((f"{path}{{id}}{suffix}" if has_suffix else path, method.lower()))
    assert {(path, method) for path, methods in document["paths"].items() for method in methods} == found


def refs(value):
    if isinstance(value, dict):
        yield from ([value["$ref"]] if "$ref" in value else [])
        value = list(value.values())
    if isinstance(value, list):
        for item in value:
            yield from refs(item)


def test_what_is_referred_to_is_there(document):
    for ref in refs(document):
        at = document
        for part in ref.removeprefix("#/").split("/"):
            at = at[part]
    assert not {"x-fields", "x-custom"} & set(re.findall(r'"(x-[a-z]+)":', json.dumps(document)))


def wrong_values(described):
    """Values that a property's schema does not allow."""
    kinds = described.get("type") if isinstance(described.get("type"), list) else [described.get("type")]
    if "boolean" in kinds and len(kinds) == 2:
        yield "x"
    if "string" in kinds or "array" in kinds:
        yield 5
    if "integer" in kinds or "number" in kinds:
        yield "x"
        if "minimum" in described:
            yield described["minimum"] - 1
        if "exclusiveMinimum" in described:
            yield described["exclusiveMinimum"]
        if "maximum" in described:
            yield described["maximum"] + 1


@pytest.mark.parametrize("schema", PATHS)
def test_a_value_that_is_not_described_is_refused(document, server, schema):
    """And the error names the field; null is as if it were not there."""
    path, body = PATHS[schema]
    asked = 0
    for name, described in document["components"]["schemas"][schema]["properties"].items():
        for value in wrong_values(described):
            asked += 1
            status, _, text = call(server, "POST", path, {**body, name: value})
            assert status == 400 and json.loads(text)["error"]["param"] == name, (name, value, text)
        if name not in body:
            assert call(server, "POST", path, {**body, name: None})[0] == 200, name
    assert asked > 0
    assert call(server, "POST", path, body)[0] == 200


def test_fields_with_readers_of_their_own_are_described(document):
    for schema in PATHS:
        for name, described in document["components"]["schemas"][schema]["properties"].items():
            ignored = re.search(rf'IGNORED\("{name}"', source("api/schema/schema.c"))
            assert described or ignored, f'services/gateway/serve/openapi/openapi.json: "x-custom" does not say what {name} is'


def test_ways_to_ask_for_a_form_are_described(document):
    reader = re.search(r"static bool read_member\(.*?\n}", source("api/schema/form.c"), re.S).group(0)
    read = set(re.findall(r'strcmp\(key, "(\w+)"\)', reader)) - {"backend", "disable_fallback"}  # those change nothing
    for schema in PATHS:
        described = document["components"]["schemas"][schema]["properties"].get("structured_outputs")
        assert described is None or set(described["properties"]) == read
