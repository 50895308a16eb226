"""`--device`: the CUDA backend's whole path (weights, segments, links, local pool, memory plan) through a mesh, on a device that is
emulated on the CPU (tests/cuda), so that it runs where there is no GPU."""
import os
import re
import subprocess

import pytest

from conftest import BUILD, MODEL, SANITIZED, fastdecode
from test_golden import Scores, check_greedy

EMULATED = os.path.join(BUILD, "tests", "cuda", "libfastdecode-cuda.so")

pytestmark = pytest.mark.skipif(SANITIZED, reason="the emulated device switches stacks, which sanitizers do not follow")


def device(**more):
    return {"FD_CUDA_LIBRARY": EMULATED, **more}


def s_part(*options, env):
    """What an s-part says that cannot start, or that is only asked for its device."""
    return subprocess.run([os.path.join(BUILD, "bin", "s-part"), "--model", MODEL, "--calibrate", "off", *map(str, options)],
                          env=dict(os.environ, **env), capture_output=True, text=True, timeout=60)


def test_oracle(start_mesh):
    """Weights as in the file, activations in f16, KV in the device's pool."""
    mesh = start_mesh("--device", "cuda", "--kv-workers", 0, env=device())
    assert "device=cuda:0 level=4-bit/f16/cuda" in mesh.logs(200)
    scores = Scores(mesh, longest=182)
    assert scores.positions >= 250
    assert scores.agreed >= 0.965 * scores.positions and scores.mean <= 0.03
    assert not scores.sure_disagreed


def test_workers_hold_the_kv(start_mesh):
    """q, k, v and o through pinned memory, two mini-batches; the same text as from the pool, but for f16's last bits."""
    mesh = start_mesh("--device", "cuda:0", "--kv-workers", 2, "--local-pool", 0, "--mini-batches", 2, env=device())
    check_greedy(mesh)
    assert mesh.metric("fastdecode_generated_tokens_total") >= 640


def test_the_pool_is_what_the_device_has_left(start_mesh):
    """--local-pool auto on a device: most of what weights and activations leave, and never more."""
    mesh = start_mesh("--device", "auto", "--kv-workers", 1, "--max-batch", 16, "--context", 512, env=device(
        FD_EMULATE_DEVICE_BYTES=str((256 + 640) << 20)))
    plan = {key: float(value) for key, value in re.findall(r"(\w+_mib)=([\d.]+)", re.search("DEVICE-MEMORY (.*)", mesh.logs(200))[1])}
    left = plan["free_mib"] - plan["weights_mib"] - plan["activations_mib"]
    assert plan["free_mib"] == 640 and 0.9 * left < plan["pool_mib"] <= left
    reply = mesh.post("/v1/completions", {"model": "default", "prompt": ["one two three"] * 8, "max_tokens": 40, "ignore_eos": True,
                                          "temperature": 0})
    texts = {choice["text"] for choice in reply["choices"]}
    assert len(reply["choices"]) == 8 and len(texts) == 1


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
            (("--device", "cuda"), device(FD_EMULATE_DEVICE_BYTES=str(400 << 20)), "MiB are needed and 144 are free: weights 96, activations "),
            (("--device", "cuda", "--compute", "int8"), device(), "--compute int8 is for the CPU"),
            (("--device", "cuda", "--compute", "f32"), device(), "--compute f32 is for the CPU"),
            (("--device", "cuda", "--kv-type", "int8"), device(), "on CUDA the local pool is f16")):
        said = s_part(*options, env=env)
        assert said.returncode == 2 and line in said.stderr, (options, said.stderr)
    assert "DEVICE" in fastdecode("up", "--help").stdout


def test_without_a_library_the_cpu_computes(start_mesh):
    mesh = start_mesh("--device", "auto", "--kv-workers", 0, env={"FD_CUDA_LIBRARY": "/none.so"})
    assert 'DEVICE chosen="cpu: there is no /none.so (`make cuda` builds it)"' in mesh.logs(200)
