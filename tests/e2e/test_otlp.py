"""`--otlp-endpoint`: a request's trace over all services, and a collector that does not do what it should."""
import http.client
import json
import os
import re
import secrets
import signal
from urllib.parse import urlsplit

import pytest

from collector import Collector
from conftest import PACED, fastdecode, seconds, tiny, wait_until
from streams import Stream, body, join_all, words

AT_WORKERS = ("--kv-workers", 2, "--local-pool", 0, "--kv-memory", "256M", "--draft-tokens", 0, "--context", 1024)
CHOICES = 6  # enough that the scheduler does not give all of them to one of two workers
SECRET, KEY = "marigold lantern", "sk-not-for-anyone-to-see"
VALID = re.compile(r"00-([0-9a-f]{32})-([0-9a-f]{16})-(0[01])")


def ask(url, request, path="/v1/completions", method="POST", headers=()):
    """(status, headers in lower case, parsed body); headers: pairs, sent byte for byte."""
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.hostname, parts.port, timeout=seconds(120))
    connection.putrequest(method, path)
    text = json.dumps(request).encode() if request else b""
    for name, value in [("Content-Type", "application/json"), ("Content-Length", str(len(text))), *headers]:
        connection.putheader(name, value)
    connection.endheaders(text)
    reply = connection.getresponse()
    answer = reply.read()
    connection.close()
    return reply.status, {name.lower(): value for name, value in reply.getheaders()}, answer and json.loads(answer)


def new_parent(flags="01"):
    """(traceparent, trace id, span id) as a client makes it."""
    trace, span = secrets.token_hex(16), secrets.token_hex(8)
    return f"00-{trace}-{span}-{flags}", trace, span


def trace_of(headers):
    return VALID.fullmatch(headers["traceparent"])[1]


def spans_of(collector, trace, **services):
    """The spans of a trace, once there are so many of each service."""
    names = {name.replace("_", "-"): count for name, count in services.items()}

    def complete(spans):
        return all(sum(span.service == name for span in spans) >= count for name, count in names.items())

    return collector.wait(trace, complete, f"the trace has not {names}")


def assert_nested(spans, outside=None):
    """Every parent is there, but that of the root, and a span lies within its parent."""
    by_id = {span.id: span for span in spans}
    assert len(by_id) == len(spans)
    for span in spans:
        if span.parent == (outside or "") and span.service == "gateway":
            continue
        parent = by_id.get(span.parent)
        assert parent, f"{span}: no such parent"
        assert parent.began <= span.began <= span.ended <= parent.ended, f"{span} {span.began, span.ended} of {parent} {parent.began, parent.ended}"


@pytest.fixture(scope="module")
def collector():
    running = Collector()
    yield running
    running.stop()


@pytest.fixture(scope="module")
def traced(collector):
    from conftest import Mesh
    with Mesh(*AT_WORKERS, "--otlp-endpoint", collector.url + "/") as mesh:
        yield mesh


def test_a_trace_arrives_whole(traced, collector):
    parent, trace, client = new_parent()
    request = {"model": "default", "prompt": [SECRET + words(30, i) for i in range(CHOICES)], "max_tokens": 12, "ignore_eos": True}
    traced.wait_metric("fastdecode_place_up", lambda up: up == 2)
    status, headers, answer = ask(traced.url, request, headers=[
        ("traceparent", parent), ("tracestate", "a=1 , b@c=2"), ("TraceState", "d=3"), ("Authorization", f"Bearer {KEY}"),
        ("X-Request-Id", "traced-one")])
    assert status == 200 and trace_of(headers) == trace
    spans = spans_of(collector, trace, gateway=1, scheduler=3 * CHOICES, s_part=2 * CHOICES, kv_worker=CHOICES)
    rows = sum(span["fastdecode.rows"] for span in spans if span.name == "prefill") + 11 * CHOICES
    spans = collector.wait(trace, lambda spans: attention_rows(spans) >= rows, "rows are missing")  # what was moved has two such spans
    assert_nested(spans, client)
    root, = (span for span in spans if span.service == "gateway")
    assert headers["traceparent"] == f"00-{trace}-{root.id}-01" and root.parent == client and root.kind == 2 and not root.failed
    usage = answer["usage"]
    assert root.attributes == {
        "http.request.method": "POST", "http.route": "/v1/completions", "http.response.status_code": 200, "url.scheme": "http",
        "url.path": "/v1/completions", "gen_ai.operation.name": "text_completion", "gen_ai.provider.name": "fastdecode",
        "gen_ai.request.model": answer["model"], "gen_ai.usage.input_tokens": usage["prompt_tokens"],
        "gen_ai.usage.output_tokens": usage["completion_tokens"], "gen_ai.response.finish_reasons": ["length"] * CHOICES,
        "fastdecode.request_id": "traced-one"} and root.name == "POST /v1/completions"
    assert_parts(spans, root, usage)
    for span in spans:
        assert span.resource["service.version"] and span.resource["host.name"] == os.uname().nodename
        assert span.state == ("a=1 , b@c=2,d=3" if span.service in ("gateway", "scheduler") else "") and span.raw.flags == 1
    assert {span.instance for span in spans if span.service == "kv-worker"} == {"kv-worker-0", "kv-worker-1"}
    assert {(r.path, r.type) for r in collector.requests} == {("/v1/traces", "application/x-protobuf")}
    everything = b"".join(r.data for r in collector.requests)
    assert not [text for text in (SECRET, KEY, *SECRET.split()) if text.encode() in everything] and b"traced-one" in everything


def attention_rows(spans):
    return sum(span["fastdecode.rows"] for span in spans if span.name == "attention")


def assert_parts(spans, root, usage):
    """What each service says of each sequence. A busy machine may have it moved from one worker to the other: each says its part."""
    parts, attention = {}, {}
    for span in spans:
        if span.name == "attention":
            attention.setdefault(span["fastdecode.sequence"], []).append(span)
        elif span is not root:
            assert parts.setdefault(span["fastdecode.sequence"], {}).setdefault(span.name, span) is span, span
    assert len(parts) == CHOICES and parts.keys() == attention.keys()
    for sequence, of in parts.items():
        at = attention[sequence]
        moves = [event for event in of["decode"].events if event[0] == "move"]
        assert set(of) == {"queue", "prefill", "decode", "prefill steps", "decode steps"}
        assert {span.parent for span in [of["queue"], of["prefill"], of["decode"], *at]} == {root.id}
        assert of["prefill steps"].parent == of["prefill"].id and of["decode steps"].parent == of["decode"].id
        assert of["decode"]["fastdecode.tokens"] == 12 and of["decode"]["fastdecode.finish"] == "length"
        assert of["decode"]["fastdecode.steps"] == of["decode steps"]["fastdecode.steps"] == 11  # the first token is the prefill's
        assert of["prefill"]["fastdecode.rows"] == of["prefill steps"]["fastdecode.rows"]
        assert attention_rows(at) == of["prefill"]["fastdecode.rows"] + 11 and len(at) <= 1 + len(moves)
        assert sum(span["fastdecode.steps"] for span in at) == of["prefill steps"]["fastdecode.steps"] + 11
        assert all(span["fastdecode.r_part_us"] > 0 for span in at) and of["decode steps"]["fastdecode.s_part_us"] > 0
        assert of["queue"].ended == of["prefill"].began and sum(len(span.events) for span in [*of.values(), *at]) == len(moves)
        assert not any(span.failed for span in [*of.values(), *at])
    cached = sum(of["prefill"]["fastdecode.cached_tokens"] for of in parts.values())
    assert sum(of["prefill"]["fastdecode.rows"] for of in parts.values()) + cached == usage["prompt_tokens"]


def test_without_a_parent(traced, collector):
    """A trace of its own; chats, other paths and errors have one too, but no probe."""
    chat = {"model": "default", "messages": [{"role": "user", "content": "one"}], "max_tokens": 3, "ignore_eos": True, "stream": True}
    parts = urlsplit(traced.url)
    connection = http.client.HTTPConnection(parts.hostname, parts.port, timeout=seconds(60))
    connection.request("POST", "/v1/chat/completions", json.dumps(chat), {"Content-Type": "application/json"})
    reply = connection.getresponse()
    chat_trace = VALID.fullmatch(reply.getheader("traceparent"))[1]
    reply.read()
    connection.close()
    spans = spans_of(collector, chat_trace, gateway=1, scheduler=3, s_part=2, kv_worker=1)
    assert_nested(spans)
    assert spans[0].name == "POST /v1/chat/completions" and spans[0]["gen_ai.operation.name"] == "chat" and not spans[0].parent
    status, headers, _ = ask(traced.url, {"model": "another", "prompt": "a", "max_tokens": 1})
    root, = spans_of(collector, trace_of(headers), gateway=1)
    assert status == root["http.response.status_code"] == 404 and not root.failed and "gen_ai.response.finish_reasons" not in root.attributes
    status, headers, _ = ask(traced.url, None, "/v1/models/some%20name%0a%c3", "GET")
    root, = spans_of(collector, trace_of(headers), gateway=1)
    assert status == 404 and root["http.route"] == "/v1/models/{id}" and root["url.path"] == "/v1/models/some name??"
    for path in ("/health", "/ready", "/version", "/nowhere"):
        assert "traceparent" not in ask(traced.url, None, path, "GET")[1], path


TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
MALFORMED = ["", "0", "00", f"00-{TRACE}-{SPAN}", f"00-{TRACE}-{SPAN}-", f"00-{TRACE}-{SPAN}-1", f"00-{TRACE}-{SPAN}-01-", f"00-{TRACE}-{SPAN}-01-more",
             f"00-{TRACE}-{SPAN}-0g", f"00-{TRACE.upper()}-{SPAN}-01", f"00-{TRACE}-{SPAN.upper()}-01", f"00-{'0' * 32}-{SPAN}-01",
             f"00-{TRACE}-{'0' * 16}-01", f"ff-{TRACE}-{SPAN}-01", f"FF-{TRACE}-{SPAN}-01", f"0x-{TRACE}-{SPAN}-01", f"00_{TRACE}-{SPAN}-01",
             f"00-{TRACE}_{SPAN}-01", f"00-{TRACE}-{SPAN}_01", f"00-{TRACE[:-1]}-{SPAN}0-01", f"00-{TRACE[:-1]}x-{SPAN}-01",
             f"00-{TRACE}-{SPAN[:-1]}\xe9-01", f"cc-{TRACE}-{SPAN}-01.more", "-" * 55, "0" * 55, "9" * 4000, f"00-{TRACE}-{SPAN}-01,00-{TRACE}-{SPAN}-01"]


@pytest.mark.parametrize("value", MALFORMED)
def test_a_malformed_parent_is_ignored(traced, value):
    status, headers, _ = ask(traced.url, None, "/v1/models", "GET", [("traceparent", value.encode("latin-1")), ("tracestate", "a=1")])
    found = VALID.fullmatch(headers["traceparent"])
    assert status == 200 and found[1] != TRACE and found[2] != SPAN and found[3] == "01"


def test_two_parents_are_none(traced):
    headers = ask(traced.url, None, "/v1/models", "GET", [("traceparent", new_parent()[0]), ("traceparent", f"00-{TRACE}-{SPAN}-01")])[1]
    assert trace_of(headers) != TRACE


def test_a_later_version_is_read(traced, collector):
    parent, trace, client = new_parent("03")
    headers = ask(traced.url, None, "/v1/models", "GET", [("traceparent", "cc" + parent[2:] + "-more"), ("tracestate", "A=1")])[1]
    root, = spans_of(collector, trace, gateway=1)
    assert headers["traceparent"] == f"00-{trace}-{root.id}-01" and root.parent == client and root.state == ""


def test_what_is_not_sampled_leaves_no_span(start_mesh, collector):
    """The header's flag decides; without one --trace-sample does."""
    mesh = start_mesh(*AT_WORKERS, "--otlp-endpoint", collector.url, "--trace-sample", 0)
    request = {"model": "default", "prompt": "one two", "max_tokens": 3, "ignore_eos": True}
    not_sampled, trace, _ = new_parent("00")
    headers = ask(mesh.url, request, headers=[("traceparent", not_sampled)])[1]
    assert headers["traceparent"].startswith(f"00-{trace}-") and headers["traceparent"].endswith("-00")
    own = ask(mesh.url, request)[1]["traceparent"]
    assert own.endswith("-00")
    sampled, last, _ = new_parent()
    ask(mesh.url, request, headers=[("traceparent", sampled)])
    spans = spans_of(collector, last, gateway=1, scheduler=3, s_part=2, kv_worker=1)
    assert collector.of(trace) == collector.of(VALID.fullmatch(own)[1]) == []
    exported = "fastdecode_trace_spans_exported_total"
    mesh.wait_metric(exported, lambda value: value == len(spans) - 1)  # what the heartbeats say, and no span more
    assert f"fastdecode_gateway{exported.removeprefix('fastdecode')} 1\n" in mesh.get("/metrics")
    assert mesh.metric("fastdecode_trace_spans_dropped_total") == 0


def test_nothing_without_an_endpoint(mesh):
    status, headers, _ = ask(mesh.url, None, "/v1/models", "GET", [("traceparent", new_parent()[0])])
    assert status == 200 and "traceparent" not in headers
    assert "trace_spans" not in mesh.metrics() + mesh.get("/metrics") and "TRACES" not in mesh.logs(1000)


@pytest.mark.parametrize("url", ["127.0.0.1:4318", "ftp://host", "http://", "http:///path", "http://user:word@host", "http://host?a=b",
                                 "http://ho st", "http://" + "h" * 2000])
def test_an_endpoint_that_is_none(url):
    done = fastdecode("up", "--model", tiny(), "--check", "--otlp-endpoint", url)
    assert done.returncode == 2 and "--otlp-endpoint" in done.stderr


# --- when something fails


def traced_stream(mesh, *request, **more):
    """(stream, its trace id)"""
    parent, trace, _ = new_parent()
    return Stream(mesh.url, body(*request, **more), headers={"traceparent": parent}), trace


def test_a_worker_is_killed(start_mesh, collector):
    """What it had is lost; the sequence is rebuilt at the other one, and all that is there is whole."""
    mesh = start_mesh(*AT_WORKERS, "--otlp-endpoint", collector.url, **PACED)
    mesh.wait_metric("fastdecode_place_up", lambda up: up >= 2)  # then each has one of the two
    streams, traces = zip(*(traced_stream(mesh, words(30, i), 60, i) for i in range(2)))
    for stream in streams:
        stream.wait_tokens(20)
    mesh.kill("kv-worker-0")
    assert [stream.error for stream in join_all(streams)] == [None, None]
    rebuilt = 0
    for trace in traces:
        spans = spans_of(collector, trace, gateway=1, scheduler=3, s_part=2, kv_worker=1)
        assert {span.instance for span in spans if span.service == "kv-worker"} == {"kv-worker-1"}
        decode, = (span for span in spans if span.name == "decode")
        assert decode["fastdecode.finish"] == "length" and decode["fastdecode.tokens"] == 60 and not decode.failed
        assert_nested(spans, spans[0].parent)
        events = [event for event in decode.events if event[0] == "rebuild"]
        assert all(decode.began <= at <= decode.ended for _, at, _ in events)
        rebuilt += len(events)
    assert rebuilt >= 1


def test_a_client_leaves(start_mesh, collector):
    mesh = start_mesh(*AT_WORKERS, "--otlp-endpoint", collector.url, **PACED)
    stream, trace = traced_stream(mesh, words(30), 800)
    stream.wait_tokens(5)
    stream.leave()
    spans = spans_of(collector, trace, gateway=1, scheduler=3, s_part=2, kv_worker=1)
    root, decode = spans[0], next(span for span in spans if span.name == "decode")
    assert root.service == "gateway" and root.failed and root["error.type"] == "client_left"
    assert sum(span.name != "attention" for span in spans) == 6
    assert decode["fastdecode.finish"] == "cancelled" and decode["fastdecode.tokens"] < 800
    by_id = {span.id: span for span in spans}
    assert all(by_id[span.parent].began <= span.began for span in spans if span is not root)


def test_pages_run_out(start_mesh, collector):
    """A sequence that is paused says so: the pages of both do not fit."""
    mesh = start_mesh("--kv-workers", 1, "--local-pool", 0, "--kv-memory", "1M", "--draft-tokens", 0, "--context", 1024, "--prefix-cache", "off",
                      "--otlp-endpoint", collector.url)
    tokens = int(mesh.metric("fastdecode_kv_pages")) * 16 * 5 // 8
    streams, traces = zip(*(traced_stream(mesh, words(8, i), min(tokens, 900), i) for i in range(2)))
    assert [stream.error for stream in join_all(streams)] == [None, None]
    assert mesh.metric("fastdecode_sequences_preempted_total") >= 1
    events = []
    for trace in traces:
        spans = spans_of(collector, trace, gateway=1, scheduler=3, s_part=2, kv_worker=1)
        events += [name for span in spans for name, _, _ in span.events]
    assert "pause" in events and "rebuild" in events


def test_each_stage_has_its_spans(start_mesh, collector):
    """A pipeline of two s-parts: both are children of the scheduler's spans."""
    mesh = start_mesh("--split", "2,2", "--kv-workers", 1, "--local-pool", 0, "--kv-memory", "64M", "--draft-tokens", 0, "--otlp-endpoint", collector.url)
    mesh.wait_metric("fastdecode_stages", lambda count: count == 2)
    stream, trace = traced_stream(mesh, words(40), 6)
    join_all([stream])
    spans = spans_of(collector, trace, gateway=1, scheduler=3, s_part=4, kv_worker=1)
    assert_nested(spans, spans[0].parent)
    steps = sorted((span.name, span.instance, span["fastdecode.first_layer"], span["fastdecode.layers"], span["fastdecode.steps"])
                   for span in spans if span.service == "s-part")
    prefill = next(span for span in spans if span.name == "prefill")["fastdecode.steps"]
    assert steps == [("decode steps", "s-part-0", 0, 2, 5), ("decode steps", "s-part-1", 2, 2, 5),
                     ("prefill steps", "s-part-0", 0, 2, prefill), ("prefill steps", "s-part-1", 2, 2, prefill)]


def test_a_sequence_at_several_workers(start_mesh, collector):
    """Each worker that has a part of it has a span, also one that is only read from."""
    mesh = start_mesh("--kv-workers", 4, "--kv-memory", "3M", "--local-pool", 0, "--prefix-cache", "off", "--draft-tokens", 0,
                      "--otlp-endpoint", collector.url)
    mesh.wait_metric("fastdecode_place_up", lambda up: up == 4)
    stream, trace = traced_stream(mesh, words(2100, 41), 8)
    join_all([stream])
    assert stream.error is None
    spans = spans_of(collector, trace, gateway=1, scheduler=3, s_part=2, kv_worker=2)
    assert mesh.metric("fastdecode_extents_total") >= 1
    spans = spans_of(collector, trace, kv_worker=int(mesh.metric("fastdecode_extents_total")) + 1)
    assert_nested(spans, spans[0].parent)
    workers = [span for span in spans if span.service == "kv-worker"]
    assert len({span.instance for span in workers}) == len(workers)
    assert sum(span["fastdecode.reads"] for span in workers) >= 7 and sum(span["fastdecode.rows"] for span in workers) == stream.usage["prompt_tokens"] + 7


def served(mesh, count=3):
    """So many requests have whole answers; their traces."""
    streams, traces = zip(*(traced_stream(mesh, words(10, i), 4, i) for i in range(count)))
    assert [stream.error for stream in join_all(streams)] == [None] * count and all(len(stream.tokens) == 4 for stream in streams)
    return traces


def test_a_collector_that_is_busy(start_mesh):
    """Each service is told to come back once: it does, not before the time it was told, and nothing is lost."""
    collector = Collector(lambda request, earlier: 200 if earlier else (503, {"Retry-After": "1"}, b"later"))
    mesh = start_mesh(*AT_WORKERS, "--otlp-endpoint", collector.url)
    for trace in served(mesh):
        assert_nested(spans_of(collector, trace, gateway=1, scheduler=3, s_part=2, kv_worker=1), collector.of(trace)[0].parent)
    for service in ("gateway", "scheduler", "s-part"):
        first, second, *_ = (request for request in collector.requests if request.service == "fastdecode-" + service)
        assert first.answer[0] == 503 and second.answer == 200 and second.data == first.data and second.at - first.at >= 1
    assert mesh.metric("fastdecode_trace_spans_dropped_total") == 0
    mesh.stop()
    collector.stop()


def test_a_collector_that_refuses(start_mesh):
    """Everything is dropped at once, counted, and the log says so once."""
    collector = Collector(lambda request, earlier: (400, {}, b"no"))
    mesh = start_mesh(*AT_WORKERS, "--otlp-endpoint", collector.url)
    for _ in range(3):
        served(mesh)
    wait_until(lambda: "fastdecode_gateway_trace_spans_dropped_total 9\n" in mesh.get("/metrics"), 30, lambda: mesh.get("/metrics"), 0.2)
    mesh.wait_metric("fastdecode_trace_spans_dropped_total", lambda value: value == 9 * 6)
    assert mesh.metric("fastdecode_trace_spans_exported_total") == 0
    logs = mesh.logs(1000).split("--- ")
    for service in ("gateway", "scheduler", "s-part"):
        log, = (text for text in logs if text.startswith(service + ".log"))
        assert log.count("SPANS-DROPPED") == 1 and "HTTP status 400" in log
    mesh.stop()
    collector.stop()


ANSWERS = {"huge": (200, {}, bytes(8 << 20)), "nonsense": (200, {}, b"\xff" * 100), "rejects": (200, {}, b"\x0a\x02\x08\x01")}


@pytest.mark.parametrize("name", ANSWERS)
def test_a_strange_answer(start_mesh, name):
    """The status counts; of a partial success (rejected_spans 1) what was rejected is counted as dropped."""
    collector = Collector(lambda request, earlier: ANSWERS[name])
    mesh = start_mesh("--kv-workers", 0, "--otlp-endpoint", collector.url)
    served(mesh, 2)
    dropped, exported = "fastdecode_trace_spans_dropped_total", "fastdecode_trace_spans_exported_total"
    wait_until(lambda: mesh.metric(exported) + mesh.metric(dropped) == 2 * 5, 30, mesh.logs)
    answers = sum(request.service != "fastdecode-gateway" for request in collector.requests)
    assert mesh.metric(dropped) == (answers if name == "rejects" else 0)
    mesh.stop()
    collector.stop()


@pytest.mark.parametrize("kind", ["down", "silent"])
def test_a_collector_that_is_not_there(start_mesh, kind):
    """Nobody listens, or nobody answers: requests have their answers, and the mesh ends in time. What was left is counted."""
    collector = Collector(lambda request, earlier: None)
    if kind == "down":
        collector.stop()
    mesh = start_mesh(*AT_WORKERS, "--otlp-endpoint", collector.url)
    for _ in range(2):
        served(mesh)
    os.kill(mesh.process.pid, signal.SIGTERM)
    mesh.process.wait(seconds(60))
    ends = re.findall(r"TRACES-END exported=(\d+) dropped=(\d+)", mesh.logs(1000))
    assert len(ends) == 5 and sum(int(exported) for exported, _ in ends) == 0
    assert sum(int(dropped) for _, dropped in ends) == 6 * 7
    mesh.stop()
    if kind != "down":
        collector.stop()
