"""A scheduler whose answers a test writes, and a real gateway before it: what a model said, made into what a client gets.

    with Played(folder, template="...") as played:
        played.answer("<tool_call>...")       the text of the next answer; several are given out in turn
        post(played, "/v1/chat/completions", {...})
        played.prompt()                       the text of the last prompt, special tokens included

The text is tokenized by the gateway itself, with special tokens, so that a model file's control tokens come as such. `template` may be any family's; the
model is the tests' small one, of which only the vocabulary is read. control: {old: new} renames tokens of the vocabulary.
model: another one.
"""
import os
import queue
import random
import signal
import socket
import struct
import subprocess
import tempfile
import threading

import tiny_model
from api_client import call, post
from conftest import BUILD, MODEL, spawn, tiny, wait_until
from pace import seconds
from rpc_client import CANCEL, HELLO, REPLY, REQUEST, STREAM, Framed, blob, decode, fixed32, fixed64, method_id, one, packed, read_varint, varint
from seed import seed

EVENTS_MAX = 40  # of an answer: a server may have 48 messages unacknowledged
FINISH_EOS, FINISH_LENGTH = 1, 2


class Caller(Framed):
    """One connection of the gateway's."""

    def __init__(self, scheduler, connection):
        self.scheduler, self.socket = scheduler, connection
        self.lock = threading.Lock()
        threading.Thread(target=self.serve, daemon=True).start()

    def send(self, body):
        with self.lock:
            super().send(body)

    def tell(self, kind, number, method, payload, status=0):
        self.send_payload(varint(1, kind) + fixed64(2, number) + fixed32(3, method) + (varint(4, status) if status else b""), payload)

    def serve(self):
        try:
            self.receive()
            self.send(varint(1, HELLO) + blob(15, varint(1, 2) + blob(2, "scheduler") + fixed64(4, 1) + varint(6, 1 << 26)))
            while True:
                told = self.receive()
                if one(told, 1) == REQUEST:
                    self.handle(one(told, 2), one(told, 3), one(told, 15, b""))
                elif one(told, 1) == CANCEL:
                    self.scheduler.cancelled.append(one(told, 2))
        except (ConnectionError, OSError):
            pass

    def handle(self, number, method, payload):
        if method == method_id("Generator/Watch"):
            self.scheduler.watch(lambda state: self.tell(STREAM, number, method, state))
        elif method == method_id("Generator/Generate"):
            for event in self.scheduler.generate(decode(payload)):
                self.tell(STREAM, number, method, event)
            self.send(varint(1, REPLY) + fixed64(2, number))
        else:
            self.tell(REPLY, number, method, b"")


class Scheduler:
    def __init__(self, path):
        self.answers, self.prompts, self.requests, self.cancelled, self.random = queue.Queue(), [], [], [], random.Random(seed())
        self.watchers, self.stopped = [], threading.Event()
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(path)
        self.listener.listen(16)
        threading.Thread(target=self.accept, daemon=True).start()
        threading.Thread(target=self.tell, daemon=True).start()

    def accept(self):
        while not self.stopped.is_set():
            try:
                Caller(self, self.listener.accept()[0])
            except OSError:
                return

    def watch(self, tell):
        self.watchers.append(tell)
        tell(self.state())

    @staticmethod
    def state():
        return varint(1, 1) + varint(5, 1000) + blob(7, varint(3, 8192)) + packed(14, [1, 2])  # ready, with all features of sampling

    def tell(self):
        """A scheduler that is silent counts as lost."""
        while not self.stopped.wait(0.3):
            for tell in list(self.watchers):
                try:
                    tell(self.state())
                except OSError:
                    self.watchers.remove(tell)

    def generate(self, request):
        self.requests.append(request)
        data, at, ids = b"".join(part for part in request.get(2, []) if isinstance(part, bytes)), 0, []
        while at < len(data):
            value, at = read_varint(data, at)
            ids.append(value)
        self.prompts.append(ids)
        tokens, finish = self.answers.get_nowait()
        limit = one(request, 4)
        if len(tokens) > limit:
            tokens, finish = tokens[:limit], FINISH_LENGTH
        largest, sent = len(tokens) // EVENTS_MAX + 1, 0
        while sent < len(tokens):
            size = self.random.randint(largest, largest + 1)
            event = fixed64(1, 1) + varint(2, sent) + b"".join(blob(3, varint(1, token) + fixed32(2, 0)) for token in tokens[sent:sent + size])
            sent += size
            yield event
        yield fixed64(1, 1) + varint(2, len(tokens)) + varint(6, finish)

    def stop(self):
        self.stopped.set()
        self.listener.close()


class Played:
    def __init__(self, *options, template=None, control=None, model=None, templates=None):
        self.folder = tempfile.TemporaryDirectory(prefix="fd-played-")
        self.model = "default"
        self.scheduler = Scheduler(self.path("scheduler.sock"))
        command = [os.path.join(BUILD, "bin", "gateway"), "--port=0", "--drain-notice=0", f"--port-file={self.path('port')}", f"--scheduler=ipc://{self.path('scheduler.sock')}",
                   f"--model={self.renamed(control, templates) if control or templates else model or tiny()}", *map(str, options)]
        if template:
            with open(self.path("chat.jinja"), "w", encoding="utf-8") as file:
                file.write(template)
            command.append(f"--chat-template={self.path('chat.jinja')}")
        with open(self.path("log"), "wb") as log:
            self.process = spawn(command, stdout=log, stderr=subprocess.STDOUT)
        wait_until(lambda: os.path.exists(self.path("port")) or self.process.poll() is not None, 30, self.log)
        assert self.process.poll() is None, self.log()
        with open(self.path("port"), encoding="ascii") as file:
            self.url = f"http://127.0.0.1:{file.read().strip()}"
        wait_until(lambda: call(self, "GET", "/ready")[0] == 200, 30, self.log)

    def path(self, name):
        return os.path.join(self.folder.name, name)

    def renamed(self, control, templates):
        """The small model with other names of tokens, or named chat templates: the file's keys are written anew."""
        def rename(data):
            for old, new in (control or {}).items():
                assert tiny_model.text(old) in data, old
                data = data.replace(tiny_model.text(old), tiny_model.text(new))
            return data

        keys, path = tiny_model.Keys.__init__, self.path("renamed.gguf")

        def changed(self, file):
            keys(self, file)
            self.found["tokenizer.ggml.tokens"] = rename(self.found["tokenizer.ggml.tokens"])
            for name, template in (templates or {}).items():
                key = "tokenizer.chat_template" + (f".{name}" if name != "default" else "")
                self.found[key] = tiny_model.text(key) + struct.pack("<I", tiny_model.STRING) + tiny_model.text(template)

        tiny_model.Keys.__init__ = changed
        try:
            tiny_model.write(path, MODEL)
        finally:
            tiny_model.Keys.__init__ = keys
        return path

    def log(self):
        with open(self.path("log"), encoding="utf-8", errors="replace") as file:
            return file.read()

    def ids(self, text):
        return post(self, "/tokenize", {"prompt": text, "add_special_tokens": False})["tokens"]

    def answer(self, *texts, finish=FINISH_EOS):
        for text in texts:
            self.scheduler.answers.put((self.ids(text), finish))

    def prompt(self):
        return post(self, "/detokenize", {"tokens": self.scheduler.prompts[-1]})["prompt"]

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(seconds(30))
        finally:
            self.process.kill()
            self.process.wait()
            self.scheduler.stop()
        text = self.log()
        self.folder.cleanup()
        assert self.process.returncode == 0 and "Sanitizer" not in text, text[-8000:]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stop()
