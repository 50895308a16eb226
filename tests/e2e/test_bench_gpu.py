"""`make bench-gpu` on the emulated device: that it runs from its first part to its last and writes what it says it writes. Its figures mean
nothing there. And what it says where there is no GPU."""
import json
import os
import subprocess
import sys

import pytest

from conftest import BUILD, ROOT, SANITIZED, seconds

PROGRAM = os.path.join(ROOT, "tests", "bench", "bench_gpu.py")
LIMIT_S = 120

pytestmark = pytest.mark.skipif(SANITIZED, reason="the emulated device switches stacks, which sanitizers do not follow")


def bench_gpu(tmp_path, *options, **env):
    return subprocess.run([sys.executable, PROGRAM, "--build", BUILD, "--out", str(tmp_path / "figures.json"), *options],
                          env={**os.environ, "FD_BENCH_FOLDER": str(tmp_path / "models"), **env}, capture_output=True, text=True,
                          timeout=seconds(LIMIT_S), check=False)


@pytest.mark.full
def test_all_parts_run(tmp_path):
    said = bench_gpu(tmp_path, "--emulated", "--results", str(tmp_path / "results"), FD_EMULATE_DEVICE_BYTES=str(768 << 20))
    assert said.returncode == 0, said.stdout[-3000:] + said.stderr[-3000:]
    with open(tmp_path / "figures.json", encoding="utf-8") as file:
        items = json.load(file)
    names = "\n".join(item["name"] for item in items)
    assert {item["part"] for item in items} == {"device", "s-part", "quant", "attention", "serving", "hybrid", "stall", "prediction"}
    assert all({"name", "value", "unit", "ceiling", "ratio", "target", "pass"} <= set(item) for item in items)
    assert all(item["value"] > 0 for item in items if not item["name"].endswith("within 15%"))
    for words in ("device: read bandwidth", "device: best f16 product", "S-part alone, 1 row, layers", "S-part alone, 16 rows, layers",
                  "4-bit weights beside f16", "paged decode attention, 4 sequences of 64", "prefill attention",
                  "1 stream with", "3 streams with", "gain beside its bound", "the largest gain", "p99 between tokens",
                  "1 workers: predicted tokens/s beside measured", "hybrid_gain_bound of plan",
                  "device, S-part, traced", "device, transfer, traced"):
        assert words in names, words
    (path,) = (tmp_path / "results").iterdir()
    text = path.read_text()
    assert text.startswith("date      20") and "device    cuda:0, emulated device" in text
    assert f"command   {PROGRAM} --build" in text and "targets met: " in text
    assert "device memory:\nweights_mib=" in text and "M, bound, gain:" in text and "a decode step (us):" in text


def test_without_a_gpu_it_says_so(tmp_path):
    said = bench_gpu(tmp_path, "--emulated", FD_EMULATE_DEVICE_BYTES="0")
    assert said.returncode == 0 and "bench-gpu: no CUDA device: " in said.stdout and said.stdout.endswith(": nothing is measured\n")
    script = os.path.join(ROOT, "tests", "bench", "gpu", "bench_gpu.sh")
    said = subprocess.run([script, str(tmp_path), "-", sys.executable], capture_output=True, text=True, check=False, timeout=seconds(30))
    assert said.returncode == 0 and "bench-gpu: no nvcc (CUDA_HOME=DIR says where the toolkit is)" in said.stdout
