#!/usr/bin/env python3
"""The figures of a GPU as one table: the CUDA backend, and meshes with it, beside what the same device does at best in the same run.

  tests/bench/bench_gpu.py [--build build] [--only device,s-part,...] [--out FILE] [--results FOLDER] [--keep] [--emulated]

Parts: device (read bandwidth, the best of cuBLASLt's products); s-part (a step's weights at 1 and 1,024 rows); quant (4-bit weights
beside f16); attention (decode and prefill over pages); serving (a mesh without workers at 1, 32, 256 streams beside the roofline);
hybrid (KV workers beside none with the same device memory, where the bound of the gain is 1.3, 2 and 3, and where memory is plenty);
stall (a prompt of 3,000 tokens beside 64 streams); prediction (what `plan` says beside all of that). Writes FILE (build/bench-gpu.json) after
every figure; --keep: figures of other parts that it has stay. --results: a text file there, with date, device, driver and command.

FD_BENCH_SHAPE (llama-7b; also llama-13b, llama-1b), FD_BENCH_HYBRID_SHAPE (the same), FD_BENCH_WORKERS (1: KV workers of hybrid and
stall) and FD_BENCH_FOLDER (build/bench: model files, 20 GB for llama-7b) choose. Without a GPU it says so and ends with 0. --emulated:
the device that tests emulate, with a tiny model: shows that this program works, and no figure means anything.
"""
import argparse
import datetime
import importlib
import os
import shutil
import signal
import subprocess
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)

PARTS = ("device", "s-part", "quant", "attention", "serving", "hybrid", "stall", "prediction")
LIMIT_S = {"device": 300, "s-part": 900, "quant": 900, "attention": 600, "serving": 1200, "hybrid": 3600, "stall": 900,
           "prediction": 1200}
NO_DEVICE = 3


def program(build, emulated):
    return os.path.join(build, "tests", "cuda" if emulated else "gpu", "bench_gpu")


def probe(build, emulated):
    """(there is one, what it is or why there is none)"""
    path = program(build, emulated)
    if not os.path.exists(path):
        return False, f"there is no {path} (make bench-gpu-programs builds it, where nvcc is)"
    said = subprocess.run([path, "probe"], capture_output=True, text=True, check=False)
    lines = (said.stdout + said.stderr).strip().splitlines() or [f"status {said.returncode}"]
    if said.returncode not in (0, NO_DEVICE):
        raise RuntimeError(f"{path} probe: {lines[-1]}")
    return said.returncode == 0, lines[-1]


def driver():
    if not shutil.which("nvidia-smi"):
        return "unknown (no nvidia-smi)"
    said = subprocess.run(["nvidia-smi", "--query-gpu=name,driver_version,memory.total,clocks.max.sm,power.limit", "--format=csv,noheader"],
                          capture_output=True, text=True, check=False)
    return said.stdout.strip().replace("\n", "; ") or "unknown"


def version():
    said = subprocess.run(["git", "-C", HERE, "describe", "--always", "--dirty"], capture_output=True, text=True, check=False)
    return said.stdout.strip() or "unknown"


def write_results(folder, device, began, run, text):
    """A file of its own each time; the run's name is its date."""
    os.makedirs(folder, exist_ok=True)
    path = os.path.join(folder, f"gpu-{began:%Y-%m-%d-%H%M}.txt")
    with open(path, "w", encoding="utf-8") as file:
        file.write(f"date      {began:%Y-%m-%d %H:%M} UTC\ndevice    {device}\ndriver    {driver()}\nversion   {version()}\n"
                   f"command   {' '.join(sys.argv)}\nsettings  {run.settings}\n\n{text}\n")
        file.writelines(f"missing: {what}\n" for what in run.missing)
        file.writelines(f"\n{name}:\n{lines}\n" for name, lines in run.shown.items())
    return path


def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--build", default="build")
    arguments.add_argument("--only", default=",".join(PARTS))
    arguments.add_argument("--out")
    arguments.add_argument("--results")
    arguments.add_argument("--keep", action="store_true")
    arguments.add_argument("--emulated", action="store_true")
    chosen = arguments.parse_args()
    names = chosen.only.split(",")
    if unknown := set(names) - set(PARTS):
        arguments.error(f"unknown parts: {', '.join(sorted(unknown))} (there are {', '.join(PARTS)})")
    build = os.environ["FD_BUILD"] = os.path.abspath(chosen.build)
    if chosen.emulated:
        os.environ["FD_CUDA_LIBRARY"] = os.path.join(build, "tests", "cuda", "libfastdecode-cuda.so")
    there, device = probe(build, chosen.emulated)
    print(f"bench-gpu: {device}" + ("" if there else ": nothing is measured"), flush=True)
    if not there:
        return 0
    figures, gpu_parts = importlib.import_module("figures"), importlib.import_module("gpu_parts")
    out = chosen.out or os.path.join(build, "bench-gpu.json")
    kept = [item for item in figures.read(out) if item["part"] not in names] if chosen.keep else []
    run = gpu_parts.GpuRun(out, kept, build, LIMIT_S, program(build, chosen.emulated), chosen.emulated)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    began, clock = datetime.datetime.now(datetime.timezone.utc), time.monotonic()
    importlib.import_module("bench").run_parts(run, names, {name: ("gpu_parts", name.replace("-", "_")) for name in PARTS})
    figures.write(out, run.items)
    text = figures.table(run.items)
    print(f"\n{text}\n{len(run.items)} figures in {out}, {time.monotonic() - clock:.0f} s")
    for what in run.missing:
        print(f"missing: {what}")
    if chosen.results and run.items:
        print(f"kept in {write_results(chosen.results, device, began, run, text)}")
    return 1 if run.missing else 0


if __name__ == "__main__":
    sys.exit(main())
