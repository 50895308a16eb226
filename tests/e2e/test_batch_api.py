"""/v1/files and /v1/batches: the official client, what is refused, and batches that are cancelled, expire, and outlive a gateway."""
import collections
import http.client
import io
import json
import os
import random
import re
import signal
import time

import openai
import pytest

from conftest import BUILD, PACED, SEED, run, seconds, wait_until

OVER = ("completed", "failed", "expired", "cancelled")


def request(i, **body):
    """A line whose answer is its own by its seed."""
    return {"custom_id": f"request-{i}", "method": "POST", "url": "/v1/completions",
            "body": {"prompt": f"Number {i}", "max_tokens": 8, "seed": i, **body}}


def lines_of(requests):
    return "".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in requests).encode()


def client_of(mesh, key="none"):
    return openai.OpenAI(base_url=mesh.url + "/v1", api_key=key, max_retries=0, timeout=seconds(60))


def upload(client, requests, **options):
    return client.files.create(file=("in.jsonl", io.BytesIO(lines_of(requests))), purpose="batch", **options)


def start(client, requests, window="24h", **options):
    return client.batches.create(input_file_id=upload(client, requests).id, endpoint="/v1/completions", completion_window=window, **options)


def wait_over(client, batch, limit_s=120):
    def over():
        seen = client.batches.retrieve(batch.id)
        return seen if seen.status in OVER else None

    return wait_until(over, limit_s, lambda: f"not over: {client.batches.retrieve(batch.id)}", 0.05)


def results_of(client, batch):
    texts = [client.files.content(name).read().decode() for name in (batch.output_file_id, batch.error_file_id) if name]
    return [json.loads(line) for line in "".join(texts).splitlines()]


def text_of(result):
    return result["response"]["body"]["choices"][0]["text"]


@pytest.fixture(name="mesh", scope="module")
def fixture_mesh(tmp_path_factory):
    from conftest import Mesh  # pylint: disable=import-outside-toplevel
    with Mesh("--batch-dir", tmp_path_factory.mktemp("batches") / "dir") as running:
        yield running


@pytest.fixture(name="client", scope="module")
def fixture_client(mesh):
    return client_of(mesh)


def test_official_client(mesh, client):
    bad = ["not json", {**request(90), "url": "/v1/chat/completions"}, request(91, prompt=5), request(0)]
    file = upload(client, [request(i) for i in range(10)] + bad, expires_after={"anchor": "created_at", "seconds": 3600})
    assert file.purpose == "batch" and file.filename == "in.jsonl" and file.expires_at == file.created_at + 3600
    assert client.files.retrieve(file.id) == file and file in client.files.list(purpose="batch").data
    batch = client.batches.create(input_file_id=file.id, endpoint="/v1/completions", completion_window="24h", metadata={"for": "me"})
    assert batch.status == "validating" and batch.metadata == {"for": "me"} and batch.output_file_id is None
    with pytest.raises(openai.ConflictError):
        client.files.delete(file.id)
    batch = wait_over(client, batch)
    assert batch.status == "completed" and batch.completed_at >= batch.finalizing_at >= batch.in_progress_at >= batch.created_at
    assert (batch.request_counts.total, batch.request_counts.completed, batch.request_counts.failed) == (14, 10, 4)
    results = {result["custom_id"] or result["error"]["code"]: result for result in results_of(client, batch)}
    assert len(results) == 14
    for i in range(10):
        assert text_of(results[f"request-{i}"]) == mesh.post("/v1/completions", request(i)["body"])["choices"][0]["text"]
    assert results["invalid_json_line"]["response"] is None and results["duplicate_custom_id"]["custom_id"] is None
    assert results["request-90"]["error"]["code"] == "mismatched_url"
    assert results["request-91"]["response"]["status_code"] == 400
    output = client.files.retrieve(batch.output_file_id)
    assert output.purpose == "batch_output" and output.bytes == len(client.files.content(output.id).read())
    assert batch.id in [other.id for other in client.batches.list(limit=1)]  # pages follow each other
    assert client.files.delete(file.id).deleted
    with pytest.raises(openai.NotFoundError):
        client.files.content(file.id)
    assert 'fastdecode_gateway_batch_results_total{result="completed"}' in mesh.get("/metrics")


def test_cancelled(client):
    batch = start(client, [request(i, max_tokens=200, ignore_eos=True) for i in range(400)])
    wait_until(lambda: client.batches.retrieve(batch.id).status == "in_progress", 30, "it does not begin")
    assert client.batches.cancel(batch.id).status in ("cancelling", "cancelled")
    batch = wait_over(client, batch)
    assert batch.status == "cancelled" and batch.cancelled_at >= batch.cancelling_at
    results = results_of(client, batch)
    assert collections.Counter(result["custom_id"] for result in results) == {f"request-{i}": 1 for i in range(400)}
    assert batch.request_counts.failed == sum((result["error"] or {}).get("code") == "batch_cancelled" for result in results) > 0
    with pytest.raises(openai.ConflictError):
        client.batches.cancel(start_and_finish(client).id)


def start_and_finish(client):
    return wait_over(client, start(client, [request(0)]))


def test_expired(client):
    batch = wait_over(client, start(client, [request(i, max_tokens=200, ignore_eos=True) for i in range(2000)], window="1s"))
    assert batch.status == "expired" and batch.expired_at >= batch.expires_at
    results = results_of(client, batch)
    assert collections.Counter(result["custom_id"] for result in results) == {f"request-{i}": 1 for i in range(2000)}
    assert batch.request_counts.failed == sum((result["error"] or {}).get("code") == "batch_expired" for result in results) > 0


def test_failed(client):
    batch = wait_over(client, start(client, ["", " "]))
    assert batch.status == "failed" and batch.errors.data[0].code == "empty_file" and batch.output_file_id is None


def check_texts(mesh, client, batch, count):
    """Each custom_id has one result, which is what an undisturbed request says."""
    batch = wait_over(client, batch)
    assert batch.status == "completed" and batch.request_counts.completed == count
    results = results_of(client, batch)
    assert collections.Counter(result["custom_id"] for result in results) == {f"request-{i}": 1 for i in range(count)}
    texts = {result["custom_id"]: text_of(result) for result in results}
    for i in range(0, count, max(1, count // 10)):
        assert texts[f"request-{i}"] == mesh.post("/v1/completions", request(i, max_tokens=12)["body"])["choices"][0]["text"]


def kill_at(mesh, client, batch, least, service, pause_s):
    """kill -9 of a service once so many lines are answered and a moment has passed."""
    def answered():
        try:
            return client.batches.retrieve(batch.id).request_counts.completed >= least
        except openai.APIConnectionError:
            return False
    def killed():
        try:
            return mesh.kill(service, signal.SIGKILL)
        except ProcessLookupError:  # it was killed before, and has not been started again
            return False
    wait_until(answered, 60, mesh.logs, 0.02)
    time.sleep(pause_s)
    wait_until(killed, 60, mesh.logs, 0.02)


def test_killed_gateway(start_mesh, tmp_path):
    mesh = start_mesh("--batch-dir", tmp_path / "dir", **PACED)
    client, count, chance = client_of(mesh), 80, random.Random(SEED)
    batch = start(client, [request(i, max_tokens=12) for i in range(count)])
    for least in (5, 40):
        kill_at(mesh, client, batch, least, "gateway", chance.random() / 20)
    wait_until(lambda: ready(mesh), 60, mesh.logs, 0.02)
    check_texts(mesh, client, batch, count)


@pytest.mark.full
def test_killed_ten_times(start_mesh, tmp_path):
    """The gateway, the scheduler and the s-part, in any order, at any moment of a step."""
    mesh = start_mesh("--batch-dir", tmp_path / "dir", **PACED)
    client, count, chance = client_of(mesh), 400, random.Random(SEED)
    batch = start(client, [request(i, max_tokens=12) for i in range(count)])
    for kill in range(10):
        kill_at(mesh, client, batch, kill * 35, chance.choice(("gateway", "scheduler", "s-part")), chance.random() / 5)
    wait_until(lambda: ready(mesh), 60, mesh.logs, 0.02)
    check_texts(mesh, client, batch, count)


def ready(mesh):
    try:
        return bool(mesh.get("/ready"))
    except OSError:
        return False


def test_one_owner(mesh, tmp_path):
    folder = mesh.option("gateway", "batch-dir")
    refused = run([os.path.join(BUILD, "bin", "gateway"), "--model", mesh.option("gateway", "model"), "--scheduler",
                   f"ipc://{tmp_path}/none.sock", "--port", "0", "--batch-dir", folder])
    assert refused.returncode and re.search(r"in use by another gateway \(process \d+\)", refused.stderr), refused.stderr


def test_tenants(start_mesh, tmp_path):
    keys = tmp_path / "keys"
    keys.touch(0o600)
    keys.write_text("alpha\nbeta\n")
    mesh = start_mesh("--batch-dir", tmp_path / "dir", "--api-key-file", keys)
    alpha, beta, nobody = client_of(mesh, "alpha"), client_of(mesh, "beta"), client_of(mesh, "gamma")
    batch = wait_over(alpha, start(alpha, [request(0)]))
    assert batch.status == "completed" and len(alpha.files.list().data) == 2 and len(alpha.batches.list().data) == 1
    assert beta.files.list().data == [] and beta.batches.list().data == []
    for call in (lambda: beta.files.retrieve(batch.input_file_id), lambda: beta.files.content(batch.output_file_id),
                 lambda: beta.files.delete(batch.output_file_id), lambda: beta.batches.retrieve(batch.id),
                 lambda: beta.batches.cancel(batch.id), lambda: beta.files.list(after=batch.output_file_id),
                 lambda: beta.batches.create(input_file_id=batch.input_file_id, endpoint="/v1/completions", completion_window="24h")):
        with pytest.raises(openai.NotFoundError):
            call()
    for call in (nobody.files.list, nobody.batches.list, lambda: upload(nobody, [request(0)])):
        with pytest.raises(openai.AuthenticationError):
            call()


def call_raw(mesh, method, path, body=b"", **headers):
    connection = http.client.HTTPConnection(mesh.url.partition("//")[2], timeout=seconds(20))
    connection.request(method, path, body, {name.replace("_", "-"): value for name, value in headers.items()})
    answer = connection.getresponse()
    content = answer.read()
    connection.close()
    return answer, content


def form(*parts):
    """A multipart body; a part is (name, filename or None, bytes)."""
    body = b""
    for name, filename, data in parts:
        named = f'; filename="{filename}"' if filename else ""
        body += f'--xyz\r\nContent-Disposition: form-data; name="{name}"{named}\r\n\r\n'.encode() + data + b"\r\n"
    return body + b"--xyz--\r\n"


FORM = "multipart/form-data; boundary=xyz"
FILE, PURPOSE = ("file", "a.jsonl", b"{}\n"), ("purpose", None, b"batch")


def anchor(value, after):
    return ("expires_after[anchor]", None, value), ("expires_after[seconds]", None, after)


BAD_UPLOADS = [  # body, content type, status, param
    (form(FILE, PURPOSE), "application/json", 415, None),
    (form(FILE, PURPOSE), "multipart/form-data", 415, None),
    (form(FILE, PURPOSE), "multipart/mixed; boundary=xyz", 415, None),
    (b"", FORM, 400, None),
    (b"xyz", FORM, 400, None),
    (form(FILE, PURPOSE)[:-9], FORM, 400, None),
    (form(FILE, PURPOSE).replace(b"name=", b"nome="), FORM, 400, None),
    (form(FILE, PURPOSE).replace(b'"file"', b'"file\0x"'), FORM, 400, None),
    (form(FILE, ("purpose", None, b"batch\0x")), FORM, 400, None),
    (form(PURPOSE), FORM, 400, "file"),
    (form(FILE), FORM, 400, "purpose"),
    (form(FILE, ("purpose", None, b"fine-tune")), FORM, 400, "purpose"),
    (form(FILE, ("purpose", None, b"")), FORM, 400, "purpose"),
    (form(FILE, ("purpose", None, b"b" * 100)), FORM, 400, None),
    (form(FILE, PURPOSE, PURPOSE), FORM, 400, "purpose"),
    (form(FILE, FILE, PURPOSE), FORM, 400, "file"),
    (form(("file", "a", b""), PURPOSE), FORM, 400, "file"),
    (form(FILE, PURPOSE, *anchor(b"created_at", b"10")), FORM, 400, "expires_after"),
    (form(FILE, PURPOSE, *anchor(b"created_at", b"1e5")), FORM, 400, "expires_after"),
    (form(FILE, PURPOSE, *anchor(b"now", b"3600")), FORM, 400, "expires_after"),
    (form(FILE, PURPOSE, anchor(b"created_at", b"")[0]), FORM, 400, "expires_after"),
]

GOOD = {"input_file_id": "FILE", "endpoint": "/v1/completions", "completion_window": "24h"}
BAD_BATCHES = [  # body, status, param
    ("", 400, None), ("[]", 400, None), ("{", 400, None), ("{}", 400, "input_file_id"),
    ({**GOOD, "input_file_id": None}, 400, "input_file_id"),
    ({**GOOD, "input_file_id": 7}, 400, "input_file_id"),
    ({**GOOD, "input_file_id": "file-0"}, 404, "input_file_id"),
    ({**GOOD, "input_file_id": "../lock"}, 404, "input_file_id"),
    ({**GOOD, "input_file_id": "x" * 1000}, 404, "input_file_id"),
    ({**GOOD, "input_file_id": "OUTPUT"}, 400, "input_file_id"),
    ({**GOOD, "input_file_id": "FILE\0"}, 400, "input_file_id"),
    ({**GOOD, "endpoint": "/v1/completions\0"}, 400, "endpoint"),
    ({**GOOD, "completion_window": "24h\0"}, 400, "completion_window"),
    ({**GOOD, "metadata": {"a": "b\0c"}}, 400, "metadata"),
    ({**GOOD, "output_expires_after": {"anchor": "created_at\0", "seconds": 3600}}, 400, "output_expires_after"),
    ({"input_file_id": "FILE", "completion_window": "24h"}, 400, "endpoint"),
    ({**GOOD, "endpoint": "/v1/rerank"}, 400, "endpoint"),
    ({**GOOD, "endpoint": ["/v1/completions"]}, 400, "endpoint"),
    ({"input_file_id": "FILE", "endpoint": "/v1/completions"}, 400, "completion_window"),
    ({**GOOD, "completion_window": 24}, 400, "completion_window"),
    ({**GOOD, "completion_window": "0h"}, 400, "completion_window"),
    ({**GOOD, "completion_window": "24"}, 400, "completion_window"),
    ({**GOOD, "completion_window": "-1h"}, 400, "completion_window"),
    ({**GOOD, "completion_window": "31d"}, 400, "completion_window"),
    ({**GOOD, "completion_window": "99999999999999999999d"}, 400, "completion_window"),
    ({**GOOD, "metadata": []}, 400, "metadata"),
    ({**GOOD, "metadata": {"a": 1}}, 400, "metadata"),
    ({**GOOD, "metadata": {"a" * 65: ""}}, 400, "metadata"),
    ({**GOOD, "metadata": {"a": "b" * 513}}, 400, "metadata"),
    ({**GOOD, "metadata": {str(i): "" for i in range(17)}}, 400, "metadata"),
    ({**GOOD, "output_expires_after": 3600}, 400, "output_expires_after"),
    ({**GOOD, "output_expires_after": {"anchor": "created_at"}}, 400, "output_expires_after"),
    ({**GOOD, "output_expires_after": {"anchor": "created_at", "seconds": 1}}, 400, "output_expires_after"),
]

BAD_PATHS = [  # method, path, status
    ("GET", "/v1/files/file-0", 404), ("DELETE", "/v1/files/file-0", 404), ("GET", "/v1/files/file-0/content", 404),
    ("GET", "/v1/files/../batches.db/content", 404), ("GET", "/v1/files/..%2Flock/content", 404), ("GET", "/v1/files/", 404),
    ("PUT", "/v1/files", 405), ("POST", "/v1/files/file-0", 405), ("DELETE", "/v1/files/file-0/content", 405),
    ("GET", "/v1/files?limit=0", 400), ("GET", "/v1/files?limit=x", 400), ("GET", "/v1/files?limit=-1", 400),
    ("GET", "/v1/files?order=up", 400), ("GET", "/v1/files?after=file-0", 404), ("GET", "/v1/batches?limit=101", 400),
    ("GET", "/v1/batches?after=batch_0", 404), ("GET", "/v1/batches/batch_0", 404), ("POST", "/v1/batches/batch_0/cancel", 404),
    ("GET", "/v1/batches/batch_0/cancel", 405), ("DELETE", "/v1/batches/batch_0", 405), ("GET", "/v1/batches/a/b", 404),
]


def check_error(answer, content, status, param):
    error = json.loads(content)["error"]
    assert answer.status == status and error["message"] and error["param"] == param, (answer.status, content)


def test_bad_requests(mesh, client):
    batch = start_and_finish(client)
    before = [file.id for file in client.files.list()]
    for body, kind, status, param in BAD_UPLOADS:
        check_error(*call_raw(mesh, "POST", "/v1/files", body, Content_Type=kind), status, param)
    for body, status, param in BAD_BATCHES:
        text = body if isinstance(body, str) else json.dumps(body)
        text = text.replace('"FILE', f'"{batch.input_file_id}').replace('"OUTPUT"', f'"{batch.output_file_id}"')
        check_error(*call_raw(mesh, "POST", "/v1/batches", text, Content_Type="application/json"), status, param)
    for method, path, status in BAD_PATHS:
        answer, content = call_raw(mesh, method, path)
        assert answer.status == status and json.loads(content)["error"]["message"], (method, path, answer.status, content)
    assert [file.id for file in client.files.list()] == before
    folder = mesh.option("gateway", "batch-dir")
    wait_until(lambda: sorted(os.listdir(folder + "/files")) == sorted(before), 10, lambda: str(os.listdir(folder + "/files")))


def writes_of(mesh):
    with open(f"/proc/{mesh.pid('gateway')}/io", encoding="ascii") as file:
        return int(re.search(r"syscw: (\d+)", file.read())[1])


def test_many_line_ends(mesh):
    """What could begin a boundary is not written byte by byte: one upload must not keep all others waiting."""
    before, data = writes_of(mesh), b"\r" * 100000 + b"\r\n--xy" * 10000
    answer, content = call_raw(mesh, "POST", "/v1/files", form(("file", "a", data), PURPOSE), Content_Type=FORM)
    assert answer.status == 200 and call_raw(mesh, "GET", f"/v1/files/{json.loads(content)['id']}/content")[1] == data
    assert writes_of(mesh) - before < 1000


def test_off(start_mesh):
    with pytest.raises(openai.NotFoundError, match="--batch-dir"):
        client_of(start_mesh()).files.list()


def peak_kb(mesh):
    with open(f"/proc/{mesh.pid('gateway')}/status", encoding="ascii") as file:
        return int(re.search(r"VmHWM:\s+(\d+) kB", file.read())[1])


@pytest.mark.parametrize("count", [20000, pytest.param(100000, marks=pytest.mark.full)])
def test_many_lines(mesh, client, count):
    """Lines of 1 KB, most of which cannot be asked: the gateway's memory does not grow with them."""
    wait_over(client, start(client, [request(i) for i in range(300)]))
    before = peak_kb(mesh)
    refused = json.dumps({**request(0, prompt="x" * 900), "url": "/v1/x"})
    batch = wait_over(client, start(client, [request(i) if i % 1000 == 0 else refused.replace("request-0", f"request-{i}")
                                             for i in range(count)]))
    asked = count // 1000
    assert batch.status == "completed" and batch.request_counts.completed == asked and batch.request_counts.failed == count - asked
    assert client.files.content(batch.error_file_id).read().count(b"\n") == count - asked
    assert peak_kb(mesh) < before + 2000 + count // 10, (before, peak_kb(mesh))  # 100 bytes a line: of its custom_id a hash
