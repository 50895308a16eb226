"""A mesh for tests: real processes, a port that the kernel picks, ended by process id.

`mesh` is one mesh for the whole session with the default settings; `start_mesh(...)` starts another with its own. Both serve a small model of
random weights (tiny_model.py), on one thread a service; `real_mesh` serves the default model, for tests that are about language. A mesh dies
with the process that runs the tests, and SIGINT to that process ends all meshes. Time limits are scaled by pace.py."""
import glob
import json
import os
import random
import re
import shlex
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import urllib.request

import pytest

import pace
import results
import tiny_model
from pace import SANITIZED, seconds, wait_until  # noqa: F401 (tests have them from here)
from results import (pytest_collection_modifyitems, pytest_collectreport, pytest_configure, pytest_keyboard_interrupt,  # noqa: F401 (hooks)
                     pytest_report_header, pytest_runtest_logfinish, pytest_runtest_logreport, pytest_runtest_logstart, pytest_terminal_summary)
from rpc_client import Connection, decode, one
from seed import seed

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
BUILD = os.path.join(ROOT, os.environ.get("FD_BUILD", "build"))
HARDWARE = os.path.join(ROOT, "deploy", "hardware")
MODEL = os.environ.get("FD_TEST_MODEL", os.path.join(ROOT, "models", "SmolLM2-135M-Instruct.Q4_1.gguf"))


SEED = seed()


def shard(everything, parts):
    """One part of so many, by the seed: in as many commits one after the other all of it comes. `make check-full` takes everything."""
    shuffled = random.Random(1).sample(everything, len(everything))
    return shuffled[SEED % parts::parts]


results.settings = f"FD_SEED={SEED} FD_PACE={pace.factor():.2f}"  # beside every failure


DIES_WITH_US = ("setpriv", "--pdeathsig", "KILL", "--")


def spawn(command, **settings):
    """subprocess.Popen, and the process is killed when this one dies. (The services of `up` die with `up`.)"""
    return subprocess.Popen([*DIES_WITH_US, *command], stdin=subprocess.DEVNULL, **settings)


def free_port():
    """A port for a service that others must know before it listens; until then another process may take it."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


# For tests in which something happens to streams: attention of each of the four layers takes 3 ms at least, so that a step takes 12 and the
# streams last as long as it takes, on any machine.
PACED = {"slow_workers": ("kv-worker", "s-part"), "env": {"FD_SLOW_LAYER_US": "3000"}}


def run(command, timeout=60, **settings):
    """subprocess.run() of a command, whose output is taken."""
    return subprocess.run([*DIES_WITH_US, *map(str, command)], **{
        "capture_output": True, "text": True, "timeout": seconds(timeout), "check": False, **settings})


def fastdecode(subcommand, *options, timeout=240, **settings):
    """Runs `fastdecode SUBCOMMAND OPTIONS` to its end; settings are subprocess.run()'s."""
    return run([os.path.join(BUILD, "bin", "fastdecode"), subcommand, *options], timeout, **settings)


def tiny():
    """The small model's file."""
    return tiny_model.path(os.path.join(BUILD, "tests"), MODEL)


def preload(folder, name):
    """The path of a library of tests/e2e, built for LD_PRELOAD."""
    path = str(folder / f"{name}.so")
    subprocess.run(["cc", "-shared", "-fPIC", "-O2", "-std=c11", "-D_GNU_SOURCE", "-Wall", "-Wextra", "-o", path,
                    os.path.join(ROOT, "tests", "e2e", f"{name}.c")], check=True)
    return path


def sanitizer_report(run_dir, output):
    """What a sanitizer has to say in the output of `up` or in a service's log, or None."""
    texts = {"up": output}
    for path in glob.glob(os.path.join(run_dir, "*.log")):
        with open(path, encoding="utf-8", errors="replace") as file:
            texts[os.path.basename(path)] = file.read()
    for name, text in texts.items():
        found = re.search(r"(?m)^.*(?:ERROR: \w+Sanitizer|WARNING: ThreadSanitizer|runtime error:)", text)
        if found:
            return f"{name}:\n" + text[found.start():][:8000]
    return None


class Mesh:
    """A running `fastdecode up`. Use as a context manager, or call stop()."""

    def __init__(self, *options, model=None, threads=1, env=None, ready_s=90, calibrate=False, slow_workers=False, scripts=None):
        """model: the small one. threads: of each service; 0: as many as there are cores.
        calibrate: as users have it. Tests that do not look at predictions start a second earlier without.
        slow_workers: signals make a worker slow (slow_worker.c); or names of services, of which signals make the s-part slow as well,
        and the scheduler empty the local pool (moving_scheduler.c). scripts: {service: shell commands that start "$program" "$@"}."""
        self.model = "default"
        self.folder = tempfile.TemporaryDirectory(prefix="fd-e2e-")
        self.run_dir = os.path.join(self.folder.name, "run")
        command = [os.path.join(self.programs(slow_workers, scripts or {}), "fastdecode"), "up", "--model", model or tiny(), "--port", "0",
                   "--run-dir", self.run_dir, f"--threads={threads}", *([] if calibrate else ["--calibrate", "off"]), *map(str, options)]
        self.output = []
        self.process = spawn(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=dict(os.environ, **(env or {})))
        self.url = None
        results.logs_of_meshes.add(self.logs)
        self._ready = threading.Event()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        if not self._ready.wait(seconds(ready_s)) or self.url is None:
            text = self.logs()
            self.stop()
            raise RuntimeError(f"the mesh is not ready after {seconds(ready_s):.0f} s:\n{text}")

    def programs(self, slow_workers, scripts):
        """The folder of the services: `up` starts those that lie beside it."""
        built = os.path.join(BUILD, "bin")
        if not slow_workers and not scripts:
            return built
        folder = os.path.join(self.folder.name, "bin")
        os.mkdir(folder)
        shutil.copy(os.path.join(built, "fastdecode"), folder)
        slow = ("kv-worker",) if slow_workers is True else slow_workers or ()
        for name in ("gateway", "scheduler", "s-part", "kv-worker"):
            program = os.path.join(os.path.join(BUILD, "tests", "slow") if name in slow else built, name)
            started = os.path.join(folder, name)
            if name not in scripts:
                os.symlink(program, started)
                continue
            with open(started, "w", encoding="utf-8") as file:
                file.write(f"#!/bin/sh\nprogram={shlex.quote(program)}\n{scripts[name]}\n")
            os.chmod(started, 0o755)
        return folder

    def _read(self):
        for line in self.process.stdout:
            self.output.append(line)
            found = re.match(r"READY (https?://\S+)", line)
            if found:
                self.url = found.group(1)
                self._ready.set()
        self._ready.set()

    def logs(self, lines=30):
        text = "--- up\n" + "".join(self.output[-lines:])
        if os.path.isdir(self.run_dir):
            for name in sorted(os.listdir(self.run_dir)):
                if name.endswith(".log"):
                    with open(os.path.join(self.run_dir, name), errors="replace") as file:
                        text += f"--- {name}\n" + "".join(file.readlines()[-lines:])
        return text

    def pid(self, service):
        with open(os.path.join(self.run_dir, service + ".pid")) as file:
            return int(file.read())

    def kill(self, service, number=signal.SIGKILL):
        pid = self.pid(service)
        os.kill(pid, number)
        return pid

    def get(self, path, timeout=30):
        with urllib.request.urlopen(self.url + path, timeout=seconds(timeout)) as reply:
            return reply.read().decode()

    def post(self, path, body, timeout=120):
        request = urllib.request.Request(self.url + path, json.dumps(body).encode(), {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=seconds(timeout)) as reply:
            return json.loads(reply.read())

    def metrics(self):
        """The scheduler's metrics as of now, which a gateway would keep for a second. One that is not there is waited for."""
        def asked():
            try:
                connection = Connection(f"ipc://{self.run_dir}/scheduler.sock", "gateway")
                answer = connection.call("Generator/Metrics", b"")
                connection.close()
                return answer.messages and one(decode(answer.messages[0]), 1).decode()
            except OSError:
                return None

        return wait_until(asked, 20, "the scheduler does not say its metrics")

    def metric(self, name):
        """The sum of a metric's samples over its labels; of one that the scheduler has not, the gateway's."""
        for text in (self.metrics, lambda: self.get("/metrics")):
            values = re.findall(rf"^{re.escape(name)}(?:\{{[^}}]*\}})? (\S+)$", text(), re.M)
            if values:
                return sum(map(float, values))
        raise AssertionError(f"/metrics has no {name}")

    def option(self, service, name):
        """What `up` gave it for an option; None: nothing."""
        with open(os.path.join(self.run_dir, service + ".pid"), encoding="ascii") as file:
            pid = int(file.read())
        with open(f"/proc/{pid}/cmdline", encoding="utf-8") as file:
            given = [word.partition("=")[2] for word in file.read().split("\0") if word.startswith(f"--{name}=")]
        return given[-1] if given else None

    def wait_metric(self, name, accept, limit_s=30):
        """Polls until accept(value); returns the value. An assertion with the last value where it never is."""
        values = []

        def accepted():
            values[:] = [self.metric(name)]
            return accept(values[0])

        wait_until(accepted, limit_s, lambda: f"{name} is {values[0]}\n" + self.logs(), 0.05)
        return values[0]

    def stop(self):
        results.logs_of_meshes.discard(self.logs)
        if results.interrupted:
            self.process.kill()
        elif self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(seconds(30))
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
                raise RuntimeError("`fastdecode up` did not end in time after SIGTERM\n" + self.logs())
        self._reader.join(5)
        text = "".join(self.output)
        found = sanitizer_report(self.run_dir, text)
        self.folder.cleanup()
        assert found is None, found
        if not results.interrupted:  # what was asked to end did so by itself
            asked = text.partition("fastdecode up: ending")[2]
            assert not re.search(r"CHILD-ENDED name=\S+ status=[1-9]", asked), asked
        return self.process.returncode

    def __enter__(self):
        return self

    def __exit__(self, kind, *_):
        if kind is KeyboardInterrupt:
            self.process.kill()
        self.stop()


@pytest.fixture(scope="session")
def mesh():
    with Mesh() as running:
        yield running


@pytest.fixture(scope="session")
def real_mesh():
    with Mesh(model=MODEL) as running:
        yield running


@pytest.fixture
def by_hand(tmp_path):
    """A scheduler, to which a test adds s-parts one by one."""
    from by_hand import ByHand  # which imports this file
    started = ByHand(tmp_path)
    yield started
    started.stop()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item):
    report = yield
    item.failed = getattr(item, "failed", False) or report.failed
    return report


@pytest.fixture
def start_mesh(request):
    """A function that starts a mesh with the given options; all are stopped at the end of the test, and what they logged
    is shown when it has failed."""
    started = []

    def start(*options, **settings):
        started.append(Mesh(*options, **settings))
        return started[-1]

    yield start
    for running in started:
        if getattr(request.node, "failed", False):
            print(running.logs())
        running.stop()
