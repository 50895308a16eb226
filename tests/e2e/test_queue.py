"""The queue's end of the table of failures: what is refused while it is full, and what time does to those who wait."""
import json
import os
import pathlib
import re
import tempfile
import urllib.error

import pytest

from conftest import PACED, Mesh, fastdecode, seconds, wait_until
from streams import Stream, body, join_all, run_all, start_all, words
from test_failures import idle


@pytest.fixture(scope="module")
def narrow():
    """One sequence runs, two may wait."""
    with Mesh("--max-batch", 1, "--max-queue", 2, **PACED) as mesh:
        yield mesh


TOO_LONG = body(words(30000, 1), 5)


def has_room(mesh):
    """Nothing runs or waits, and the gateway, which is told within 50 ms, knows it: it looks at prompts again."""
    idle(mesh)
    wait_until(lambda: refused(mesh, TOO_LONG).code != 429, 5, "the queue still seems full")


@pytest.fixture
def full(narrow):
    """The mesh while its queue is full; those in it are let go in the end."""
    has_room(narrow)
    streams = [Stream(narrow.url, body(words(20, 1), 6000))]
    streams[0].wait_tokens(1)
    streams += start_all(narrow.url, [body(words(20, i), 3000) for i in (2, 3)])
    narrow.wait_metric("fastdecode_requests_waiting", lambda value: value == 2, 10)
    yield narrow
    for stream in streams:
        stream.leave()
    idle(narrow)


def refused(mesh, request):
    with pytest.raises(urllib.error.HTTPError) as caught:
        mesh.post("/v1/completions", request)
    return caught.value


def test_refused_before_it_is_tokenized(full):
    """A prompt that is much too long gets 429 as any other does; when there is room it is looked at, and gets 400."""
    errors = []

    def turned_away():
        errors.append(refused(full, TOO_LONG))
        return errors[-1].code == 429

    wait_until(turned_away, 5, "it is not refused")  # the gateway is told of a full queue within 50 ms
    error = errors[-1]
    told = json.loads(error.read())["error"]
    assert told["code"] == "rate_limit_exceeded" and "queue is full" in told["message"]


def test_there_is_room_again(narrow):
    has_room(narrow)
    error = refused(narrow, TOO_LONG)
    assert error.code == 400 and json.loads(error.read())["error"]["code"] == "context_length_exceeded"


def test_times_to_come_back_differ(full):
    """Whole seconds, so that not all come back at once, however short the wait; never more than a minute."""
    times = []
    for i in range(36):
        error = refused(full, body("One", 5, i))
        assert error.code == 429
        times.append(error.headers["Retry-After"])
    assert all(re.fullmatch(r"[0-9]+", text) and 1 <= int(text) <= 60 for text in times), times
    assert len(set(times)) >= 3, times


def test_deadline_in_the_queue(start_mesh):
    """Who waits until the time is up gets an answer of no tokens, not an error."""
    mesh = start_mesh("--max-batch", 1, "--request-timeout", seconds(1), **PACED)
    first = Stream(mesh.url, body(words(20, 1), 6000))
    first.wait_tokens(1)
    second = run_all(mesh.url, [body(words(20, 2), 6000)])[0]
    assert second.error is None and (second.finish_reason, second.stop_reason) == ("length", "deadline")
    assert len(second.tokens) < 10 + len(first.tokens)
    join_all([first])
    assert (first.finish_reason, first.stop_reason) == ("length", "deadline") and first.tokens
    idle(mesh)


@pytest.fixture
def short_folder():
    """For sockets: their paths may not be long."""
    with tempfile.TemporaryDirectory(prefix="fd-e2e-") as folder:
        yield pathlib.Path(folder)


DAMAGED = {"a text file": b"not a model\n" * 100, "a cut file": b"GGUF\x03\0\0\0" + b"\xff" * 20, "an empty file": b""}


@pytest.mark.parametrize("damage", [*DAMAGED, "a folder"])
def test_bad_model_file(short_folder, damage):
    """One line that says what is wrong with which file; nothing is left running."""
    path, run = short_folder / "model.gguf", short_folder / "run"
    if damage == "a folder":
        path.mkdir()
    else:
        path.write_bytes(DAMAGED[damage])
    done = fastdecode("up", "--model", path, "--port", 0, "--run-dir", run, timeout=60)
    assert done.returncode != 0
    assert re.search(r"(?m)^fastdecode up: .* cannot start: .*model\.gguf: .+$", done.stderr), done.stderr
    for pid_file in run.glob("*.pid"):
        assert not os.path.exists(f"/proc/{int(pid_file.read_text())}"), f"{pid_file.name} is left"
