"""`fastdecode up` itself: what it says when it cannot start, and how it ends."""
import json
import os
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import time
import urllib.request

import pytest

from conftest import BUILD, MODEL, PACED, SANITIZED, Mesh, fastdecode, run, seconds, spawn, tiny, wait_until
from streams import Stream, body

PROGRAM = os.path.join(BUILD, "bin", "fastdecode")
SMALL = ("--kv-memory", "64M", "--local-pool", "64M")


@pytest.fixture
def folder():
    """For sockets: their paths may not be long."""
    with tempfile.TemporaryDirectory(prefix="fd-up-") as path:
        yield pathlib.Path(path)


def up(folder, *options, env=None):
    """Runs it to its end, which must come by itself."""
    command = [PROGRAM, "up", "--model", tiny(), "--run-dir", str(folder / "run"), "--kv-memory", "64M", "--local-pool", "64M", *options]
    return run(command, env=dict(os.environ, **(env or {})))


def test_port_in_use(folder):
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        done = up(folder, "--port", str(port))
    assert done.returncode == 3  # the environment
    assert f"gateway cannot start: gateway: cannot listen on 127.0.0.1 port {port}: Address already in use" in done.stderr


def test_a_service_that_is_killed_at_each_start(folder):
    """As for memory: `up` ends after three attempts and says so, and not with a line of the log, which is of something else."""
    for name in os.listdir(os.path.join(BUILD, "bin")):
        (folder / name).symlink_to(os.path.join(BUILD, "bin", name))
    (folder / "fastdecode").unlink()
    shutil.copy(PROGRAM, folder)
    (folder / "gateway").unlink()
    (folder / "gateway").write_text("#!/bin/sh\nkill -9 $$\n")
    (folder / "gateway").chmod(0o755)
    done = run([folder / "fastdecode", "up", "--model", tiny(), "--run-dir", folder / "run", "--port", "0", *SMALL])
    assert done.returncode == 1 and "gateway cannot start: signal 9 killed it" in done.stderr, done
    assert done.stderr.count("CHILD-DIED name=gateway") == 3, done


def test_a_port_that_another_mesh_has(folder, mesh):
    """It answers that it is ready, which is not said of this one."""
    done = up(folder, "--port", mesh.url.rpartition(":")[2])
    assert done.returncode == 3 and "READY" not in done.stdout, done
    assert "gateway cannot start: gateway: cannot listen on 127.0.0.1 port" in done.stderr


def test_ports_that_were_told_stay(start_mesh):
    mesh = start_mesh("--admin-listen", "127.0.0.1:0", *SMALL)
    told = wait_until(lambda: re.search(r"(?m)^metrics: (http://127\.0\.0\.1:\d+)/metrics, and /mesh$", "".join(mesh.output)), 20, "no line says where")[1]
    assert told != mesh.url
    before = mesh.kill("gateway")
    wait_until(lambda: mesh.pid("gateway") != before, 20, "it is not started again")

    def answers(url):
        try:
            with urllib.request.urlopen(url, timeout=seconds(10)) as reply:
                return reply.status == 200
        except OSError:
            return False

    wait_until(lambda: answers(mesh.url + "/ready") and answers(told + "/metrics"), 30, mesh.logs)


def test_an_admin_port_that_is_taken(folder):
    """In a network of their own: a gateway has the default one, and `up` says which it takes instead."""
    if os.geteuid() != 0:
        pytest.skip("makes a network namespace: root")
    gateway = f"{BUILD}/bin/gateway --scheduler ipc://{folder}/none.sock --model {tiny()} --port 0 --host 0.0.0.0 2>{folder}/first"
    mesh = f"{PROGRAM} up --model {tiny()} --host 0.0.0.0 --port 0 --threads 1 --calibrate off --run-dir {folder}/run {' '.join(map(str, SMALL))}"
    script = f"ip link set lo up; {gateway} & while ! grep -q GATEWAY-LISTENS {folder}/first; do sleep 0.05; done; exec {mesh} >{folder}/said 2>&1"
    with spawn(["unshare", "--net", "--pid", "--fork", "--kill-child", "sh", "-c", script], stdout=subprocess.DEVNULL) as process:
        said = wait_until(lambda: (folder / "said").exists() and re.search(r"metrics: .*", (folder / "said").read_text()), 60, "it does not say")[0]
        process.kill()
    assert re.fullmatch(r"metrics: http://127\.0\.0\.1:\d+/metrics, and /mesh \(port 9464 is taken; --admin-listen names another\)", said)


@pytest.mark.parametrize("option", ["--api-key-file", "--admin-key-file", "--chat-template"])
def test_missing_file(folder, option):
    done = up(folder, "--port", "0", option, str(folder / "nothing"))
    assert done.returncode == 2  # settings
    assert f"gateway cannot start: gateway: {option}" in done.stderr and "nothing: No such file or directory" in done.stderr


@pytest.mark.parametrize("options, says", [
    (["--tls-cert", "nothing", "--tls-key", "nothing"], "--tls-cert: nothing: "), (["--tls-cert", "nothing"], "--tls-cert and --tls-key go together"),
    (["--api-key-file", os.devnull], f"--api-key-file: {os.devnull}: the file has no key"), (["--model", "nothing"], "--model: nothing: ")])
def test_a_gateway_names_the_option(options, says):
    command = [os.path.join(BUILD, "bin", "gateway"), "--scheduler", "tcp://127.0.0.1:1", "--check", "--model", tiny(), *options]
    done = run(command)
    assert done.returncode in (2, 4) and f"gateway: {says}" in done.stderr


def test_nothing_starts_again_while_it_ends(folder):
    done = up(folder, "--port", "0", "--kv-type", "f8")
    assert "s-part cannot start: s-part: --kv-type is 'f8'" in done.stderr
    assert "CHILD-START" not in done.stderr.split("cannot start")[1]


def test_run_dir_that_is_a_file(folder):
    (folder / "run").write_text("")
    done = up(folder, "--port", "0")
    assert done.returncode == 2 and "run: Not a directory" in done.stderr


def test_run_dir_that_others_can_open(folder):
    """Logs have prompts in them, and whoever may write there could put a socket in a service's place."""
    (folder / "run").mkdir(mode=0o755)
    for done in (up(folder, "--port", "0"), up(folder, "--check")):
        assert done.returncode == 2 and "has mode 755" in done.stderr and "chmod 700" in done.stderr
    assert not list((folder / "run").iterdir())


def test_damaged_model(folder):
    (folder / "damaged.gguf").write_bytes(pathlib.Path(tiny()).read_bytes()[:100_000])
    for more in (["--port", "0"], ["--check"]):
        done = up(folder, *more, "--model", str(folder / "damaged.gguf"))
        assert done.returncode == 4 and "damaged.gguf: " in done.stderr  # the model file


MOST = f"{os.sysconf('SC_PHYS_PAGES') * os.sysconf('SC_PAGE_SIZE') * 6 // 10}"  # of the machine's memory: twice that is too much


@pytest.mark.parametrize("options, code, says", [
    (["--kv-type", "f8"], 2, "--kv-type is 'f8'"), (["--sparse-attention", "101%"], 2, "--sparse-attention is '101%', want off or 1% to"),
    (["--device", "cuda", "--sparse-attention", "10%", "--kv-workers", "0"], 2, "--sparse-attention on a GPU wants KV workers"),
    (["--compute", "q"], 2, '--compute is "q"'), (["--admission", "greedy", "--spacing", "8"], 2, "--spacing 8 with --admission greedy"),
    (["--kv-worker-isa", "avx9"], 2, "'avx9'"), (["--api-key-file", "/nothing"], 2, "/nothing: No such file"),
    (["--chat-template", "/"], 2, "--chat-template /: Is a directory"),
    (["--kv-memory", MOST, "--kv-workers", "2"], 3, "KV pages are asked for"), (["--kv-memory", MOST, "--kv-workers", "1", "--local-pool", MOST, "--device", "cpu"], 3, "KV pages are asked for"),
    (["--kv-memory", "900T"], 3, "MiB of KV pages are asked for"), (["--local-pool", "900T"], 3, "MiB of KV pages are asked for"),
    (["--batch-dir", "/nothing/batches"], 2, "--batch-dir /nothing/batches: No such file"), (["--trace", "/nothing/trace"], 2, "/nothing/trace: No such file"),
    (["--model", "/"], 4, "/: not a model's directory"), (["--model", "/nothing"], 4, "--model /nothing: No such file"),
    (["--device", "cuda", "--kv-type", "int8", "--kv-workers", "0"], 2, "--kv-type int8 on a GPU wants KV workers")])
def test_check_says_what_is_wrong(folder, options, code, says):
    done = up(folder, "--check", *options)
    assert done.returncode == code and says in done.stderr
    assert not (folder / "run").exists()


@pytest.mark.parametrize("service, options, code, says", [
    ("s-part", ["--model", "/nothing"], 4, "/nothing: cannot be opened: No such file"),
    ("s-part", ["--model", MODEL, "--local-pool", "900T"], 3, "MiB of KV pages are asked for"),
    ("s-part", ["--model", MODEL, "--local-pool", "1"], 2, "is less than one page"),
    ("s-part", ["--model", MODEL, "--layers", "29:40"], 2, "--layers 29:40: the model has 30"),
    ("s-part", ["--model", MODEL, "--cache-dir", "/nothing"], 2, "/nothing: "),
    ("s-part", ["--model", MODEL, "--advertise", "tcp://0.0.0.0:1"], 2, "--advertise"),
    ("kv-worker", ["--kv-memory", "900T"], 3, "MiB of KV pages are asked for"),
    ("kv-worker", ["--listen", "tcp://0.0.0.0:7402"], 2, "kv-worker may not listen on 'tcp://0.0.0.0:7402'"),
    ("kv-worker", ["--advertise-tensors", "tcp://0.0.0.0:1"], 2, "--advertise-tensors"),
    ("kv-worker", ["--trace", "/nothing/trace"], 2, "--trace /nothing/trace: No such file"),
    ("kv-worker", ["--log-file", "/"], 2, "--log-file /: Is a directory"),
    ("scheduler", ["--listen", "tcp://127.0.0.1"], 2, "a port is missing"),
    ("gateway", ["--model", MODEL], 2, "--scheduler is required"),
    ("gateway", ["--model", MODEL, "--scheduler", "127.0.0.1:7400"], 2, "cannot connect to '127.0.0.1:7400'"),
    ("gateway", ["--model", MODEL, "--scheduler", "tcp://127.0.0.1:1", "--audit", "/nothing/audit"], 2, "--audit /nothing/audit: No such file"),
])
def test_check_refuses_what_a_start_does(service, options, code, says):
    for check in ([], ["--check"]):
        done = run([os.path.join(BUILD, "bin", service), *options, *check])
        assert done.returncode == code and says in done.stderr, done


def defaults_of(*command):
    """{option: what --help says is its default}"""
    text = run([*command, "--help"], check=True).stdout
    return dict(re.findall(r"^  --([a-z-]+) .*\[([^][]*)\]$", text, re.M))


def test_scheduler_alone_has_the_same_defaults():
    """A mesh of containers is the one that `up` starts."""
    alone, of_up = defaults_of(os.path.join(BUILD, "bin", "scheduler")), defaults_of(PROGRAM, "up")
    both = {"max-queue", "max-batch", "chunk", "step-target-ms", "admission", "spacing", "placement", "prefix-cache",
            "worker-timeout-ms", "mini-batches"}
    assert both <= set(alone) & set(of_up)
    assert {name: alone[name] for name in both} == {name: of_up[name] for name in both}


def test_a_batch_folder_that_cannot_be_made(folder):
    """It is the setting that has to change: `up` does not try again."""
    done = up(folder, "--batch-dir", folder / "none" / "batches")
    assert done.returncode == 2 and "none/batches: No such file or directory above it" in done.stderr, done
    assert done.stderr.count("CHILD-DIED") <= 1


def test_check_of_good_settings(folder):
    """What is meant for `up`, by file or environment, is not for the services: they know less or other settings."""
    config = folder / "config"
    config.write_text("kv-workers = 2\nlog-json = true\n")
    done = up(folder, "--check", env={"FD_CONFIG": str(config), "FD_THREADS": "0"})  # a gateway wants 1 or more
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


# Libraries fit, the stacks of a service's threads do not.
@pytest.mark.skipif(SANITIZED, reason="sanitizers take more than any machine has")
@pytest.mark.parametrize("service, options", [("gateway", ["--model", MODEL, "--scheduler", "tcp://127.0.0.1:1"]), ("scheduler", []), ("kv-worker", []), ("s-part", ["--model", MODEL])])
def test_little_address_space_and_few_files(service, options):
    done = run(["prlimit", f"--as={120 << 20}", os.path.join(BUILD, "bin", service), *options])
    assert done.returncode == 3 and "may have 120 MiB of address space (ulimit -v)" in done.stderr, done
    done = run(["prlimit", "--nofile=8", os.path.join(BUILD, "bin", service), *options])
    assert done.returncode == 3 and "may open 8 files (ulimit -n), and a service needs 64 at least" in done.stderr, done


@pytest.mark.skipif(SANITIZED, reason="sanitizers take more than any machine has")
def test_address_space_counts_as_memory(tmp_path):
    """There is enough to begin with, but not for what the plan says; or not for what nobody planned."""
    secret = tmp_path / "secret"
    secret.touch(0o600)
    secret.write_text("c" * 64)
    limited = ["prlimit", f"--as={8 << 30}"]
    for service, options in (("s-part", ["--model", MODEL, "--local-pool", "9G"]), ("kv-worker", ["--kv-memory", "9G"])):
        done = run([*limited, os.path.join(BUILD, "bin", service), *options])
        assert done.returncode == 3 and "9216 MiB of KV pages are asked for" in done.stderr and "address space (ulimit -v)" in done.stderr, done
    done = run(["prlimit", f"--as={500 << 20}", os.path.join(BUILD, "bin", "s-part"), "--model", MODEL, "--local-pool", "32M", "--scheduler", "tcp://127.0.0.1:1",
                "--calibrate", "off", "--mesh-secret-file", secret])
    assert done.returncode == 3 and "emory" in done.stderr and "500 MiB of address space" in done.stderr, done
    assert run(["prlimit", f"--as={160 << 20}", PROGRAM, "--version"]).returncode == 0  # it ends


@pytest.mark.parametrize("options, says", [
    (["--name", "w" * 64], "--name is 64 bytes long, want 1 to 63"),  # cut, it would be its neighbour's
    (["--name="], "--name is 0 bytes long"),
    (["--advertise", "tcp://0.0.0.0:7402"], "set their address with --advertise"),
    (["--advertise-tensors", "tcp://[::]:7403"], "set their address with --advertise-tensors"),
])
def test_worker_that_could_not_be_reached(tmp_path, options, says):
    secret = tmp_path / "secret"
    secret.touch(0o600)
    secret.write_text("not a short one, this secret\n")
    command = [os.path.join(BUILD, "bin", "kv-worker"), "--kv-memory", "1M", "--insecure", "--mesh-secret-file", secret, *options]
    done = run(command)
    assert done.returncode == 2 and says in done.stderr, done


def service_logs(mesh):
    return {path.name: path.read_text() for path in pathlib.Path(mesh.run_dir).glob("*.log")}


def test_services_log_json():
    with Mesh("--log-json", "--kv-memory", "64M", "--local-pool", "64M") as mesh:
        line = service_logs(mesh)["scheduler.log"].splitlines()[0]
    assert json.loads(line)["service"] == "scheduler"


def test_services_keep_as_much_of_their_logs_as_is_asked_for():
    with Mesh("--log-max-size", "4K", "--log-keep", 1, "--kv-workers", 1, "--kv-memory", "64M", "--local-pool", "64M") as mesh:
        assert {(mesh.option(name, "log-max-size"), mesh.option(name, "log-keep")) for name in SERVICES} == {("4096", "1")}


def test_services_log_what_is_asked_for():
    with Mesh("--log-level", "warn", "--kv-memory", "64M", "--local-pool", "64M") as mesh:
        logs = service_logs(mesh)
    assert len(logs) == 4 and not [name for name, text in logs.items() if " info " in text], logs


SERVICES = ("gateway", "scheduler", "s-part", "kv-worker-0")


@pytest.mark.skipif(SANITIZED, reason="--sandbox is off there: sanitizers trace themselves")
def test_services_give_up_what_they_do_not_need():
    """Each runs without new privileges, behind a filter of calls, and answers; with --sandbox off none does."""
    with Mesh("--kv-memory", "64M", "--local-pool", "64M", "--kv-workers", "1") as mesh:
        assert mesh.post("/v1/completions", {"model": "default", "prompt": "Once", "max_tokens": 3})
        assert {name: limits(mesh.pid(name)) for name in SERVICES} == {name: ("1", "2") for name in SERVICES}
        logs = service_logs(mesh)
    assert all(" SANDBOX files=" in text for text in logs.values()), logs
    with Mesh("--kv-memory", "64M", "--local-pool", "64M", "--kv-workers", "1", "--sandbox", "off") as mesh:
        assert {limits(mesh.pid(name)) for name in SERVICES} == {("0", "0")}


def limits(pid):
    """(NoNewPrivs, Seccomp) of a process."""
    with open(f"/proc/{pid}/status", encoding="utf-8") as file:
        fields = dict(line.split(":\t", 1) for line in file.read().splitlines())
    return fields["NoNewPrivs"], fields["Seccomp"]


def ask_for_long(mesh):
    try:
        mesh.post("/v1/completions", {"model": "default", "prompt": "Once", "max_tokens": 6000, "ignore_eos": True})
    except OSError:
        pass  # cut off, as it should be


def test_second_signal_ends_at_once():
    """The first one lets a running request end, which here takes longer than anybody waits."""
    with Mesh("--kv-memory", "64M", "--local-pool", "64M", **PACED) as mesh:
        pids = [mesh.pid(name) for name in ("gateway", "scheduler", "s-part", "kv-worker-0")]
        asked = threading.Thread(target=ask_for_long, args=(mesh,))
        asked.start()
        mesh.wait_metric("fastdecode_gateway_requests_running", lambda value: value == 1)
        mesh.process.send_signal(signal.SIGINT)
        wait_until(lambda: any("ending" in line for line in mesh.output), 20, "it does not say that it is ending")
        time.sleep(0.5)  # sooner, it would count as the same wish
        assert mesh.process.poll() is None
        mesh.process.send_signal(signal.SIGINT)
        assert mesh.process.wait(seconds(10)) == 0
        asked.join(seconds(10))
        assert not any(os.path.exists(f"/proc/{pid}") for pid in pids)


def test_a_stream_longer_than_the_drain_ends_with_an_error():
    with Mesh(*SMALL, "--drain-timeout", "0.5", **PACED) as mesh:
        stream = Stream(mesh.url, body("Once", 6000))
        stream.wait_tokens(3)
        mesh.process.send_signal(signal.SIGTERM)
        assert mesh.process.wait(seconds(30)) == 0
        stream.join(seconds(10))
        assert "this gateway shuts down" in str(stream.error), stream.error
        with open(os.path.join(mesh.run_dir, "gateway.log"), encoding="utf-8") as file:
            log = file.read()
        assert "GATEWAY-CUT-OFF limit_s=0.5" in log and "CLIENT-LEFT" not in log, log
        assert "CHILD-KILLED" not in "".join(mesh.output)


def test_a_model_by_its_name(tmp_path):
    """--model NAME is the one in --models-dir that is called so, or the only one that begins so."""
    models = tmp_path / "models"
    for name in ("Folder-1B", "Twice"):
        (models / name).mkdir(parents=True)
        (models / name / "config.json").write_text("{}")
    (models / "not-a-model").mkdir()
    for name in ("Small-135M.Q4_1.gguf", "Small-135M.Q8_0.gguf", "Other.gguf", "Other-2.gguf", "Twice.gguf", "Big-00001-of-00002.gguf", "Big-00002-of-00002.gguf", "Other.gguf.part"):
        (models / name).write_text("")

    def ask(name):
        return fastdecode("up", *(("--model", name) if name else ()), "--models-dir", models, "--check")

    for name, file in (("Small-135M.Q4_1", "Small-135M.Q4_1.gguf"), ("Small-135M.Q8_0.gguf", "Small-135M.Q8_0.gguf"), ("Other", "Other.gguf"),
                       ("Twice", "Twice/"), ("Twice.gguf", "Twice.gguf"), ("Big", "Big-00001-of-00002.gguf"),
                       ("Folder", "Folder-1B"), ("Folder-1B", "Folder-1B"), (models / "Other.gguf", "Other.gguf")):
        found = ask(name)
        assert found.returncode == 4 and f"{models}/{file}" in found.stderr, (name, found)  # it is found, and nothing is in it
    there = "Big-00001-of-00002.gguf, Folder-1B, Other-2.gguf, Other.gguf, Small-135M.Q4_1.gguf, Small-135M.Q8_0.gguf, Twice, Twice.gguf"
    for name, said in (("Small", f"several begin so; in {models} there are {there}"), ("None", f"No such file or directory; in {models} there are {there}"),
                       ("", f"--model FILE is missing (`make model` gets a small one); in {models} there are {there}"), ("../models/Othe", "No such file")):
        refused = ask(name)
        assert refused.returncode in (2, 3, 4) and said in refused.stderr, (name, refused)
