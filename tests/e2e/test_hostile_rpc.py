"""Malformed messages to the four services of a running mesh: a clear error each, and the others' requests go on.

Frames: what tests/integration/rpc_bad_frames.h lists (53 of them), sent by that program. Calls: well-framed messages whose
payload is wrong for the method, said by someone who said hello as the service that may call it; some by a stranger.
Meanwhile a completion streams through the gateway again and again, over the worker that is being attacked; it must give its
text, without an error or a pause. Nobody may have been started again, and no page may have been lost.
"""
import math
import os
import re
import struct
import subprocess
import threading
import time

import pytest

from conftest import BUILD, PACED, Mesh, run, seconds, spawn, tiny
from rpc_client import Answer, Connection, Refused, blob, decode, fixed64, one, packed, packed32, packed64, raw_varint, real, varint
from streams import Stream, assert_same, body, join_all, run_all, words

pytestmark = pytest.mark.sanitizer

SERVICES = ("gateway", "scheduler", "s-part", "kv-worker-0")
FRAMES_AT_LEAST, CALLS_AT_LEAST = 50, 30
U32, U64 = 2**32 - 1, 2**64 - 1
LONGEST_PAUSE_S = 2
NAN, INFINITY = math.nan, math.inf

GARBAGE = {
    "bytes of 0xff": b"\xff" * 12,
    "a cut tag": b"\x80",
    "a length beyond the end": b"\x0a\x7f\x01",
    "a length of 2^63": b"\x0a" + b"\x80" * 9 + b"\x01",
    "a group": b"\x0b\x0c",
    "wire type 7": b"\x0f\x00",
    "field number 0": b"\x00\x00",
}


def ipc(mesh, name):
    return f"ipc://{mesh.run_dir}/{name}.sock"


class Bystander(threading.Thread):
    """One completion after the other, until told to stop. Each must be what it was before, without a pause."""

    def __init__(self, mesh):
        super().__init__(daemon=True)
        self.mesh, self.request = mesh, body(words(40, 9), 120, 1, sampled=True)
        self.wanted = run_all(mesh.url, [self.request])
        assert self.wanted[0].error is None
        self.streams, self.streaming, self.asked_to_stop = [], threading.Event(), threading.Event()

    def run(self):
        while not self.asked_to_stop.is_set():
            self.streams.append(Stream(self.mesh.url, self.request))
            self.streams[-1].wait_tokens(2)
            self.streaming.set()
            self.streams[-1].join()

    def __enter__(self):
        self.start()
        assert self.streaming.wait(seconds(30))
        return self

    def __exit__(self, kind, *_):
        self.asked_to_stop.set()
        self.join(seconds(60))
        if kind is None:
            assert self.streams and not self.is_alive()
            assert_same(self.streams, self.wanted * len(self.streams))
            gap, before = (max(stream.longest_gap() for stream in streams) for streams in (self.streams, self.wanted))
            print(f"{len(self.streams)} completions beside it, longest gap {gap:.3f} s, {before:.3f} s before")
            assert gap < max(seconds(LONGEST_PAUSE_S), 10 * before)


@pytest.fixture(scope="module")
def attacked():
    """A mesh that does all attention at its one worker, for its local pool has room for nobody, and what its processes are."""
    # no page is kept on purpose: each that is not free at the end was lost
    with Mesh("--kv-workers", 1, "--local-pool", "68K", "--kv-memory", "256M", "--prefix-cache", "off") as mesh:
        mesh.wait_metric("fastdecode_place_up", lambda up: up == 2)
        yield mesh, {service: mesh.pid(service) for service in SERVICES}


@pytest.fixture
def target(attacked):
    """Checks around each test: others get their answers, processes are the same, pages are free again."""
    mesh, pids = attacked
    free = pages_free(mesh)
    with Bystander(mesh):
        yield mesh
    assert {service: mesh.pid(service) for service in SERVICES} == pids, "a service was started again"
    for name in ("fastdecode_requests_running", "fastdecode_requests_waiting", "fastdecode_kv_pages_used"):
        mesh.wait_metric(name, lambda value: value == 0, 10)
    assert pages_free(mesh) == free, "pages were lost"
    assert mesh.metric("fastdecode_sequences_rebuilt_total") == 0


def incarnation_of(mesh, socket_name):
    connection = Connection(ipc(mesh, socket_name))
    connection.close()
    return connection.incarnation


def as_scheduler(mesh, name):
    return Connection(ipc(mesh, name), "scheduler", incarnation_of(mesh, "scheduler"))


def free_request(incarnation, *sequences):
    return fixed64(1, incarnation) + packed64(2, sequences)


def pages_free(mesh):
    """What the worker's store itself says."""
    connection = as_scheduler(mesh, "kv-worker-0")
    answer = connection.call("KvControl/Free", free_request(incarnation_of(mesh, "scheduler")))
    connection.close()
    assert answer.status == "OK", answer
    return one(decode(answer.messages[0]), 1)


@pytest.fixture(scope="module")
def model(attacked):
    return model_of(attacked[0])


def model_of(mesh):
    """ModelInfo and KvShape, as the scheduler tells them to gateways."""
    connection = Connection(ipc(mesh, "scheduler"), "gateway")
    state = decode(connection.call("Generator/Watch", b"", messages=1).messages[0])
    connection.close()
    info = decode(one(state, 7))
    shape = decode(one(info, 6))
    return {"vocab": one(info, 2), "context": one(shape, 7), "fingerprint": one(info, 5), "kv": one(info, 6),
            "layers": one(shape, 1), "q": 4 * one(shape, 2) * one(shape, 4), "kv_row": 4 * one(shape, 3) * one(shape, 4)}


def check(open_connection, cases, at_least=CALLS_AT_LEAST):
    """cases: (name, method, payload, statuses, part of the text). A connection of its own for each."""
    wrong = []
    for name, method, payload, statuses, text in cases:
        connection = open_connection()
        answer = connection.call(method, payload)
        connection.close()
        good = answer.status in statuses.split("|") and text in answer.error
        if answer.status not in ("OK", "CLOSED"):
            good = good and len(answer.error) >= 8
        print(f"{method} {name}: {answer}")
        if not good:
            wrong.append(f"{method}, {name}: {answer}, want {statuses} with {text!r}")
    assert not wrong, "\n".join(wrong)
    assert len(cases) >= at_least, f"only {len(cases)} cases"


def garbage(method, message):
    return [(name, method, payload, "INVALID_ARGUMENT", message) for name, payload in GARBAGE.items()]


def strangers(*methods):
    """Methods that are none of this service's."""
    return [("not a method of it", method, b"", "UNIMPLEMENTED", "has no method") for method in methods]


# --- the mesh secret ----------------------------------------------------------------------------------------------------------


def test_strangers_are_refused(target):
    """Whoever does not know the secret that `up` has made is told so and reaches no method, at any service."""
    path = os.path.join(target.run_dir, "mesh-secret")
    assert os.stat(path).st_mode & 0o777 == 0o600
    for name in ("gateway", "scheduler", "s-part", "kv-worker-0", "kv-worker-0-t"):
        with pytest.raises(Refused, match="tester has none: start it with --mesh-secret-file"):
            Connection(ipc(target, name), secret=None)
        with pytest.raises(Refused, match="different mesh secrets"):
            Connection(ipc(target, name), "scheduler", secret=b"another mesh's secret")
    health = [os.path.join(BUILD, "bin", "fastdecode"), "health", ipc(target, "scheduler")]
    without = run(health)
    assert without.returncode == 3 and without.stderr.count("health has none: start it with --mesh-secret-file") == 2, without  # log and answer
    within = run([*health, "--mesh-secret-file", path])
    assert within.returncode == 0 and "ready" in within.stdout, within


def test_plain_tcp_beyond_loopback_must_be_asked_for_and_needs_a_secret(tmp_path):
    secret = tmp_path / "secret"
    secret.touch(0o600)
    secret.write_text("not a short one, this secret\n")
    model = ["--model", tiny(), "--calibrate", "off"]
    for program, options, extra in (("scheduler", ["--listen"], []), ("s-part", ["--listen"], model),
                                    ("kv-worker", ["--listen"], ["--advertise", "tcp://127.0.0.1:1", "--calibrate", "off"]),
                                    ("kv-worker", ["--listen-tensors"], ["--advertise-tensors", "tcp://127.0.0.1:1", "--calibrate", "off"]),
                                    ("gateway", ["--listen"], ["--model", tiny(), "--scheduler", "tcp://127.0.0.1:1", "--port", "0"])):
        command = [os.path.join(BUILD, "bin", program), *options, "tcp://0.0.0.0:0", *extra]
        done = run(command)
        assert done.returncode != 0 and "plain tcp" in done.stderr and "fastdecode certs" in done.stderr and "--insecure" in done.stderr, done
        done = run([*command, "--insecure"])
        assert done.returncode != 0 and "--insecure wants --mesh-secret-file" in done.stderr, done
        checked = run([*command, "--check", "--mesh-secret-file", tmp_path / "none there"])
        assert checked.returncode == 2 and "none there" in checked.stderr, checked
    running = spawn([os.path.join(BUILD, "bin", "scheduler"), "--listen", "tcp://0.0.0.0:0", "--insecure", "--mesh-secret-file", str(secret)],
                    stderr=subprocess.PIPE, text=True)
    try:
        assert any("SCHEDULER " in line for line in running.stderr)
    finally:
        running.terminate()
        running.communicate(timeout=seconds(60))
    assert running.returncode == 0


# --- frames -------------------------------------------------------------------------------------------------------------------


def test_malformed_frames(target):
    sockets = ("gateway", "scheduler", "s-part", "kv-worker-0", "kv-worker-0-t")
    program = os.path.join(BUILD, "tests", "integration", "test_rpc_frames")
    done = run([program, os.path.join(target.run_dir, "mesh-secret"), *(ipc(target, name) for name in sockets)], 120)
    assert done.returncode == 0, done.stdout + done.stderr
    counts = [int(line.rsplit(": ", 1)[1].split()[0]) for line in done.stdout.splitlines() if "malformed" in line]
    assert len(counts) == len(sockets) and min(counts) >= FRAMES_AT_LEAST, done.stdout


# --- gateway ------------------------------------------------------------------------------------------------------------------


def test_calls_to_the_gateway(target):
    """It has no method but Health.Check."""
    cases = garbage("Health/Check", "HealthRequest")
    cases += [("every prefix of a field that is cut", "Health/Check", (blob(9, b"x" * 40))[:length], "INVALID_ARGUMENT", "HealthRequest")
              for length in range(1, 16)]
    cases += strangers("Generator/Generate", "Generator/Watch", "Generator/Metrics", "Cluster/RegisterMember", "Cluster/Heartbeat",
                       "Cluster/Drain", "SPart/Step", "SPart/Release", "SPart/Exclude", "KvWorker/Attend", "KvControl/Free",
                       "KvHandover/ReadPage", "Health/Nothing", 0, U32)
    cases += [("8 MB of an unknown field", "Health/Check", blob(99, bytes(8 << 20)), "OK|INVALID_ARGUMENT", ""),
              ("a million unknown fields", "Health/Check", varint(99, 1) * 1000000, "OK|INVALID_ARGUMENT", "")]
    check(lambda: Connection(ipc(target, "gateway")), cases)


# --- scheduler ----------------------------------------------------------------------------------------------------------------


def generate(prompt=(1, 2, 3), sampling=b"", max_tokens=4, more=b""):
    return blob(1, "hostile") + packed(2, prompt) + (blob(3, sampling) if sampling is not None else b"") + varint(4, max_tokens) + more


def bias(token, value):
    return blob(8, varint(1, token), real(2, value))


def generate_cases(model):
    method, vocab, context = "Generator/Generate", model["vocab"], model["context"]

    def bad(name, payload, text, status="INVALID_ARGUMENT"):
        return (name, method, payload, status, text)

    cases = garbage(method, "GenerateRequest")
    cases += [bad("nothing", b"", "prompt", "OUT_OF_RANGE"), bad("no prompt", generate(()), "prompt", "OUT_OF_RANGE"),
              bad("no sampling", generate(sampling=None), "sampling is missing"),
              bad("a token that is the vocabulary's size", generate((1, vocab)), "vocabulary"),
              bad("a token of 2^32 - 1", generate((U32,)), "vocabulary"),
              bad("a generated token beyond the vocabulary", generate(more=packed(7, (1, vocab))), "vocabulary"),
              bad("a prompt longer than the context", generate([1] * (context + 1)), "8193", "OUT_OF_RANGE"),
              bad("a prompt of a million tokens", generate([1] * 1000000), "1000000", "OUT_OF_RANGE"),
              bad("prompt and generated longer than the context", generate([1] * context, more=packed(7, [1])), "8193", "OUT_OF_RANGE"),
              bad("a prompt that is a message of messages", blob(2, blob(2, blob(2, b"\x80"))), "GenerateRequest"),
              bad("text that is not UTF-8 where a number is due", varint(1, 7) + generate(), "GenerateRequest")]
    for number, name in ((1, "temperature"), (3, "top_p"), (4, "min_p"), (5, "presence_penalty"), (6, "frequency_penalty"),
                         (7, "repetition_penalty")):
        cases += [bad(f"{name} of {value}", generate(sampling=real(number, value)), name)
                  for value in (NAN, INFINITY, -INFINITY, -1000.0)]
    cases += [bad("a negative temperature", generate(sampling=real(1, -0.5)), "temperature"),
              bad("2^32 - 1 top log-probabilities", generate(sampling=varint(12, U32)), "top_logprobs"),
              bad("a bias of a token beyond the vocabulary", generate(sampling=bias(vocab, 1)), "logit_bias"),
              bad("a bias that is no number", generate(sampling=bias(1, NAN)), "logit_bias"),
              bad("an infinite bias", generate(sampling=bias(1, INFINITY)), "logit_bias"),
              bad("a hundred thousand biases", generate(sampling=bias(1, 1) * 100000), "biases")]
    return cases


def register(kind=4, name="kv-worker-9", incarnation=1 << 40, control="ipc:///nowhere.sock", tensors="ipc:///nowhere-t.sock", more=b""):
    return (varint(1, kind) + blob(2, name) + fixed64(3, incarnation) + blob(4, control) + blob(5, tensors) + more)


def shape(layers=30, heads=9, kv_heads=3, head_dim=64, page_tokens=16, kind=1, context=8192):
    return b"".join(varint(i + 1, value) for i, value in enumerate((layers, heads, kv_heads, head_dim, page_tokens, kind, context)))


def model_info(model, kv=None, vocab=None, context=None, fingerprint=None, ends=()):
    return blob(6, blob(1, "m"), varint(2, model["vocab"] if vocab is None else vocab),
                varint(3, model["context"] if context is None else context), packed(4, ends),
                fixed64(5, model["fingerprint"] if fingerprint is None else fingerprint), blob(6, model["kv"] if kv is None else kv))


def register_cases():
    method = "Cluster/RegisterMember"

    def bad(name, payload, text="registration", status="INVALID_ARGUMENT"):
        return (name, method, payload, status, text)

    cases = garbage(method, "RegisterRequest")
    cases += [bad("nothing", b""), bad("a kind of no member", register(kind=2)), bad("kind 99", register(kind=99)),
              bad("no name", register(name="")), bad("a name of 10,000 bytes", register(name="n" * 10000)),
              bad("no address", register(control="")), bad("an address of 10,000 bytes", register(control="ipc://" + "a" * 10000)),
              bad("a tensor address of 10,000 bytes", register(tensors="ipc://" + "a" * 10000)),
              bad("no incarnation", register(incarnation=0)),
              bad("another incarnation than in the hello", register(incarnation=1 << 41), "hello"),
              bad("an older incarnation of a worker that is there", register(name="kv-worker-0"), "", "OK"),
              bad("a worker of another shape", register(more=blob(7, shape(layers=31))), "", "OK"),  # it is told the right one
              bad("a worker with a model that lacks its shape, and layers", register(more=blob(6, b"") + varint(24, 1)), "", "OK")]
    return cases


def s_part_register_cases(model):
    method, rows = "Cluster/RegisterMember", varint(12, 640)

    def bad(name, more, text="registration", status="INVALID_ARGUMENT"):
        return (name, method, register(kind=3, name="s-part", more=more), status, text)

    return [bad("an s-part without a model", rows), bad("without rows", model_info(model)),
            bad("2^32 - 1 rows", model_info(model) + varint(12, U32)),
            bad("without a vocabulary", model_info(model, vocab=0) + rows),
            bad("without a context", model_info(model, context=0) + rows),
            bad("a context of 2^32 - 1", model_info(model, context=U32) + rows),
            bad("without a shape", model_info(model, kv=b"") + rows),
            bad("2^32 - 1 layers, heads and all", model_info(model, kv=shape(U32, U32, U32, U32, U32)) + rows),
            bad("pages of no token", model_info(model, kv=shape(page_tokens=0)) + rows),
            bad("a thousand end tokens", model_info(model, ends=range(1000)) + rows),
            bad("another model file", model_info(model, fingerprint=1) + rows, "another model", "FAILED_PRECONDITION"),
            bad("another shape", model_info(model, kv=shape(layers=31)) + rows, "another model", "FAILED_PRECONDITION"),
            bad("an older s-part", model_info(model) + rows, "", "OK")]


def heartbeat_cases():
    return (garbage("Cluster/Heartbeat", "HeartbeatRequest") + garbage("Cluster/Drain", "DrainRequest") +
            garbage("Generator/Watch", "WatchRequest") + garbage("Generator/Metrics", "MetricsRequest") +
            [("of nobody", "Cluster/Heartbeat", blob(1, "nobody") + fixed64(2, 1 << 40), "FAILED_PRECONDITION", "register"),
             ("of an older worker", "Cluster/Heartbeat", blob(1, "kv-worker-0") + fixed64(2, 1 << 40), "FAILED_PRECONDITION", "register"),
             ("without anything", "Cluster/Heartbeat", b"", "INVALID_ARGUMENT", "hello"),
             ("another incarnation than in the hello", "Cluster/Drain", blob(1, "kv-worker-0") + fixed64(2, 5), "INVALID_ARGUMENT", "hello"),
             ("of an older worker", "Cluster/Drain", blob(1, "kv-worker-0") + fixed64(2, 1 << 40), "OK", "")])


def test_calls_to_the_scheduler(target, model):
    address = ipc(target, "scheduler")
    check(lambda: Connection(address, "gateway"), generate_cases(model) + strangers("SPart/Step", "KvWorker/Attend", 0))
    check(lambda: Connection(address, "kv-worker", 1 << 40), register_cases() + heartbeat_cases())
    check(lambda: Connection(address, "s-part", 1 << 40), s_part_register_cases(model), 10)
    newest = incarnation_of(target, "kv-worker-0")
    refused = Connection(address, "kv-worker", 1 << 40).call("Cluster/RegisterMember", register(name="kv-worker-0"))
    assert one(decode(refused.messages[0]), 3) == newest, "an older one is told the newest, and is not registered"
    refused = Connection(address, "kv-worker", U64).call("Cluster/RegisterMember", register(name="kv-worker-0", incarnation=U64))
    assert newest <= one(decode(refused.messages[0]), 3) < U64, "one of the future is told a number of now, and is not registered"
    assert incarnation_of(target, "kv-worker-0") == newest
    check(lambda: Connection(address), [
        ("by a stranger", "Cluster/RegisterMember", register(incarnation=0xfffff), "PERMISSION_DENIED", "kv-worker")], 1)


def test_odd_requests_to_the_scheduler(target, model):
    """Nothing in them is wrong: they are carried out, or end, and disturb nobody."""
    address, ids = ipc(target, "scheduler"), set()
    odd = {
        "max_tokens 2^32 - 1, then the client leaves": generate(max_tokens=U32),
        "a timeout of 2^64 - 1 ms": generate(more=varint(6, U64)),
        "a timeout of 1 ms": generate(more=varint(6, 1)),
        "a temperature of 1e-30": generate(sampling=real(1, 1e-30)),
        "a temperature of 100 and all else at its limit": generate(sampling=real(1, 100) + real(3, 1e-30) + real(4, 1) + real(5, 100) +
                                                                   real(6, -100) + real(7, 100) + varint(2, U32)),
        "a ban of each of 1,024 tokens": generate(sampling=b"".join(bias(i, -INFINITY) for i in range(1024))),
        "more was generated than may be": generate(more=packed(7, [1] * 20)),
        "end tokens that no vocabulary has": generate(more=packed(10, [U32] * 1000)),
        "a sequence id of 2^64 - 1": generate(more=fixed64(8, U64)),
        "a prompt that fills the context": generate([1] * model["context"]),
        "nothing to generate": generate(max_tokens=0),
        "a tenant of a megabyte": generate(more=blob(9, "t" * (1 << 20))),
        "unknown fields": generate(more=varint(100, 1) * 1000 + blob(200, b"x" * 1000)),
    }
    for name, payload in odd.items():
        connection = Connection(address, "gateway")
        answer = connection.call("Generator/Generate", payload, messages=6)
        connection.close()
        assert answer.status == "OK" and answer.messages, f"{name}: {answer}"
        ids.update(one(decode(message), 1) for message in answer.messages)
    # the ids that will be given out next, claimed: those who come later get others
    connection = Connection(address, "gateway")
    newest = max(i for i in ids if i != U64)
    calls = [connection.start("Generator/Generate", generate(max_tokens=30, more=fixed64(8, newest + k))) for k in range(1, 9)]
    streams = run_all(target.url, [body("One", 8)] * 4)
    assert [stream.error for stream in streams] == [None] * 4 and len(calls) == 8
    connection.close()
    watchers = [Connection(address, "gateway") for _ in range(20)]  # that never read
    for watcher in watchers:
        watcher.start("Generator/Watch", b"")
        watcher.close()


# --- pages: the s-part and workers give and take them alike ---------------------------------------------------------------------


def fetch_request(by, sequence=77, tensors="ipc:///nowhere.sock", positions=16):
    return fixed64(1, by) + fixed64(2, sequence) + blob(3, tensors) + varint(4, positions)


def fetch_cases(target, model, incarnation, own):
    def bad(name, text, status="INVALID_ARGUMENT", by=incarnation, **request):
        return (name, "KvControl/Fetch", fetch_request(by, **request), status, text)

    return garbage("KvControl/Fetch", "FetchRequest") + [
        bad("another incarnation than in the hello", "hello", by=5), bad("no sequence", "FetchRequest", sequence=0),
        bad("no positions", "FetchRequest", positions=0), bad("positions beyond the context", "context", positions=model["context"] + 1),
        bad("2^32 - 1 positions", "context", positions=U32), bad("no address", "address", tensors=""),
        bad("an address of 10,000 bytes", "address", tensors="ipc://" + "x" * 10000), bad("an address that is none", "address", tensors="what"),
        bad("an address of no transport", "warp", tensors="warp://here"),
        bad("a sequence that is not there, from itself", "not held", "NOT_FOUND", tensors=ipc(target, own)),
        bad("pages from one who does not know what they are", "", "UNIMPLEMENTED", tensors=ipc(target, "gateway"))]


def read_page_cases():
    return garbage("KvHandover/ReadPage", "ReadPageRequest") + [
        ("a sequence that is not held", "KvHandover/ReadPage", fixed64(1, 99), "NOT_FOUND", "not held"),
        ("page 2^32 - 1", "KvHandover/ReadPage", fixed64(1, 99) + varint(2, U32), "NOT_FOUND", "not held")]


# --- s-part -------------------------------------------------------------------------------------------------------------------


def run_of(sequence=7, position=0, tokens=(1,), place=0, more=b""):
    return blob(6, fixed64(1, sequence) + varint(2, position) + packed(3, tokens) + varint(4, place) + more)


def place(worker=0, incarnation=0, address=""):
    return blob(5, varint(1, worker), fixed64(2, incarnation), blob(3, address))


def opening(sequence=7, sampling=b"", prompt=1, tokens=(1,)):
    return blob(4, fixed64(1, sequence), blob(2, sampling) if sampling is not None else b"", varint(3, prompt), packed(4, tokens))


def step_cases(model, incarnation):
    vocab, context = model["vocab"], model["context"]

    def step(*parts, by=incarnation, mini_batch=0):
        return fixed64(1, by) + varint(2, 1) + varint(3, mini_batch) + b"".join(parts)

    def bad(name, payload, text, status="INVALID_ARGUMENT"):
        return (name, "SPart/Step", payload, status, text)

    cases = garbage("SPart/Step", "StepRequest")
    cases += [bad("another incarnation than in the hello", step(by=5), "hello"), bad("a mini-batch that is not there", step(mini_batch=1), "mini-batch"),
              bad("mini-batch 2^32 - 1", step(mini_batch=U32), "mini-batch"), bad("a step aside as one of the others", step(varint(7, 1)), "aside"),
              bad("a run at no place", step(run_of()), "place 0 of 0"), bad("a run at place 2^32 - 1", step(run_of(place=U32), place()), "place"),
              bad("a position of the context's length", step(run_of(position=context), place()), "position"),
              bad("a position of 2^32 - 1", step(run_of(position=U32), place()), "position"),
              bad("rows beyond the context", step(run_of(position=context - 1, tokens=(1, 1)), place()), "position"),
              bad("a token beyond the vocabulary", step(run_of(tokens=(vocab,)), place()), "vocabulary"),
              bad("a next token beyond the vocabulary", step(run_of(more=varint(7, U32)), place()), "vocabulary"),
              bad("as many drafts as tokens", step(run_of(tokens=(1, 1), more=varint(5, 1) + varint(10, 2)), place()), "drafts"),
              bad("drafts without a sample", step(run_of(tokens=(1, 1), more=varint(10, 1)), place()), "drafts"),
              bad("2^32 - 1 drafts", step(run_of(tokens=(1, 1), more=varint(5, 1) + varint(10, U32)), place()), "drafts"),
              bad("a hundred drafts", step(run_of(tokens=[1] * 101, more=varint(5, 1) + varint(10, 100)), place()), "drafts"),
              bad("more runs than rows", step(*[run_of(i + 1) for i in range(1000)], place()), "1000 runs"),
              bad("more rows than there may be", step(run_of(tokens=[1] * 700), place()), "700 rows"),
              bad("a hundred thousand runs", step(run_of() * 100000, place()), "100000 runs"),
              bad("more places than there may be", step(place() * 300), "300 places"),
              bad("a sequence opened without sampling", step(opening(sampling=None)), "sampling is missing"),
              bad("a sequence opened without an id", step(opening(sequence=0)), "sequence 0"),
              bad("a sequence opened without tokens", step(opening(tokens=())), "0 tokens"),
              bad("a prompt longer than the tokens", step(opening(prompt=2)), "2 of them prompt"),
              bad("a prompt of none", step(opening(prompt=0)), "0 of them prompt"),
              bad("a log longer than the context", step(opening(tokens=[1] * (context + 1))), "8193 tokens"),
              bad("a log with a token beyond the vocabulary", step(opening(tokens=(1, vocab))), "vocabulary"),
              bad("a bias beyond the vocabulary", step(opening(sampling=bias(vocab, 1))), "logit_bias"),
              bad("ten thousand biases", step(opening(sampling=bias(1, 1) * 10000)), "biases"),
              bad("a run twice, of a sequence that is opened", step(opening(), run_of(), run_of(position=1), place()), "two runs"),
              bad("a run twice, at two places", step(opening(), run_of(), run_of(place=1), place(), place(1, 1, "ipc:///x")), "two runs"),
              bad("a run that is no message", step(blob(6, b"\xff\xff")), "StepRequest"),
              bad("nested a hundred deep", step(*[blob(4, blob(2, blob(8, b"\x80")))]), "StepRequest")]
    cases += [bad(f"opened with {name} of {value}", step(opening(sampling=real(number, value))), name)
              for number, name in ((1, "temperature"), (3, "top_p"), (5, "presence_penalty")) for value in (NAN, -1000.0)]
    cases += garbage("SPart/Release", "ReleaseRequest") + garbage("SPart/Exclude", "ExcludeRequest") + garbage("SPart/Reach", "ReachRequest")
    return cases


def test_calls_to_the_s_part(target, model):
    incarnation = incarnation_of(target, "scheduler")
    connect = lambda: as_scheduler(target, "s-part")
    check(connect, step_cases(model, incarnation) + fetch_cases(target, model, incarnation, "s-part") +
          [("by who keeps no pages", "KvHandover/ReadPage", fixed64(1, 99), "PERMISSION_DENIED", "only a kv-worker or the s-part")] +
          strangers("Generator/Generate", "KvWorker/Attend", "KvControl/Free", 0, U32))
    check(lambda: Connection(ipc(target, "s-part"), "kv-worker", incarnation_of(target, "kv-worker-0")), read_page_cases(), 2)
    step = fixed64(1, incarnation) + varint(2, 1)
    unknown = step + run_of(99) + run_of(98, tokens=()) + place()
    answer = connect().call("SPart/Step", unknown)
    results = [decode(result) for result in decode(answer.messages[0])[2]]
    assert [(one(result, 1), one(result, 2)) for result in results] == [(99, 3), (98, 3)], "sequences that it does not know"
    check(connect, [("a million that are not there", "SPart/Release", packed64(1, range(1 << 40, (1 << 40) + 1000000)), "OK", ""),
                    ("a worker that is not there", "SPart/Exclude", varint(1, U32) + fixed64(2, U64), "OK", ""),
                    ("a worker without an address", "SPart/Reach", blob(1, varint(1, 9) + fixed64(2, 1)), "INVALID_ARGUMENT", "address"),
                    ("no worker", "SPart/Reach", b"", "INVALID_ARGUMENT", "no KV worker"),
                    ("what the steps above opened", "SPart/Release", packed64(1, [7]), "OK", "")], 5)
    check(lambda: Connection(ipc(target, "s-part"), "scheduler", 5), [
        ("by an older scheduler", "SPart/Step", fixed64(1, 5), "FAILED_PRECONDITION", "later"),
        ("by an older scheduler", "SPart/Release", packed64(1, [1]), "FAILED_PRECONDITION", "later"),
        ("by an older scheduler", "KvControl/Fetch", fetch_request(5), "FAILED_PRECONDITION", "later"),
        ("by an older scheduler", "SPart/Exclude", varint(1, 1), "FAILED_PRECONDITION", "later"),
        ("by an older scheduler", "SPart/Reach", b"", "FAILED_PRECONDITION", "later")], 5)
    check(lambda: Connection(ipc(target, "s-part"), "scheduler", U64), [
        ("by a scheduler of the future", "SPart/Step", fixed64(1, U64), "INVALID_ARGUMENT", "future")], 1)
    check(lambda: Connection(ipc(target, "s-part")), [
        ("by a stranger", "SPart/Step", step, "INVALID_ARGUMENT|PERMISSION_DENIED", "scheduler"),
        ("by a stranger", "SPart/Release", packed64(1, [1]), "PERMISSION_DENIED", "scheduler"),
        ("by a stranger", "KvControl/Fetch", fetch_request(0), "PERMISSION_DENIED", "scheduler"),
        ("by a stranger", "SPart/Exclude", varint(1, 1), "PERMISSION_DENIED", "scheduler"),
        ("by a stranger", "SPart/Reach", b"", "PERMISSION_DENIED", "scheduler")], 5)


def test_two_addresses_of_one_worker_that_both_fail(target):
    """Both are somebody else's; when the second is found out the step begins, and looks for its links once more."""
    incarnation, connection = incarnation_of(target, "scheduler"), as_scheduler(target, "s-part")
    step = fixed64(1, incarnation) + varint(2, 1) + opening(81) + opening(82) + run_of(81) + run_of(82, place=1)
    answer = connection.call("SPart/Step", step + place(9, 1, ipc(target, "scheduler")) + place(9, 1, ipc(target, "kv-worker-0")))
    results = [decode(result) for result in decode(answer.messages[0])[2]]
    assert [(one(result, 1), one(result, 2)) for result in results] == [(81, 2), (82, 2)], "both are lost"
    for method, payload in (("SPart/Exclude", varint(1, 9) + fixed64(2, 1)), ("SPart/Release", packed64(1, [81, 82]))):
        assert connection.call(method, payload).status == "OK"
    connection.close()


# --- a stage of a pipeline ------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def staged():
    """Two s-parts in a pipeline; the second one is attacked, by who says hello as the first."""
    with Mesh("--s-parts", 2, "--kv-workers", 1, "--local-pool", "68K", "--kv-memory", "64M", "--prefix-cache", "off") as mesh:
        mesh.wait_metric("fastdecode_place_up", lambda up: up == 2)
        mesh.wait_metric("fastdecode_stages", lambda count: count == 2)
        yield mesh


class ClosedForReason(Connection):
    """A call that the server answers by closing the connection is KICKED, with the reason that its log gives."""

    def __init__(self, log, *who):
        self.log, self.seen = log, os.path.getsize(log)
        super().__init__(*who)

    def call(self, *what):
        answer = super().call(*what)
        if answer.status != "CLOSED":
            return answer
        with open(self.log, encoding="utf-8") as file:
            file.seek(self.seen)
            return Answer("KICKED", "".join(line for line in file if "RPC-KICKED" in line))


def forward_cases(model, first, scheduler, hidden):
    vocab, context, row = model["vocab"], model["context"], 4 * hidden

    def step(*parts, by=scheduler, mini_batch=1):
        return fixed64(1, by) + varint(2, 1) + varint(3, mini_batch) + b"".join(parts)

    def forward(step_bytes=None, rows=1, by=first, term=1, absent=(), lost=(), x=None, shift=0, count=None):
        step_bytes = step(opening(), run_of(), place()) if step_bytes is None else step_bytes
        data = bytes(row * rows) if x is None else x
        head = (fixed64(1, by) + varint(2, term) + varint(3, rows if count is None else count) + varint(4, 10) + blob(5, step_bytes) +
                packed32(6, absent) + packed32(7, lost))
        after = 1 + len(raw_varint(len(data)))
        return head + blob(14, bytes((-(len(head) + 2 + after) + shift) % 4)) + blob(15, data)

    def bad(name, payload, text, status="KICKED"):
        return (name, "SPart/Forward", payload, status, text)

    cases = [(*case[:3], "KICKED", case[4]) for case in garbage("SPart/Forward", "ForwardRequest")]
    cases += [bad("nothing", b"", "0 rows"), bad("no rows", forward(rows=0), "0 rows"), bad("2^32 - 1 rows", forward(count=U32), "rows"),
              bad("a row count that overflows", forward(count=2**32), "row_count"), bad("more rows than a step has", forward(rows=700), "700 rows"),
              bad("x too short", forward(x=bytes(row - 4)), f"x has {row - 4} bytes"), bad("x too long", forward(x=bytes(row + 4)), "x has"),
              bad("x empty", forward(x=b""), "x has 0 bytes"), bad("x of 8 MB", forward(x=bytes(8 << 20)), "x has 8388608 bytes"),
              bad("x at an odd place", forward(shift=1), "aligned"), bad("x as a number", varint(15, 7) + forward(), "field 15 has wire type 0"),
              bad("the term as bytes", blob(2, b"x") + forward(), "field 2 has wire type 2"),
              bad("half a list of runs", forward() + blob(6, b"abc"), "absent_run"), bad("a list of a thousand runs", forward(lost=[0] * 1000), "lost_run"),
              bad("no step", fixed64(1, first) + varint(2, 1) + varint(3, 1) + blob(14, b"\0" * 3) + blob(15, bytes(row)), ""),
              bad("a step that is garbage", forward(b"\xff" * 9), "malformed step"), bad("a run that is no message", forward(step(blob(6, b"\xff"))), "malformed step"),
              bad("a step that is empty", forward(b""), "later", "FAILED_PRECONDITION"),
              bad("another incarnation than in the hello", forward(by=5), "hello"),
              bad("of the term before", forward(term=0), "another term", "FAILED_PRECONDITION"),
              bad("of a term to come", forward(term=U64), "another term", "FAILED_PRECONDITION"),
              bad("a mini-batch that is not there", forward(step(opening(), run_of(), place(), mini_batch=9)), "mini-batch 9"),
              bad("mini-batch 2^32 - 1", forward(step(opening(), run_of(), place(), mini_batch=U32)), "mini-batch"),
              bad("of an older scheduler", forward(step(opening(), run_of(), place(), by=5)), "", "FAILED_PRECONDITION"),
              bad("fewer rows than runs", forward(step(opening(), run_of(tokens=(1, 1)), place())), "1 rows"),
              bad("more rows than runs", forward(rows=2), "2 rows"), bad("all runs absent", forward(absent=(0,)), "1 rows"),
              bad("a run absent that is not there", forward(absent=(1,)), "run 1 of 1"), bad("run 2^32 - 1 lost", forward(lost=(U32,)), "run 4294967295 of 1"),
              bad("no runs", forward(step(place())), "1 rows"), bad("a run at no place", forward(step(opening(), run_of())), "place 0 of 0"),
              bad("a position beyond the context", forward(step(opening(), run_of(position=context), place())), "position"),
              bad("a token beyond the vocabulary", forward(step(opening(), run_of(tokens=(vocab,)), place())), "vocabulary"),
              bad("drafts without a sample", forward(step(opening(), run_of(tokens=(1, 1), more=varint(10, 1)), place()), rows=2), "drafts"),
              bad("a run twice", forward(step(opening(), run_of(), run_of(position=1), place()), rows=2), "two runs"),
              bad("a sequence opened without sampling", forward(step(opening(sampling=None), run_of(), place())), "sampling is missing"),
              bad("a hundred thousand runs", forward(step(run_of() * 100000, place())), "100000 runs"),
              bad("more places than there may be", forward(step(place() * 300)), "300 places")]
    return cases


def join(scheduler, term, first):
    """To the second stage, as the scheduler says it but for the term."""
    return fixed64(1, scheduler) + varint(2, term) + varint(3, 1) + fixed64(4, first)


def test_rows_for_a_stage(staged):
    """Forward: the sender of what is malformed loses its connection, and the streams that go through both stages go on."""
    model, pids = model_of(staged), [staged.pid(f"s-part-{stage}") for stage in range(2)]
    first, scheduler = incarnation_of(staged, "s-part-0"), incarnation_of(staged, "scheduler")
    strict = lambda name, *who: ClosedForReason(os.path.join(staged.run_dir, f"{name}.log"), ipc(staged, name), *who)
    connect = lambda: strict("s-part-1", "s-part", first)
    hidden = 192  # of the small model
    with Bystander(staged):
        check(connect, forward_cases(model, first, scheduler, hidden), 40)
        by_first = fixed64(1, first) + varint(2, 1) + varint(3, 1)
        check(lambda: strict("s-part-0", "s-part", first), [
            ("to the first stage", "SPart/Forward", by_first + blob(14, b"\0") + blob(5, b"") + blob(15, bytes(4 * hidden)), "KICKED|FAILED_PRECONDITION", "")], 1)
        check(lambda: strict("s-part-1", "s-part", first - 1), [
            ("by another s-part", "SPart/Forward", forward_cases(model, first - 1, scheduler, hidden)[-1][2], "KICKED|FAILED_PRECONDITION", "")], 1)
        check(lambda: as_scheduler(staged, "s-part-1"), [
            ("a step to the second stage", "SPart/Step", fixed64(1, scheduler) + varint(2, 1), "FAILED_PRECONDITION", "layer 0"),
            *garbage("SPart/Join", "JoinRequest"),
            ("a Join of no term", "SPart/Join", fixed64(1, scheduler) + varint(3, 1), "INVALID_ARGUMENT", "stage 1"),
            ("a Join as the first", "SPart/Join", fixed64(1, scheduler) + varint(2, 9), "INVALID_ARGUMENT", "stage 0"),
            ("a Join with a next stage", "SPart/Join", fixed64(1, scheduler) + varint(2, 9) + varint(3, 1) + blob(5, "ipc:///x"), "INVALID_ARGUMENT", "next"),
            ("a Join of the term under way", "SPart/Join", join(scheduler, 1, first), "FAILED_PRECONDITION", "term 1"),
            ("a Join of an older scheduler", "SPart/Join", fixed64(1, 5) + varint(2, 9) + varint(3, 1), "INVALID_ARGUMENT|FAILED_PRECONDITION", "")], 10)
        check(lambda: strict("s-part-1"), [
            ("by a stranger", "SPart/Forward", forward_cases(model, 0xfffff, scheduler, hidden)[-1][2], "KICKED|PERMISSION_DENIED", ""),
            ("by a stranger", "SPart/Join", fixed64(1, 0xfffff) + varint(2, 9) + varint(3, 1), "PERMISSION_DENIED|INVALID_ARGUMENT", "")], 2)
    assert [staged.pid(f"s-part-{stage}") for stage in range(2)] == pids
    assert staged.metric("fastdecode_steps_failed_total") == 0 and staged.metric("fastdecode_sequences_rebuilt_total") == 0


@pytest.mark.parametrize("stage", (0, 1))
def test_a_join_that_the_scheduler_did_not_send(start_mesh, stage):
    """The stage is in a term that the scheduler does not know: it refuses steps, the stages are put together anew, and the streams go on."""
    mesh = start_mesh("--s-parts", 2, "--kv-workers", 1, "--local-pool", 0, "--kv-memory", "64M", **PACED)
    mesh.wait_metric("fastdecode_stages", lambda count: count == 2)
    requests = [body(words(30, i), 60, i, sampled=True) for i in range(6)]
    wanted = run_all(mesh.url, requests)
    first, scheduler = incarnation_of(mesh, "s-part-0"), incarnation_of(mesh, "scheduler")
    streams = [Stream(mesh.url, request) for request in requests]
    for stream in streams:
        stream.wait_tokens(10)
    connection = as_scheduler(mesh, f"s-part-{stage}")
    told = fixed64(1, scheduler) + varint(2, 100) + (blob(5, ipc(mesh, "s-part-1")) + fixed64(6, incarnation_of(mesh, "s-part-1")) if stage == 0
                                                     else varint(3, 1) + fixed64(4, first))
    assert connection.call("SPart/Join", told).status == "OK"
    connection.close()
    assert_same(join_all(streams), wanted)
    mesh.wait_metric("fastdecode_stages", lambda count: count == 2)
    with open(os.path.join(mesh.run_dir, "scheduler.log"), encoding="utf-8") as file:
        lines = re.findall(r" (?:STEP-FAILED|STAGE-NOT-JOINED) .*", file.read())
    assert 1 <= len(lines) <= 8, "\n".join(lines)


# --- kv-worker ----------------------------------------------------------------------------------------------------------------


def attend_cases(model, incarnation):
    q, kv = model["q"], model["kv_row"]

    def attend(rows=((5, 0),), by=incarnation, step=2**40, mini_batch=7, layer=0, count=None, q_bytes=None, k_bytes=None, v_bytes=None,
               shift=0, told=None):
        count = len(rows) if count is None else count
        head = fixed64(1, by) + fixed64(2, step) + varint(3, mini_batch) + varint(4, layer) + varint(5, count)
        told = rows if told is None else told
        if layer == 0:
            head += packed64(6, [row[0] for row in told]) + packed32(7, [row[1] for row in told])
        for number, wanted, given in ((9, q, q_bytes), (10, kv, k_bytes), (11, kv, v_bytes)):
            data = bytes(wanted * len(rows)) if given is None else given
            after = 1 + len(raw_varint(len(data)))
            head += blob(8, bytes((-(len(head) + 2 + after) + shift) % 4)) + blob(number, data)
        return head

    def bad(name, payload, text, status="INVALID_ARGUMENT"):
        return (name, "KvWorker/Attend", payload, status, text)

    cases = garbage("KvWorker/Attend", "AttendRequest")
    cases += [bad("nothing", b"", "0 rows"), bad("no rows", attend(count=0), "0 rows"), bad("2^32 - 1 rows", attend(count=U32), "4294967295 rows"),
              bad("8,193 rows", attend(count=8193), "8193 rows"), bad("a row count that overflows", attend(count=2**32), "AttendRequest"),
              bad("two rows told, one sent", attend(count=2), "row_sequence has 8 bytes"),
              bad("one position for two rows", attend(((5, 0), (6, 0)), told=((5, 0),)), "row_sequence has 8"),
              bad("q is too short", attend(q_bytes=bytes(q - 4)), f"q has {q - 4} bytes"),
              bad("q is too long", attend(q_bytes=bytes(q + 4)), f"q has {q + 4} bytes"), bad("q is empty", attend(q_bytes=b""), "q has 0 bytes"),
              bad("k is too short", attend(k_bytes=bytes(kv - 1)), "k has"), bad("k is too long", attend(k_bytes=bytes(2 * kv)), "k has"),
              bad("v is too short", attend(v_bytes=b""), "v has"), bad("v is of 8 MB", attend(v_bytes=bytes(8 << 20)), "v has 8388608 bytes"),
              bad("tensors at odd places", attend(shift=1), "not aligned"),
              bad("a field of another type", varint(1, 5) + attend(), "field 1 has wire type 0"),
              bad("q as a number", attend() + varint(9, 1), "field 9 has wire type 0"),
              bad("half a sink", blob(22, b"ab") + attend(), "sinks has 2 bytes"), bad("more sinks than q has values", blob(22, bytes(q + 4)) + attend(), "sinks has"),
              bad("sinks of other heads", blob(22, bytes(4)) + blob(8, bytes(3)) + attend(), "1 sinks, there are"), bad("sinks as a number", varint(22, 1) + attend(), "field 22 has wire type 0"),
              bad("mini-batch 16", attend(mini_batch=16), "mini-batch 16"), bad("mini-batch 2^32 - 1", attend(mini_batch=U32), "mini-batch"),
              bad("the layer behind the last", attend(layer=model["layers"]), "layer"), bad("layer 2^32 - 1", attend(layer=U32), "layer"),
              bad("a position of the context's length", attend(((5, model["context"]),)), "context"),
              bad("position 2^32 - 1", attend(((5, U32),)), "context"), bad("sequence 0", attend(((0, 0),)), "sequence 0"),
              bad("rows that are not sorted by sequence", attend(((6, 0), (5, 0))), "not sorted"),
              bad("rows that are not sorted by position", attend(((5, 1), (5, 0))), "not sorted"),
              bad("a row twice", attend(((5, 0), (5, 0))), "not sorted"),
              bad("the same, of the mini-batch that is running", attend(((5, 1), (5, 0)), mini_batch=0), "not sorted"),
              bad("a layer of a step that was never begun", attend(layer=3, step=12345), "not under way", "FAILED_PRECONDITION"),
              bad("the same, of the mini-batch that is running", attend(layer=3, step=2**63, mini_batch=0), "not under way", "FAILED_PRECONDITION"),
              bad("another incarnation than in the hello", attend(by=incarnation + 1), "hello")]
    return cases, attend


def test_attend_at_the_worker(target, model):
    address, incarnation = ipc(target, "kv-worker-0-t"), incarnation_of(target, "s-part")
    connect = lambda: Connection(address, "s-part", incarnation)
    cases, attend = attend_cases(model, incarnation)
    cases += read_page_cases()
    check(connect, cases + strangers("KvControl/Free", "KvControl/Fetch", "Generator/Generate", "SPart/Step", 0, U32))
    check(lambda: Connection(address, "s-part", 5), [("by an older s-part", "KvWorker/Attend", attend(by=5), "FAILED_PRECONDITION", "later")], 1)
    check(lambda: Connection(address, "s-part", U64), [("by one of the future", "KvWorker/Attend", attend(by=U64), "INVALID_ARGUMENT", "future")], 1)
    check(lambda: Connection(address), [("by a stranger", "KvWorker/Attend", attend(by=0), "PERMISSION_DENIED", "s-part")], 1)

    # rows that go on what is not held are lost, and take no pages; what is no number stays with its own row
    answer = connect().call("KvWorker/Attend", attend(((91, 5), (92, 8000), (93, 0), (94, 0), (94, 2)),
                                                      q_bytes=struct.pack("<f", NAN) * (5 * model["q"] // 4)))
    reply = decode(answer.messages[0])
    assert sorted(reply[4]) == [0, 1, 3, 4] and len(one(reply, 6)) == 5 * model["q"], answer
    lost = one(reply, 6)[:model["q"]]
    assert lost == bytes(model["q"])
    scheduler = incarnation_of(target, "scheduler")
    assert as_scheduler(target, "kv-worker-0").call("KvControl/Free", free_request(scheduler, 91, 92, 93, 94)).status == "OK"


def test_control_of_the_worker(target, model):
    address, incarnation = ipc(target, "kv-worker-0"), incarnation_of(target, "scheduler")
    connect = lambda: as_scheduler(target, "kv-worker-0")

    cases = garbage("KvControl/Free", "FreeRequest") + garbage("KvControl/Held", "HeldRequest")
    cases += [("another incarnation than in the hello", "KvControl/Free", free_request(5, 1), "INVALID_ARGUMENT", "hello"),
              ("half an id", "KvControl/Free", fixed64(1, incarnation) + blob(2, b"1234"), "INVALID_ARGUMENT", "FreeRequest"),
              ("a million that are not there", "KvControl/Free", free_request(incarnation, *range(1 << 40, (1 << 40) + 1000000)), "OK", "")]
    cases += fetch_cases(target, model, incarnation, "kv-worker-0-t")
    check(connect, cases + strangers("KvWorker/Attend", "KvHandover/ReadPage", "Generator/Generate", 0, U32))
    check(lambda: Connection(address, "scheduler", 5), [
        ("by an older scheduler", "KvControl/Free", free_request(5, 1), "FAILED_PRECONDITION", "later"),
        ("by an older scheduler", "KvControl/Fetch", fetch_request(5), "FAILED_PRECONDITION", "later")], 2)
    check(lambda: Connection(address), [("by a stranger", "KvControl/Free", free_request(0, 1), "PERMISSION_DENIED", "scheduler"),
                                        ("by a stranger", "KvControl/Fetch", fetch_request(0), "PERMISSION_DENIED", "scheduler")], 2)


# --- incarnations -------------------------------------------------------------------------------------------------------------


def test_nobody_is_fenced_out():
    """Incarnations 23 hours ahead, whether a clock was set back or a stranger says so: services that start again are served."""
    ahead = (int(time.time()) + 23 * 3600) * 1000 << 20
    with Mesh("--kv-workers", 1, "--local-pool", "1M", "--kv-memory", "64M") as mesh:
        mesh.wait_metric("fastdecode_place_up", lambda up: up == 2)
        request, model = body(words(30, 3), 12), model_of(mesh)
        wanted = run_all(mesh.url, [request])
        _, attend = attend_cases(model, ahead)
        answer = Connection(ipc(mesh, "kv-worker-0-t"), "s-part", ahead).call("KvWorker/Attend", attend(layer=3, step=12345))
        assert answer.status == "FAILED_PRECONDITION" and "not under way" in answer.error, answer
        mesh.wait_metric("fastdecode_place_up", lambda up: up == 2)
        assert_same(run_all(mesh.url, [request]), wanted)
        for kind, name, more in ((4, "kv-worker-0", b""), (3, "s-part", model_info(model) + varint(12, 640))):
            stranger = Connection(ipc(mesh, "scheduler"), name.removesuffix("-0"), ahead)
            if kind == 3:
                answer = stranger.call("Cluster/RegisterMember", register(kind, name, ahead, more=more))
                assert answer.status == "FAILED_PRECONDITION" and "which is alive" in answer.error, "another one beside it"
            answer = stranger.call("Cluster/RegisterMember", register(kind, name, ahead, ipc(mesh, name), more=more))
            assert answer.status == "OK" and not one(decode(answer.messages[0]), 3), answer
            stranger.close()
            mesh.wait_metric("fastdecode_place_up", lambda up: up < 2)
            mesh.kill(name)
            mesh.wait_metric("fastdecode_place_up", lambda up: up == 2)
            assert incarnation_of(mesh, name) == ahead + 1
            assert_same(run_all(mesh.url, [request]), wanted)
