"""The servers that ours is measured beside: llama-server of llama.cpp and of ik_llama.cpp, and vLLM's CPU build. tests/bench/peer.sh gets them.

Each is a class that is called with a model of ours, the streams and the tokens of context of each, and is a running server then; its check()
raises PeerMissing, with what to do, where the server or its form of the model is not there. Settings are meant to be the best for each:
two threads, a slot for every stream, the weights in the form that is fastest there, no cache of prompts.
"""
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
import urllib.request

from servers import MODEL, cpu_seconds


class PeerMissing(Exception):
    pass


def cache_folder(variable, name):
    return os.path.abspath(os.environ.get(variable) or os.path.join(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "fastdecode", name))


def free_port():
    """They do not take port 0 and say which."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Server:
    """A process that serves OpenAI's API; use as a context manager. ready_s: how long it may take to start."""

    label, ready_s = "", 120

    def __init__(self, command, port, env=None):
        self.url = f"http://127.0.0.1:{port}"
        self.folder = tempfile.mkdtemp(prefix="fd-peer-")
        self.log = open(os.path.join(self.folder, "log"), "w+", encoding="utf-8", errors="replace")
        # ik_llama.cpp writes llama.log into the folder that it is started in.
        self.process = subprocess.Popen(list(map(str, command)), stdout=self.log, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL,
                                        cwd=self.folder, env=dict(os.environ, **(env or {})), start_new_session=True)
        deadline = time.monotonic() + self.ready_s
        while not self._is_ready():
            if self.process.poll() is not None or time.monotonic() > deadline:
                self.log.seek(0)
                text, status = self.log.read()[-1500:], self.process.poll()
                self.stop()
                raise PeerMissing(f"{self.label} did not start (status {status}; -9: killed, its memory was too little):\n{text}")
            time.sleep(0.1)

    def _is_ready(self):
        try:
            with urllib.request.urlopen(self.url + "/health", timeout=5) as reply:
                return reply.status == 200
        except OSError:
            return False

    def services(self):
        """{name: process id} of all its processes"""
        found = {}
        for pid in filter(str.isdigit, os.listdir("/proc")):
            try:
                if os.getsid(int(pid)) == self.process.pid:
                    found[f"{self.label} {pid}"] = int(pid)
            except ProcessLookupError:
                pass
        return found

    def cpu(self):
        """{process: seconds of processor time so far}"""
        return {name: cpu_seconds(pid) for name, pid in self.services().items()}

    def stop(self):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(30)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        for pid in self.services().values():  # those that it has left
            os.kill(pid, signal.SIGKILL)
        self.log.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stop()


class Peer(Server):
    """llama-server of llama.cpp on two threads; model: the file as it is; options: more of its own."""

    label, kv_type, cache_type = "llama-server Q4_0", "f16", "f16"  # of its KV: ours beside it, and its own name for that

    def __init__(self, model, streams, context_tokens, *options):
        port = free_port()
        super().__init__([os.path.join(self.folder_of(), "bin", "llama-server"), "-m", os.path.abspath(model), "-t", 2, "-fa", "on", "-ctk", self.cache_type,
                          "-ctv", self.cache_type, "-np", streams, "-c", streams * context_tokens, "--host", "127.0.0.1", "--port", port, *options], port)

    @staticmethod
    def folder_of():
        return cache_folder("FD_PEER_DIR", "peer")

    @classmethod
    def file(cls, model):
        """The default model in its best form; the synthetic one is Q4_0 already."""
        stem = os.path.basename(model).removesuffix(".gguf")
        return os.path.join(Peer.folder_of(), f"{stem}.requantized-Q4_0.gguf") if model == MODEL else model

    @classmethod
    def check(cls, model):
        for path in (os.path.join(cls.folder_of(), "bin", "llama-server"), cls.file(model)):
            if not os.path.exists(path):
                raise PeerMissing(f"no {path}: tests/bench/peer.sh builds it (about 20 minutes)")

    @classmethod
    def best(cls, model, streams, context_tokens):
        """The server in its best form of a model of ours."""
        return cls(cls.file(model), streams, context_tokens)


class PeerKv8(Peer):
    """The same with KV in 8 bits, beside ours with as much: as fast or slower where prompts are short."""

    label, kv_type, cache_type = "llama-server Q4_0 with 8-bit KV", "int8", "q8_0"


class Ik(Peer):
    """llama-server of ik_llama.cpp. It interleaves the rows of weights as it loads them (-rtr). Without its flash attention, which ends the process
    with a failed assertion on this model (version 0.1.5, AVX-512)."""

    label = "ik_llama.cpp Q4_0"

    def __init__(self, model, streams, context_tokens, *options):
        super().__init__(model, streams, context_tokens, "-rtr", "-fa", "off", *options)

    @staticmethod
    def folder_of():
        return cache_folder("FD_IK_DIR", "ik")

    @classmethod
    def check(cls, model):
        for path in (os.path.join(cls.folder_of(), "bin", "llama-server"), cls.file(model)):
            if not os.path.exists(path):
                raise PeerMissing(f"no {path}: tests/bench/peer.sh MODEL ik builds it (about 40 minutes)")


class Vllm(Server):
    """vLLM's CPU build, with the model in bfloat16, which it multiplies fastest. Its KV is of the same type."""

    label, kv_type, ready_s = "vLLM bf16", "f16", 600

    def __init__(self, folder, streams, context_tokens):
        port = free_port()
        super().__init__(
            # not `vllm serve`, which asks for the version of a package of another name
            [os.path.join(self.folder_of(), "venv", "bin", "python"), "-P", "-m", "vllm.entrypoints.openai.api_server", "--model", folder,
             "--served-model-name", "default", "--host", "127.0.0.1", "--port", port, "--dtype", "bfloat16", "--kv-cache-dtype", "auto", "--max-model-len", context_tokens, "--max-num-seqs", streams, "--no-enable-prefix-caching",
             "--disable-uvicorn-access-log"], port,
            {"VLLM_CPU_KVCACHE_SPACE": str(max(1, streams * context_tokens * 100_000 >> 30)), "VLLM_CPU_OMP_THREADS_BIND": "0-1", "HF_HUB_OFFLINE": "1",
             "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1"})

    @staticmethod
    def folder_of():
        return cache_folder("FD_VLLM_DIR", "vllm")

    @classmethod
    def file(cls, model):
        return os.path.join(cls.folder_of(), os.path.basename(model).removesuffix(".gguf"))

    @classmethod
    def check(cls, model):
        for path in (os.path.join(cls.folder_of(), "venv", "bin", "vllm"), os.path.join(cls.file(model), "model.safetensors")):
            if not os.path.exists(path):
                raise PeerMissing(f"no {path}: tests/bench/peer.sh MODEL vllm gets it (3 GB of download)")

    @classmethod
    def best(cls, model, streams, context_tokens):
        return cls(cls.file(model), streams, context_tokens)


PEERS = (Peer, Ik, Vllm)


def peer_file(model):
    return Peer.file(model)


def peer_check(model):
    Peer.check(model)


def present(model, kinds=PEERS):
    """(the peers of these kinds that are there, [why another one is not])"""
    found, missing = [], []
    for peer in kinds:
        try:
            peer.check(model)
            found.append(peer)
        except PeerMissing as problem:
            missing.append(f"{peer.label}: {problem}")
    return found, missing
