"""Web pages of another origin: what a browser asks before it lets an official client send its headers."""
import anthropic
import openai
import pytest

from api_client import call
from played_scheduler import Played

PAGE = "https://page.example"
KNOWN = {"authorization", "content-type", "x-request-id", "traceparent", "tracestate"}


def names_of(client):
    """Of the headers that a client sends with each request, those of its own."""
    return {name.lower() for name in client.default_headers if not name.lower().startswith("accept")}


@pytest.fixture(scope="module")
def played():
    with Played(f"--cors-origin={PAGE}") as running:
        yield running


@pytest.mark.parametrize("path, wanted", [
    ("/v1/chat/completions", names_of(openai.OpenAI(api_key="none", base_url="http://none"))),
    ("/v1/responses/resp_1", names_of(openai.OpenAI(api_key="none", base_url="http://none"))),
    ("/v1/messages", {"anthropic-dangerous-direct-browser-access", *names_of(anthropic.Anthropic(api_key="none", base_url="http://none"))}),
    ("/api/chat", {"user-agent"}),
])
def test_headers_of_clients_are_allowed(played, path, wanted):
    asked = {"Origin": PAGE, "Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": ", ".join(sorted(wanted))}
    status, headers, text = call(played, "OPTIONS", path, headers=asked)
    assert status == 204 and not text and headers["Access-Control-Allow-Origin"] == PAGE
    assert {"GET", "POST", "DELETE"} == set(headers["Access-Control-Allow-Methods"].split(", "))
    allowed = {name.lower() for name in headers["Access-Control-Allow-Headers"].split(", ")}
    assert wanted | KNOWN <= allowed, wanted - allowed
