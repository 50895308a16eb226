"""A mesh for tests: real processes, a port that the kernel picks, ended by process id.

`mesh` is one mesh for the whole session with the default settings; `start_mesh(...)` starts another with its own. A mesh dies with
the process that runs the tests, and SIGINT to that process ends all meshes."""
import glob
import json
import os
import re
import shutil
import signal
import subprocess
import tempfile
import threading
import time
import urllib.request

import pytest

import results
from results import (pytest_collectreport, pytest_configure, pytest_keyboard_interrupt, pytest_runtest_logfinish,  # noqa: F401 (hooks)
                     pytest_runtest_logreport, pytest_runtest_logstart)

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
BUILD = os.path.join(ROOT, os.environ.get("FD_BUILD", "build"))
SANITIZED = bool(os.environ.get("FD_SANITIZED"))  # then all is several times slower, and tests do less of it
HARDWARE = os.path.join(ROOT, "deploy", "hardware")
MODEL = os.environ.get("FD_TEST_MODEL", os.path.join(ROOT, "models", "SmolLM2-135M-Instruct.Q4_1.gguf"))


DIES_WITH_US = ("setpriv", "--pdeathsig", "KILL", "--")


def spawn(command, **settings):
    """subprocess.Popen, and the process is killed when this one dies. (The services of `up` die with `up`.)"""
    return subprocess.Popen([*DIES_WITH_US, *command], stdin=subprocess.DEVNULL, **settings)


def fastdecode(subcommand, *options, timeout=240, **settings):
    """Runs `fastdecode SUBCOMMAND OPTIONS` to its end; settings are subprocess.run()'s."""
    return subprocess.run([*DIES_WITH_US, os.path.join(BUILD, "bin", "fastdecode"), subcommand, *map(str, options)], **{
        "capture_output": True, "text": True, "timeout": timeout, "check": False, **settings})


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

    def __init__(self, *options, model=MODEL, env=None, ready_s=90, calibrate=False, slow_workers=False):
        """calibrate: as users have it. Tests that do not look at predictions start a second earlier without.
        slow_workers: signals make a worker slow (slow_worker.c); or names of services, of which signals make the s-part slow as well,
        and the scheduler empty the local pool (moving_scheduler.c)."""
        self.model = "default"
        self.folder = tempfile.TemporaryDirectory(prefix="fd-e2e-")
        self.run_dir = os.path.join(self.folder.name, "run")
        command = [os.path.join(self.programs(slow_workers), "fastdecode"), "up", "--model", model, "--port", "0",
                   "--run-dir", self.run_dir, *([] if calibrate else ["--calibrate", "off"]), *map(str, options)]
        self.output = []
        self.process = spawn(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=dict(os.environ, **(env or {})))
        self.url = None
        results.logs_of_meshes.add(self.logs)
        self._ready = threading.Event()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        if not self._ready.wait(ready_s * (4 if SANITIZED else 1)) or self.url is None:
            text = self.logs()
            self.stop()
            raise RuntimeError(f"the mesh is not ready after {ready_s} s:\n{text}")

    def programs(self, slow_workers):
        """The folder of the services: `up` starts those that lie beside it."""
        built = os.path.join(BUILD, "bin")
        if not slow_workers:
            return built
        folder = os.path.join(self.folder.name, "bin")
        os.mkdir(folder)
        shutil.copy(os.path.join(built, "fastdecode"), folder)
        slow = ("kv-worker",) if slow_workers is True else slow_workers
        for name in ("gateway", "scheduler", "s-part", "kv-worker"):
            os.symlink(os.path.join(BUILD, "tests", "slow", name) if name in slow else os.path.join(built, name), os.path.join(folder, name))
        return folder

    def _read(self):
        for line in self.process.stdout:
            self.output.append(line)
            found = re.match(r"READY (http://\S+)", line)
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
        with urllib.request.urlopen(self.url + path, timeout=timeout) as reply:
            return reply.read().decode()

    def post(self, path, body, timeout=120):
        request = urllib.request.Request(self.url + path, json.dumps(body).encode(), {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=timeout) as reply:
            return json.loads(reply.read())

    def metric(self, name):
        """The sum of a metric's samples over its labels."""
        values = [line.rsplit(" ", 1)[1] for line in self.get("/metrics").splitlines()
                  if re.match(re.escape(name) + r"(\{[^}]*\})? ", line)]
        assert values, f"/metrics has no {name}"
        return sum(map(float, values))

    def option(self, service, name):
        """What `up` gave it for an option; None: nothing."""
        with open(os.path.join(self.run_dir, service + ".pid"), encoding="ascii") as file:
            pid = int(file.read())
        with open(f"/proc/{pid}/cmdline", encoding="utf-8") as file:
            given = [word.partition("=")[2] for word in file.read().split("\0") if word.startswith(f"--{name}=")]
        return given[-1] if given else None

    def wait_metric(self, name, accept, limit_s=30):
        """Polls until accept(value); returns the value. An assertion with the last value where it never is."""
        deadline = time.monotonic() + limit_s
        while True:
            value = self.metric(name)
            if accept(value):
                return value
            assert time.monotonic() < deadline, f"{name} is {value} after {limit_s} s\n" + self.logs()
            time.sleep(0.05)

    def stop(self):
        results.logs_of_meshes.discard(self.logs)
        if results.interrupted:
            self.process.kill()
        elif self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(120 if SANITIZED else 30)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
                raise RuntimeError("`fastdecode up` did not end in time after SIGTERM\n" + self.logs())
        self._reader.join(5)
        found = sanitizer_report(self.run_dir, "".join(self.output))
        self.folder.cleanup()
        assert found is None, found
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
