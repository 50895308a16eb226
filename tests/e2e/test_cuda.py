"""`--device`: the CUDA backend's whole path (weights, segments, links, local pool, memory plan) through a mesh, on a device that is
emulated on the CPU (tests/cuda), so that it runs where there is no GPU."""
import json
import os
import re
import signal
import subprocess
import sys
import time

import pytest

from conftest import BUILD, MODEL, PACED, ROOT, SANITIZED, fastdecode, run, seconds, shard, spawn, tiny, wait_until
from streams import Stream, assert_same, body, join_all, of_place, run_all, start_all, words
from test_golden import ORACLE, Scores, check_greedy
from test_weights import cut_file_and_check

sys.path.append(os.path.join(ROOT, "tests", "bench"))
import profile_steps  # noqa: E402

EMULATED = os.path.join(BUILD, "tests", "cuda", "libfastdecode-cuda.so")

pytestmark = pytest.mark.skipif(SANITIZED, reason="the emulated device switches stacks, which sanitizers do not follow")


def device(**more):
    return {"FD_CUDA_LIBRARY": EMULATED, **more}


SAVED_MIB = 0.5  # of the small model's weights, that are on the host instead


def device_plan(mesh):
    return {key: float(value) for key, value in re.findall(r"(\w+_mib)=([\d.]+)", re.search("DEVICE-MEMORY (.*)", mesh.logs(200))[1])}


SMALL_MIB = 20.8  # what all of its weights take there
HOST_KIB = 700     # too little for what the device has no room for then: it comes from disk, through two slots


def from_disk(folder, weights_mib):
    return ("--weights-memory", f"{int((weights_mib - SAVED_MIB) * 1024)}K", "--weights-host-memory", f"{HOST_KIB}K", "--cache-dir", folder)


def host_plan(mesh):
    return {key: float(value) for key, value in re.findall(r"(\w+)=([\d.]+)", re.search("MEMORY-PLAN (.* disk_mib.*)", mesh.logs(200))[1])}


def s_part(*options, env):
    """What an s-part says that cannot start, or that is only asked for its device."""
    return run([os.path.join(BUILD, "bin", "s-part"), "--model", MODEL, "--calibrate", "off", *options], env=dict(os.environ, **env))


SHORT = [text for text in ORACLE["scored"] if len(text["tokens"]) <= 182]


@pytest.mark.parametrize("texts", [pytest.param(shard(SHORT, 2), id="some"), pytest.param(SHORT, id="all", marks=pytest.mark.full)])
def test_oracle(start_mesh, texts):
    """Weights as in the file, activations in f16, KV in the device's pool."""
    mesh = start_mesh("--device", "cuda", "--kv-workers", 0, model=MODEL, threads=0, env=device())
    assert "device=cuda:0 level=4-bit/f16/cuda" in mesh.logs(200)
    assert [mesh.option(service, "mini-batches") for service in ("scheduler", "s-part")] == ["0", "1"]  # nothing is away
    scores = Scores(mesh, texts)
    assert scores.positions == sum(len(text["tokens"]) - 1 for text in texts) >= (250 if len(texts) == len(SHORT) else 70)
    assert scores.agreed >= 0.965 * scores.positions and scores.mean <= 0.03
    assert not scores.sure_disagreed


@pytest.mark.full
def test_workers_hold_the_kv(start_mesh):
    """q, k, v and o through pinned memory, two mini-batches; the same text as from the pool, but for f16's last bits."""
    mesh = start_mesh("--device", "cuda:0", "--kv-workers", 2, "--local-pool", 0, "--mini-batches", 2, model=MODEL, threads=0, env=device())
    check_greedy(mesh)
    assert mesh.metric("fastdecode_generated_tokens_total") >= 640


def test_a_trace_has_tracks_of_the_device(start_mesh, tmp_path):
    """What it computes and copies, layer by layer, within the step that the s-part saw; and messages go without a detour. With
    `auto` it takes three mini-batches, and workers beside it have the cores."""
    path = str(tmp_path / "trace.json")
    mesh = start_mesh("--device", "auto", "--local-pool", 0, "--kv-workers", 1, "--trace", path, "--context", 256, "--max-batch", 8,
                      env=device())
    mesh.wait_metric("fastdecode_place_up", lambda up: up == 1)
    assert mesh.metric("fastdecode_place_shares_cores") == 0
    assert [mesh.option(service, "mini-batches") for service in ("scheduler", "s-part")] == ["0", "3"]
    assert [stream.error for stream in run_all(mesh.url, [body(words(10, i), 4, i) for i in range(2)])] == [None] * 2
    assert "MESSAGES-OUT-OF-REACH" not in mesh.logs(10000)
    assert mesh.stop() == 0
    trace = profile_steps.Trace(profile_steps.read(path))
    assert {"mini-batch 0", "mini-batch 1"} <= set(trace.track.values())
    segments = 1 + max(e["args"]["layer"] for e in trace.named("device segment"))
    steps = {(e["args"]["step"]): e for e in trace.named("step")}
    assert len(steps) >= 4 and len(trace.named("device segment")) == len(steps) * segments
    assert len(trace.named("o up")) == len(trace.named("q, k, v down")) == len(steps) * (segments - 1)
    assert {trace.track[e["pid"], e["tid"]] for e in trace.named("o up")} == {"device 0, transfer"}
    for e in trace.named("device segment") + trace.named("device head"):
        step = steps[e["args"]["step"]]
        assert step["ts"] <= e["ts"] and e["ts"] + e["dur"] <= step["ts"] + step["dur"] + 0.01
    busy = profile_steps.summarize(trace)["device_us"]
    assert {kind for kind, us in busy.items() if us > 0} == {"S-part", "transfer"}


@pytest.mark.full
@pytest.mark.parametrize("victim, options", [("kv-worker-0", ("--kv-workers", 2, "--local-pool", 0)), ("s-part", ("--kv-workers", 0))])
def test_failures_are_survived(start_mesh, victim, options):
    """A worker dies while the device writes the message that it was to get, or the device with its pool: nobody sees an error, every
    stream has all its tokens, and the pages of all are free in the end. (Which tokens follow is not promised on CUDA.)"""
    mesh = start_mesh("--device", "cuda", "--mini-batches", 2, *options, env=device())
    mesh.wait_metric("fastdecode_place_up", lambda up: up == 2 if victim != "s-part" else up == 1)  # else it may hold nothing
    streams = start_all(mesh.url, [body(words(12 + 5 * i, i), 24, i, sampled=i % 2 == 1) for i in range(6)])
    for stream in streams:
        stream.wait_tokens(4)
    mesh.kill(victim)
    join_all(streams)
    assert [(stream.error, len(stream.tokens), stream.finish_reason) for stream in streams] == [(None, 24, "length")] * 6
    assert mesh.metric("fastdecode_sequences_rebuilt_total") > 0
    mesh.wait_metric("fastdecode_kv_pages_used", lambda pages: pages == 0, 10)


@pytest.mark.full
def test_a_lost_device_is_survived(start_mesh):
    """The device fails every so often, by an ECC error: the s-part says so, is started anew, and sequences go on."""
    mesh = start_mesh("--device", "cuda", "--kv-workers", 0, env=device(FD_EMULATE_FAILS_AFTER="1500"))
    streams = start_all(mesh.url, [body(words(12 + 5 * i, i), 24, i) for i in range(4)])
    join_all(streams)
    assert [(stream.error, len(stream.tokens), stream.finish_reason) for stream in streams] == [(None, 24, "length")] * 4
    assert re.search('DEVICE-FAILED why="[a-z ]+: uncorrectable ECC error encountered"', mesh.logs(10000))


def test_a_device_that_hangs_is_given_up(start_mesh):
    """It stops for good, and says nothing: the s-part ends after a while, is started anew, and the sequence goes on."""
    limit_s = round(seconds(2))
    mesh = start_mesh("--device", "cuda", "--kv-workers", 0, "--calibrate", "off",
                      env=device(FD_EMULATE_HANGS_AFTER="1000", FD_DEVICE_TIMEOUT=str(limit_s)))
    stream = run_all(mesh.url, [body("The sea is", 20)])[0]
    assert (stream.error, len(stream.tokens), stream.finish_reason) == (None, 20, "length")
    logs = mesh.logs(10000)
    silent = re.search(r"DEVICE-SILENT seconds=(\d+) ", logs)
    assert silent and int(silent[1]) >= limit_s and "DEVICE-FAILED" not in logs
    assert mesh.metric("fastdecode_sequences_rebuilt_total") > 0


@pytest.mark.full
def test_a_device_without_work_is_not_given_up(start_mesh):
    """Steps with rows at a worker that dies, then nothing for longer than the limit, and a process that was stopped."""
    mesh = start_mesh("--device", "cuda", "--kv-workers", 1, "--placement", "workers", "--calibrate", "off",
                      env=device(FD_DEVICE_TIMEOUT=str(round(seconds(2)))))
    streams = start_all(mesh.url, [body(words(5 + i, i), 12, i) for i in range(2)])
    streams[0].wait_tokens(4)
    mesh.kill("kv-worker-0")
    join_all(streams)
    assert [(stream.error, len(stream.tokens)) for stream in streams] == [(None, 12)] * 2
    pid = mesh.pid("s-part")
    time.sleep(seconds(4))  # longer than the limit
    os.kill(pid, signal.SIGSTOP)
    time.sleep(seconds(3))
    os.kill(pid, signal.SIGCONT)
    assert run_all(mesh.url, [body("The sea is", 3)])[0].error is None
    assert mesh.pid("s-part") == pid and "DEVICE-SILENT" not in mesh.logs(10000)


def test_the_pool_is_what_the_device_has_left(start_mesh):
    """--local-pool auto on a device: most of what weights and activations leave, and never more."""
    mesh = start_mesh("--device", "auto", "--kv-workers", 1, "--max-batch", 16, "--context", 512, env=device(
        FD_EMULATE_DEVICE_BYTES=str((256 + 640) << 20)))
    plan = device_plan(mesh)
    left = plan["free_mib"] - plan["weights_mib"] - plan["activations_mib"]
    assert plan["free_mib"] == 640 and 0.9 * left < plan["pool_mib"] <= left
    reply = mesh.post("/v1/completions", {"model": "default", "prompt": ["one two three"] * 8, "max_tokens": 40, "ignore_eos": True,
                                          "temperature": 0})
    texts = {choice["text"] for choice in reply["choices"]}
    assert len(reply["choices"]) == 8 and len(texts) == 1


@pytest.mark.parametrize("option", [("--kv-type", "int8"), ("--sparse-attention", "10%")])
def test_what_the_pool_cannot_hold_is_on_workers(start_mesh, option):
    """The pool on a device is f16, and attends to all of a context: with other settings KV is on workers only; said, and answered all
    the same."""
    mesh = start_mesh("--device", "cuda", *option, "--kv-workers", 1, "--max-batch", 4, "--context", 256, "--calibrate",
                      "off", env=device())
    assert "POOL-LEFT-OUT" in mesh.logs(200) and "KV is on workers only" in mesh.logs(200)
    assert all(stream.error is None for stream in run_all(mesh.url, [body("The sea is", 8)]))


def test_refusals():
    """What cannot run says why, with numbers."""
    for options, env, line in (
            (("--device", "gpu"), {}, "--device is 'gpu', want auto, cpu, cuda or cuda:N"),
            (("--device", "cuda:x"), {}, "want auto, cpu, cuda or cuda:N"),
            (("--device", "cuda:99999999999"), {}, "want auto, cpu, cuda or cuda:N"),
            (("--device", "cuda"), {"FD_CUDA_LIBRARY": "/none.so"}, "--device cuda: there is no /none.so"),
            (("--device", "cuda"), {"FD_CUDA_LIBRARY": os.path.join(BUILD, "bin", "s-part")}, "--device cuda: "),
            (("--device", "cuda"), device(FD_EMULATE_DEVICE_BYTES="0"), "no CUDA device"),
            (("--device", "cuda:1"), device(), "there are 1 CUDA devices, numbered from 0"),
            (("--device", "cuda"), device(FD_EMULATE_DEVICE_BYTES=str(400 << 20)), "MiB are needed and 144 are free: weights "),
            (("--device", "cuda", "--weights-host-memory", "0"), device(), "--weights-host-memory is '0', want auto or bytes such as 12G"),
            (("--device", "cuda", "--weights-memory", "50M", "--weights-host-memory", "1M"), device(),
             "--weights-host-memory 1M: on the host: the weights need "),
            (("--device", "cuda", "--quantize", "4"), device(), "has its matrices in Q4_1 already: leave it out"),
            (("--device", "cuda", "--compute", "int8"), device(), "--compute int8 is for the CPU"),
            (("--device", "cuda", "--compute", "f32"), device(), "--compute f32 is for the CPU"),
            (("--device", "cuda", "--kv-type", "int8"), device(), "on CUDA the local pool is f16"),
            (("--device", "cuda", "--sparse-attention", "10%"), device(), "on CUDA the local pool has no sparse attention"),
            (("--batch-invariant", "--compute", "f32"), {}, "--batch-invariant: f32 goes through OpenBLAS")):
        said = s_part(*options, env=env)
        # a setting that cannot be, or one that this machine cannot do: docs/operations.md
        there_is_none = line == "--device cuda: " or any(words in line for words in ("there is no", "CUDA device", "MiB are needed", "the weights need"))
        assert said.returncode == (3 if there_is_none else 2) and line in said.stderr, (options, said.returncode, said.stderr)
    assert "DEVICE" in fastdecode("up", "--help").stdout


def test_without_a_library_the_cpu_computes(start_mesh):
    mesh = start_mesh("--device", "auto", "--kv-workers", 0, env={"FD_CUDA_LIBRARY": "/none.so"})
    assert 'DEVICE chosen="cpu: there is no /none.so (`make cuda` builds it)"' in mesh.logs(200)


def test_batch_invariant(start_mesh):
    """The same bytes alone, among others, and after an s-part that died: its pool is built anew from the tokens, by prompts. On the
    emulated device a row's products have the same bits in any company, so this is about everything else: attention, padding, placement,
    failover."""
    probes = [body("The sea is", 8, logprobs=5), body(words(12, 1), 10, 1, True, logprobs=5)]
    mesh = start_mesh("--device", "cuda", "--kv-workers", 0, "--batch-invariant", "--max-batch", 8, "--context", 256,
                      "--calibrate", "off", env=device())
    assert "level=4-bit/f16/cuda/invariant" in mesh.logs(200)
    wanted = [run_all(mesh.url, [probe])[0] for probe in probes]
    assert all(stream.error is None for stream in wanted)
    beside = [Stream(mesh.url, body(words(3 + 7 * i, 50 + i), 10, i, True)) for i in range(2)]
    assert_same(run_all(mesh.url, probes), wanted)
    join_all(beside)
    again = [Stream(mesh.url, probe) for probe in probes]
    again[1].wait_tokens(4)
    mesh.kill("s-part")
    join_all(again)
    assert_same(again, wanted)


FROM_THE_HOST = {"pool": ("--kv-workers", 0), "worker": ("--placement", "workers")}
SOME, = shard(list(FROM_THE_HOST), 2)


@pytest.mark.parametrize("place", [SOME, *(pytest.param(place, marks=pytest.mark.full) for place in FROM_THE_HOST if place != SOME)])
def test_weights_from_the_host(start_mesh, tmp_path, place):
    """Some layers' weights cross the link in each step, once for both mini-batches: the same bytes as with all of them there. The same if the
    host has no memory for them either, and they come from disk."""
    common = ("--device", "cuda", "--batch-invariant", "--max-batch", 8, "--context", 256, "--mini-batches", 2, *FROM_THE_HOST[place])
    probes = [body("The sea is", 8, logprobs=5), body(words(12, 1), 10, 1, True, logprobs=5)]
    mesh = start_mesh(*common, env=device())
    wanted = run_all(mesh.url, probes)
    assert all(stream.error is None for stream in wanted)
    weights = device_plan(mesh)["weights_mib"]
    mesh.stop()
    small = start_mesh(*common, "--weights-memory", f"{int((weights - SAVED_MIB) * 1024)}K", env=device())
    streamed = float(re.search(r"WEIGHTS-STREAMED from=host each_step_mib=([\d.]+)", small.logs(200))[1])
    assert streamed > SAVED_MIB and device_plan(small)["weights_mib"] <= weights - SAVED_MIB + 0.1
    assert_same(run_all(small.url, probes), wanted)
    small.stop()
    least = start_mesh(*common, *from_disk(tmp_path, weights), env=device(), calibrate=True)
    assert float(re.search(r"CALIBRATED .* stream_us=(\d+)", least.logs(200))[1]) > 0
    plan = host_plan(least)
    assert plan["weights_mib"] <= 0.7 and plan["disk_mib"] > plan["weights_mib"] and plan["disk_slots"] == 2
    assert plan["disk_mib"] == float(re.search(r"WEIGHTS-STREAMED file=\S+-cuda.fdw each_step_mib=([\d.]+)", least.logs(200))[1])
    beside = [Stream(least.url, body(words(3 + 17 * i, i), 12 + 5 * i, i, i % 2 == 0)) for i in range(4)]
    assert_same(run_all(least.url, probes), wanted)
    assert [stream.error for stream in join_all(beside) if stream.error] == []


def test_a_read_of_weights_that_fails(start_mesh, tmp_path):
    """The packed file is cut while steps read it. The s-part ends as with a lost device, writes the file anew when it is started again, and
    the streams go on with the text that they would have had."""
    common = ("--device", "cuda", "--batch-invariant", "--max-batch", 8, "--context", 256, "--calibrate", "off", "--placement", "workers")
    paced = dict(PACED, env=dict(PACED["env"], **device()))
    mesh = start_mesh(*common, *from_disk(tmp_path, SMALL_MIB), **paced)
    cut_file_and_check(mesh, tmp_path, body("The sea is", 60))


def test_weights_that_do_not_fit_the_device(start_mesh):
    """auto: what the rest leaves of the device's memory, found without being told."""
    common = ("--device", "cuda", "--kv-workers", 1, "--local-pool", 0, "--max-batch", 8, "--context", 256, "--calibrate", "off")
    mesh = start_mesh(*common, env=device())
    plan = device_plan(mesh)
    mesh.stop()
    reserve = 256  # MiB, for the driver
    small = start_mesh(*common, env=device(FD_EMULATE_DEVICE_BYTES=str(
        int((reserve + plan["weights_mib"] + plan["activations_mib"] - SAVED_MIB) * 1048576))))
    assert "WEIGHTS-STREAMED from=host" in small.logs(200)
    assert all(stream.error is None for stream in run_all(small.url, [body("The sea is", 8)]))


def test_batch_invariant_places(start_mesh):
    """KV stays in places of one kind: `up` asks which where there are two, and so does the scheduler."""
    said = fastdecode("up", "--model", MODEL, "--device", "cuda", "--batch-invariant", "--check", env=dict(os.environ, **device()))
    assert said.returncode == 2 and "--placement local (or --kv-workers 0), or --placement workers" in said.stderr
    for one in (("--placement", "local"), ("--placement", "workers"), ("--kv-workers", 0), ("--local-pool", 0), ("--device", "cpu")):
        options = ["--model", MODEL, "--device", "cuda", "--batch-invariant", "--check", *map(str, one)]
        assert fastdecode("up", *options, env=dict(os.environ, **device())).returncode == 0, one
    mesh = start_mesh("--device", "cuda", "--batch-invariant", "--placement", "workers", "--context", 256, "--max-batch", 8,
                      "--calibrate", "off", env=device())
    assert all(stream.error is None for stream in run_all(mesh.url, [body(words(20, i), 6, i) for i in range(3)]))
    wait_until(lambda: of_place(mesh, "fastdecode_kv_pages_peak", "kv-worker-0") >= 3, what="no pages at the worker")
    assert of_place(mesh, "fastdecode_kv_pages_peak", "local") == 0


def test_a_scheduler_that_would_mix_places_refuses(tmp_path):
    address = f"ipc://{tmp_path}/scheduler.sock"
    programs = [spawn([os.path.join(BUILD, "bin", name), *options], stderr=subprocess.PIPE, text=True, env=dict(os.environ, **device()))
                for name, options in (("scheduler", ("--listen", address)),
                                      ("s-part", ("--scheduler", address, "--listen", f"ipc://{tmp_path}/s-part.sock", "--model", tiny(),
                                                  "--device", "cuda", "--batch-invariant", "--max-batch", "8", "--context", "256",
                                                  "--local-pool", "16M", "--calibrate", "off")))]
    try:
        said = next(line for line in programs[1].stderr if "REGISTER-REFUSED" in line)
        assert "KV must stay in places of one kind" in said and "--local-pool 0" in said
    finally:
        for program in programs:
            program.kill()
            program.communicate()


def test_a_device_is_measured_for_the_planner(tmp_path):
    """Memory, bandwidth, f16 rate, and with a model its layers, head and attention there; the file is one that plan reads."""
    model, path = tmp_path / "tiny.gguf", tmp_path / "gpu.conf"
    assert fastdecode("model", "--synthetic", "llama-tiny", "--type", "f16", model).returncode == 0
    said = fastdecode("plan", "--measure", "--model", model, path, env=dict(os.environ, **device(
        FD_EMULATE_DEVICE_BYTES=str(512 << 20))))
    assert said.returncode == 0 and said.stderr.startswith("fastdecode plan: measured cuda:0, emulated device"), said.stderr
    text = path.read_text()
    found = dict(line.split(" = ") for line in text.splitlines() if " = " in line)
    assert found["name"] == "emulated device" and found["memory"] == "1012M" and found["measured_model"] == "tiny.gguf"
    assert all(float(found[key]) > 0 for key in ("memory_gb_per_second", "f16_tflops", "attend_token_us", "attend_pair_us"))
    assert "int8_tops" not in found and "a kernel that only reads" in text
    planned = fastdecode("plan", "--json", "--model", model, "--gpu", path, "--worker", "epyc-7452", "--gen", 64, "--batch", 8, "--workers", 2,
                         "--local-pool", "1M")
    assert planned.returncode == 0 and json.loads(planned.stdout)["hybrid_gain_bound"] > 1, planned.stderr
    said = fastdecode("plan", "--measure", "--device", "cuda", env=dict(os.environ, **device(FD_EMULATE_DEVICE_BYTES=str(16 << 20))))
    assert said.returncode == 2 and "cuda:0 has 16 MiB free: too little to measure with" in said.stderr


def test_the_pool_is_measured_where_it_is(start_mesh, tmp_path):
    """At a mesh's start, and it is empty then."""
    model = tmp_path / "tiny.gguf"
    assert fastdecode("model", "--synthetic", "llama-tiny", "--type", "f16", model).returncode == 0
    options = ("--kv-workers", 0, "--context", 256, "--max-batch", 8)
    token_us = re.compile(r"attend_token_us=([\d.]+)")
    host_us = float(token_us.search(start_mesh(*options, model=model, calibrate=True).logs(200))[1])
    found = []
    while len(found) < 3 and max(found, default=0) < 4 * host_us:  # a host is far faster than a device that it emulates; a busy one measures it badly
        mesh = start_mesh("--device", "cuda", *options, model=model, calibrate=True, env=device(FD_EMULATE_DEVICE_BYTES=str(512 << 20)))
        logs = mesh.logs(200)
        assert "CALIBRATED" in logs and "POOL-NOT-MEASURED" not in logs and mesh.metric("fastdecode_kv_pages_used") == 0
        found.append(float(token_us.search(logs)[1]))
        mesh.stop()
    assert max(found) >= 4 * host_us, (found, host_us)
