"""The gateway's door: keys with limits, certificates, the admin address, the record of who asked for what."""
import concurrent.futures
import json
import os
import re
import socket
import ssl
import subprocess
import time
import urllib.error
import urllib.request

import pytest

from conftest import BUILD, fastdecode, spawn, tiny, wait_until
from pace import seconds

SECRET = "a word that no record may have"


def make_key(path, name, *limits):
    done = fastdecode("key", name, "--add", path, *limits)
    assert done.returncode == 0, done
    return done.stdout.strip()


def ask(url, key, tokens=2, prompt=SECRET, context=None, path="/v1/completions"):
    """(status, headers, parsed body)."""
    body = json.dumps({"model": "default", "prompt": prompt, "max_tokens": tokens, "ignore_eos": True}).encode()
    request = urllib.request.Request(url + path, body, {"Content-Type": "application/json", "Authorization": f"Bearer {key}"})
    try:
        with urllib.request.urlopen(request, timeout=seconds(60), context=context) as reply:
            return reply.status, dict(reply.headers), json.loads(reply.read())
    except urllib.error.HTTPError as refused:
        with refused:
            return refused.code, dict(refused.headers), json.loads(refused.read())


def test_limits_hold_exactly(start_mesh, tmp_path):
    """64 clients at once; a removed key is refused, one that was added is known, and nothing is lost meanwhile."""
    keys, audit = tmp_path / "keys", tmp_path / "audit.jsonl"
    few = make_key(keys, "few", "--requests", 40)
    words = make_key(keys, "words", "--tokens", 2000)
    night = make_key(keys, "night", "--class", "batch", "--models", "another")
    assert oct(os.stat(keys).st_mode & 0o777) == "0o600" and few not in keys.read_text(encoding="ascii")
    mesh = start_mesh("--api-key-file", keys, "--audit", audit)
    with concurrent.futures.ThreadPoolExecutor(64) as pool:
        answers = list(pool.map(lambda _: ask(mesh.url, few), range(64)))
    assert sorted(status for status, _, _ in answers) == [200] * 40 + [429] * 24
    headers = next(headers for status, headers, _ in answers if status == 429)
    assert headers["x-ratelimit-limit-requests"] == "40" and headers["x-ratelimit-remaining-requests"] == "0"
    assert 1 <= int(headers["Retry-After"]) <= 60 and re.fullmatch(r"\d+s", headers["x-ratelimit-reset-requests"])

    with concurrent.futures.ThreadPoolExecutor(64) as pool:
        answers = list(pool.map(lambda _: ask(mesh.url, words, 60), range(64)))
    served = [body["usage"]["total_tokens"] for status, _, body in answers if status == 200]
    assert 0 < sum(served) <= 2000 and len(served) < 64, served
    assert {status for status, _, _ in answers} == {200, 429}
    left = int(ask(mesh.url, words, 2000)[1]["x-ratelimit-remaining-tokens"])
    assert left == 2000 - sum(served)  # what was taken too much has come back

    status, _, body = ask(mesh.url, night)
    assert status == 403 and body["error"]["code"] == "model_not_allowed"
    status, _, body = ask(mesh.url, "fd-wrong")
    assert status == 401 and body["error"]["message"].startswith("Incorrect API key provided") and body["error"]["code"] == "invalid_api_key"
    assert ask(mesh.url, "fd-wrong", path="/v1/messages")[2]["error"] == {"type": "authentication_error", "message": "invalid x-api-key"}

    lines = keys.read_text(encoding="ascii").splitlines(keepends=True)
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        other = make_key(keys, "rotating")
        wait_until(lambda: ask(mesh.url, other)[0] == 200, 30)
        running = [pool.submit(ask, mesh.url, other, 1000) for _ in range(8)]
        mesh.wait_metric("fastdecode_requests_running", lambda count: count == 8)  # all of them have begun
        replaced = tmp_path / "keys.new"
        replaced.touch(0o600)
        replaced.write_text("".join(lines) + "broken line here\n", encoding="ascii")
        os.replace(replaced, keys)  # refused: the old one counts
        wait_until(lambda: "KEYS-NOT-READ" in open(os.path.join(mesh.run_dir, "gateway.log"), encoding="utf-8").read(), 30)
        replaced.touch(0o600)
        replaced.write_text("".join(lines), encoding="ascii")
        os.replace(replaced, keys)
        wait_until(lambda: ask(mesh.url, other)[0] == 401, 30)
        assert all(future.result()[0] == 200 for future in running)  # those that began with the removed key ended
        other = make_key(tmp_path / "more", "open")
        keys.chmod(0o644)
        with open(keys, "a", encoding="ascii") as file:
            file.write((tmp_path / "more").read_text(encoding="ascii").splitlines()[-1] + "\n")
        log = lambda: open(os.path.join(mesh.run_dir, "gateway.log"), encoding="utf-8").read()
        wait_until(lambda: "other users can read or change it (mode 644)" in log(), 30, log)
        assert ask(mesh.url, other)[0] == 401
        keys.chmod(0o600)  # as that line says
        wait_until(lambda: ask(mesh.url, other)[0] == 200, 30)

    record = audit.read_text(encoding="utf-8")
    assert SECRET not in record and few not in record and other not in record and oct(os.stat(audit).st_mode & 0o777) == "0o600"
    rows = [json.loads(line) for line in record.splitlines()]
    assert sum(row["key"] == "few" and row["status"] == 200 for row in rows) == 40
    row = next(row for row in rows if row["key"] == "words" and row["status"] == 200)
    assert row["completion_tokens"] == 60 and row["prompt_tokens"] > 0 and row["client"] == "127.0.0.1" and row["seconds"] > 0
    assert row["path"] == "/v1/completions" and any(row["status"] == 401 and row["key"] is None for row in rows)


def make_certificate(folder, name, days=30):
    subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", str(days), "-subj",
                    f"/CN={name}", "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", folder / "new.key", "-out", folder / "new.crt"],
                   check=True, capture_output=True)
    os.replace(folder / "new.key", folder / "tls.key")
    os.replace(folder / "new.crt", folder / "tls.crt")


def subject(port, *options):
    done = subprocess.run(["openssl", "s_client", "-connect", f"127.0.0.1:{port}", *options], input=b"", capture_output=True,
                          timeout=seconds(30))
    found = re.search(rb"subject=CN ?= ?(\S+)", done.stdout)
    return found and found[1].decode()


def test_certificates(start_mesh, tmp_path):
    make_certificate(tmp_path, "first")
    mesh = start_mesh("--tls-cert", tmp_path / "tls.crt", "--tls-key", tmp_path / "tls.key", "--admin-listen", "127.0.0.1:0")
    assert mesh.url.startswith("https://")
    port = mesh.url.rpartition(":")[2]
    assert subject(port, "-tls1_2") == "first" and subject(port, "-tls1_3") == "first"
    assert subject(port, "-tls1_1", "-cipher", "ALL:@SECLEVEL=0") is None
    trust = ssl.create_default_context(cafile=tmp_path / "tls.crt")
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        running = [pool.submit(ask, mesh.url, "", 300, "Say", trust) for _ in range(4)]
        made = time.time()
        make_certificate(tmp_path, "second", 90)
        wait_until(lambda: subject(port) == "second", 30)
        assert all(future.result()[0] == 200 for future in running)
    (tmp_path / "tls.crt").write_text("nonsense", encoding="ascii")
    log = os.path.join(mesh.run_dir, "gateway.log")
    wait_until(lambda: "CERTIFICATE-NOT-READ" in open(log, encoding="utf-8").read(), 30)
    assert subject(port) == "second"
    admin = re.search(r"GATEWAY-LISTENS .*admin_port=(\d+)", open(log, encoding="utf-8").read())[1]
    with urllib.request.urlopen(f"http://127.0.0.1:{admin}/metrics", timeout=seconds(30)) as reply:
        told = re.search(r'^fastdecode_gateway_certificate_expiry_timestamp_seconds\{certificate="https"\} (\d+)$', reply.read().decode(), re.M)
    assert abs(int(told[1]) - made - 90 * 86400) < seconds(60)
    status, _, body = ask(f"http://127.0.0.1:{admin}", "")
    assert status == 404 and "--port" in body["error"]["message"]
    loose = ssl._create_unverified_context()  # pylint: disable=protected-access
    status, _, body = ask(mesh.url, "", context=loose, path="/metrics")
    assert status == 404 and "--admin-listen" in body["error"]["message"]


def test_a_key_that_a_gateway_would_refuse_is_not_added(tmp_path):
    """Whoever adds it is told, and not the one who starts the gateway next."""
    keys = tmp_path / "keys"
    make_key(keys, "team", "--requests", 600)
    make_key(keys, "team", "--requests", 600)  # for rotation
    before = keys.read_bytes()
    for limits in ((), ("--requests", 60), ("--requests", 600, "--class", "batch")):
        done = fastdecode("key", "team", "--add", keys, *limits)
        assert done.returncode == 2 and not done.stdout and f"{keys} line 3: 'team' has other limits in line 1" in done.stderr, done
    keys.chmod(0o644)
    done = fastdecode("key", "other", "--add", keys)
    assert done.returncode == 2 and not done.stdout and f"chmod 600 {keys}" in done.stderr, done
    assert keys.read_bytes() == before
    gateway = [f"{BUILD}/bin/gateway", "--model", tiny(), "--scheduler", "ipc:///tmp/none.sock", "--api-key-file", keys, "--check"]
    done = subprocess.run(gateway, capture_output=True, text=True, check=False)
    assert done.returncode == 2 and f"--api-key-file: {keys}: other users can read or change it (mode 644): chmod 600 {keys}" in done.stderr, done
    keys.chmod(0o600)
    assert subprocess.run(gateway, check=False).returncode == 0
    keys.write_bytes(before + b"a broken line\n")
    done = fastdecode("key", "other", "--add", keys)
    assert done.returncode == 2 and f"{keys} line 3: " in done.stderr, done


def test_one_open_request(start_mesh, tmp_path):
    """Beside an open request the next is refused; behind it never, however soon it comes."""
    one = make_key(tmp_path / "keys", "one", "--open", 1)
    mesh = start_mesh("--api-key-file", tmp_path / "keys")
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        long = pool.submit(ask, mesh.url, one, 2000)
        mesh.wait_metric("fastdecode_requests_running", lambda count: count == 1)
        status, headers, body = ask(mesh.url, one)
        assert status == 429 and "1 open requests" in body["error"]["message"] and int(headers["Retry-After"]) == 1
        assert long.result()[0] == 200
    for _ in range(200):
        assert ask(mesh.url, one, 1)[0] == 200


def test_the_admin_address_is_loopback_once_the_server_is_open_to_others(tmp_path):
    """In a network of their own: the first gateway has the port by default, the second another one, and says so."""
    if os.geteuid() != 0:
        pytest.skip("makes a network namespace: root")
    gateway = f"{BUILD}/bin/gateway --scheduler ipc://{tmp_path}/none.sock --model {tiny()} --port 0"
    script = f"ip link set lo up; {gateway} --host 0.0.0.0 2>{tmp_path}/first & {gateway} --host 127.0.0.1 2>{tmp_path}/local & "
    script += f"while ! grep -q GATEWAY-LISTENS {tmp_path}/first; do sleep 0.05; done; exec {gateway} --host 0.0.0.0 2>{tmp_path}/second"
    with spawn(["unshare", "--net", "--pid", "--fork", "--kill-child", "sh", "-c", script], stdout=subprocess.DEVNULL) as process:
        def ports():
            logs = [open(tmp_path / name, encoding="utf-8").read() if (tmp_path / name).exists() else "" for name in ("first", "second", "local")]
            found = [re.search(r"GATEWAY-LISTENS .*admin_port=(\d+)", log) for log in logs]
            return all(found) and ([int(one[1]) for one in found], logs)

        (first, second, local), logs = wait_until(ports, 30, "they do not all listen")
        process.kill()
    assert first == 9464 and second not in (0, 9464) and local == 0
    assert "ADMIN-PORT-TAKEN" in logs[1] and "ADMIN-PORT-TAKEN" not in logs[0]


def look(url, path="/metrics", **headers):
    """(status, body)."""
    try:
        with urllib.request.urlopen(urllib.request.Request(url + path, headers=headers), timeout=seconds(30)) as reply:
            return reply.status, reply.read().decode()
    except urllib.error.HTTPError as refused:
        with refused:
            return refused.code, refused.read().decode()


def test_metrics_and_the_mesh_are_for_this_machine_or_for_a_key(start_mesh, tmp_path):
    mesh = start_mesh()
    for path in ("/metrics", "/mesh/state"):
        assert look(mesh.url, path)[0] == 200
        for host in ("localhost", "LocalHost:8080", "fd.localhost:1", "127.0.0.1", "192.0.2.1:80", "[::1]", "[2001:db8::1]:8080"):
            assert look(mesh.url, path, Host=host)[0] == 200, host
        for header in ({"X-Forwarded-For": "192.0.2.1"}, {"Forwarded": "for=192.0.2.1"}, {"X-Forwarded-For": ""}, {"Via": "1.1 proxy"},
                       *({name: "192.0.2.1"} for name in ("X-Forwarded", "X-Client-IP", "True-Client-IP", "CF-Connecting-IP")),
                       *({"Host": name} for name in ("evil.example", "evil.example:8080", "notlocalhost", "localhost.evil.example",
                                                     "127.0.0.1.evil.example", "[evil.example]", "127.0.0.1@evil.example"))):
            status, body = look(mesh.url, path, **header)
            assert status == 401 and "--admin-key-file" in body, header
        with socket.create_connection(("127.0.0.1", int(mesh.url.rpartition(":")[2]))) as plain:  # says no host
            plain.sendall(f"GET {path} HTTP/1.0\r\n\r\n".encode())
            assert plain.makefile("rb").readline().split()[1] == b"200"
        with socket.create_connection(("127.0.0.1", int(mesh.url.rpartition(":")[2]))) as whole:
            whole.sendall(f"GET http://evil.example{path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
            assert whole.makefile("rb").readline().split()[1] == b"401", "the target's host counts"
    keys = tmp_path / "keys"
    right, api = make_key(keys, "prometheus"), make_key(tmp_path / "api", "somebody")
    mesh = start_mesh("--admin-key-file", keys, "--api-key-file", tmp_path / "api", "--admin-listen", "127.0.0.1:0")
    with open(os.path.join(mesh.run_dir, "gateway.log"), encoding="utf-8") as log:
        admin = f"http://127.0.0.1:{re.search(r'GATEWAY-LISTENS .*admin_port=([0-9]+)', log.read())[1]}"
    for path in ("/metrics", "/mesh/state"):
        assert [look(admin, path, Authorization=f"Bearer {key}")[0] for key in (right, api, "fd-wrong")] == [200, 401, 401]
        assert look(admin, path)[0] == 401 and look(admin, path, Authorization=f"Bearer {right}", Forwarded="for=192.0.2.1")[0] == 200
    assert [look(admin, path)[0] for path in ("/health", "/ready", "/version", "/mesh")] == [200] * 4
    assert look(admin, Authorization=f"Bearer {right}", Host="gateway.example:9464")[0] == 200
    assert ask(mesh.url, right)[0] == 401 and ask(mesh.url, api)[0] == 200
    other = make_key(keys, "new")
    wait_until(lambda: look(admin, Authorization=f"Bearer {other}")[0] == 200, 30, "a new key is not read")


@pytest.mark.parametrize("option, status", [("none", "401"), ("open", "200")])
def test_metrics_for_another_machine(tmp_path, option, status):
    """In a network of their own, asked from an address that is not loopback."""
    if os.geteuid() != 0:
        pytest.skip("makes a network namespace: root")
    gateway = f"{BUILD}/bin/gateway --scheduler ipc://{tmp_path}/none.sock --model {tiny()} --port 0 --host 0.0.0.0 --admin-listen 0.0.0.0:9464"
    script = f"ip link set lo up; ip address add 192.0.2.1/32 dev lo; {gateway} --admin-key-file {option} >{tmp_path}/log 2>&1 & "
    script += f"while ! grep -q GATEWAY-LISTENS {tmp_path}/log; do sleep 0.05; done; "
    script += "for host in 192.0.2.1 127.0.0.1; do curl -s -o /dev/null -w '%{http_code} ' http://$host:9464/metrics; done"
    done = subprocess.run(["unshare", "--net", "--pid", "--fork", "--kill-child", "sh", "-c", script], stdout=subprocess.PIPE,
                          timeout=seconds(60), check=True, text=True)
    assert done.stdout.split() == [status, "200"]
