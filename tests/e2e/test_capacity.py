"""`fastdecode capacity`: against servers whose capacity is known (fake_server.py), and against a mesh."""
import contextlib
import json
import os
import signal
import subprocess
import sys

import pytest

from conftest import BUILD, HARDWARE, PACED, fastdecode, seconds, spawn

HERE = os.path.dirname(os.path.abspath(__file__))


@contextlib.contextmanager
def fake(*options):
    """The URL of a fake server."""
    command = [sys.executable, os.path.join(HERE, "fake_server.py"), *map(str, options)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process.stdout.readline().strip()
        finally:
            process.kill()


@pytest.fixture
def trace(tmp_path):
    path = tmp_path / "trace.csv"
    path.write_text("prompt_tokens,answer_tokens\n31,16\n", encoding="utf-8")
    return path


def capacity(url, *options):
    return fastdecode("capacity", "--url", url, *options)


def report(url, *options):
    done = capacity(url, "--json", "--quiet", *options)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def quick(trace):
    """A limit of 80 requests a second is found to about a fifth in a few seconds."""
    return ("--trace", trace, "--tbt-slo", "none", "--delay-p50", 0.1, "--seconds-per-rate", 1.5, "--guess", 60, "--precision", 0.15,
            "--no-confirm")


def test_a_known_limit_is_found(trace):
    with fake("--slots", 8, "--service", 0.1) as url:
        got = report(url, *quick(trace))
    assert 0.75 * 80 < got["requests_per_second"] < 1.35 * 80, got
    assert got["complete"] and got["bound"] == "delay_p50" and got["model"] == "fake"
    met = [probe for probe in got["probes"] if probe["met"]]
    missed = [probe["requests_per_second"] for probe in got["probes"] if not probe["met"]]
    assert got["requests_per_second"] == max(probe["requests_per_second"] for probe in met) < min(missed)
    for probe in met:  # all were asked, of the lengths of the trace: 2 tokens a word and 3 more
        assert probe["finished"] == probe["requests"] and probe["failed"] == probe["refused"] == 0
        assert probe["tokens_per_second"] * probe["seconds"] == pytest.approx(16 * probe["requests"], rel=1e-4)
        assert probe["prompt_tokens_per_second"] * probe["seconds"] == pytest.approx(31 * probe["requests"], rel=1e-4)


@pytest.mark.full
@pytest.mark.alone
def test_stalls_bind_before_the_slots_do(trace):
    """Each answer that begins holds the others up by more than 5 steps, and at most one gap in a hundred may be so long: of an answer's 15 gaps
    one is if another answer begins meanwhile."""
    with fake("--slots", 64, "--service", 0.064, "--stall", 0.04) as url:
        got = report(url, "--trace", trace, "--seconds-per-rate", 5, "--requests-per-rate", 20, "--precision", 0.4, "--no-confirm",
                     "--delay-p50", 2, "--guess", 6)
    assert got["bound"] == "tbt_p99" and got["requests_per_second"] < 0.05 * 64 / 0.064, got


def test_what_a_server_refuses_is_left_out(trace):
    """Fields of ours that it does not take; lengths beyond its context; requests beyond its queue."""
    with fake("--refuse-fields", "ignore_eos", "--context", 60, "--queue", 1, "--slots", 1, "--service", 0.005) as url:
        done = capacity(url, "--json", *quick(trace), "--scale", 4, "--guess", 400, "--seconds-per-rate", 0.2, "--requests-per-rate", 8)
        got = json.loads(done.stdout)
    assert got["context_tokens"] < 60 and got["bound"] == "errors", got
    assert all(probe["failed"] == 0 for probe in got["probes"]) and any(probe["refused"] for probe in got["probes"])
    assert "requests failed, the first one: the queue is full" in done.stderr
    with fake("--refuse-fields", "ignore_eos,stream_options") as url:
        done = capacity(url, "--trace", trace, "--tbt-slo", "none", "--seconds-per-rate", 0.1, "--precision", 0.5, "--no-confirm")
    assert done.returncode == 0 and "does not count tokens" in done.stderr and "capacity     " in done.stdout, done.stderr


def test_keys(trace, tmp_path):
    key = tmp_path / "key"
    key.write_text("right\n")
    with fake("--key", "right") as url:
        refused = capacity(url, *quick(trace))
        assert refused.returncode == 3 and "wrong key" in refused.stderr and "--api-key-file" in refused.stderr, refused.stderr
        got = report(url, *quick(trace), "--precision", 0.5, "--seconds-per-rate", 0.1, "--api-key-file", key)
    assert got["model"] == "fake" and got["probes"]


def test_an_interrupt_reports_what_there_is(trace):
    with fake("--slots", 8, "--service", 0.1) as url:
        command = [os.path.join(BUILD, "bin", "fastdecode"), "capacity", "--url", url, "--json", *map(str, quick(trace)), "--precision", "0.005"]
        with spawn(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
            heading, first = process.stderr.readline(), process.stderr.readline()
            assert "requests/s" in heading and "met" in first, first
            process.send_signal(signal.SIGINT)
            said, _ = process.communicate(timeout=seconds(30))
    got = json.loads(said)
    assert process.returncode == 130 and not got["complete"] and got["probes"] and got["requests_per_second"] > 0


def test_a_server_that_goes_away(trace):
    with fake("--slots", 8, "--service", 0.1) as url:
        command = [os.path.join(BUILD, "bin", "fastdecode"), "capacity", "--url", url, *map(str, quick(trace))]
        with spawn(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
            process.stderr.readline(), process.stderr.readline()
            # leaving the outer `with` would wait for the inner one: the fake server ends first
            os.kill(fake_of(url), signal.SIGKILL)
            said, errors = process.communicate(timeout=seconds(60))
    assert process.returncode == 3 and "does not answer any more" in errors and "did not come to its end" in said, errors


def fake_of(url):
    """The process that listens there."""
    port = f"{int(url.rsplit(':', 1)[1]):04X}"
    with open("/proc/net/tcp", encoding="ascii") as file:
        inode = next(line.split()[9] for line in file if line.split()[1] == f"0100007F:{port}" and line.split()[3] == "0A")
    for pid in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            if any(os.readlink(f"/proc/{pid}/fd/{fd}") == f"socket:[{inode}]" for fd in os.listdir(f"/proc/{pid}/fd")):
                return int(pid)
    raise AssertionError(url)


def test_a_mesh(start_mesh):
    mesh = start_mesh("--kv-workers", 0, **PACED)  # a limit of 25 steps is far above what a busy machine delays
    got = report(mesh.url, "--trace", "sharegpt", "--scale", 0.02, "--seconds-per-rate", 1, "--requests-per-rate", 5, "--precision", 0.5,
                 "--no-confirm", "--tbt-slo", "relaxed", "--delay-p50", 0.5)
    assert got["complete"] and got["requests_per_second"] > 0 and got["tokens_per_second"] > 0 and got["undisturbed"]["step_s"] > 0, got
    for probe in got["probes"]:
        assert probe["failed"] == probe["refused"] == 0 or not probe["met"]
    lone = got["undisturbed"]["lone"]
    asked = [1730 * 0.02 * (1730 / 5696), 1730 * 0.02, 5696 * 0.02]  # the 10th, 50th and 90th percentile: words are learned to take so many
    for row, wanted in zip(lone, asked):
        assert row["prompt_tokens"] == pytest.approx(wanted, rel=0.1, abs=2)
    simulated = fastdecode("sim", "--capacity", "--json", "--hardware-dir", HARDWARE, "--shape", "llama-7b", "--gpu", "a10", "--workers", 0,
                           "--ignore-capacity", "--seconds-per-rate", 5, "--precision", 0.5)
    same = json.loads(simulated.stdout)  # under the same names
    assert set(same) - {"workers", "batch"} == set(got) - {"url", "context_tokens"}
    assert set(same["probes"][0]) == set(got["probes"][0]) and set(same["undisturbed"]) == set(got["undisturbed"])


@pytest.mark.parametrize("options, code, says", [
    (("--url", "http://127.0.0.1:1"), 3, "no answer from http://127.0.0.1:1"),
    (("--trace", "alpaca"), 2, "want sharegpt, arxiv or a CSV file"),
    (("--tbt-slo", "strict", "--tbt-p99", 1), 2, "not both"),
    (("--tbt-slo", "loose"), 2, "strict, relaxed or none"),
    (("--seconds-per-rate", 0), 2, "seconds-per-rate"),
    (("--api-key-file", "no/such"), 2, "no/such"),
    (("something",), 2, "something"),
])
def test_bad_words_are_named(options, code, says):
    said = fastdecode("capacity", *options)
    assert said.returncode == code and says in said.stderr and said.stdout == "", said.stderr
