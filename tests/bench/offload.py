"""Weights that do not fit memory: a Llama of 1.1 G parameters in 4 bits, with memory for half of its weights, beside what the disk allows.

A step is as long as reading takes, or computing if that is longer, so that the bound is min( B · read rate ÷ bytes a step, the rate with
all weights in memory ), both of steps in which all streams decode: the read rate is measured before and after each
mesh by bench_disk, on the packed file itself; the resident rate by a mesh of its own in the same run.

FD_BENCH_READ_MBS=N slows the disk down to N MB/s, by a control group (version 1, as root): then the disk is the bound where it is
too fast to be.
"""
import contextlib
import json
import os
import re
import statistics
import subprocess
import tempfile

from clients import measure
from end_to_end import synthetic_1b, warm
from figures import figure
from servers import BUILD, Ours

STREAMS = (8, 64, 256)
WORDS, TOKENS = 16, 24
LEAST, PEAK_MOST = 0.9, 1.02
MIB = 1048576.0


@contextlib.contextmanager
def slow_disk(folder):
    """This process and those that it starts read no faster than FD_BENCH_READ_MBS from the disk that has the folder."""
    wanted, group = os.environ.get("FD_BENCH_READ_MBS"), f"/sys/fs/cgroup/blkio/fd-bench-{os.getpid()}"
    if not wanted:
        yield
        return

    def write(path, text):
        with open(path, "w", encoding="ascii") as file:
            file.write(text)
    device = os.stat(folder).st_dev
    os.mkdir(group)
    try:
        write(f"{group}/blkio.throttle.read_bps_device", f"{os.major(device)}:{os.minor(device)} {int(wanted) * 1000000}")
        write(f"{group}/cgroup.procs", str(os.getpid()))
        yield
    finally:
        write("/sys/fs/cgroup/blkio/cgroup.procs", str(os.getpid()))
        os.rmdir(group)


def disk_rate(run_, path):
    """(MB/s by io_uring, threads beside it): the medians of three passes."""
    with run_.turn("bench_disk"), tempfile.NamedTemporaryFile("r", encoding="utf-8") as lines:
        subprocess.run([os.path.join(BUILD, "tests", "bench", "bench_disk"), path], check=True, stdout=subprocess.DEVNULL,
                       env=dict(os.environ, FD_BENCH_JSON=lines.name))
        item = json.loads(lines.read())
    run_.note(f"the disk reads {item['ceiling']:.0f} MB/s")
    return item


def plan_of(mesh):
    with open(os.path.join(mesh.run_dir, "s-part.log"), encoding="utf-8", errors="replace") as file:
        line = re.findall(r"MEMORY-PLAN (.*)", file.read())[-1]
    return {key: float(value) for key, value in re.findall(r"(\w+)=([0-9.]+)", line)}


def peak_mib(mesh):
    with open(f"/proc/{mesh.services()['s-part']}/status", encoding="ascii") as file:
        return int(re.search(r"VmHWM:\s+(\d+)", file.read()).group(1)) / 1024


def rate(run_, mesh, streams, label):
    with run_.turn(f"{streams} streams, {label}"):
        got = measure(mesh.url, streams, WORDS, TOKENS, streams, run_.limit_s())
    run_.note(f"{got['tokens_per_s']:.1f} tokens/s, {got['between_p50_s']:.2f} s between tokens")
    return got


def offload(run_):
    path, counts = synthetic_1b(), [streams for streams, in run_.chosen([(n,) for n in STREAMS])]
    cache = os.path.join(BUILD, "bench")
    options = ("--kv-workers", 0, "--max-batch", max(counts), "--context", 1024, "--cache-dir", cache)
    packed = os.path.join(cache, os.path.basename(path).replace(".gguf", "-int8.fdw"))
    with Ours(*options, model=path, ready_s=300) as mesh:
        warm(mesh, 4, WORDS)
        weights_mib = plan_of(mesh)["weights_mib"]
        resident = {streams: rate(run_, mesh, streams, "all weights in memory") for streams in counts}
    with slow_disk(cache):
        before = disk_rate(run_, packed)
        with Ours(*options, "--weights-memory", f"{weights_mib / 2:.0f}M", model=path, ready_s=300) as mesh:
            warm(mesh, 4, WORDS)
            plan = plan_of(mesh)
            streamed = {streams: rate(run_, mesh, streams, f"{plan['streamed_mib']:.0f} MiB read each step") for streams in counts}
            pages = mesh.metric("fastdecode_kv_pages_peak")
            planned = plan["process_mib"] + plan["fixed_mib"] + max(plan["start_mib"], pages * plan["page_kib"] / 1024)
            run_.add(figure(run_.part, "peak memory of the s-part, beside its plan", peak_mib(mesh), "MiB", planned, PEAK_MOST, at_most=True))
        after = disk_rate(run_, packed)
    reads = statistics.mean((before["ceiling"], after["ceiling"])) * 1e6
    for item in before, after:
        run_.add({**item, "part": run_.part})
    for streams in counts:
        read_s, step_s = plan["streamed_mib"] * MIB / reads, streamed[streams]["between_p50_s"]
        bound_s = max(read_s, resident[streams]["between_p50_s"])
        run_.add(figure(run_.part, f"{streams} streams, half of the weights on disk: decode steps, beside disk or resident rate",
                        streams / step_s, "tokens/s", streams / bound_s, LEAST))
        run_.add(figure(run_.part, f"{streams} streams, half of the weights on disk: with prompts, beside all weights in memory",
                        streamed[streams]["tokens_per_s"], "tokens/s", resident[streams]["tokens_per_s"]))
