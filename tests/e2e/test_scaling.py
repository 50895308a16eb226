"""A mesh that grows, shrinks and is replaced under 64 streams: none is lost, none is changed.

FD_OLD_BIN: folder with the programs of another release, with which the mesh begins; `make check-upgrade FROM=REVISION` builds them."""
import math
import os
import re
import signal
import subprocess
import sys
import threading
import time

import pytest

from by_hand import ByHand
from conftest import BUILD, seconds, spawn, tiny, wait_until
from prometheus_rig import ROOT, Prometheus

UNDER_LOAD = os.path.join(ROOT, "tests/deploy/under_load.py")
EPISODE_S = 120 if os.environ.get("FD_ALL") else 20
SAID = re.compile(r"(\d+) streams: 0 lost, 0 changed; .*99 % (\d+) ms")


class Cluster(ByHand):
    """Services of which each can be replaced."""

    def __init__(self, folder, programs):
        self.programs, self.services, self.addresses = programs, {}, {}
        self.urls = os.path.join(folder, "urls")
        super().__init__(folder)

    def start(self, name, program, *options):
        with open(os.path.join(self.folder, name + ".log"), "ab") as log:
            self.services[name] = spawn([os.path.join(self.programs, program), *options], stdout=log, stderr=subprocess.STDOUT)
        self.processes.append(self.services[name])
        return self.services[name]

    def start_s_part(self):
        self.start("s-part", "s-part", "--name=s-part", f"--scheduler={self.scheduler}", f"--listen=ipc://{self.folder}/s-part.sock", "--threads=1",
                   "--calibrate=off", "--local-pool=0", f"--model={tiny()}", "--max-batch=64")

    def start_worker(self, name):
        self.start(name, "kv-worker", f"--name={name}", f"--scheduler={self.scheduler}", f"--listen=ipc://{self.folder}/{name}.sock",
                   f"--listen-tensors=ipc://{self.folder}/{name}-t.sock", "--kv-memory=2M", "--threads=1", "--calibrate=off")

    def start_gateway(self, name):
        port = os.path.join(self.folder, name + ".port")
        if os.path.exists(port):
            os.remove(port)
        self.start(name, "gateway", f"--scheduler={self.scheduler}", f"--model={tiny()}", "--port=0", f"--port-file={port}", "--drain-notice=1")
        number = wait_until(lambda: os.path.exists(port) and open(port, encoding="ascii").read().strip(), 30, lambda: self.log(name))
        self.addresses[name] = f"127.0.0.1:{number}"
        with open(self.urls + ".part", "w", encoding="ascii") as file:
            file.write("\n".join("http://" + address for address in self.addresses.values()))
        os.replace(self.urls + ".part", self.urls)

    def end(self, name):
        """SIGTERM, and it ends in order."""
        process = self.services.pop(name)
        process.send_signal(signal.SIGTERM)
        assert process.wait(seconds(90)) == 0, self.log(name)


@pytest.fixture
def cluster(tmp_path_factory):
    running = Cluster(tmp_path_factory.mktemp("c"), os.environ.get("FD_OLD_BIN", os.path.join(BUILD, "bin")))
    running.start_s_part()
    running.start_gateway("gateway-0")
    yield running
    running.stop()


class Load:
    """Streams in a process of their own."""

    def __init__(self, cluster, streams):
        self.folder = os.path.join(cluster.folder, f"load-{time.monotonic_ns()}")
        os.mkdir(self.folder)
        self.process = subprocess.Popen([sys.executable, UNDER_LOAD, "@" + cluster.urls, self.folder, "--streams", str(streams)],
                                        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        cluster.processes.append(self.process)

        def started():
            assert self.process.poll() is None, self.process.stdout.read()
            return os.path.exists(os.path.join(self.folder, "started"))

        wait_until(started, 120, "the streams do not begin")

    def end(self):
        """Nothing was lost or changed; returns the 99th percentile of the gaps in seconds."""
        with open(os.path.join(self.folder, "stop"), "w", encoding="ascii"):
            pass
        said = self.process.communicate(timeout=seconds(300))[0]
        print(said)
        assert self.process.returncode == 0, said
        streams, gap_ms = map(int, SAID.search(said).groups())
        assert streams > 0
        return gap_ms / 1e3


class Autoscaler(threading.Thread):
    """What KEDA does with deploy/kubernetes/components/autoscale-keda: the same query and threshold; shorter windows."""

    def __init__(self, cluster, prometheus):
        super().__init__()
        self.cluster, self.prometheus, self.ended = cluster, prometheus, threading.Event()
        with open(os.path.join(ROOT, "deploy/kubernetes/components/autoscale-keda/scaled-objects.yaml"), encoding="utf-8") as file:
            text = file.read()
        self.query = re.search(r"query: (.*)", text)[1].replace('mesh="fastdecode"', 'mesh="m"')
        self.threshold = float(re.search(r'threshold: "(.*)"', text)[1])
        self.count, self.most, self.wishes, self.error = 1, 1, [], None

    def run(self):
        try:
            while not self.ended.wait(0.5):
                found = self.prometheus.ask(self.query)
                if found:
                    self.follow(found[0][1])
        except Exception as error:  # shown by the test
            self.error = error

    def follow(self, load):
        self.wishes = [*self.wishes[-9:], min(max(math.ceil(load / self.threshold), 1), 4)]
        while self.count < self.wishes[-1]:
            self.cluster.start_worker(f"kv-worker-{self.count}")
            self.count += 1
        if self.count > max(self.wishes):  # of the last five seconds
            self.count -= 1
            self.cluster.end(f"kv-worker-{self.count}")
        self.most = max(self.most, self.count)

    def stop(self):
        self.ended.set()
        self.join()


@pytest.mark.full
def test_an_autoscaler_follows_the_load(cluster, tmp_path):
    """The load is four times as large for a while. Workers come, take their part, and hand their pages over when they go."""
    cluster.start_worker("kv-worker-0")
    cluster.wait_ready()
    prometheus = Prometheus(tmp_path, cluster.addresses["gateway-0"])
    scaler = Autoscaler(cluster, prometheus)
    scaler.start()
    try:
        few = Load(cluster, 16)
        wait_until(lambda: prometheus.ask(scaler.query), 60, "no load is seen")
        before = scaler.count
        many = Load(cluster, 48)
        time.sleep(EPISODE_S)  # as long as the load is there
        assert scaler.most > before, f"{scaler.wishes}, {scaler.error}"
        gap_s = many.end()
        wait_until(lambda: scaler.count < scaler.most or scaler.error, 60, lambda: f"no worker leaves: {scaler.wishes}")
        gap_s = max(gap_s, few.end())
        print(f"{before} workers before, {scaler.most} at most; 99th percentile of gaps {gap_s:.2f} s")
        assert scaler.error is None and gap_s <= seconds(3)
    finally:
        scaler.stop()
        prometheus.stop()


@pytest.mark.full
def test_every_service_is_replaced(cluster):
    """One after the other, by this build's; before, in between and after it is one mesh."""
    for name in ("kv-worker-0", "kv-worker-1"):
        cluster.start_worker(name)
    cluster.start_gateway("gateway-1")
    cluster.wait_ready()
    load = Load(cluster, 64)
    cluster.programs = os.path.join(BUILD, "bin")
    for name, start in (("kv-worker-0", cluster.start_worker), ("kv-worker-1", cluster.start_worker),
                        ("gateway-0", cluster.start_gateway), ("gateway-1", cluster.start_gateway)):
        joined = cluster.log("scheduler").count(f"name={name}")
        cluster.end(name)
        start(name)
        if start == cluster.start_worker:
            wait_until(lambda: cluster.log("scheduler").count(f"name={name}") > joined, 60, lambda: cluster.log("scheduler"))
    cluster.end("scheduler")
    cluster.start("scheduler", "scheduler", f"--listen={cluster.scheduler}", f"--worker-timeout-ms={round(1000 * seconds(1))}")
    cluster.wait_ready()
    cluster.end("s-part")
    cluster.start_s_part()
    cluster.wait_ready()
    time.sleep(1)  # some streams with the new ones alone
    gap_s = load.end()
    print(f"99th percentile of gaps {gap_s:.2f} s")
    assert gap_s <= seconds(3)
