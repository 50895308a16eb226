"""Many streaming completions read by one thread: what clients cost must not decide what a server can do.

Events are counted and timed as they arrive, not parsed; the number of tokens is the server's own, from the usage at the end of
each stream. The same code reads every server, so it costs all of them the same.
"""
import json
import math
import os
import re
import selectors
import socket
import sys
import time
from urllib.parse import urlsplit

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "e2e"))

from streams import words  # noqa: E402

EVENT = b"data: {"
TAIL_BYTES = 4096  # of each answer: holds its last event with the usage, and what an event that is cut in two lacks


def greedy(prompt, tokens):
    """A greedy completion of a text, or of token ids, that runs to its last token."""
    return {"model": "default", "prompt": prompt, "max_tokens": tokens, "ignore_eos": True, "temperature": 0, "stream": True,
            "stream_options": {"include_usage": True}}


def completion(prompt_words, tokens, seed):
    """Of a prompt of its own."""
    return greedy(words(prompt_words, seed), tokens)


class Client:
    """One streamed completion; its request is sent by start()."""

    def __init__(self, address, request):
        self.address, self.request = address, request
        self.began = self.first = self.last = None  # time.monotonic()
        self.events = []  # (time, events so far) of each read
        self.event_count = 0
        self.tail, self.head, self.error = b"", b"", None
        self.socket = None

    def start(self):
        text = json.dumps(self.request).encode()
        self.began = time.monotonic()
        self.socket = socket.create_connection(self.address, timeout=120)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
                            b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(text) + text)
        self.socket.setblocking(False)

    def read(self):
        """False: the stream has ended."""
        try:
            data = self.socket.recv(65536)
        except BlockingIOError:
            return True
        except OSError as problem:
            self.error, data = repr(problem), b""
        if not data:
            return False
        if len(self.head) < 64:
            self.head += data[:64]
        seen = self.tail[-(len(EVENT) - 1):] + data
        count = seen.count(EVENT)
        if count:
            self.last = time.monotonic()
            self.first = self.first or self.last
            self.event_count += count
            self.events.append((self.last, self.event_count))
        self.tail = (self.tail + data)[-TAIL_BYTES:]
        return b"data: [DONE]" not in seen

    def tokens(self):
        """Generated tokens as the server counts them, in its last event or in each; 0 where the stream has no end."""
        found = re.findall(rb'"completion_tokens":\s*(\d+)', self.tail)
        return int(found[-1]) if found else 0

    def ended(self):
        return b"data: [DONE]" in self.tail

    def trouble(self):
        """What is wrong with the answer, or None."""
        if self.error or not re.match(rb"HTTP/1.1 200", self.head):
            return self.error or (self.head + self.tail[-300:]).decode(errors="replace")
        return None if self.tokens() == self.request["max_tokens"] else f"{self.tokens()} tokens: {self.tail[-300:]!r}"


def run(url, requests, limit_s, while_open=None, enough=None, more=None):
    """All at once; returns the clients. while_open(clients): called once, when all have been started. enough(clients): asked all
    the time; true ends it before the streams have ended. more(clients): asked as often; requests that it returns are started
    then, their clients behind the others. TimeoutError: not all have ended in time. Connections that are open at the end are
    closed, so that the server stops working for them."""
    parts = urlsplit(url)
    clients, waiting, deadline = [], set(), time.monotonic() + limit_s
    with selectors.DefaultSelector() as selector:
        def begin(requests):
            for request in requests:
                clients.append(Client((parts.hostname, parts.port), request))
                clients[-1].start()
                selector.register(clients[-1].socket, selectors.EVENT_READ, clients[-1])
                waiting.add(clients[-1])

        try:
            begin(requests)
            if while_open:
                while_open(clients)
            while waiting and not (enough and enough(clients)):
                begin(more(clients) or () if more else ())
                for key, _ in selector.select(max(0.0, min(deadline - time.monotonic(), 0.02 if enough or more else math.inf))):
                    if not key.data.read():
                        selector.unregister(key.fileobj)
                        key.fileobj.close()
                        waiting.discard(key.data)
                if waiting and time.monotonic() > deadline:
                    raise TimeoutError(f"{len(waiting)} of {len(clients)} streams have not ended after {limit_s:.0f} s")
        finally:
            for client in clients:
                if client.socket:
                    client.socket.close()
    return clients


def check(clients):
    """RuntimeError with the first trouble of any of them."""
    bad = [client.trouble() for client in clients if client.trouble()]
    if bad:
        raise RuntimeError(f"{len(bad)} of {len(clients)} streams went wrong; the first: {bad[0]}")


def percentile(values, share):
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0.0


def measure(url, streams, prompt_words, tokens, seed, limit_s=600):
    """One round of so many streams at once: figures in seconds, and tokens a second from the first request to the last token."""
    clients = run(url, [completion(prompt_words, tokens, seed * 10000 + i) for i in range(streams)], limit_s)
    check(clients)
    began, ended = min(client.began for client in clients), max(client.last for client in clients)
    gaps = [b[0] - a[0] for client in clients for a, b in zip(client.events, client.events[1:])]
    return {"streams": streams, "seconds": ended - began, "tokens_per_s": streams * tokens / (ended - began),
            "first_s": percentile([client.first - client.began for client in clients], 0.5),
            "between_p50_s": percentile(gaps, 0.5), "between_p99_s": percentile(gaps, 0.99)}
