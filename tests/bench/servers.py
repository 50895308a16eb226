"""The server that is measured, our mesh, and what servers take: processor time and memory. Those beside it are in peers.py."""
import glob
import os
import re
import subprocess
import sys
import time

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


def wait_quiet(server, limit_s=20):
    """Until the server uses less than 2 % of a core: it sleeps while another one is measured. False: it does not."""
    deadline = time.monotonic() + limit_s
    while time.monotonic() < deadline:
        before, began = sum(server.cpu().values()), time.monotonic()
        time.sleep(0.25)
        if (sum(server.cpu().values()) - before) / (time.monotonic() - began) < 0.02:
            return True
    return False
