"""`fastdecode batch`: a file of requests through a mesh, killed and taken up again."""
import collections
import fcntl
import http.server
import json
import os
import re
import signal
import subprocess
import threading
import time

import pytest

from conftest import BUILD, fastdecode, seconds, spawn, wait_until


def request(i, **body):
    """Line i of a file; the seed makes its answer its own."""
    chat = i % 2
    prompt = {"messages": [{"role": "user", "content": f"Number {i}"}]} if chat else {"prompt": f"Number {i}"}
    return {"custom_id": f"request-{i}", "method": "POST", "url": "/v1/chat/completions" if chat else "/v1/completions",
            "body": {**prompt, "max_tokens": 8, "seed": i, **body}}


def write_lines(path, lines):
    path.write_text("".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines))
    return path


def read_lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def text_of(result):
    choice = result["response"]["body"]["choices"][0]
    return choice["message"]["content"] if "message" in choice else choice["text"]


def batch(mesh, source, target, *options, **settings):
    return fastdecode("batch", source, target, "--url", mesh.url, *options, **settings)


@pytest.fixture(name="files")
def fixture_files(tmp_path):
    return tmp_path / "in.jsonl", tmp_path / "out.jsonl"


def test_batch(mesh, files):
    source, target = files
    bad = ["not json", {**request(100), "url": "/v1/rerank"}, {**request(102), "body": {"prompt": 5}}, request(0), ""]
    write_lines(source, [request(i) for i in range(12)] + bad)
    done = batch(mesh, source, target, "--concurrency", 4)
    assert done.returncode == 0, done.stderr
    assert "16 of 16 requests done, 4 of them failed" in done.stderr
    results = {result["custom_id"] or result["id"]: result for result in read_lines(target)}
    assert len(results) == 16
    for i in range(12):
        wanted = mesh.post(request(i)["url"], request(i)["body"])
        result = results[f"request-{i}"]
        assert result["error"] is None and result["response"]["status_code"] == 200 and result["response"]["request_id"]
        assert text_of(result) == text_of({"response": {"body": wanted}})
        assert result["response"]["body"]["service_tier"] == "flex"
    assert results["batch_req_13"]["error"]["code"] == "invalid_json_line"
    assert results["request-100"]["error"]["code"] == "invalid_url"
    assert results["request-102"]["response"]["status_code"] == 400
    assert results["request-102"]["response"]["body"]["error"]["param"] == "prompt"
    assert results["batch_req_16"]["error"]["code"] == "duplicate_custom_id"
    before = target.read_bytes()
    again = batch(mesh, source, target)
    assert again.returncode == 0 and "this run: 0 in" in again.stderr and target.read_bytes() == before


def test_killed_again_and_again(mesh, files):
    """Killed after some answers, with and without a torn line behind them: each custom_id is answered once, as it would be undisturbed."""
    source, target = files
    count = 60
    write_lines(source, [request(i, max_tokens=24) for i in range(count)])
    command = [os.path.join(BUILD, "bin", "fastdecode"), "batch", str(source), str(target), "--url", mesh.url, "--concurrency", "4"]
    for wanted in (5, 20, 35):
        with spawn(command, stderr=subprocess.DEVNULL) as process:
            wait_until(lambda least=wanted: target.exists() and target.read_bytes().count(b"\n") >= least, 60, "no answers")
            process.send_signal(signal.SIGKILL)
        with open(target, "ab") as file:
            file.write(target.read_bytes()[:wanted * 3] if wanted > 5 else b"")  # a torn line
    assert 35 <= target.read_bytes().count(b"\n") < count
    done = batch(mesh, source, target)
    assert done.returncode == 0 and "cutting 105 bytes of a torn line" in done.stderr, done.stderr
    results = read_lines(target)
    assert collections.Counter(result["custom_id"] for result in results) == {f"request-{i}": 1 for i in range(count)}
    for i in (0, 21, 40, count - 1):
        line = request(i, max_tokens=24)
        result = next(result for result in results if result["custom_id"] == line["custom_id"])
        assert text_of(result) == text_of({"response": {"body": mesh.post(line["url"], line["body"])}})


def test_refusals(mesh, files):
    source, target = files
    write_lines(source, [request(0)])
    write_lines(target, [{"mine": "a file that is no result"}])
    before = target.read_bytes()
    for options, words in (((source, target), "line 1 is not a result"), ((source, source), "same file"),
                           ((source,), "want two files"), ((source, target, "--concurrency", "0"), "concurrency"),
                           ((source.parent / "none", target), "No such file"), ((source.parent, target), "must be files")):
        refused = fastdecode("batch", *options)
        assert refused.returncode and words in refused.stderr, refused.stderr
        assert target.read_bytes() == before
    assert batch(mesh, source, target, "--no-resume").returncode == 0
    assert [result["custom_id"] for result in read_lines(target)] == ["request-0"]


def test_other_file_is_not_cut(files):
    """One line without an end that no run wrote, as IN is where the names are given the wrong way round."""
    source, target = files
    for text in (json.dumps(request(0)), "dear diary", '{"id": 1'):
        write_lines(source, [request(0)])
        target.write_text(text)
        refused = fastdecode("batch", source, target, "--url", "http://127.0.0.1:1", "--patience", "0.1")
        assert refused.returncode == 2 and "line 1 is not a result" in refused.stderr, refused.stderr
        assert target.read_text() == text


def test_refused_key_and_path(start_mesh, files, tmp_path):
    """A wrong key or URL is nothing that a line is to blame for: the run ends, and OUT has no answer that would never be asked again."""
    source, target = files
    keys = tmp_path / "keys"
    keys.touch(0o600)
    keys.write_text("right\n")
    mesh = start_mesh("--api-key-file", keys)
    write_lines(source, [request(i) for i in range(20)])
    for options, words in (((), "status 401"), (("--api-key", "wrong"), "status 401"),
                           (("--api-key", "right", "--url", mesh.url + "/other"), "status 404")):
        refused = batch(mesh, source, target, *options)
        assert refused.returncode == 2 and "refuses all requests" in refused.stderr and words in refused.stderr, refused.stderr
        assert target.read_bytes() == b""
    done = batch(mesh, source, target, "--api-key", "right", "--url", mesh.url + "/v1/")
    assert done.returncode == 0 and [result["response"]["status_code"] for result in read_lines(target)] == [200] * 20, done.stderr


def test_server_away(files):
    """No gateway there: the run ends with what to do, and has written nothing. A signal ends it as well."""
    source, target = files
    write_lines(source, [request(0)])
    options = [source, target, "--url", "http://127.0.0.1:1", "--patience"]
    given_up = fastdecode("batch", *options, "0.5")
    assert given_up.returncode == 3 and "no answer from" in given_up.stderr and "the same command goes on" in given_up.stderr
    with spawn([os.path.join(BUILD, "bin", "fastdecode"), "batch", *map(str, options), "1000", "--resume"]) as waits:
        try:
            signals = f"/proc/{waits.pid}/status"
            wait_until(lambda: re.search(r"SigCgt:\t\w+[2367abef]\n", open(signals, encoding="ascii").read()), 30, "no handler of SIGINT")
            waits.send_signal(signal.SIGINT)
            assert waits.wait(seconds(10)) == 130
        finally:
            waits.kill()
    assert target.read_bytes() == b""


def test_two_runs(files):
    source, target = files
    write_lines(source, [request(0)])
    with open(target, "ab") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        refused = fastdecode("batch", source, target)
    assert refused.returncode == 3 and "being written by another run" in refused.stderr


def test_progress_counts_filled_places(files):
    """On a terminal: while lines are left, as many are asked as --concurrency says, however many answers have just come."""
    source, target = files
    write_lines(source, [request(i) for i in range(60)])
    turn = threading.Lock()

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self):
            self.rfile.read(int(self.headers["Content-Length"]))
            with turn:  # an answer every 30 ms: whenever the bar is drawn, one has just come
                time.sleep(0.03)
            self.send_response(200)
            self.send_header("Content-Length", "2")
            self.end_headers()
            self.wfile.write(b"{}")

        def log_message(self, *_):
            pass

    terminal, other_end = os.openpty()
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
        done = fastdecode("batch", source, target, "--url", f"http://127.0.0.1:{server.server_address[1]}", "--concurrency", 4,
                          capture_output=False, stdout=subprocess.DEVNULL, stderr=other_end)
        server.shutdown()
    os.close(other_end)
    drawn = os.read(terminal, 1 << 16).decode()
    os.close(terminal)
    assert done.returncode == 0, drawn
    asked = [int(count) for answers, count in re.findall(r"(\d+)/60 .*?(\d+) asked", drawn) if int(answers) <= 56]
    assert len(asked) >= 3 and set(asked) == {4}, drawn
