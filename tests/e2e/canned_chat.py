"""A gateway of which only the answers to chats are not real: pages and all else come from a real one, behind the same address.

A test says what the next answers are: answer(), refuse(), cut_off(). What was asked is in `requests`, with the headers.
"""
import http.server
import json
import queue
import threading
import urllib.error
import urllib.request

from pace import seconds


class CannedChat:
    def __init__(self, url):
        self.real = url
        self.requests, self.next = [], queue.Queue()
        self.key = None  # what must be sent; None: nothing
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self):
                outer.pass_on(self)

            def do_POST(self):
                outer.chat(self)

            def log_message(self, *_):
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"
        self.thread = threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        self.thread.start()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()

    # --- what a test says
    def answer(self, *pieces, finish="stop", hold=None):
        """hold: an event that is waited for before the last piece."""
        self.next.put(lambda handler: self.stream(handler, pieces, finish, hold))

    def refuse(self, status, message, retry_after=None):
        self.next.put(lambda handler: self.error(handler, status, message, retry_after))

    def cut_off(self, *pieces):
        self.next.put(lambda handler: self.stream(handler, pieces, None, None))

    # --- what it does
    def allowed(self, handler):
        if self.key is None or handler.headers.get("Authorization") == f"Bearer {self.key}":
            return True
        self.error(handler, 401, "an API key is required: Authorization: Bearer KEY", None)
        return False

    def pass_on(self, handler):
        if handler.path.startswith("/v1/") and not self.allowed(handler):
            return
        try:
            with urllib.request.urlopen(self.real + handler.path, timeout=seconds(30)) as reply:
                status, headers, body = reply.status, reply.headers, reply.read()
        except urllib.error.HTTPError as refused:
            status, headers, body = refused.code, refused.headers, refused.read()
        handler.send_response_only(status)
        for name, value in headers.items():
            if name not in ("Connection", "Transfer-Encoding"):
                handler.send_header(name, value)
        handler.end_headers()
        handler.wfile.write(body)

    def chat(self, handler):
        body = json.loads(handler.rfile.read(int(handler.headers["Content-Length"])))
        if self.allowed(handler):
            self.requests.append(body)
            self.next.get(timeout=seconds(30))(handler)

    def error(self, handler, status, message, retry_after):
        handler.send_response_only(status)
        handler.send_header("Content-Type", "application/json")
        if retry_after is not None:
            handler.send_header("Retry-After", str(retry_after))
        handler.end_headers()
        handler.wfile.write(json.dumps({"error": {"message": message, "type": "x", "param": None, "code": None}}).encode())

    def stream(self, handler, pieces, finish, hold):
        handler.send_response_only(200)
        handler.send_header("Content-Type", "text/event-stream")
        handler.end_headers()

        def event(value):
            handler.wfile.write(f"data: {json.dumps(value)}\n\n".encode())
            handler.wfile.flush()

        for index, piece in enumerate(pieces):
            if hold and index == len(pieces) - 1:
                hold.wait(seconds(30))
            event({"choices": [{"index": 0, "delta": {"content": piece}, "finish_reason": None}]})
        if finish is None:
            return  # without an end
        event({"choices": [{"index": 0, "delta": {}, "finish_reason": finish}]})
        event({"choices": [], "usage": {"prompt_tokens": 1, "completion_tokens": len(pieces), "total_tokens": 1 + len(pieces)}})
        handler.wfile.write(b"data: [DONE]\n\n")
