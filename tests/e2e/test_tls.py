"""Mutual TLS between the services: the certificates that `fastdecode certs` makes, who is refused, what a sniffer sees, and rotation under load.

What one connection does is in tests/integration/test_tls*.c."""
import datetime
import json
import os
import re
import shutil
import signal
import stat
import subprocess

import pytest

import far_host
from conftest import BUILD, PACED, fastdecode, free_port, run, shard, spawn, tiny, wait_until
from rpc_client import raw_varint
from streams import Stream, assert_same, body, join_all, run_all, samples, start_all, words
from tls_mesh import ROLES, Sniffer, TlsMesh, certs

SMALL = ("--kv-memory", "64M", "--local-pool", 0)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Certificates of one CA."""
    return certs(tmp_path_factory.mktemp("tls") / "certs")


@pytest.fixture(scope="module")
def other(tmp_path_factory):
    """Those of another CA."""
    return certs(tmp_path_factory.mktemp("tls") / "others")


@pytest.fixture(scope="module")
def target(folder):
    """A mesh over TLS that goes on as if nothing had been: its pids are the same at the end."""
    with TlsMesh(folder, "--kv-workers", 2, *SMALL) as mesh:
        pids = {name: mesh.pid(name) for name in ("gateway", "scheduler", "s-part", "kv-worker-0", "kv-worker-1")}
        yield mesh
        assert {name: mesh.pid(name) for name in pids} == pids


def openssl(*arguments, **settings):
    return run(["openssl", *arguments], **settings)


# --- fastdecode certs ---------------------------------------------------------------------------------------------------------


def test_certs_makes_a_ca_and_a_certificate_for_each_service(tmp_path):
    made = tmp_path / "certs"
    done = fastdecode("certs", made, "--days", 30, "--host", "10.0.0.7,worker.example")
    assert done.returncode == 0 and f"up --model FILE --tls {made}" in done.stdout and "ca-key.pem away" in done.stdout, done
    keys = [made / "ca-key.pem", *(made / role / "key.pem" for role in ROLES)]
    assert [stat.S_IMODE(path.stat().st_mode) for path in keys] == [0o600] * 5
    assert stat.S_IMODE(made.stat().st_mode) == 0o700
    for role in ROLES:
        cert = made / role / "cert.pem"
        assert openssl("verify", "-x509_strict", "-CAfile", made / "ca.pem", "-purpose", "sslclient", cert).returncode == 0
        text = openssl("x509", "-in", cert, "-noout", "-text").stdout
        assert f"URI:fastdecode://role/{role}, IP Address:10.0.0.7, DNS:worker.example" in text
        assert openssl("x509", "-in", cert, "-noout", "-checkend", 29 * 86400).returncode == 0
        assert openssl("x509", "-in", cert, "-noout", "-checkend", 31 * 86400).returncode == 1
        assert (made / role / "ca.pem").read_bytes() == (made / "ca.pem").read_bytes()


def contents(made):
    return {path: path.read_bytes() for path in made.rglob("*.pem")}


def test_certs_replaces_nothing_unless_it_is_asked_to(tmp_path):
    made = tmp_path / "certs"
    certs(made, "--host", "worker.example")
    first = contents(made)
    done = fastdecode("certs", made)
    assert done.returncode != 0 and "--renew" in done.stderr and "--force" in done.stderr, done
    assert contents(made) == first
    assert fastdecode("certs", made, "--renew", "--force").returncode == 2
    certs(made, "--renew")
    second = contents(made)
    assert second[made / "ca.pem"] == first[made / "ca.pem"] and second[made / "ca-key.pem"] == first[made / "ca-key.pem"]
    for role in ROLES:
        assert second[made / role / "cert.pem"] != first[made / role / "cert.pem"]
        assert "DNS:worker.example" in openssl("x509", "-in", made / role / "cert.pem", "-noout", "-text").stdout
        assert openssl("verify", "-CAfile", made / "ca.pem", made / role / "cert.pem").returncode == 0
    certs(made, "--force")
    assert contents(made)[made / "ca.pem"] != first[made / "ca.pem"]
    for host in ("not a host", "-x", "a..b/c"):
        done = fastdecode("certs", tmp_path / "none", "--host", host)
        assert done.returncode == 2 and "is neither a host's name nor an address" in done.stderr and not (tmp_path / "none").exists(), done


# --- settings -----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("broken, says", [
    ("another role", "is for a gateway, and this is a kv-worker"),
    ("another CA", "of a CA that is not in ca.pem"),
    ("another key", "key values mismatch"),
    ("expired", "has expired"),
    ("no file", "key.pem: No such file or directory; fastdecode certs makes such files"),
    ("no folder", "No such file or directory"),
])
def test_a_service_does_not_start_with_a_certificate_that_peers_would_refuse(tmp_path, folder, other, broken, says):
    own = tmp_path / "own"
    shutil.copytree(os.path.join(folder, "gateway" if broken == "another role" else "kv-worker"), own)
    if broken == "another CA":
        shutil.copy(os.path.join(other, "ca.pem"), own)
    elif broken == "another key":
        shutil.copy(os.path.join(folder, "s-part", "key.pem"), own)
    elif broken == "expired":
        short = certs(tmp_path / "short", "--days", "0.00002")  # 1.7 s
        wait_until(lambda: openssl("x509", "-in", f"{short}/kv-worker/cert.pem", "-noout", "-checkend", "0").returncode, 20, "still good")
        own = os.path.join(short, "kv-worker")
    elif broken == "no file":
        os.remove(own / "key.pem")
    elif broken == "no folder":
        own = tmp_path / "nowhere"
    for check in ([], ["--check"]):
        done = run([os.path.join(BUILD, "bin", "kv-worker"), "--scheduler", "tls+tcp://127.0.0.1:1", "--tls", own, "--kv-memory", "1M", *check])
        assert done.returncode == (3 if broken == "expired" else 2) and says in done.stderr, done  # later, or by another clock, it is good


def test_plain_tcp_beyond_loopback_is_not_connected_to(tmp_path):
    secret = tmp_path / "secret"
    secret.touch(0o600)
    secret.write_text("not a short one, this secret\n")
    for name, more in (("kv-worker", ["--kv-memory", "1M"]), ("s-part", ["--model", tiny(), "--calibrate", "off", "--local-pool", "1M"]),
                       ("gateway", ["--model", tiny(), "--port", "0"])):
        command = [os.path.join(BUILD, "bin", name), "--scheduler", "tcp://192.0.2.1:7400", "--mesh-secret-file", secret, *more]
        done = run(command)
        assert done.returncode == 2 and "plain tcp" in done.stderr and "fastdecode certs" in done.stderr and "--insecure" in done.stderr, done
        with open(tmp_path / name, "w+", encoding="utf-8") as log:
            running = spawn([*map(str, command)], stdout=log, stderr=log, env=dict(os.environ, FD_INSECURE="on"))
            try:
                wait_until(lambda: re.search(r"KV-WORKER |MODEL-LOADED|GATEWAY-LISTENS", (tmp_path / name).read_text()), 60, "not started")
            finally:
                running.kill()
                running.wait()


# --- a mesh -------------------------------------------------------------------------------------------------------------------


@pytest.mark.sanitizer
def test_the_same_bytes_as_over_plain_sockets(mesh, target):
    requests = [body(words(30 + 40 * i, i), 24, i, sampled=i % 2 == 1) for i in range(8)]
    assert_same(run_all(target.url, requests), run_all(mesh.url, requests))
    logs = {name: target.log(name) for name in ("scheduler", "s-part", "kv-worker-0", "kv-worker-1", "gateway")}
    for name, text in logs.items():
        assert f" TLS dir=" in text and f"role={name.removesuffix('-0').removesuffix('-1')} " in text, text
        assert "ipc://" not in text.replace("gateway.sock", "") or name == "gateway", text
        assert not re.search(r" (warn|error) \S+ (TLS|RPC)-", text), text  # what a busy machine is late for is none of theirs


def test_the_gateway_shows_the_mesh(target):
    state = json.loads(target.get("/mesh/state"))
    assert state["mesh"] and {"kv-worker-0", "kv-worker-1"} <= {place["name"] for place in state["mesh"]["places"]}, state


def test_stages_and_page_handover_over_tls(folder):
    """Two s-parts behind each other; a worker that leaves hands its pages to the other, and the streams go on with the same bytes."""
    options = ("--s-parts", 2, "--kv-workers", 2, *SMALL, "--prefix-cache", "off")
    requests = [body(words(60, i), 40, i, sampled=True) for i in range(6)]
    with TlsMesh(folder, *options, **PACED) as mesh:
        mesh.wait_metric("fastdecode_stages", lambda count: count == 2)
        wanted = run_all(mesh.url, requests)
        streams = start_all(mesh.url, requests)
        for stream in streams:
            stream.wait_tokens(5)
        mesh.kill("kv-worker-1", signal.SIGTERM)
        assert_same(join_all(streams), wanted)
        assert mesh.metric("fastdecode_sequences_rebuilt_total") == 0
        assert mesh.metric("fastdecode_sequences_moved_total") > 0


PORTS = [("scheduler", "listen"), ("s-part", "listen"), ("kv-worker-0", "control"), ("kv-worker-1", "tensors")]
SOME = shard(PORTS, 2)  # each waits until the same reason is logged again


@pytest.mark.parametrize("service, what", [*SOME, *(pytest.param(*port, marks=pytest.mark.full) for port in PORTS if port not in SOME)])
def test_strangers_at_each_port(folder, other, target, service, what):
    """By another implementation: without a certificate, with one of another CA, and with versions of TLS."""
    host, port = target.address(service, what)

    def connect(*arguments, certificates=folder):
        of = [] if certificates is None else ["-cert", f"{certificates}/gateway/cert.pem", "-key", f"{certificates}/gateway/key.pem"]
        done = openssl("s_client", "-connect", f"{host}:{port}", "-CAfile", f"{folder}/ca.pem", "-ign_eof", *of, *arguments,
                       stdin=subprocess.DEVNULL)
        return done.stdout + done.stderr

    for version in ("-tls1_2", "-tls1_3"):
        good = connect(version)
        assert "Verify return code: 0 (ok)" in good and "alert" not in good, good
        assert "alert" in connect(version, certificates=None)
        assert "alert" in connect(version, certificates=other)
    old = connect("-tls1_1", "-cipher", "DEFAULT:@SECLEVEL=0")
    assert "alert protocol version" in old or "no protocols available" in old, old
    plain = run(["curl", "-s", f"http://{host}:{port}/"])
    assert plain.returncode != 0
    reasons = ("it has no certificate", "of a CA that is not in ca.pem", "it speaks no TLS of version 1.2 or later", "it does not speak TLS")
    for reason in reasons:  # one line each, though some came twice
        lines = re.findall(rf'TLS-REFUSED at="tls\+tcp://{host}:{port}" peer="127\.0\.0\.1:\d+" why="[^"]*{re.escape(reason)}', target.log(service))
        assert len(lines) == 1, target.log(service)
    if service == "scheduler":  # some came twice
        target.wait_metric("fastdecode_tls_refused_total", lambda count: count > len(reasons))


def test_health_wants_a_certificate(folder, other, target, tmp_path):
    address = "tls+tcp://{}:{}".format(*target.address("scheduler"))
    secret = ("--mesh-secret-file", os.path.join(target.run_dir, "mesh-secret"))
    assert fastdecode("health", address, *secret, "--tls", f"{folder}/kv-worker").stdout.strip().endswith("ready")
    without = fastdecode("health", address)
    assert without.returncode == 2 and "--tls DIR" in without.stderr, without
    wrong = fastdecode("health", address, "--tls", f"{other}/kv-worker", "--timeout-ms", "3000")
    assert wrong.returncode == 3 and "TLS-REFUSED" in wrong.stderr, wrong
    assert f"{address}: TLS is refused: its certificate is of a CA that is not in ca.pem" in wrong.stderr, wrong
    trusting = tmp_path / "trusting"  # the scheduler refuses it, once it believes that the handshake is done
    shutil.copytree(f"{other}/kv-worker", trusting)
    with open(trusting / "ca.pem", "a", encoding="ascii") as file, open(f"{folder}/ca.pem", encoding="ascii") as more:
        file.write(more.read())
    wrong = fastdecode("health", address, "--tls", trusting)
    assert wrong.returncode == 3 and "TLS is refused: it refuses this service's certificate" in wrong.stderr, wrong


def test_health_says_that_one_side_does_not_speak_tls(folder, target):
    wrong = fastdecode("health", "tcp://{}:{}".format(*target.address("scheduler")))
    assert wrong.returncode == 3 and "the peer speaks TLS" in wrong.stderr, wrong
    port = free_port()
    scheduler = spawn([f"{BUILD}/bin/scheduler", f"--listen=tcp://127.0.0.1:{port}"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    wait_until(lambda: "not ready" in fastdecode("health", f"tcp://127.0.0.1:{port}").stdout, 30, "it does not listen")
    wrong = fastdecode("health", f"tls+tcp://127.0.0.1:{port}", "--tls", f"{folder}/kv-worker")
    scheduler.kill()
    scheduler.wait()
    assert wrong.returncode == 3 and "TLS is refused: it has closed the connection in the handshake (plain tcp?)" in wrong.stderr, wrong


# --- who listens on the way ---------------------------------------------------------------------------------------------------


def start_far(host, tmp_path, name, program, *options):
    with open(tmp_path / f"{name}.log", "wb") as log:
        return spawn(host.inside([os.path.join(BUILD, "bin", program), *map(str, options)]) if host else
                     [os.path.join(BUILD, "bin", program), *map(str, options)], stdout=log, stderr=subprocess.STDOUT)


@pytest.mark.parametrize("plain", (False, True), ids=("tls", "plain"))
def test_what_a_sniffer_sees(tmp_path, folder, plain):
    """The gateway is on one host, scheduler and s-part on another, and someone reads their link. The prompt crosses it as token ids."""
    reason = far_host.available()
    if reason:
        pytest.skip(reason)
    secret, port = tmp_path / "secret", tmp_path / "port"
    secret.touch(0o600)
    secret.write_text("not a short one, this secret\n")
    log = lambda name: (tmp_path / f"{name}.log").read_text(errors="replace")
    started = []
    with far_host.FarHost("fd-tls") as host, Sniffer(host.link) as sniffer:
        scheme, protect = ("tcp", lambda role: ["--insecure", "--mesh-secret-file", secret]) if plain else \
            ("tls+tcp", lambda role: ["--tls", f"{folder}/{role}"])
        try:
            started.append(start_far(host, tmp_path, "scheduler", "scheduler", "--listen", f"{scheme}://{host.address}:0", *protect("scheduler")))
            wait_until(lambda: " SCHEDULER " in log("scheduler"), 30, lambda: log("scheduler"))
            address = re.search(r" SCHEDULER listen=(\S+)", log("scheduler"))[1]
            started.append(start_far(host, tmp_path, "s-part", "s-part", "--model", tiny(), "--scheduler", address, "--calibrate", "off",
                                     "--local-pool", "64M", "--threads", 1, "--listen", f"{scheme}://{host.address}:0", *protect("s-part")))
            started.append(start_far(None, tmp_path, "gateway", "gateway", "--model", tiny(), "--scheduler", address, "--port", 0,
                                     "--port-file", port, *protect("gateway")))
            wait_until(port.exists, 30, lambda: log("gateway"))
            url = f"http://127.0.0.1:{int(port.read_text())}"
            wait_until(lambda: run(["curl", "-fsS", f"{url}/ready"]).returncode == 0, 60, lambda: log("s-part"))
            stream = Stream(url, body(words(60, 7), 8))
            stream.join()
            assert stream.error is None and len(stream.tokens) == 8, stream.error
            ids = run(["curl", "-fsS", f"{url}/tokenize", "-d", '{"prompt": "' + words(60, 7) + '"}']).stdout
        finally:
            for process in started:
                process.kill()
                process.wait()
    prompt = b"".join(map(raw_varint, map(int, re.search(r"\[([\d, ]+)\]", ids)[1].split(","))))
    assert len(prompt) > 60 and sniffer.bytes() > 4 * len(prompt)
    assert sniffer.has(prompt[20:60]) == plain
    assert sniffer.has(b"gateway") == plain  # the service's name, in its hello


# --- rotation -----------------------------------------------------------------------------------------------------------------


def ends_of(path):
    """When a certificate ends, in seconds since 1970, as openssl says it."""
    said = openssl("x509", "-in", path, "-noout", "-enddate", "-dateopt", "iso_8601").stdout
    return int(datetime.datetime.fromisoformat(said.strip().partition("=")[2].replace("Z", "+00:00")).timestamp())


def test_metrics_say_when_certificates_end(tmp_path):
    """Of every service, and after the files have been replaced: those that are in use."""
    folder = certs(tmp_path / "certs", "--days", 90)
    with TlsMesh(folder, "--kv-workers", 2, *SMALL, model=tiny()) as mesh:
        def told():
            return {**samples(mesh, "fastdecode_certificate_expiry_timestamp_seconds"), **samples(mesh, "fastdecode_gateway_certificate_expiry_timestamp_seconds")}

        def wanted():
            ca, of_role = ends_of(f"{folder}/ca.pem"), {role: ends_of(f"{folder}/{role}/cert.pem") for role in ROLES}
            services = {"scheduler": "scheduler", "s-part": "s-part", "kv-worker-0": "kv-worker", "kv-worker-1": "kv-worker"}
            return {**{f'service="{name}",certificate="mesh"': of_role[role] for name, role in services.items()},
                    **{f'service="{name}",certificate="ca"': ca for name in services},
                    'certificate="mesh"': of_role["gateway"], 'certificate="ca"': ca}

        wait_until(lambda: told() == wanted(), 30, lambda: f"{told()}, want {wanted()}")
        before = told()
        certs(folder, "--renew", "--days", 5)
        assert wanted() != before
        wait_until(lambda: told() == wanted(), 30, lambda: f"{told()}, want {wanted()}")
        mesh.kill("kv-worker-1", signal.SIGSTOP)  # of one that has gone nobody needs to renew it
        wait_until(lambda: not any("kv-worker-1" in label for label in told()), 30, told)
        mesh.kill("kv-worker-1", signal.SIGCONT)
        wait_until(lambda: told() == wanted(), 30, told)


def count_reloads(mesh):
    return sum(mesh.log(name).count("TLS-RELOADED") for name in ("gateway", "scheduler", "s-part", "kv-worker-0", "kv-worker-1"))


@pytest.mark.parametrize("how", ("seen", "hangup", "new CA"))
def test_rotation_loses_no_request(tmp_path, how):
    """New certificates under load, as they are seen or on SIGHUP; and a new CA at once, when each connection is made anew."""
    folder = certs(tmp_path / "certs")
    requests = [body(words(40, i), 120, i, sampled=True) for i in range(6)]
    with TlsMesh(folder, "--kv-workers", 2, *SMALL, **PACED) as mesh:
        wanted = run_all(mesh.url, requests)
        streams = start_all(mesh.url, requests)
        for stream in streams:
            stream.wait_tokens(3)
        certs(folder, "--force" if how == "new CA" else "--renew")
        if how == "hangup":
            for name in ("gateway", "scheduler", "s-part", "kv-worker-0", "kv-worker-1"):
                mesh.kill(name, signal.SIGHUP)
        wait_until(lambda: count_reloads(mesh) >= 5, 30, mesh.logs)
        if how == "new CA":
            wait_until(lambda: "TLS-ENDED" in mesh.log("scheduler") or all(stream.done for stream in streams), 30, mesh.logs)
        late = start_all(mesh.url, requests)
        assert_same(join_all(streams), wanted)
        assert_same(join_all(late), wanted)
        assert all(not re.search(r"CHILD-DIED", line) for line in mesh.output), mesh.logs()
        if how != "new CA":
            assert not any("TLS-ENDED" in mesh.log(name) for name in ("gateway", "scheduler", "s-part", "kv-worker-0")), mesh.logs()
