"""What the API tests share: the server under test, plain HTTP, server-sent events, raw sockets."""
import http.client
import json
import os
import socket
import types
from urllib.parse import urlsplit

import pytest

from pace import seconds


@pytest.fixture(scope="session")
def server(request):
    """The mesh, or whatever serves at FD_TEST_URL."""
    url = os.environ.get("FD_TEST_URL")
    if url:
        return types.SimpleNamespace(url=url.rstrip("/"), model="default")
    return request.getfixturevalue("mesh")


def connect(server, timeout=60):
    parts = urlsplit(server.url)
    return http.client.HTTPConnection(parts.hostname, parts.port, timeout=seconds(timeout))


def raw_socket(server, timeout=60):
    parts = urlsplit(server.url)
    return socket.create_connection((parts.hostname, parts.port), timeout=seconds(timeout))


def call(server, method, path, body=None, headers=None):
    """(status, headers, body as text). body: bytes, or anything that is sent as JSON."""
    connection = connect(server)
    if body is not None and not isinstance(body, bytes):
        body = json.dumps(body).encode()
    sent = {"Content-Type": "application/json"} if body is not None else {}
    connection.request(method, path, body, {**sent, **(headers or {})})
    reply = connection.getresponse()
    text = reply.read().decode()
    connection.close()
    return reply.status, dict(reply.getheaders()), text


def post(server, path, body, status=200):
    got, _, text = call(server, "POST", path, body)
    assert got == status, f"{path} {body}: {got} {text}"
    return json.loads(text)


def events(server, path, body):
    """The data of each event of a stream; comments are left out. The last is the text [DONE]."""
    connection = connect(server)
    connection.request("POST", path, json.dumps({**body, "stream": True}), {"Content-Type": "application/json"})
    reply = connection.getresponse()
    assert reply.status == 200, reply.read()
    assert reply.getheader("Content-Type").startswith("text/event-stream")
    for line in reply:
        line = line.decode().rstrip("\r\n")
        if line.startswith("data: "):
            data = line[6:]
            yield data if data == "[DONE]" else json.loads(data)
        else:
            assert line == "" or line.startswith(":"), line
    connection.close()
