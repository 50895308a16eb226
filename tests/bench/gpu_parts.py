"""The parts of `make bench-gpu` (bench_gpu.py says which): each takes a GpuRun and adds figures to it.

Roofline of a decode step of B streams with a mean context C, from what this run measured of the device and nothing else:

    max(weight bytes / read bandwidth, 2 · weights · B / best product)  +  B · C · KV bytes of a token / read bandwidth

The bound of what KV workers can gain over the same device memory M without them, t_w being a step of one row:

    1 + BW_workers · (t_w + M / BW_gpu) / M      so that of a bound follows M = BW_workers · t_w / (bound - 1 - BW_workers / BW_gpu)
"""
import glob
import json
import os
import random
import re
import shutil
import statistics
import subprocess
import tempfile
import threading
import time

from bench import Run
from clients import greedy, percentile, run
from end_to_end import decoding, model_facts
from figures import figure, of_rounds
from kernel_parts import bench
from profile_steps import Trace, read, summarize
from servers import BUILD, Ours
from stall import beside_streams
from sweep import one

F16 = 2
IDS = (400, 31999)  # of the synthetic vocabulary: words, no control tokens and bytes
TARGET_ROOF, TARGET_BOUND, TARGET_NEVER, WITHIN = 0.7, 0.75, 0.97, 0.15


class Settings:
    """What is run: at full size, or so small that the emulated device does it in seconds."""

    def __init__(self, emulated):
        self.shape = os.environ.get("FD_BENCH_SHAPE", "llama-7b")
        self.hybrid_shape = os.environ.get("FD_BENCH_HYBRID_SHAPE", self.shape)
        self.workers = int(os.environ.get("FD_BENCH_WORKERS", "1"))
        self.kernels = {}
        self.layers = 4  # of the model that attention is measured with
        self.streams, self.prompt, self.tokens, self.window_s = (1, 32, 256), 128, (3000, 1200, 700), 2.0
        self.bounds, self.context, self.generated, self.requests = (1.3, 2.0, 3.0), 2048, 512, 2.5
        self.least_streams, self.rounds, self.max_batch = 64, 3, 256
        self.stall_streams, self.stall_prompt, self.stall_tokens = 64, 3000, 3000
        self.ready_s, self.least_s, self.warm_words = 900, 1, 64
        self.pool_tokens = 0  # not 0: the host is taken to be so fast that the first bound's M holds so many
        if emulated:
            self.shape = self.hybrid_shape = "llama-tiny"
            self.kernels = {"rows": 16, "sequences": 4, "context": 64, "stream": "16M", "passes": 1}
            self.layers, self.streams, self.prompt, self.tokens, self.window_s = 1, (1, 3), 8, (220, 200), 0.2
            self.bounds, self.context, self.generated, self.requests, self.rounds = (3.0,), 64, 32, 2, 1
            self.least_streams, self.max_batch, self.stall_streams, self.stall_prompt, self.stall_tokens = 3, 4, 2, 40, 180
            self.ready_s, self.least_s, self.warm_words, self.pool_tokens = 60, 0.05, 4, 240

    def __str__(self):
        return ", ".join(f"{key} {value}" for key, value in vars(self).items() if value != {})


class GpuRun(Run):
    def __init__(self, out, kept, build, limits, program, emulated):
        super().__init__(out, kept, set(), build, limits)
        self.program, self.emulated, self.settings = program, emulated, Settings(emulated)
        self.fresh = {}     # {name: value} of what was measured now, and not kept of an earlier run
        self.shown = {}     # {title: text} for the file of results: traces
        self.measured = []  # [(title, options of plan, tokens a second)]

    def add(self, item):
        self.fresh[item["name"]] = item["value"]
        super().add(item)

    def kernels(self, *words):
        options = [f"--{key}={value}" for key, value in self.settings.kernels.items()]
        bench(self, (f"bench_gpu {words[0]}", *options, *words), self.program)

    def value(self, name, command, shape):
        """A figure of this run by its name; where its part has not run, it is measured now."""
        if name not in self.fresh:
            self.kernels(command, model_file(self, shape))
        return self.fresh[name]

    def gpu_bandwidth(self):
        return 1e9 * self.value("device: read bandwidth", "device", self.settings.shape)

    def best_operations(self):
        return 1e12 * self.value("device: best f16 product", "device", self.settings.shape)

    def mesh(self, *options, model, **settings):
        return Ours("--device", "cuda", *map(str, options), model=model, ready_s=self.settings.ready_s, **settings)


def model_file(run_, shape, kind="f16", layers=0):
    """A synthetic model, written once."""
    folder = os.environ.get("FD_BENCH_FOLDER") or os.path.join(BUILD, "bench")
    path = os.path.join(folder, f"synthetic-{shape}{f'-{layers}-layers' if layers else ''}-{kind}.gguf")
    if not os.path.exists(path):
        os.makedirs(folder, exist_ok=True)
        with run_.turn(f"{os.path.basename(path)} is written"):
            subprocess.run([os.path.join(BUILD, "bin", "fastdecode"), "model", "--synthetic", shape, "--type", kind, "--layers",
                            str(layers), path], check=True, stdout=subprocess.DEVNULL)
        run_.note(f"{os.path.getsize(path) / 1e9:.1f} GB")
    return path


def weights_of(path):
    """Values of the matrices that a step reads: of all layers, and the head."""
    text = subprocess.run([os.path.join(BUILD, "bin", "fastdecode"), "model", path], check=True, capture_output=True, text=True).stdout
    layers, hidden, ffn, heads, head_dim, kv_heads = map(int, re.search(
        r"(\d+) layers, hidden (\d+), ffn (\d+), (\d+) heads of (\d+), (\d+) KV heads", text).groups())
    vocab = int(re.search(r"vocabulary +(\d+)", text).group(1))
    return layers * hidden * (head_dim * (2 * heads + 2 * kv_heads) + 3 * ffn) + hidden * vocab


def prompts(count, tokens, seed):
    """Token ids, all different."""
    chance = random.Random(seed)
    return [[chance.randint(*IDS) for _ in range(tokens)] for _ in range(count)]


# --- kernels ------------------------------------------------------------------------------------------------------------------

def device(run_):
    run_.kernels("device", model_file(run_, run_.settings.shape))


def s_part(run_):
    run_.kernels("s-part", model_file(run_, run_.settings.shape))


def quant(run_):
    run_.kernels("quant", model_file(run_, run_.settings.shape), model_file(run_, run_.settings.shape, "q4_0"))


def attention(run_):
    run_.kernels("attention", model_file(run_, run_.settings.shape, layers=run_.settings.layers))


# --- serving without workers ---------------------------------------------------------------------------------------------------

def roofline(run_, values, kv_bytes, streams, context):
    """Tokens a second."""
    weights_s = max(F16 * values / run_.gpu_bandwidth(), 2 * values * streams / run_.best_operations())
    return streams / (weights_s + streams * context * kv_bytes / run_.gpu_bandwidth())


def serving(run_):
    s, model = run_.settings, model_file(run_, run_.settings.shape)
    values, (_, kv_bytes) = weights_of(model), model_facts(model)
    run_.gpu_bandwidth()
    with run_.mesh("--kv-workers", 0, "--max-batch", s.max_batch, model=model) as mesh:
        run(mesh.url, [greedy(ids, 16) for ids in prompts(4, s.prompt, 1)], run_.limit_s())  # warm
        for streams, tokens in zip(s.streams, s.tokens):
            requests = [greedy(ids, tokens) for ids in prompts(streams, s.prompt, 10 + streams)]
            with Busy() as busy:
                rate, grown = decoding(run_, mesh, streams, s.prompt, tokens, s.window_s, 0, requests=requests)
            context = s.prompt + grown
            name = f"serving, {s.shape} f16, no workers, {streams} stream{'s' if streams > 1 else ''} with {context:.0f} tokens of context"
            run_.add(figure("serving", f"{name}, beside the roofline", rate, "tokens/s",
                            roofline(run_, values, kv_bytes, streams, context), TARGET_ROOF))
            busy.add(run_, "serving", name)
            run_.measured.append((name, ("--model", model, "--workers", 0, "--batch", streams, "--prompt", 0, "--gen",
                                         max(1, round(2 * context)), "--spacing", 1, "--ignore-capacity"), rate))


class Busy:
    """The GPU's busy share of the time, as the driver counts it: some kernel ran. Nothing without nvidia-smi."""

    def __init__(self):
        self.values, self.stop = [], threading.Event()

    def sample(self):
        while not self.stop.wait(0.2):
            said = subprocess.run(["nvidia-smi", "--query-gpu=utilization.gpu", "--format=csv,noheader,nounits"], capture_output=True,
                                  text=True, check=False).stdout.split()
            if said and said[0].isdigit():
                self.values.append(int(said[0]) / 100)

    def __enter__(self):
        self.thread = threading.Thread(target=self.sample, daemon=True) if shutil.which("nvidia-smi") else None
        if self.thread:
            self.thread.start()
        return self

    def __exit__(self, *_):
        self.stop.set()
        if self.thread:
            self.thread.join()

    def add(self, run_, part, name):
        if self.values:
            run_.add(figure(part, f"{name}, GPU busy (median of {len(self.values)} samples, prompts included)",
                            statistics.median(self.values), "of time"))


# --- with KV workers -------------------------------------------------------------------------------------------------------------

class HybridCase:
    """Of one setting: M, and what runs on it."""

    def __init__(self, run_, model, pool_bytes, bound):
        s, (_, self.kv_bytes) = run_.settings, model_facts(model)
        self.bound, self.pool = bound, int(pool_bytes)
        held = pool_bytes / (s.context * self.kv_bytes)
        self.batch = min(1024, max(s.least_streams, round(held * bound)))
        self.requests = [greedy(ids, s.generated) for ids in prompts(round(s.requests * self.batch), s.context - s.generated // 2,
                                                                     round(1000 * bound))]
        longest = s.context + s.generated // 2 + 32
        self.kv_memory = max(int(1.1 * self.batch * longest * self.kv_bytes / s.workers), 1 << 20)

    def options(self, trace=None):
        return ("--max-batch", self.batch, "--kv-memory", self.kv_memory, "--mini-batches", 2, "--device", "cuda",
                *(("--trace", trace) if trace else ()))


def pool_of_bound(bound, workers, gpu, weights_s):
    """Bytes of device memory; None: there is no such setting, workers alone are more than that."""
    left = bound - 1 - workers / gpu
    return workers * weights_s / left if left > 0 else None


def hybrid(run_):
    s, model = run_.settings, model_file(run_, run_.settings.hybrid_shape)
    weights_s = 1e-6 * run_.value("S-part alone, 1 row, a step", "s-part", s.hybrid_shape)
    gpu, values, (_, kv_bytes) = run_.gpu_bandwidth(), weights_of(model), model_facts(model)
    if s.pool_tokens:
        workers = (s.bounds[0] - 1) / (weights_s / (s.pool_tokens * kv_bytes) + 1 / gpu)
    else:
        workers = 1e9 * run_.read_bandwidth()
    run_.add(figure("hybrid", "workers: read bandwidth of the host", workers * 1e-9, "GB/s"))
    run_.add(figure("hybrid", f"t_w: a step of one row, {s.hybrid_shape} f16", 1e6 * weights_s, "us"))
    run_.add(figure("hybrid", "weights", F16 * values * 1e-9, "GB"))
    too_small, gains, curve = [], [], []
    settings = [(bound, pool_of_bound(bound, workers, gpu, weights_s), TARGET_BOUND) for bound in s.bounds]
    plenty = 2 * s.least_streams * s.context * kv_bytes  # so that workers have nothing to do
    if not run_.emulated:
        settings.append((1 + workers * (weights_s / plenty + 1 / gpu), plenty, None))
    for bound, pool, target in settings:
        if pool is None or pool < (s.context + s.generated) * kv_bytes:
            too_small.append(f"a bound of {bound} wants M = {(pool or 0) / 1e6:.0f} MB, and a sequence of {s.context + s.generated} "
                             f"tokens has {(s.context + s.generated) * kv_bytes / 1e6:.0f}: FD_BENCH_HYBRID_SHAPE with less KV, or a host that reads faster")
            continue
        gain, prediction_of = hybrid_case(run_, model, HybridCase(run_, model, pool, bound), target)
        gains += [gain] if target else []
        curve.append(f"{pool / 1e6:12,.1f} MB  {bound:6.2f}  {gain:6.2f}")
        run_.measured += prediction_of
    run_.shown["M, bound, gain"] = "\n".join(curve)
    print("\n".join(["M, bound, gain", *curve]), flush=True)
    if gains:
        run_.add(figure("hybrid", "the largest gain", max(gains), "times", target=2.0))
    if too_small:
        raise RuntimeError("; ".join(too_small))


def hybrid_case(run_, model, case, target):
    """(gain, what plan should predict); without workers first, then with, in turns."""
    s = run_.settings
    rates = {0: [], s.workers: []}
    name = f"hybrid, {s.hybrid_shape}, M {case.pool / 1e6:,.1f} MB, {case.batch} streams of {s.context} tokens"
    with tempfile.TemporaryDirectory() as folder:
        trace = os.path.join(folder, "trace")
        for round_ in range(s.rounds):
            for workers in (0, s.workers) if round_ % 2 == 0 else (s.workers, 0):
                traced = trace if workers and not glob.glob(trace) else None
                with Busy() as busy:
                    got = one(run_, case.pool, workers, case.requests, case.options(traced), least_s=s.least_s, warm_words=s.warm_words,
                              seen=lambda mesh: memory(run_, name, mesh), model=model, ready_s=s.ready_s)
                rates[workers].append(got)
                if round_ == 0:
                    busy.add(run_, "hybrid", f"{name}, {workers} workers")
        tracks(run_, name, trace)
    pairs = [(with_.tokens_per_s, none.tokens_per_s) for none, with_ in zip(rates[0], rates[s.workers])]
    gain = statistics.median(a / b for a, b in pairs)
    run_.add(of_rounds("hybrid", f"{name}: tokens/s beside none with the same M", "tokens/s", pairs, TARGET_NEVER))
    run_.add(figure("hybrid", f"{name}: gain beside its bound", gain, "times", case.bound, target if case.bound > 1.05 else None))
    held = max(1, round(statistics.median(got.held for got in rates[0])))
    alone = statistics.median(none for _, none in pairs)
    run_.add(figure("hybrid", f"{name}: no workers, {held} at once, beside the roofline of its decode steps", alone, "tokens/s",
                    roofline(run_, weights_of(model), case.kv_bytes, held, s.context)))
    load = ("--model", model, "--prompt", s.context - s.generated // 2, "--gen", s.generated, "--spacing", 1, "--local-pool", case.pool,
            "--ignore-capacity")
    return gain, [(f"{name}: no workers", (*load, "--workers", 0, "--batch", held), alone),
                  (f"{name}: {s.workers} workers", (*load, "--workers", s.workers, "--batch", case.batch),
                   statistics.median(a for a, _ in pairs))]


def memory(run_, name, mesh):
    """Weights, activations with cuBLASLt's workspace, and M, as the s-part says them at its start."""
    found = re.search(r"DEVICE-MEMORY (.*)", mesh.logs(400))
    run_.shown[f"{name}, device memory"] = found[1] if found else "?"


def tracks(run_, name, trace):
    """Of the traced run, by the device's own clock: how long S-part, R-part and transfer of some mini-batch were under way, of the time from
    the first step to the last. That is not the GPU's busy time: one may wait for another's kernels. Every layer has events then, which cost some
    of it."""
    if not os.path.exists(trace):
        return
    said = summarize(Trace(read(trace)), decode=True)
    if said:
        run_.shown[f"{name}, a decode step (us)"] = json.dumps(said, indent=1)
        for kind, us in said["device_us"].items():
            run_.add(figure("hybrid", f"{name}: device, {kind}, traced", us * said["steps"] * 1e-6 / said["seconds"], "of time"))


def stall(run_):
    """As tests/bench/stall.py: p99 between tokens while a prompt is read, beside the median before it came. The pool holds the prompt and
    little more, so that the streams are the workers'."""
    s, model = run_.settings, model_file(run_, run_.settings.shape)
    _, kv_bytes = model_facts(model)
    pool = int(1.2 * s.stall_prompt * kv_bytes) + (1 << 20)
    memory = max(int(1.2 * s.stall_streams * (64 + s.stall_tokens) * kv_bytes / s.workers), 1 << 20)
    with run_.mesh("--kv-workers", s.workers, "--local-pool", pool, "--kv-memory", memory, "--max-batch", s.max_batch, "--mini-batches", 2,
                   model=model) as mesh:
        mesh.wait_metric("fastdecode_place_up", lambda up: up == 1 + s.workers)
        run(mesh.url, [greedy(ids, 16) for ids in prompts(4, s.prompt, 1)], run_.limit_s())  # warm
        pairs = []
        for turn in range(s.rounds):
            with run_.turn(f"a prompt of {s.stall_prompt} tokens beside {s.stall_streams} streams"):
                late = greedy(prompts(1, s.stall_prompt, 50 + turn)[0], 4)
                streams = [greedy(ids, s.stall_tokens) for ids in prompts(s.stall_streams, 64, 100 * (turn + 1))]
                got = beside_streams(mesh.url, late, streams, run_.limit_s(), before_s=s.window_s / 2)
            p99 = percentile(got["during"], 0.99)
            run_.note(f"between tokens {1e3 * got['before']:.1f} ms before, p99 {1e3 * p99:.1f} during; first token after {got['first']:.2f} s")
            pairs.append((1e3 * p99, 1e3 * got["before"]))
    run_.add(of_rounds("stall", f"{s.stall_prompt} tokens beside {s.stall_streams} streams: p99 between tokens, beside the median before", "ms",
                       pairs, 3.0, at_most=True))


# --- prediction --------------------------------------------------------------------------------------------------------------------

def fastdecode(*words):
    return subprocess.run([os.path.join(BUILD, "bin", "fastdecode"), *map(str, words)], check=True, capture_output=True, text=True).stdout


def prediction(run_):
    """What `plan` makes of the device's and the host's measured files, beside what this run has measured of meshes."""
    s = run_.settings
    if not run_.measured:
        run_.items = [item for item in run_.items if item["part"] != "serving"]
        serving(run_)
    folder = os.path.join(BUILD, "bench")
    os.makedirs(folder, exist_ok=True)
    files, good = {}, 0
    for title, options, measured in run_.measured:
        model = options[options.index("--model") + 1]
        if model not in files:
            files[model] = [os.path.join(folder, f"{s.shape}-{device}.conf") for device in ("cuda", "cpu")]
            with run_.turn(f"{os.path.basename(model)} is measured"):
                for path, device_name in zip(files[model], ("cuda", "cpu")):
                    fastdecode("plan", "--measure", "--device", device_name, *(("--model", model) if device_name == "cuda" else ()), path)
            with open(files[model][0], encoding="utf-8") as text:
                run_.shown[f"deploy/hardware file of {os.path.basename(model)}"] = text.read()
            run_.note("")
        said = json.loads(fastdecode("plan", "--json", "--gpu", files[model][0], "--worker", files[model][1], *options))
        item = figure("prediction", f"{title}: predicted tokens/s beside measured", said["tokens_per_second"], "tokens/s", measured)
        item["pass"] = abs(item["ratio"] - 1) <= WITHIN
        good += item["pass"]
        run_.add(item)
        if said["workers"] and said["hybrid_gain_bound"]:
            run_.add(figure("prediction", f"{title}: hybrid_gain_bound of plan", said["hybrid_gain_bound"], "times"))
    run_.add(figure("prediction", f"of {len(run_.measured)} settings, within {WITHIN:.0%}", good, "settings", len(run_.measured), 1))
