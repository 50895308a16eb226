"""`make bench-kernels`: the benches in C one after the other, then how long the mesh takes to start, and what it takes when idle."""
import json
import os
import signal
import subprocess
import tempfile
import time

from figures import figure, of_rounds
from servers import MODEL, Ours

IDLE_S = 8
STARTS = 3

# Program and arguments. Together with the rest they stay under 3 minutes.
BENCHES = (("bench_machine",), ("bench_products",), ("bench_gemm", "0", "1,8,32,128"), ("bench_floats", "0", "1,8,128"), ("bench_step", MODEL, "0", "128", "1,8,64,128"), ("bench_f32",), ("bench_attention",), ("bench_grammar", MODEL))


def blas():
    """OpenBLAS takes kernels by the processor's name, and where it is newer than the library those of AVX2: not what the machine can
    do, which is what bench_machine and bench_attention ask for."""
    with open("/proc/cpuinfo", encoding="ascii") as file:
        return {"OPENBLAS_CORETYPE": "SkylakeX"} if " avx512bw " in file.read() else {}


def bench(run, command, program=None):
    """Runs one; its figures are added as it prints them. It is ended at the part's time limit, or with us."""
    program = program or os.path.join(run.build, "tests", "bench", command[0])
    cpus = str(len(os.sched_getaffinity(0)))
    with tempfile.NamedTemporaryFile("r", encoding="utf-8") as lines:
        with run.turn(command[0]):
            ceiling = blas() if command[0] in ("bench_machine", "bench_attention") else {}
            process = subprocess.Popen([program, *(cpus if word == "0" else word for word in command[1:])],
                                       stdout=subprocess.DEVNULL, env={**ceiling, **os.environ, "FD_BENCH_JSON": lines.name})
        run.note("")
        try:
            while True:
                ended = process.poll() is not None
                for line in lines:
                    run.add({**json.loads(line), "part": run.part})
                if ended:
                    break
                run.limit_s()
                time.sleep(0.1)
        finally:
            if process.poll() is None:
                process.send_signal(signal.SIGKILL)
                process.wait()
    if process.returncode:
        raise RuntimeError(f"{command[0]} ended with status {process.returncode}")


def starts(run):
    """From the start of `fastdecode up` to READY: processes, packed weights, tables; the file is in the page cache."""
    with open(MODEL, "rb") as file:
        while file.read(1 << 20):
            pass
    taken = []
    for _ in range(STARTS):
        with run.turn("the mesh starts"), Ours() as mesh:
            taken.append(mesh.start_s)
        run.note(f"{taken[-1]:.2f} s")
    run.add(of_rounds(run.part, "start of the mesh, default model, page cache warm, beside 1.5 s", "s", [(s, 1.5) for s in taken], 1.0,
                      at_most=True))


def idle(run):
    """Processor time of all processes of the mesh, with nothing to do after some work."""
    with Ours() as mesh:
        mesh.post("/v1/completions", {"model": "default", "prompt": "One two three", "max_tokens": 32})
        time.sleep(2)  # heartbeats only
        before, began = mesh.cpu(), time.monotonic()
        with run.turn(f"the mesh idles for {IDLE_S} s"):
            time.sleep(IDLE_S)
        used, lasted = mesh.cpu(), time.monotonic() - began
    shares = {name: 100 * (used[name] - before[name]) / lasted for name in used}
    run.note(", ".join(f"{name} {share:.2f} %" for name, share in shares.items()))
    run.add(figure(run.part, "processor time of the idle mesh, all processes, % of a core", sum(shares.values()), "%", target=1.0,
                   at_most=True))


def kernels(run):
    starts(run)
    idle(run)
    for command in BENCHES:
        try:
            bench(run, command)
        except (OSError, RuntimeError) as problem:  # the others can still be run
            run.missing.append(f"{run.part}: {problem}")
