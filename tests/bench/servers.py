"""The servers that are measured: our mesh, and the peer, llama.cpp's llama-server; their processor time and memory."""
import glob
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "e2e"))

from conftest import BUILD, MODEL, ROOT, Mesh  # noqa: E402,F401


def cpu_seconds(pid):
    """Time that all threads of a process have run so far."""
    total = 0
    for path in glob.glob(f"/proc/{pid}/task/*/schedstat"):
        try:
            with open(path, encoding="ascii") as file:
                total += int(file.read().split()[0])
        except OSError:  # the thread has just ended
            pass
    return total * 1e-9


def memory_bytes(pid):
    with open(f"/proc/{pid}/status", encoding="ascii") as file:
        return 1024 * int(re.search(r"VmRSS:\s+(\d+)", file.read()).group(1))


class Ours(Mesh):
    """`fastdecode up` with options; seconds from its start to READY in start_s. Without the prefix cache, unless an option says
    otherwise: benches send their prompts more than once, and each is to be computed. Without drafts unless asked for: what they
    bring is the text's doing, and prompts here are of few words."""

    def __init__(self, *options, model=MODEL, drafts=False, **settings):
        began = time.monotonic()
        super().__init__("--prefix-cache", "off", *(() if drafts else ("--draft-tokens", 0)), *options, model=model, threads=0,
                         calibrate=True, **settings)
        self.start_s = time.monotonic() - began

    def services(self):
        """{name: process id}"""
        found = {os.path.basename(path)[:-4]: int(open(path, encoding="ascii").read())
                 for path in glob.glob(os.path.join(self.run_dir, "*.pid"))}
        return {**found, "up": self.process.pid}

    def cpu(self):
        """{service: seconds of processor time so far}"""
        return {name: cpu_seconds(pid) for name, pid in self.services().items()}

    def memory(self):
        return {name: memory_bytes(pid) for name, pid in self.services().items()}


class FarWorker:
    """A KV worker of a running mesh that says that it shares no core with the s-part. read_mbs: it takes as long as a host that
    reads so many MB of K and V a second (slow_worker.c); SIGUSR1 halves that. host: a network namespace (name, address) to start it in."""

    def __init__(self, mesh, *options, name="far", read_mbs=None, host=None):
        folder = mesh.run_dir
        program = os.path.join(BUILD, *(("tests", "slow") if read_mbs else ("bin",)), "kv-worker")
        before = mesh.metric("fastdecode_place_up")
        self.log = open(os.path.join(folder, f"{name}.log"), "w", encoding="utf-8")
        self.process = subprocess.Popen(
            [*(("ip", "netns", "exec", host.name) if host else ()), program, f"--name={name}", f"--scheduler=ipc://{folder}/scheduler.sock",
             f"--listen=ipc://{folder}/{name}.sock", f"--mesh-secret-file={folder}/mesh-secret",
             f"--listen-tensors={f'tcp://{host.address}:0' if host else f'ipc://{folder}/{name}-t.sock'}", f"--insecure={'on' if host else 'off'}", "--threads=1", "--kv-memory=1G",
             *map(str, options)],
            stdout=self.log, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL,
            env=dict(os.environ, **({"FD_SLOW_READ_MBS": str(read_mbs)} if read_mbs else {})))
        mesh.wait_metric("fastdecode_place_up", lambda up: up == before + 1)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.terminate()
        self.process.wait(30)
        self.log.close()


class PeerMissing(Exception):
    pass


def peer_folder():
    return os.environ.get("FD_PEER_DIR") or os.path.join(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"),
                                                         "fastdecode", "peer")


def peer_file(model):
    """The default model in the peer's own best form; the synthetic one is Q4_0 already."""
    stem = os.path.basename(model).removesuffix(".gguf")
    return os.path.join(peer_folder(), f"{stem}.requantized-Q4_0.gguf") if model == MODEL else model


def peer_check(model):
    """PeerMissing, with what to do, where the peer or its file is not there."""
    for path in (os.path.join(peer_folder(), "bin", "llama-server"), peer_file(model)):
        if not os.path.exists(path):
            raise PeerMissing(f"no {path}: tests/bench/peer.sh builds it (about 20 minutes)")


class Peer:
    """llama-server on two threads, with a slot for every stream; options: more of its own."""

    def __init__(self, model, streams, context_tokens, *options):
        with socket.socket() as probe:  # it does not take port 0 and say which
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        self.url = f"http://127.0.0.1:{port}"
        self.folder = tempfile.mkdtemp(prefix="fd-peer-")
        self.log = open(os.path.join(self.folder, "log"), "w+", encoding="utf-8", errors="replace")
        self.process = subprocess.Popen(
            [os.path.join(peer_folder(), "bin", "llama-server"), "-m", model, "-t", "2", "-fa", "on", "-np", str(streams), "-c",
             str(streams * context_tokens), "--host", "127.0.0.1", "--port", str(port), *options],
            stdout=self.log, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL)
        deadline = time.monotonic() + 120
        while not self._is_ready():
            if self.process.poll() is not None or time.monotonic() > deadline:
                self.log.seek(0)
                text, status = self.log.read()[-1500:], self.process.poll()
                self.stop()
                raise RuntimeError(f"llama-server did not start (status {status}; -9: killed, its memory was too little):\n{text}")
            time.sleep(0.1)

    def _is_ready(self):
        try:
            with urllib.request.urlopen(self.url + "/health", timeout=5) as reply:
                return reply.status == 200
        except OSError:
            return False

    def services(self):
        return {"llama-server": self.process.pid}

    def cpu(self):
        return {"llama-server": cpu_seconds(self.process.pid)}

    def stop(self):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(30)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        self.log.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stop()


def wait_quiet(server, limit_s=20):
    """Until the server uses less than 2 % of a core: it sleeps while another one is measured. False: it does not."""
    deadline = time.monotonic() + limit_s
    while time.monotonic() < deadline:
        before, began = sum(server.cpu().values()), time.monotonic()
        time.sleep(0.25)
        if (sum(server.cpu().values()) - before) / (time.monotonic() - began) < 0.02:
            return True
    return False
