"""Batches of many short lines: what the gateway makes of a line, beside what a client makes of it, and its memory meanwhile.

FD_BENCH_LINES lines (100,000) of four words and one token, of a small model with random weights, so that little but the way of a line
takes time. A part of them goes through /v1/batches, by `fastdecode batch`, and by the same command without service_tier flex (plain requests),
in turns; then all of them through /v1/batches. Clients and mesh share the cores. Files are uploaded by curl, the last of more than 100 MB.
"""
import http.client
import json
import os
import shutil
import subprocess
import tempfile
import time

import tiny_model
from conftest import BUILD, MODEL
from figures import figure, of_rounds
from servers import Ours, memory_bytes
from streams import words

LINES, UPLOAD_BYTES = int(os.environ.get("FD_BENCH_LINES", "100000")), 110 << 20
COMPARED, ROUNDS = min(LINES, 10000), 3


def write_lines(path, count, pad=""):
    with open(path, "w", encoding="ascii") as file:
        for i in range(count):
            body = {"prompt": words(4, i), "max_tokens": 1, "temperature": 0, **({"user": pad} if pad else {})}
            file.write(json.dumps({"custom_id": f"line-{i}", "method": "POST", "url": "/v1/completions", "body": body}) + "\n")


def call(mesh, method, path, body=None):
    connection = http.client.HTTPConnection(mesh.url.partition("//")[2], timeout=60)
    connection.request(method, path, json.dumps(body) if body else None)
    answer = connection.getresponse()
    content = answer.read()
    connection.close()
    if answer.status != 200:
        raise RuntimeError(f"{method} {path}: {answer.status} {content[:200]!r}")
    return json.loads(content)


def upload(mesh, path):
    """By curl. Returns the file's id."""
    said = subprocess.run(["curl", "-sS", "-F", "purpose=batch", "-F", f"file=@{path}", mesh.url + "/v1/files"], capture_output=True, text=True,
                          check=True, timeout=300)
    found = json.loads(said.stdout)
    if found.get("bytes") != os.path.getsize(path):
        raise RuntimeError(f"upload: {said.stdout[:300]}")
    return found["id"]


def through_the_api(run_, mesh, path, folder, count):
    """Lines a second, and the gateway's memory: before, and the most of it."""
    file, gateway = upload(mesh, path), mesh.pid("gateway")
    before, most, began = memory_bytes(gateway), 0, time.monotonic()
    batch = call(mesh, "POST", "/v1/batches", {"input_file_id": file, "endpoint": "/v1/completions", "completion_window": "24h"})
    while batch["status"] in ("validating", "in_progress", "finalizing"):
        time.sleep(0.05)
        run_.limit_s()
        most = max(most, memory_bytes(gateway))
        batch = call(mesh, "GET", f"/v1/batches/{batch['id']}")
    seconds = time.monotonic() - began
    if batch["request_counts"]["completed"] != count:
        raise RuntimeError(f"batch: {batch}")
    subprocess.run(["curl", "-sS", "-o", os.path.join(folder, "got.jsonl"), f"{mesh.url}/v1/files/{batch['output_file_id']}/content"], check=True)
    with open(os.path.join(folder, "got.jsonl"), "rb") as got:
        if sum(1 for _ in got) != count:
            raise RuntimeError("a line of the results is missing")
    return count / seconds, before, most


def by_the_command(run_, mesh, path, folder, *options):
    out = os.path.join(folder, "out.jsonl")
    began = time.monotonic()
    subprocess.run([os.path.join(BUILD, "bin", "fastdecode"), "batch", path, out, "--url", mesh.url, "--quiet", "--no-resume", *options],
                   check=True, timeout=run_.limit_s())
    return COMPARED / (time.monotonic() - began)


def compared(run_, mesh, part, folder):
    """The three ways in turns: lines a second of each round."""
    ways = {"through /v1/batches": lambda: through_the_api(run_, mesh, part, folder, COMPARED)[0],
            "by fastdecode batch": lambda: by_the_command(run_, mesh, part, folder),
            "as plain requests": lambda: by_the_command(run_, mesh, part, folder, "--no-flex")}
    rates = {name: [] for name in ways}
    for turn in range(ROUNDS):
        for name in list(ways)[::1 if turn % 2 else -1]:
            with run_.turn(f"{COMPARED} lines {name}"):
                rates[name].append(ways[name]())
            run_.note(f"{rates[name][-1]:.0f} a second")
    return rates


def measure(run_, mesh, folder):
    path, part = os.path.join(folder, "in.jsonl"), os.path.join(folder, "part.jsonl")
    write_lines(path, LINES)
    write_lines(part, COMPARED)
    rates = compared(run_, mesh, part, folder)
    with run_.turn(f"{LINES} lines through /v1/batches"):
        rate, before, most = through_the_api(run_, mesh, path, folder, LINES)
    run_.note(f"{rate:.0f} a second; gateway {before / 1e6:.1f} MB before, {most / 1e6:.1f} at most")
    write_lines(path, UPLOAD_BYTES // 1000, "x" * 850)
    with run_.turn("an upload by curl"):
        size, began = os.path.getsize(path), time.monotonic()
        upload(mesh, path)
        seconds = time.monotonic() - began
    run_.note(f"{size / 1e6:.0f} MB in {seconds:.2f} s")
    ours = rates["through /v1/batches"]
    for other in ("by fastdecode batch", "as plain requests"):
        run_.add(of_rounds("batch-lines", f"lines of one token through /v1/batches, and {other}", "a second", list(zip(ours, rates[other]))))
    run_.add(figure("batch-lines", f"{LINES} lines: by how much the gateway's memory grows with a line", (most - before) / LINES, "bytes",
                    target=100, at_most=True))
    run_.add(figure("batch-lines", f"upload of {size / 1e6:.0f} MB by curl", size / 1e6 / seconds, "MB/s"))


def batch_lines(run_):
    if not shutil.which("curl"):
        raise RuntimeError("curl is not there")
    folder = tempfile.mkdtemp(prefix="fd-bench-lines-", dir="/var/tmp")
    try:
        model = tiny_model.path(folder, MODEL)
        with Ours("--batch-dir", os.path.join(folder, "batches"), model=model) as mesh:
            measure(run_, mesh, folder)
    finally:
        shutil.rmtree(folder)
