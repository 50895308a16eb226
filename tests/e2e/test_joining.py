"""Who joins a mesh, who is refused and why, and what the logs say of services that do not find each other."""
import os
import re
import signal
import socket
import subprocess
import time

import pytest

from conftest import BUILD, fastdecode, seconds, tiny, wait_until
from rpc_client import Connection, decode, one

KV_WORKER = ("--calibrate=off", "--kv-memory=16M", "--threads=1")


def unreachable(log):
    """What the log says of an address where nobody answers; once it says so."""
    wait_until(lambda: "PEER-UNREACHABLE" in log(), 30, log)
    lines = re.findall(r"PEER-UNREACHABLE .*", log())
    assert len(lines) == 1, log()
    return lines[0]


def metrics(scheduler, secret=None):
    inside = Connection(scheduler, "gateway", secret=secret)
    told = one(decode(inside.call("Generator/Metrics", b"").messages[0]), 1).decode()
    inside.close()
    return told


# --- addresses --------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("program", ("s-part", "kv-worker", "gateway"))
def test_a_wrong_scheduler_address_is_said(by_hand, program, tmp_path):
    wrong = f"ipc://{tmp_path}/nothing.sock"
    if program == "s-part":
        _, log = by_hand.s_part("all", f"--scheduler={wrong}")
    else:
        options = {"kv-worker": KV_WORKER, "gateway": (f"--model={tiny()}", "--port=0")}[program]
        by_hand.start("it", program, f"--scheduler={wrong}", f"--listen=ipc://{tmp_path}/it.sock", *options,
                      *([f"--listen-tensors=ipc://{tmp_path}/it-t.sock"] if program == "kv-worker" else ()))
        log = lambda: by_hand.log("it")
    line = unreachable(log)
    assert f"address={wrong} " in line and "the scheduler (--scheduler)" in line and "check the address" in line


def test_a_host_that_does_not_answer_is_said(by_hand):
    """Neither accepted nor refused: the queue of connections there is full."""
    with socket.socket() as full:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        waiting = []
        for _ in range(4):
            waiting.append(socket.socket())
            waiting[-1].setblocking(False)
            waiting[-1].connect_ex(full.getsockname())
        _, log = by_hand.s_part("all", f"--scheduler=tcp://127.0.0.1:{full.getsockname()[1]}")
        assert f"address=tcp://127.0.0.1:{full.getsockname()[1]} " in unreachable(log)
        for one in waiting:
            one.close()


def test_a_wrong_advertised_address_is_said(by_hand, tmp_path):
    """By whoever is to connect to it: the scheduler, and the stage before."""
    by_hand.s_part("0:2", f"--advertise-tensors=ipc://{tmp_path}/nothing-0.sock")  # nobody uses that of the first
    by_hand.s_part("2:4", f"--advertise-tensors=ipc://{tmp_path}/nothing-1.sock")
    line = unreachable(lambda: by_hand.log("s-part-1"))
    assert "nothing-1.sock" in line and "the next stage" in line


def test_a_wrong_address_of_an_s_part_is_said_by_the_scheduler(by_hand, tmp_path):
    wrong, _ = by_hand.s_part("all", f"--advertise=ipc://{tmp_path}/nothing.sock")
    line = unreachable(lambda: by_hand.log("scheduler"))
    assert "nothing.sock" in line and "has registered (its --advertise)" in line
    assert "is alive" in by_hand.refused("all")
    wrong.kill()
    by_hand.s_part("all")
    by_hand.wait_ready()


def test_a_wrong_address_for_tensors_is_said_by_the_scheduler(by_hand, tmp_path):
    """Before any request comes. The worker's other connection is good, and it is up once its tensors are where it says."""
    wrong = tmp_path / "elsewhere.sock"
    by_hand.s_part("all")
    by_hand.start("worker", "kv-worker", f"--scheduler={by_hand.scheduler}", f"--listen=ipc://{tmp_path}/worker.sock",
                  f"--listen-tensors=ipc://{tmp_path}/worker-t.sock", f"--advertise-tensors=ipc://{wrong}", *KV_WORKER)
    log = lambda: by_hand.log("scheduler")
    wait_until(lambda: "PLACE-UNREACHABLE" in log(), 30, log)
    line = re.search("PLACE-UNREACHABLE .*", log())[0]
    assert f"address=ipc://{wrong} " in line and "--advertise-tensors" in line
    assert "PLACE-UP name=worker" not in log() and "PLACE-UP name=kv-worker" not in log()
    os.symlink(tmp_path / "worker-t.sock", wrong)
    wait_until(lambda: "PLACE-REACHED" in log() and len(re.findall("PLACE-UP ", log())) == 2, 30, log)  # the s-part's, and the worker's
    assert log().count("PLACE-UNREACHABLE") == 1


# --- two for one place ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("layers", ("all", "2:4"))
def test_a_second_s_part_waits_for_the_first_ones_end(by_hand, layers):
    if layers != "all":
        by_hand.s_part("0:2")
    first, first_log = by_hand.s_part(layers)
    by_hand.wait_ready()
    name = f"s-part-{len(by_hand.processes) - 1}"
    _, standby_log = by_hand.s_part(layers)
    _, namesake_log = by_hand.s_part(layers, f"--name={name}")  # a second one by mistake, not that one started again
    for log in (standby_log, namesake_log):
        wait_until(lambda log=log: "REGISTER-REFUSED" in log(), 30, log)
        assert re.search(rf"are on {name} \(ipc://\S+\), which is alive", log()), log()
    assert by_hand.health().strip().endswith("ready") and "PLACE-DOWN" not in by_hand.log("scheduler")
    assert first_log().count(" REGISTERED ") == 1
    by_hand.processes[-1].kill()
    first.kill()
    wait_until(lambda: " REGISTERED " in standby_log(), 30, standby_log)
    by_hand.wait_ready()
    assert standby_log().count("REGISTER-REFUSED") == 1, standby_log()


def test_the_first_comes_back_once_the_later_one_is_gone(by_hand):
    """It was stopped for so long that another one has its place; then that one ends."""
    first, first_log = by_hand.s_part("all")
    by_hand.wait_ready()
    os.kill(first.pid, signal.SIGSTOP)
    later, later_log = by_hand.s_part("all")
    wait_until(lambda: " REGISTERED " in later_log(), 30, later_log)
    by_hand.wait_ready()
    os.kill(first.pid, signal.SIGCONT)
    wait_until(lambda: "REGISTER-REFUSED" in first_log(), 30, first_log)
    assert "which is alive" in first_log()
    later.kill()
    wait_until(lambda: first_log().count(" REGISTERED ") == 2, 30, first_log)
    by_hand.wait_ready()
    assert first_log().count("REGISTER-REFUSED") <= 2, first_log()  # there is one more reason for a moment: the later one may come back


def test_a_wrong_model_does_not_stay(by_hand):
    """A stage alone does not make its model the mesh's: neither for the next s-part nor for the workers."""
    by_hand.start("worker", "kv-worker", f"--scheduler={by_hand.scheduler}", f"--listen=ipc://{by_hand.folder}/worker.sock",
                  f"--listen-tensors=ipc://{by_hand.folder}/worker-t.sock", *KV_WORKER)
    wrong, _ = by_hand.s_part("0:2", "--kv-type=f32")
    wait_until(lambda: "layers 2:4 are on no s-part" in by_hand.health(), 30, by_hand.health)
    _, log = by_hand.s_part("2:4")
    wait_until(lambda: "REGISTER-REFUSED" in log(), 30, log)
    assert "this s-part has --kv-type f16, and the mesh f32" in log()
    refused = f"layers 2:4 are on no s-part: s-part-{len(by_hand.processes) - 1} is refused: this s-part has --kv-type f16, and the mesh f32"
    wait_until(lambda: refused in by_hand.health(), 30, by_hand.health)
    assert by_hand.log("scheduler").count("MEMBER-REFUSED") == 1
    wrong.kill()
    wait_until(lambda: " REGISTERED " in log(), 30, log)
    by_hand.s_part("0:2")
    by_hand.wait_ready()
    wait_until(lambda: "PLACE-UP name=kv-worker" in by_hand.log("scheduler"), 30, lambda: by_hand.log("worker"))


def test_an_s_part_that_does_not_get_as_far_as_its_name_is_said_too(by_hand, tmp_path):
    """It has no secret; one of another version is refused in the same place."""
    secret = tmp_path / "secret"
    secret.touch(0o600)
    secret.write_text("a secret of some length")
    by_hand.scheduler = f"ipc://{tmp_path}/locked.sock"
    by_hand.start("locked", "scheduler", f"--listen={by_hand.scheduler}", f"--mesh-secret-file={secret}")
    by_hand.s_part("all")
    log = lambda: by_hand.log("locked")
    wait_until(lambda: "MEMBER-REFUSED name=s-part kind=s-part" in log(), 30, log)
    health = lambda: fastdecode("health", by_hand.scheduler, "--mesh-secret-file", secret).stdout
    wait_until(lambda: "no s-part is up: s-part is refused: scheduler requires the mesh secret, and s-part has none" in health(), 30, health)
    assert log().count("MEMBER-REFUSED") == log().count("RPC-REFUSED") == 1, log()
    by_hand.start("outside", "gateway", f"--scheduler={by_hand.scheduler}", "--port=0", "--admin-listen=none", f"--model={tiny()}")
    why = 'MESH-DOWN why="'
    wait_until(lambda: why in by_hand.log("outside"), 30, lambda: by_hand.log("outside"))
    time.sleep(seconds(2))  # it dials again and again
    assert by_hand.log("outside").count(why) == 1 and "mesh secret" in by_hand.log("outside"), by_hand.log("outside")
    told = metrics(by_hand.scheduler, secret.read_bytes())
    for kind in ("s-part", "gateway"):
        assert re.search(rf'^fastdecode_refused_total{{kind="{kind}",reason="secret"}} [1-9]', told, re.M), told


def test_lines_that_a_full_disk_loses_are_in_the_metrics(by_hand):
    full = "--log-file=/dev/full"
    by_hand.start("worker", "kv-worker", f"--scheduler={by_hand.scheduler}", "--name=worker", f"--listen=ipc://{by_hand.folder}/worker.sock",
                  f"--listen-tensors=ipc://{by_hand.folder}/worker-t.sock", full, *KV_WORKER)
    by_hand.s_part("all", full)
    by_hand.wait_ready()
    lost = lambda service: re.search(rf'^fastdecode_log_lines_lost_total{{service="{service}"}} [1-9]', metrics(by_hand.scheduler), re.M)
    for service in ("worker", "s-part"):
        wait_until(lambda: lost(service), 30, lambda: metrics(by_hand.scheduler))
    assert not lost("scheduler")


# --- probes -----------------------------------------------------------------------------------------------------------------------


def test_a_service_probes_itself(by_hand, tmp_path):
    """With the settings that it has: a probe needs no other program in an image. One that is stopped is not alive, though the kernel accepts connections
    for it.
    """
    options = (f"--scheduler=ipc://{tmp_path}/none.sock", f"--listen=ipc://{tmp_path}/w.sock", f"--listen-tensors=ipc://{tmp_path}/t.sock", *KV_WORKER)

    def probe(what="--probe"):
        return subprocess.run([f"{BUILD}/bin/kv-worker", *options, what], capture_output=True, text=True, check=False)

    said = probe()
    assert said.returncode == 3 and "nothing answers there" in said.stderr
    by_hand.start("worker", "kv-worker", *options)
    wait_until(lambda: "not ready" in probe().stdout, 30, "it does not answer")
    assert probe().returncode == 3  # it is in no mesh
    assert probe("--probe-alive").returncode == 0
    os.kill(by_hand.processes[-1].pid, signal.SIGSTOP)
    said = probe("--probe-alive")
    assert said.returncode == 3 and not said.stdout, said


def test_health_has_the_exit_codes_of_services(by_hand, tmp_path):
    """The table of docs/operations.md: 0 ready, 2 what was asked, 3 what is there."""
    for asked, says in (((), "want one ADDRESS"), (("scheduler",), "want one ADDRESS"), (("tcp://127.0.0.1",), "a port is missing"),
                        (("--timeout-ms=0", by_hand.scheduler), "--timeout-ms"),
                        (("--mesh-secret-file", tmp_path / "none", by_hand.scheduler), "No such file")):
        said = fastdecode("health", *asked)
        assert said.returncode == 2 and says in said.stderr and not said.stdout, said
    said = fastdecode("health", f"ipc://{tmp_path}/none.sock")
    assert said.returncode == 3 and "nothing answers there" in said.stderr and not said.stdout, said
    wait_until(lambda: "not ready" in by_hand.health(), 30, by_hand.health)
    said = fastdecode("health", by_hand.scheduler)
    assert said.returncode == 3 and "scheduler " in said.stdout and "not ready: " in said.stdout and not said.stderr, said
    by_hand.s_part("all", "--local-pool=0")
    wait_until(lambda: "not ready: no KV worker is up" in by_hand.health(), 30, by_hand.health)
    by_hand.start("worker", "kv-worker", f"--scheduler={by_hand.scheduler}", f"--listen=ipc://{by_hand.folder}/worker.sock",
                  f"--listen-tensors=ipc://{by_hand.folder}/worker-t.sock", *KV_WORKER)
    by_hand.wait_ready()
    said = fastdecode("health", by_hand.scheduler)
    assert said.returncode == 0 and said.stdout.endswith(" ready\n") and not said.stderr, said


def test_a_worker_finds_the_address_at_which_others_reach_it(by_hand, tmp_path):
    """It listens on all interfaces, and says where the way to the scheduler begins."""
    secret = tmp_path / "secret"
    secret.write_text("a secret of some length")
    secret.chmod(0o600)
    by_hand.start("worker", "kv-worker", "--scheduler=tcp://127.0.0.1:9", "--listen=tcp://0.0.0.0:0", "--listen-tensors=tcp://0.0.0.0:0", *KV_WORKER,
                  "--insecure", f"--mesh-secret-file={secret}")
    line = wait_until(lambda: re.search(r"KV-WORKER name=.*", by_hand.log("worker")), 30, lambda: by_hand.log("worker"))[0]
    assert re.search(r"control=tcp://127\.0\.0\.1:\d+ tensors=tcp://127\.0\.0\.1:\d+ ", line), line
