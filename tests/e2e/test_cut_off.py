"""What lives and does not answer: a worker that beats and whose tensors do not get through, a scheduler that is stopped, or whose connections are half-open.

The services are started by hand, over tcp, so that a relay can stand between the s-part and each worker's tensor socket, and one before the scheduler.
"""
import json
import os
import selectors
import signal
import socket
import subprocess
import tempfile
import threading
import time
import urllib.error

import pytest

from conftest import BUILD, PACED, Mesh, free_port, pace, spawn, tiny, wait_until
from streams import assert_same, body, join_all, left_places, of_place, run_all, run_whole, start_all, words

STREAMS, TOKENS = 6, 120
REQUESTS = [body(words(20 + 15 * i, i), TOKENS, i, sampled=i % 2 == 1) for i in range(STREAMS)]


class Relay(threading.Thread):
    """Passes bytes on to a port, or a socket's path. `closed`: connections are ended, new ones too. `silent`: nothing is passed on any more. hang(): nothing of the
    connections that stand is passed on; new ones work."""

    def __init__(self, to):
        super().__init__(daemon=True)
        self.to, self.mode, self.stopped, self.refused = to, "open", False, 0
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        self.selector, self.other, self.hung = selectors.DefaultSelector(), {}, set()
        self.selector.register(self.listener, selectors.EVENT_READ)
        self.start()

    def hang(self):
        self.hung = set(self.other)

    def end(self, one):
        for end in (one, self.other.pop(one, None)):
            if end:
                self.other.pop(end, None)
                self.selector.unregister(end)
                end.close()

    def accept(self):
        client, _ = self.listener.accept()
        if self.mode == "closed":
            client.close()
            self.refused += 1
            return
        is_path = isinstance(self.to, str)
        server = socket.socket(socket.AF_UNIX if is_path else socket.AF_INET)
        try:
            server.connect(self.to if is_path else ("127.0.0.1", self.to))
        except OSError:  # nobody listens there yet
            client.close()
            return
        for end, other in ((client, server), (server, client)):
            if end.family == socket.AF_INET:
                end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self.other[end] = other
            self.selector.register(end, selectors.EVENT_READ)

    def run(self):
        while not self.stopped:
            for key, _ in self.selector.select(0.05):
                if key.fileobj is self.listener:
                    self.accept()
                elif key.fileobj in self.other:
                    self.pass_on(key.fileobj)
            if self.mode == "closed":
                for end in list(self.other):
                    if end in self.other:
                        self.end(end)

    def pass_on(self, end):
        try:
            data = end.recv(1 << 20)
            if data and self.mode != "silent" and end not in self.hung:
                self.other[end].sendall(data)
        except OSError:
            data = b""
        if not data:
            self.end(end)


class HandMade:
    """Gateway, scheduler, s-part and workers behind relays. What of Mesh the tests use works on it too."""

    get, metric, metrics, wait_metric = Mesh.get, Mesh.metric, Mesh.metrics, Mesh.wait_metric

    def __init__(self, workers=2):
        self.workers = workers
        self.folder = tempfile.TemporaryDirectory(prefix="fd-e2e-")
        self.run_dir, self.processes, self.relays = self.folder.name, [], []
        port = free_port()
        self.before_scheduler = Relay(f"{self.run_dir}/scheduler.sock")
        scheduler = f"tcp://127.0.0.1:{self.before_scheduler.port}"
        self.start("scheduler", "scheduler", f"--listen=ipc://{self.run_dir}/scheduler.sock")
        self.start("s-part", "s-part", f"--scheduler={scheduler}", f"--listen=ipc://{self.run_dir}/s-part.sock", f"--model={tiny()}",
                   "--local-pool=0", "--context=1024", "--threads=1")
        for i in range(workers):
            tensors = free_port()
            self.relays.append(Relay(tensors))
            self.start(f"kv-worker-{i}", "kv-worker", f"--scheduler={scheduler}", f"--name=kv-worker-{i}", "--shares-cores",
                       f"--listen=ipc://{self.run_dir}/kv-worker-{i}.sock", f"--listen-tensors=tcp://127.0.0.1:{tensors}",
                       f"--advertise-tensors=tcp://127.0.0.1:{self.relays[i].port}", "--kv-memory=128M", "--threads=1")
        self.url = f"http://127.0.0.1:{port}"
        self.start("gateway", "gateway", f"--scheduler={scheduler}", "--host=127.0.0.1", f"--port={port}", f"--model={tiny()}",
                   "--context=1024", "--mesh-metrics")
        wait_until(self.ready, 30, lambda: "not ready\n" + self.logs())

    def ready(self):
        try:
            self.get("/ready")
            return all(of_place(self, "fastdecode_place_up", f"kv-worker-{i}") == 1 for i in range(self.workers))
        except OSError:
            return False

    def start(self, name, program, *options):
        folder = os.path.join(BUILD, "tests", "slow") if program == "kv-worker" else os.path.join(BUILD, "bin")
        with open(os.path.join(self.run_dir, name + ".log"), "wb") as log:
            self.processes.append(spawn([os.path.join(folder, program), *options], stdout=log, stderr=subprocess.STDOUT,
                                        env={**os.environ, **PACED["env"]}))

    def logs(self):
        text = ""
        for name in sorted(os.listdir(self.run_dir)):
            if name.endswith(".log"):
                with open(os.path.join(self.run_dir, name), errors="replace", encoding="utf-8") as file:
                    text += f"--- {name}\n" + "".join(file.readlines()[-30:])
        return text

    def stop(self):
        for relay in (*self.relays, self.before_scheduler):
            relay.stopped = True
        for process in self.processes:
            process.send_signal(signal.SIGKILL)
            process.wait()
        self.folder.cleanup()


@pytest.fixture
def hand_made(request):
    mesh = HandMade(getattr(request, "param", 2))
    yield mesh
    if getattr(request.node, "failed", False):
        print(mesh.logs())
    mesh.stop()


def logged(mesh, service):
    with open(os.path.join(mesh.run_dir, service + ".log"), errors="replace", encoding="utf-8") as file:
        return file.read()


def cut(mesh, mode):
    """Streams half-way, then the connection of a worker that holds some of them. Returns what the s-part says of it."""
    wanted = run_whole(mesh.url, REQUESTS)
    streams = start_all(mesh.url, REQUESTS)
    for stream in streams:
        stream.wait_tokens(TOKENS // 3)
    departed = left_places(mesh)
    held = [of_place(mesh, "fastdecode_place_sequences", f"kv-worker-{i}") for i in range(2)]
    worker = held.index(max(held))
    assert held[worker] > 0
    mesh.relays[worker].mode = mode
    departed = left_places(mesh) - departed
    assert_same(join_all(streams), wanted)
    assert held[worker] <= mesh.metric("fastdecode_sequences_rebuilt_total") + departed
    assert "it was silent" not in logged(mesh, "scheduler"), "the scheduler hears it all the time"
    said = logged(mesh, "s-part")

    mesh.relays[worker].mode = "open"
    deadline = pace.Deadline(60)
    while True:  # it comes back: rows are attended over there
        before = of_place(mesh, "fastdecode_place_busy_seconds_total", f"kv-worker-{worker}")
        again = run_all(mesh.url, REQUESTS)
        assert_same(again, wanted)
        said_so = pace.Deadline(1)  # a heartbeat says how busy it was, twice a second
        while of_place(mesh, "fastdecode_place_busy_seconds_total", f"kv-worker-{worker}") == before and said_so.left() > 0:
            time.sleep(0.05)
        if of_place(mesh, "fastdecode_place_busy_seconds_total", f"kv-worker-{worker}") > before:
            break
        assert not deadline.passed(), "it is not used again"
    assert all(process.poll() is None for process in mesh.processes)
    mesh.wait_metric("fastdecode_kv_pages_used", lambda value: value == 0)
    return said


TIMED_OUT = "status=DEADLINE_EXCEEDED"


def test_connection_of_tensors_is_closed(hand_made):
    """Nobody waits for a time-out."""
    assert TIMED_OUT not in cut(hand_made, "closed")


@pytest.mark.full
def test_connection_of_tensors_is_silent(hand_made):
    """Nobody closes it: the rows that are out are given up after a while, and a new connection is tried."""
    assert TIMED_OUT in cut(hand_made, "silent")


def why_not_ready(mesh):
    """The reason that /ready gives; "": it is ready."""
    try:
        mesh.get("/ready")
    except urllib.error.HTTPError as answer:
        assert answer.code == 503
        return json.loads(answer.read())["reason"]
    return ""


@pytest.mark.parametrize("hand_made", (1,), indirect=True)
def test_the_only_worker_cannot_be_reached(hand_made):
    """Its control connection stands, as behind a firewall that lets only that through. Nothing is computed in vain: all wait, each log says so
    once, /ready too, and all go on by themselves when the way is open.
    """
    wanted = run_whole(hand_made.url, REQUESTS)
    streams = start_all(hand_made.url, REQUESTS[:-1])
    for stream in streams:
        stream.wait_tokens(TOKENS // 3)
    hand_made.relays[0].mode = "closed"
    said = "the s-part cannot reach KV worker kv-worker-0"
    wait_until(lambda: why_not_ready(hand_made) == said, 30, lambda: why_not_ready(hand_made) + "\n" + hand_made.logs())
    hand_made.wait_metric("fastdecode_steps_in_flight", lambda count: count == 0)
    steps, refused = hand_made.metric("fastdecode_steps_total"), hand_made.relays[0].refused
    streams += start_all(hand_made.url, REQUESTS[-1:])  # it waits for the mesh
    wait_until(lambda: hand_made.relays[0].refused >= refused + 4, 30, hand_made.logs)
    assert hand_made.metric("fastdecode_steps_total") == steps, "steps are sent to a worker that is not reached"
    assert logged(hand_made, "s-part").count("PLACE-UNREACHABLE") <= 2
    wait_until(lambda: "PLACE-UNREACHABLE" in logged(hand_made, "scheduler"), 30, hand_made.logs)
    lines = [line for line in logged(hand_made, "scheduler").splitlines() if "PLACE-UNREACHABLE" in line]
    assert len(lines) == 1 and f"name=kv-worker-0 address=tcp://127.0.0.1:{hand_made.relays[0].port} " in lines[0], lines
    assert "firewall" in lines[0] and "--advertise-tensors" in lines[0]
    assert why_not_ready(hand_made) == said
    hand_made.relays[0].mode = "open"
    assert_same(join_all(streams), wanted)
    assert why_not_ready(hand_made) == ""
    assert logged(hand_made, "scheduler").count("PLACE-REACHED name=kv-worker-0") == 1
    hand_made.wait_metric("fastdecode_kv_pages_used", lambda value: value == 0)


def test_connections_to_the_scheduler_are_half_open(hand_made):
    """Nobody closes them, and nothing comes through, as if another host had the scheduler's address now: all dial again, and the streams go on."""
    wanted = run_whole(hand_made.url, REQUESTS)
    streams = start_all(hand_made.url, REQUESTS)
    for stream in streams:
        stream.wait_tokens(TOKENS // 3)
    hand_made.before_scheduler.hang()
    assert_same(join_all(streams), wanted)
    for name in ("gateway", "s-part", "kv-worker-0", "kv-worker-1"):
        assert logged(hand_made, name).count("SCHEDULER-DOWN") + logged(hand_made, name).count("MESH-DOWN") == 1, name
    assert_same(run_all(hand_made.url, REQUESTS), wanted)
    hand_made.wait_metric("fastdecode_kv_pages_used", lambda value: value == 0)


def test_scheduler_is_stopped(start_mesh):
    """New requests are told so; what runs goes on when the scheduler does."""
    mesh = start_mesh(**PACED)
    streams = start_all(mesh.url, REQUESTS)
    for stream in streams:
        stream.wait_tokens(5)

    def told():
        try:
            mesh.get("/ready")
        except urllib.error.HTTPError as answer:
            assert answer.code == 503 and "silent" in answer.read().decode()
            return True
        return False

    os.kill(mesh.pid("scheduler"), signal.SIGSTOP)
    try:
        wait_until(told, 15, "still ready")
    finally:
        os.kill(mesh.pid("scheduler"), signal.SIGCONT)
    assert all(stream.error is None and len(stream.tokens) == TOKENS for stream in join_all(streams))
    assert_same(run_all(mesh.url, REQUESTS), streams)
    mesh.get("/ready")
