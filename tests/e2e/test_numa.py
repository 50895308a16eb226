"""NUMA nodes: a worker on each, where its threads run, and what the kernel is asked for.

This machine may have one node. A folder that looks like the /sys of another one (FD_SYS_ROOT) makes two of its first two CPUs, and
numa_calls.c, preloaded, takes the calls that the kernel would refuse because it does not know the second. What pages do is seen at node 0.
"""
import glob
import json
import os
import re

import pytest

from conftest import BUILD, fastdecode, preload, run, tiny, wait_until
from streams import assert_same, body, run_all, words

PREFER, BIND, INTERLEAVE = 1, 2, 3  # linux/mempolicy.h
MIB = 1 << 20
NODES = (0, 2)  # numbers may be missing
CPUS = sorted(os.sched_getaffinity(0))
PROBES = [body("The sea is", 24, logprobs=2), body(words(90, 1), 24, 1, True, logprobs=2), body(words(300, 5), 8)]

WORKERS_OF_NODES = ("--shape", "llama-7b", "--gpu", "a10", "--batch", 64, "--workers", 2, "--ignore-capacity")

needs_two_cpus = pytest.mark.skipif(len(CPUS) < 2, reason="two nodes are made of two CPUs")


def fake(folder, nodes, allowed=None):
    """A root with `nodes`: {number: (list of CPUs, MiB of memory, MiB free)}. allowed: of Mems_allowed_list."""
    for number, (cpus, total, free) in nodes.items():
        node = folder / "sys" / "devices" / "system" / "node" / f"node{number}"
        node.mkdir(parents=True)
        (node / "cpulist").write_text(cpus + "\n")
        (node / "meminfo").write_text(f"Node {number} MemTotal: {total * 1024} kB\nNode {number} MemFree: {free * 1024} kB\n" if total else "")
        (node / "distance").write_text(" ".join("10" if other == number else "20" for other in nodes) + "\n")
    if allowed is not None:
        (folder / "proc" / "self").mkdir(parents=True)
        (folder / "proc" / "self" / "status").write_text(f"Name:\tx\nMems_allowed_list:\t{allowed}\n")
    return {"FD_SYS_ROOT": str(folder)}


@pytest.fixture
def two_nodes(tmp_path):
    """NODES, of the first two CPUs; twice as much memory is free on the first."""
    return fake(tmp_path / "root", {node: (str(CPUS[i]), 65536, 32768 >> i) for i, node in enumerate(NODES)})


@pytest.fixture(scope="module")
def numa_calls(tmp_path_factory):
    return preload(tmp_path_factory.mktemp("preload"), "numa_calls")


@pytest.fixture
def kernel(numa_calls, tmp_path):
    """The environment in which calls are taken, and a function that reads those of a process: [(call, mode, nodes, bytes)]."""
    folder = tmp_path / "calls"
    folder.mkdir()

    def calls(program, pid="*"):
        text = "".join(open(path, encoding="ascii").read() for path in glob.glob(f"{folder}/{program}.{pid}"))
        return [(call, int(mode), nodes, int(size))
                for call, mode, nodes, size in re.findall(r"^(\w+) mode=(\d+) nodes=(\S*) bytes=(\d+)$", text, re.M)]

    return {"LD_PRELOAD": numa_calls, "FD_NUMA_CALLS": str(folder), "FD_SANDBOX": "off"}, calls  # no setting names the folder


def log_of(mesh, service):
    with open(os.path.join(mesh.run_dir, service + ".log"), encoding="utf-8", errors="replace") as file:
        return file.read()


def line_of(mesh, service, event):
    """The key=value pairs of the last line of an event, which is waited for."""
    text = wait_until(lambda: re.findall(rf" {event} (.*)", log_of(mesh, service)), 20, f"{service} does not log {event}")[-1]
    return dict(re.findall(r"(\w+)=(\S+)", text))


def threads_of(pid):
    """{thread: the CPUs on which it may run}"""
    found = {}
    for task in os.listdir(f"/proc/{pid}/task"):
        with open(f"/proc/{pid}/task/{task}/status", encoding="ascii", errors="replace") as file:
            found[task] = re.search(r"Cpus_allowed_list:\s+(\S+)", file.read()).group(1)
    return found


@needs_two_cpus
def test_a_worker_on_each_node(start_mesh, mesh, two_nodes, kernel):
    env, calls = kernel
    ours = start_mesh("--local-pool", 0, threads=0, env={**two_nodes, **env})
    assert_same(run_all(ours.url, PROBES), run_all(mesh.url, PROBES))  # the same bytes as on one node
    assert not os.path.exists(os.path.join(ours.run_dir, "kv-worker-2.pid"))
    memory = []
    for i, node in enumerate(NODES):
        worker = f"kv-worker-{i}"
        pid = ours.pid(worker)
        assert ours.option(worker, "numa-node") == str(node) and ours.option(worker, "threads") == "1"
        threads = threads_of(pid)
        assert len(threads) >= 3 and set(threads.values()) == {str(CPUS[i])}, threads
        said = line_of(ours, worker, "NUMA-BOUND")  # once it is: the mesh may have been ready with the other worker
        asked = calls("kv-worker", pid)
        memory.append(int(ours.option(worker, "kv-memory")))
        assert asked[0] == ("set_mempolicy", PREFER, str(node), 0)
        assert [(call, mode, nodes) for call, mode, nodes, _ in asked[1:]] == [("mbind", BIND, str(node))], asked
        bound = asked[1][3]
        assert memory[i] - 2 * MIB < bound
        assert line_of(ours, worker, "NUMA")["cpus"] == str(CPUS[i])
        assert (said["worker"], said["numa_node"], float(said["mib"])) == (worker, str(node), pytest.approx(bound / MIB, abs=0.1))
        assert f"numa_node={node} node_mib=65536.0" in log_of(ours, worker)
    assert memory[0] == pytest.approx(2 * memory[1], rel=0.01)  # as what is free
    told = re.findall(r"NUMA-WORKER worker=kv-worker-(\d) numa_node=(\d) cpus=(\S+) threads=1 kv_mib=(\S+)", "".join(ours.output))
    assert told == [(str(i), str(NODES[i]), str(CPUS[i]), f"{memory[i] / MIB:.1f}") for i in (0, 1)]
    assert calls("s-part") == [("set_mempolicy", INTERLEAVE, "0,2", 0)]
    assert set(threads_of(ours.pid("s-part")).values()) != {str(CPUS[0])}
    assert calls("gateway") + calls("scheduler") + calls("fastdecode") == []


@needs_two_cpus
def test_a_kernel_that_refuses(start_mesh, two_nodes, kernel):
    """As in many containers: each service says so once and serves."""
    env, calls = kernel
    mesh = start_mesh("--local-pool", 0, "--kv-memory", "64M", threads=5, env={**two_nodes, **env, "FD_NUMA_ANSWER": "1"})
    assert [stream.error for stream in run_all(mesh.url, PROBES) if stream.error] == []
    assert [call for call, *_ in calls("kv-worker", mesh.pid("kv-worker-1"))] == ["set_mempolicy", "mbind"]
    for service in ("kv-worker-0", "kv-worker-1", "s-part"):
        log = log_of(mesh, service)
        assert log.count("NUMA-REFUSED call=set_mempolicy") == 1 == log.count("NUMA-REFUSED") and "Operation not permitted" in log
        assert "NUMA-BOUND" not in log
    assert mesh.option("kv-worker-1", "threads") == "1"  # no more than the node has CPUs
    assert line_of(mesh, "s-part", "MODEL-LOADED")["cpus"] == "nodes"  # more threads than CPUs: each keeps to a node
    assert set(threads_of(mesh.pid("s-part")).values()) >= {str(CPUS[0]), str(CPUS[1])}
    assert {mesh.option("kv-worker-0", "kv-memory"), mesh.option("kv-worker-1", "kv-memory")} == {str(64 * MIB)}


@pytest.mark.parametrize("nodes", [{}, {0: ("0-63", 65536, 32768)}, {0: ("0-63", 65536, 32768), 3: ("", 65536, 65536)}],
                         ids=["no-nodes", "one-node", "memory-behind-it"])
def test_one_node_is_as_before(start_mesh, tmp_path, kernel, nodes):
    env, calls = kernel
    mesh = start_mesh("--kv-memory", "64M", "--local-pool", "64M", env={**fake(tmp_path / "root", nodes), **env})
    assert sorted(name for name in os.listdir(mesh.run_dir) if name.startswith("kv-worker") and name.endswith(".pid")) == ["kv-worker-0.pid"]
    assert mesh.option("kv-worker-0", "numa-node") is None and mesh.option("s-part", "numa") is None
    assert calls("*") == [] and "NUMA" not in "".join(mesh.output) + log_of(mesh, "kv-worker-0") + log_of(mesh, "s-part")


@needs_two_cpus
def test_a_number_of_workers_binds_none(start_mesh, two_nodes, kernel):
    env, calls = kernel
    mesh = start_mesh("--kv-workers", 2, "--numa", "none", "--kv-memory", "64M", "--local-pool", "64M", env={**two_nodes, **env})
    assert mesh.option("kv-worker-1", "numa-node") is None and mesh.option("s-part", "numa") == "none"
    assert calls("*") == []


def policies(pid, text):
    """The lines of numa_maps with a policy."""
    with open(f"/proc/{pid}/numa_maps", encoding="ascii", errors="replace") as file:
        return [line for line in file.read().splitlines() if line.split()[1] == text]


@pytest.mark.skipif(not os.path.exists("/proc/self/numa_maps") or not os.path.exists("/sys/devices/system/node/node0/meminfo"),
                    reason="the kernel shows no policies")
def test_pages_are_bound(start_mesh):
    """What the kernel makes of it, at the node that every machine has."""
    mesh = start_mesh("--local-pool", 0, "--kv-memory", "64M", "--numa", "interleave",
                      scripts={"kv-worker": 'exec "$program" "$@" --numa-node=0'})
    assert [stream.error for stream in run_all(mesh.url, PROBES) if stream.error] == []
    worker = log_of(mesh, "kv-worker-0")
    if "NUMA-REFUSED" in worker:
        pytest.skip("the kernel refuses policies here")
    bound = policies(mesh.pid("kv-worker-0"), "bind:0")
    assert bound and any(re.search(r" anon=\d+ .*N0=\d+", line) for line in bound), bound
    assert not any(re.search(r" N[1-9]\d*=", line) for line in bound)
    assert policies(mesh.pid("kv-worker-0"), "prefer:0")  # all else
    weights = policies(mesh.pid("s-part"), "interleave:0")
    pages = [int(re.search(r" anon=(\d+)", line).group(1)) for line in weights if " anon=" in line]
    assert max(pages) * 4096 > MIB, weights


def check(program, *options, env=None):
    return run([os.path.join(BUILD, "bin", program), *options, "--check"], env={**os.environ, **(env or {})})


@pytest.mark.parametrize("node, says", [
    ("7", "--numa-node 7: there is no such NUMA node; with CPUs and memory for this process: 0"),
    ("1", "--numa-node 1: the NUMA node has no memory"), ("2", "--numa-node 2: this process may have no memory on the NUMA node"),
    ("3", "--numa-node 3: this process may use no CPU of the NUMA node"),
    ("x", "--numa-node is 'x', want the number of a NUMA node or none"), ("-1", "--numa-node is '-1'"), ("1024", "--numa-node is '1024'")])
def test_what_is_refused(tmp_path, node, says):
    env = fake(tmp_path / "root", {0: ("0-1000", 64, 32), 1: ("1001", 0, 0), 2: ("", 64, 32), 3: ("1002", 64, 32)}, "0-1,3")
    done = check("kv-worker", f"--numa-node={node}", "--kv-memory=1M", env=env)
    assert done.returncode == 2 and says in done.stderr, done
    done = check("s-part", f"--numa={node}", "--model", tiny(), env=env)
    assert done.returncode == 2 and says.replace("numa-node", "numa").replace(" or none", " or auto, interleave, none") in done.stderr, done
    done = fastdecode("up", "--check", "--model", tiny(), f"--numa={node}", env={**os.environ, **env})
    assert done.returncode == 2 and says.split(":")[0].split(",")[0].replace("numa-node", "numa") in done.stderr, done
    assert check("kv-worker", "--numa-node=0", "--kv-memory=64M", env=env).returncode == 0
    assert check("s-part", "--numa=0", "--model", tiny(), env=env).returncode == 0


def test_pages_that_a_node_has_no_room_for(tmp_path):
    env = fake(tmp_path / "root", {0: ("0-1000", 64, 32)})
    done = check("kv-worker", "--numa-node=0", "--kv-memory=65M", env=env)
    assert done.returncode == 3 and "65 MiB of KV pages are asked for (--kv-memory), NUMA node 0 has 64 MiB" in done.stderr, done


@pytest.mark.parametrize("count", ["many", "65", "-1", "1.5", ""])
def test_what_is_no_number_of_workers(count):
    done = fastdecode("up", "--check", "--model", tiny(), f"--kv-workers={count}")
    assert done.returncode == 2 and f"--kv-workers is '{count}', want auto or a whole number from 0 to 64" in done.stderr, done


@needs_two_cpus
def test_check_counts_the_nodes(two_nodes):
    """--check asks the workers too, and prints nothing."""
    env = {**os.environ, **two_nodes}
    done = fastdecode("up", "--check", "--model", tiny(), "--kv-worker-isa", "ref,none", env=env)
    assert done.returncode == 2 and "'none'" in done.stderr  # there is a second worker
    done = fastdecode("up", "--check", "--model", tiny(), env=env)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@needs_two_cpus
def test_nodes_are_measured(tmp_path, two_nodes, kernel):
    env, calls = kernel
    path = tmp_path / "here.conf"
    env = {**os.environ, **two_nodes, **env}
    done = fastdecode("plan", "--measure", path, env=env)
    assert done.returncode == 0, done.stderr
    found = dict(line.split(" = ") for line in path.read_text().splitlines() if " = " in line and line[0] != "#")
    assert found["numa_nodes"] == "0 2"
    rates = [[float(rate) for rate in row.split()] for row in found["numa_gb_per_second"].split(", ")]
    assert [len(row) for row in rates] == [2, 2] and min(map(min, rates)) > 0
    asked = calls("fastdecode")
    assert [(call, mode, nodes) for call, mode, nodes, _ in asked] == [("mbind", BIND, "0"), ("mbind", BIND, "2"),
                                                                      ("set_mempolicy", INTERLEAVE, "0,2")]
    workers = (*WORKERS_OF_NODES, "--worker", path)
    plan = json.loads(fastdecode("plan", "--json", *workers).stdout)
    assert plan["worker_nodes"] == 2
    said = fastdecode("plan", *workers).stdout
    assert f"a worker on each of the 2 NUMA nodes of a host, which reads its own memory at {min(rates[0][0], rates[1][1]):.4g} GB/s" in said

    done = fastdecode("plan", "--measure", path, env={**env, "FD_NUMA_ANSWER": "1"})
    assert done.returncode == 0 and "does not bind memory to NUMA nodes here" in done.stderr
    assert "numa_" not in path.read_text()


def test_the_slowest_nodes_own_memory_counts(tmp_path):
    """Of a host whose other figures are given, so that memory alone bounds attention."""
    layer_us = []
    for rates in ("80 5, 5 100", "40 500, 500 100"):
        path = tmp_path / "host.conf"
        path.write_text(f"name = two nodes\nmemory = 64G\nmemory_gb_per_second = 300\nf32_tflops = 3\nnuma_nodes = 0 2\nnuma_gb_per_second = {rates}\n"
                        "link_gb_per_second = 25\nlink_round_trip_us = 5\n")
        done = fastdecode("plan", "--json", *WORKERS_OF_NODES, "--worker", path)
        assert done.returncode == 0, done.stderr
        layer_us.append(json.loads(done.stdout)["r_part_layer_us"])
    assert layer_us[1] == pytest.approx(2 * layer_us[0], rel=1e-3)
