"""A collector of OpenTelemetry for tests: takes POST /v1/traces on a port that the kernel picks. The messages are read with the package of the
OpenTelemetry project, so that not the same code writes and reads them."""
import dataclasses
import http.server
import threading
import time

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest, ExportTraceServiceResponse

from pace import wait_until


def value_of(value):
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return [value_of(item) for item in value.array_value.values]
    return getattr(value, kind)


def attributes_of(message):
    return {pair.key: value_of(pair.value) for pair in message.attributes}


class Span:
    """One span and the process that it came from."""

    def __init__(self, resource, span):
        self.resource, self.name, self.kind, self.state = resource, span.name, span.kind, span.trace_state
        self.service, self.instance = resource["service.name"].removeprefix("fastdecode-"), resource["service.instance.id"]
        self.trace, self.id, self.parent = span.trace_id.hex(), span.span_id.hex(), span.parent_span_id.hex()
        self.began, self.ended, self.failed = span.start_time_unix_nano, span.end_time_unix_nano, span.status.code == 2
        self.attributes = attributes_of(span)
        self.events = [(event.name, event.time_unix_nano, attributes_of(event)) for event in span.events]
        self.raw = span

    def __getitem__(self, key):
        return self.attributes[key]

    def __repr__(self):
        return f"{self.instance}: {self.name} {self.id} of {self.parent or 'nobody'} {self.attributes} {[e[0] for e in self.events]}"


@dataclasses.dataclass
class Request:
    service: str
    path: str
    type: str
    data: bytes
    at: float
    answer: object = None


class Collector:
    """answer(request, earlier ones of the same service): what it gets: a status, or (status, headers, body); None: no answer before `released`."""

    def __init__(self, answer=lambda request, earlier: 200, port=0, host="127.0.0.1"):
        self.answer, self.spans, self.requests, self.released = answer, [], [], threading.Event()
        self._lock = threading.Lock()
        collector = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self):  # noqa: N802 (its name is given)
                collector.take(self)

            def log_message(self, *_):
                pass

        class Server(http.server.ThreadingHTTPServer):
            daemon_threads = True

            def handle_error(self, *_):  # a client that has gone away
                pass

        self._server = Server((host, port), Handler)
        self.port = self._server.server_address[1]
        self.url = f"http://127.0.0.1:{self.port}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def take(self, handler):
        data = handler.rfile.read(int(handler.headers["Content-Length"]))
        message = ExportTraceServiceRequest.FromString(data)
        resources = [attributes_of(group.resource) for group in message.resource_spans]
        with self._lock:
            request = Request(resources[0]["service.name"], handler.path, handler.headers["Content-Type"], data, time.monotonic())
            answer = request.answer = self.answer(request, [r for r in self.requests if r.service == request.service])
            self.requests.append(request)
        if answer is None:
            self.released.wait()
            answer = 503
        status, headers, text = answer if isinstance(answer, tuple) else (answer, {}, ExportTraceServiceResponse().SerializeToString())
        with self._lock:
            for group in message.resource_spans if status == 200 else ():
                resource = attributes_of(group.resource)
                self.spans += [Span(resource, span) for scope in group.scope_spans for span in scope.spans]
        handler.send_response(status)
        for name, value in {"Content-Type": "application/x-protobuf", "Content-Length": str(len(text)), **headers}.items():
            handler.send_header(name, value)
        handler.end_headers()
        handler.wfile.write(text)

    def of(self, trace, **wanted):
        """The spans of a trace so far whose fields are those wanted, in order of their beginning."""
        with self._lock:
            found = [span for span in self.spans if span.trace == trace]
        return sorted((span for span in found if all(getattr(span, key) == value for key, value in wanted.items())), key=lambda s: s.began)

    def wait(self, trace, accept, what):
        """Polls until accept(spans of the trace); returns them. what: what is waited for."""
        wait_until(lambda: accept(self.of(trace)), 60, lambda: f"{what}; there are {self.of(trace)}")
        return self.of(trace)

    def stop(self):
        self.released.set()
        self._server.shutdown()
        self._server.server_close()
