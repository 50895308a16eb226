"""Interference: what a flood of 4,000-token prompts costs streams that run, beside what their prefill costs.

Tokenizing alone (/tokenize) has no prefill: the streams' median time between tokens beside that without a flood. As requests, the
prefill of the same prompts given as token ids is what they are compared with. The flood's clients stand for other hosts: they run at
SCHED_IDLE, in a process of their own.
"""
import contextlib
import http.client
import json
import multiprocessing
import os
import statistics
import threading
import time
from urllib.parse import urlsplit

from clients import completion, run
from end_to_end import sleeping, warm
from figures import figure, of_rounds
from servers import Ours
from streams import words

STREAMS, WINDOW_S, ROUNDS, CONNECTIONS, PROMPT_TOKENS = 8, 3.0, 3, 8, 4000
LEAD_S = 0.5  # for the connections and first bodies of a flood


def _send(url, path, bodies, first, step, done, failed, stop):
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.hostname, parts.port, timeout=120)
    at = first
    while not stop.is_set():
        try:
            connection.request("POST", path, bodies[at % len(bodies)], {"Content-Type": "application/json"})
            reply = connection.getresponse()
            reply.read()
        except (OSError, http.client.HTTPException):  # cut off at the end
            connection.close()
            continue
        with (done if reply.status == 200 else failed).get_lock():
            (done if reply.status == 200 else failed).value += 1
        at += step


def _flood(url, path, bodies, connections, done, failed, go, stop):
    os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))  # inherited by the threads
    go.wait()
    for first in range(connections):
        threading.Thread(target=_send, args=(url, path, bodies, first, connections, done, failed, stop), daemon=True).start()
    stop.wait()


class Flood:
    """From begin() until it is left every connection posts one body after the other. Entered before any stream is open, so that
    its process has none of their connections."""

    def __init__(self, url, path, bodies, connections=CONNECTIONS):
        context = multiprocessing.get_context("fork")
        self.done, self.failed, self.go, self.stop = context.Value("i", 0), context.Value("i", 0), context.Event(), context.Event()
        self.process = context.Process(target=_flood, args=(url, path, bodies, connections, self.done, self.failed, self.go, self.stop),
                                       daemon=True)

    def begin(self):
        self.go.set()

    def answered(self):
        if self.failed.value:
            raise RuntimeError(f"{self.failed.value} requests of the flood were refused")
        return self.done.value

    def __enter__(self):
        self.process.start()
        return self

    def __exit__(self, *_):
        self.stop.set()
        self.go.set()
        self.process.join()


class NoFlood(contextlib.nullcontext):
    def begin(self):
        pass

    def answered(self):
        return 0


def texts(url, count, seed, tokens=PROMPT_TOKENS):
    """Prompts of about so many tokens, and their ids; all different."""
    def ids(text):
        parts = urlsplit(url)
        connection = http.client.HTTPConnection(parts.hostname, parts.port, timeout=60)
        connection.request("POST", "/tokenize", json.dumps({"prompt": text}), {"Content-Type": "application/json"})
        return json.loads(connection.getresponse().read())["tokens"]

    a_word = len(ids(words(500, seed))) / 500
    made = [words(int(tokens / a_word), seed + 1 + i) for i in range(count)]
    return [(text, ids(text)) for text in made]


def between_tokens(url, flood, seed, limit_s, streams=STREAMS, window_s=WINDOW_S):
    """(median seconds between tokens of the streams in a window, requests of the flood answered in it); flood: a Flood or NoFlood."""
    gaps, answered = gaps_between_tokens(url, flood, seed, limit_s, streams, window_s)
    return statistics.median(gaps), answered


def gaps_between_tokens(url, flood, seed, limit_s, streams=STREAMS, window_s=WINDOW_S):
    """The same with all times between tokens."""
    began, marks = [], []

    def enough(clients):
        now = time.monotonic()
        if not began and all(client.first for client in clients):
            flood.begin()
            began.append(now)
        if not marks and began and now - began[0] > LEAD_S:
            marks.append((now, flood.answered()))
        if not marks or now - marks[0][0] < window_s:
            return False
        marks.append((now, flood.answered()))
        return True

    with flood:
        clients = run(url, [completion(64, 4000, seed + i) for i in range(streams)], limit_s, enough=enough)
    if any(client.ended() or client.error for client in clients):
        raise RuntimeError("a stream ended before its time")
    gaps = [b[0] - a[0] for client in clients for a, b in zip(client.events, client.events[1:]) if a[0] >= marks[0][0]]
    return gaps, marks[1][1] - marks[0][1]


def prompt_bodies(prompts, as_ids):
    return [json.dumps({"model": "default", "prompt": ids if as_ids else text, "max_tokens": 1, "temperature": 0})
            for text, ids in prompts]


def interference(run_):
    with Ours() as ours:
        warm(ours, 4)
        prompts = texts(ours.url, 64, 500)
        bodies = [json.dumps({"prompt": text}) for text, _ in prompts]
        pairs, beside, rates = [], [], []
        for turn in range(ROUNDS):
            got = []
            for label, flood in (("no flood", NoFlood()), ("a flood to /tokenize", Flood(ours.url, "/tokenize", bodies)),
                                 ("a flood of ids", Flood(ours.url, "/v1/completions", prompt_bodies(prompts, True))),
                                 ("a flood of prompts", Flood(ours.url, "/v1/completions", prompt_bodies(prompts, False)))):
                sleeping(run_, [ours])
                with run_.turn(f"{STREAMS} streams, {label}"):
                    got.append(between_tokens(ours.url, flood, 4000 + 100 * turn + 10 * len(got), run_.limit_s()))
                run_.note(f"{1e3 * got[-1][0]:.2f} ms between tokens, {got[-1][1] / WINDOW_S:.0f} of the flood answered a second")
            pairs.append((1e3 * got[1][0], 1e3 * got[0][0]))
            beside.append((1e3 * got[3][0], 1e3 * got[2][0]))
            rates.append(got[1][1] / WINDOW_S)
    name = f"{STREAMS} streams: median between tokens beside a flood of {PROMPT_TOKENS}-token"
    run_.add(of_rounds("interference", f"{name} prompts to /tokenize", "ms", pairs, 1.10, at_most=True))
    run_.add(of_rounds("interference", f"{name} requests, beside the same as ids", "ms", beside, 1.10, at_most=True))
    run_.add(figure("interference", "prompts answered by /tokenize meanwhile", statistics.median(rates), "a second"))
