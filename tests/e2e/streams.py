"""Many requests at once, and what came of each: tokens, log-probabilities, when they arrived, how it ended.

Every stream asks for log-probabilities, because then each event names its tokens: what a client got is compared token for
token and bit for bit (JSON carries an f32 exactly), and a token that was sent twice or skipped shows.
"""
import http.client
import json
import re
import socket
import threading
import time
from urllib.parse import urlsplit

from pace import Deadline, seconds

WORDS = ("harbour lamp seven river garden window copper letter winter bread station mountain orange ladder silver engine "
         "forest paper bridge candle thunder mirror village pocket anchor basket meadow needle marble pepper saddle tunnel").split()


def words(count, seed=1):
    """A prompt of so many words; another seed gives another one."""
    state, chosen = seed * 2654435761 % 2**32, []
    for _ in range(count):
        state = (state * 1664525 + 1013904223) % 2**32
        chosen.append(WORDS[state >> 27])
    return " ".join(chosen)


SAMPLED = {"temperature": 0.8, "presence_penalty": 0.3, "frequency_penalty": 0.2, "repetition_penalty": 1.1}


def body(prompt, tokens, index=0, sampled=False, **more):
    """A completion that runs to its last token; sampled: with temperature, penalties and a seed, else greedy."""
    return {"model": "default", "prompt": prompt, "max_tokens": tokens, "ignore_eos": True, "logprobs": 0,
            **({**SAMPLED, "seed": 1000 + index} if sampled else {"temperature": 0}), **more}


class Stream(threading.Thread):
    """One streamed completion, read by a thread of its own."""

    def __init__(self, url, request, timeout=180, headers=None):
        super().__init__(daemon=True)
        self.url, self.request, self.timeout = url, request, timeout
        self.sent_headers = {"Content-Type": "application/json", **(headers or {})}
        self.tokens, self.logprobs, self.top, self.text = [], [], [], ""
        self.times = []  # of each token
        self.event_times = []  # of each event with text; what there is without log-probabilities
        self.comment_times = []  # of each line that only keeps the connection open
        self.began = time.monotonic()
        self.finish_reason = self.stop_reason = self.error = self.usage = None
        self.status, self.headers, self.done = None, {}, False
        self._connection = None
        self._news = threading.Condition()
        self.start()

    def run(self):
        try:
            self._talk()
        except (OSError, http.client.HTTPException, ValueError) as problem:
            self.error = self.error or repr(problem)
        with self._news:
            self.done = True
            self._news.notify_all()

    def _talk(self):
        parts = urlsplit(self.url)
        connection = self._connection = http.client.HTTPConnection(parts.hostname, parts.port, timeout=seconds(self.timeout))
        wanted = {**self.request, "stream": True, "stream_options": {"include_usage": True}}
        connection.request("POST", "/v1/completions", json.dumps(wanted), self.sent_headers)
        self._socket = connection.sock
        reply = connection.getresponse()
        self.status, self.headers = reply.status, dict(reply.getheaders())
        if reply.status != 200:
            self.error = reply.read().decode()
            return
        ended = False
        for line in reply:
            if line.startswith(b"data: [DONE]"):
                ended = True
            elif line.startswith(b"data: "):
                self._event(json.loads(line[6:]))
            elif line.startswith(b":"):
                self.comment_times.append(time.monotonic())
        if not ended:
            self.error = self.error or "the stream broke off"
        connection.close()

    def _event(self, event):
        if "error" in event:
            self.error = json.dumps(event)
            return
        self.usage = event.get("usage") or self.usage
        with self._news:
            for choice in event["choices"]:
                self.text += choice["text"]
                if choice["text"]:
                    self.event_times.append(time.monotonic())
                self.finish_reason = choice["finish_reason"] or self.finish_reason
                self.stop_reason = choice.get("stop_reason") or self.stop_reason
                if choice["logprobs"]:
                    self.tokens += choice["logprobs"]["tokens"]
                    self.logprobs += choice["logprobs"]["token_logprobs"]
                    self.top += choice["logprobs"]["top_logprobs"] or []
                    self.times += [time.monotonic()] * len(choice["logprobs"]["tokens"])
            self._news.notify_all()

    def wait_tokens(self, count, limit_s=120):
        deadline = Deadline(limit_s)
        with self._news:
            while not self._news.wait_for(lambda: self.done or len(self.tokens) >= count, deadline.left()) and not deadline.passed():
                pass
        assert len(self.tokens) >= count, f"{len(self.tokens)} of {count} tokens after {deadline}: {self.error}"

    def leave(self):
        """The client is gone: the connection is reset in mid-answer."""
        while self._connection is None or self._connection.sock is None and not self.done:
            time.sleep(0.005)
        self._socket = self._connection.sock or self._socket
        try:
            self._socket.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass

    def longest_gap(self, since=0.0):
        """The longest time between two tokens of which the later one came after `since`."""
        return max((b - a for a, b in zip(self.times, self.times[1:]) if b >= since), default=0.0)

    def bytes(self):
        """What must be the same wherever and beside whatever it ran."""
        return (self.tokens, self.logprobs, self.top, self.text, self.finish_reason)


def start_all(url, requests):
    return [Stream(url, request) for request in requests]


def join_all(streams, limit_s=240):
    deadline = Deadline(limit_s)
    for stream in streams:
        while stream.is_alive() and not deadline.passed():
            stream.join(deadline.left())
    late = [i for i, stream in enumerate(streams) if not stream.done]
    assert not late, f"streams {late} have not ended after {deadline}: {[len(streams[i].tokens) for i in late]} tokens"
    return streams


def run_all(url, requests, limit_s=240):
    return join_all(start_all(url, requests), limit_s)


def run_whole(url, requests, limit_s=240):
    """What the streams get with nothing wrong: each has all its tokens."""
    streams = run_all(url, requests, limit_s)
    assert all(stream.error is None and len(stream.tokens) == stream.request["max_tokens"] for stream in streams), \
        [stream.error for stream in streams]
    return streams


def assert_same(streams, wanted):
    """Each ended without an error, with the very tokens, log-probabilities and text of its counterpart."""
    for i, (stream, other) in enumerate(zip(streams, wanted, strict=True)):
        assert stream.error is None, f"stream {i}: {stream.error}"
        first = next((k for k, (a, b) in enumerate(zip(stream.tokens, other.tokens)) if a != b), None)
        assert stream.tokens == other.tokens, (f"stream {i} {stream.request['prompt'][:40]!r}: {len(stream.tokens)} tokens, want "
                                               f"{len(other.tokens)}; the first other one is {first}")
        wrong = [k for k, (a, b) in enumerate(zip(stream.logprobs, other.logprobs)) if a != b]
        assert not wrong, f"stream {i}: log-probabilities differ at {wrong[:8]} of {len(stream.logprobs)}"
        assert stream.bytes() == other.bytes(), f"stream {i}: {stream.bytes()} want {other.bytes()}"


def assert_same_after_kills(mesh, services, requests, wanted, awaited=slice(None)):
    """Each service is killed under streams that it serves, once the `awaited` ones of them have begun: what was seen is seen again."""
    for service in services:
        streams = start_all(mesh.url, requests)
        for stream in streams[awaited]:
            stream.wait_tokens(8)
        mesh.kill(service)
        assert_same(join_all(streams), wanted)


def samples(mesh, name):
    """{label text: value} of one metric, {"": value} where it has no labels."""
    found = re.findall(rf"^{re.escape(name)}(?:\{{([^}}]*)\}})? (\S+)$", mesh.metrics(), re.M)
    return {label: float(value) for label, value in found}


def of_place(mesh, name, place):
    return samples(mesh, name).get(f'place="{place}"', 0.0)


def left_places(mesh):
    """Sequences that have left their place so far, by themselves: balanced away, or ended."""
    return mesh.metric("fastdecode_sequences_moved_total") + mesh.metric("fastdecode_sequences_finished_total")
