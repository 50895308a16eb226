"""Two s-parts in a pipeline, each on a core of its own.

Uniform steps beside whole prompts, and what `fastdecode sim` says of both from what the stages measured at their starts: requests of 10 prompt
tokens for each new one, all there from the beginning, 2 mini-batches. Modes take turns.

Groups: each stage in a control group whose limit is 0.65 of what one s-part with the whole model takes, which one s-part is refused
(version 1 of control groups, as root).

Link: the second stage in a network namespace of its own, behind 1 Gbit/s in both directions (tc tbf; as root), beside what `fastdecode plan` says
of that link; then a KV worker there beside one s-part. What is predicted from is measured in the same mesh before the link is slowed down.
"""
import contextlib
import json
import os
import re
import statistics
import subprocess

from clients import check, completion, greedy, run
from end_to_end import synthetic_1b, warm
from far_host import FarHost
from figures import figure, of_rounds
from groups import memory_group
from interference import texts
from overlap import pin
from prediction import describe, middle, said, short_load, step_us, tokens_of
from servers import BUILD, MODEL, FarWorker, Ours
from streams import run_all, words

STAGES, BATCH, REQUESTS, PROMPT, TOKENS, ROUNDS = 2, 16, 64, 480, 48, 3
MODES, WITHIN = ("whole", "uniform"), 0.10
GROUP_SHARE, GROUP_POOL_MIB, GROUP_ENV = 0.65, 16, {"FD_MAX_ROWS": "256"}
LINK_MBIT, LINK_STREAMS, LINK_WORDS, LINK_TOKENS = 1000, (8, 32), 24, 96
INSECURE = {"FD_INSECURE": "on"}
MIB = 1048576.0


# --- uniform steps ----------------------------------------------------------------------------------------------------------------------


def pin_stages(mesh):
    """A core for each stage; the others where the second one is."""
    for name, pid in mesh.services().items():
        pin(pid, int(name[-1]) if name.startswith("s-part-") else STAGES - 1)


def stages_said(mesh):
    """What all stages have measured of a layer, and the last of the head."""
    each = [said(mesh, f"s-part-{stage}") for stage in range(STAGES)]
    return {**each[-1], **middle([{"layer_us": one["layer_us"]} for one in each])}


def layers_of(mesh):
    """How many layers each stage has."""
    found = []
    for stage in range(STAGES):
        with open(os.path.join(mesh.run_dir, f"s-part-{stage}.log"), encoding="utf-8") as file:
            first, end = re.search(r"MODEL-LOADED .*layers=(\d+):(\d+)", file.read()).groups()
        found.append(int(end) - int(first))
    return found


def rate_of(run_, mesh, prompts, label):
    """Generated tokens a second of all requests."""
    bubbles = "fastdecode_bubble_seconds_total"
    before = mesh.metric(bubbles)
    with run_.turn(f"{REQUESTS} requests, {label}"):
        clients = run(mesh.url, [greedy(ids, TOKENS) for ids in prompts], run_.limit_s())
    check(clients)
    seconds = max(c.last for c in clients) - min(c.began for c in clients)
    idle = (mesh.metric(bubbles) - before) / seconds / STAGES
    run_.note(f"{REQUESTS * TOKENS / seconds:.1f} tokens/s, idle {idle:.3f}")
    return REQUESTS * TOKENS / seconds


def simulated(path, mode, layers):
    command = [os.path.join(BUILD, "bin", "fastdecode"), "sim", "--json", "--model", MODEL, "--gpu", path, "--worker", path, "--workers", 0,
               "--s-parts", STAGES, "--batch", BATCH, "--micro-batch", mode, "--backlog", "--requests", REQUESTS, "--prompt", PROMPT, "--gen", TOKENS,
               "--mini-batches", STAGES, "--split", ",".join(map(str, layers))]
    return json.loads(subprocess.run([*map(str, command)], check=True, capture_output=True, text=True).stdout)


def uniform_beside_whole(run_):
    rates_of, said_ = {mode: [] for mode in MODES}, []
    with Ours("--kv-workers", 0) as mesh:
        prompts = [ids[:PROMPT] for _, ids in texts(mesh.url, REQUESTS, 60, tokens=PROMPT + 60)]
    for _ in range(ROUNDS):
        for mode in MODES:
            with Ours("--s-parts", STAGES, "--kv-workers", 0, "--local-pool", "256M", "--max-batch", BATCH, "--mini-batches", STAGES,
                      "--micro-batch", mode) as mesh:
                mesh.wait_metric("fastdecode_stages", lambda up: up == STAGES)
                pin_stages(mesh)
                said_.append(stages_said(mesh))
                layers = layers_of(mesh)
                warm(mesh, 4)
                rates_of[mode].append(rate_of(run_, mesh, prompts, mode))
    model = middle(said_)
    path = describe(os.path.join(BUILD, "bench"), "stage", model, model)
    wanted = {mode: simulated(path, mode, layers) for mode in MODES}
    pairs = list(zip(rates_of["uniform"], rates_of["whole"]))
    predicted = wanted["uniform"]["tokens_per_second"] / wanted["whole"]["tokens_per_second"]
    for mode in MODES:
        run_.add(figure(run_.part, f"{STAGES} stages, {mode}: tokens/s beside what sim says", statistics.median(rates_of[mode]), "tokens/s",
                        wanted[mode]["tokens_per_second"]))
    run_.add(of_rounds(run_.part, f"{STAGES} stages: uniform steps beside whole prompts", "tokens/s", pairs))
    gain = statistics.median(a / b for a, b in pairs)
    item = figure(run_.part, f"{STAGES} stages: that gain beside sim's", gain, "times", predicted)
    run_.add({**item, "target": 1 - WITHIN, "pass": abs(gain / predicted - 1) <= WITHIN})


# --- memory -----------------------------------------------------------------------------------------------------------------------------


def texts_of(mesh):
    return [(stream.error, stream.text) for stream in run_all(mesh.url, [greedy(words(20, seed), 24) for seed in range(4)])]


def into(groups):
    """What puts an s-part into the group of its stage, and one alone into the first."""
    cases = "".join(f'*--name=s-part-{stage}*) echo $$ >{group.folder}/cgroup.procs;;\n' for stage, group in enumerate(groups))
    return f'case "$*" in\n{cases}*) echo $$ >{groups[0].folder}/cgroup.procs;;\nesac\nexec "$program" "$@"'


def in_groups(run_):
    options = ("--kv-workers", 0, "--local-pool", f"{GROUP_POOL_MIB}M", "--context", 1024, "--max-batch", 16, "--weights-memory", "4G")
    common = {"model": synthetic_1b(), "env": GROUP_ENV}
    with contextlib.ExitStack() as stack:
        groups = []
        for stage in range(STAGES):
            group = memory_group(f"-{stage}")
            if not group:
                raise RuntimeError("no control group can be made here (version 1, as root)")
            groups.append(stack.enter_context(group))
        common["scripts"] = {"s-part": into(groups)}
        with Ours(*options, **common) as mesh, run_.turn("one s-part"):
            wanted, whole = texts_of(mesh), groups[0].number("memory.max_usage_in_bytes")
        limit = int(GROUP_SHARE * whole)
        run_.note(f"{whole / MIB:.0f} MiB; each stage gets {limit / MIB:.0f}")
        for group in groups:
            group.limit(memory__limit_in_bytes=limit)
            group.limit(memory__max_usage_in_bytes=0)
        try:
            with Ours(*options, **common):
                refused = ""
        except RuntimeError as problem:
            refused = str(problem)
        found = re.search(r"\d+ MiB of memory are needed.*", refused)
        run_.note(f"one s-part: {found[0] if found else 'not refused' if not refused else refused}")
        with Ours("--s-parts", STAGES, *options, **common) as mesh, run_.turn("two stages"):
            mesh.wait_metric("fastdecode_stages", lambda up: up == STAGES)
            got = texts_of(mesh)
            peaks = [group.number("memory.max_usage_in_bytes") for group in groups]
        run_.note(f"{' and '.join(f'{peak / MIB:.0f}' for peak in peaks)} MiB")
    same = sum(a == b and not a[0] for a, b in zip(got, wanted, strict=True))
    run_.add(figure(run_.part, f"one s-part is refused {GROUP_SHARE} of what it takes", 1 if found else 0, "", None, 1))
    run_.add(figure(run_.part, f"streams of two stages in {GROUP_SHARE} of that each, with the text of one s-part", same, "streams", len(wanted), 1))
    run_.add(figure(run_.part, "the larger stage's memory beside one s-part's", max(peaks) / MIB, "MiB", whole / MIB, GROUP_SHARE, at_most=True))


# --- a link -----------------------------------------------------------------------------------------------------------------------------


class Link(FarHost):
    """A host whose link's rate is limited later."""

    def slow_down(self, mbit):
        for where in ("", "ip netns exec {name} "):
            device = "{link}p" if where else "{link}"
            self.run(f"{where}tc qdisc add dev {device} root tbf rate {mbit}mbit burst 16kb latency 200ms")

    def script(self, name, *listens):
        """Starts the service of that name there, and others here; INSECURE lets those connect to it over plain tcp."""
        own = " ".join(["--insecure", *(f"--{option}=tcp://{self.address}:0" for option in listens)])
        return f'case "$*" in *--name={name}*) exec ip netns exec {self.name} "$program" "$@" {own};; esac\nexec "$program" "$@"'


def steps_us(run_, mesh, label):
    """{streams: a step while all decode}"""
    found = {}
    for streams in LINK_STREAMS:
        found[streams], _ = short_load(run_, mesh, f"{streams} streams, {label}", streams, LINK_WORDS, LINK_TOKENS)
        run_.note(f"{1e6 * streams / found[streams]:.1f} tokens/s")
    return found


def beside_plan(run_, mesh, host, what, model, attention, workers, *options):
    """Steps over the slow link beside those that plan predicts from steps over the fast one."""
    folder, context = os.path.join(BUILD, "bench"), tokens_of(mesh, completion(LINK_WORDS, 1, 1)["prompt"])

    def predicted(streams, rest=None, link_gbs=7):
        files = [describe(folder, name, model, of, rest, link_gbs=link_gbs, shares_cores=False) for name, of in (("near", model), ("far", attention))]
        return step_us(files, workers, streams, context, LINK_TOKENS, "--link", files[1], *options)

    fast = steps_us(run_, mesh, f"{what}, fast link")
    rest = {streams: max(us - predicted(streams), 0) for streams, us in fast.items()}
    host.slow_down(LINK_MBIT)
    for streams, us in steps_us(run_, mesh, f"{what}, {LINK_MBIT} Mbit/s").items():
        wanted_us = predicted(streams, rest, LINK_MBIT / 8e3)
        item = figure(run_.part, f"{what}, {LINK_MBIT} Mbit/s, {streams} streams: tokens/s beside plan's ({1e6 * streams / fast[streams]:.0f} with a fast link)",
                      1e6 * streams / us, "tokens/s", 1e6 * streams / wanted_us)
        run_.add({**item, "target": 1 - WITHIN, "pass": abs(item["ratio"] - 1) <= WITHIN})


def over_a_link(run_):
    with Link() as host:
        script = host.script(f"s-part-{STAGES - 1}", "listen")
        with Ours("--s-parts", STAGES, "--kv-workers", 0, "--local-pool", "256M", "--mini-batches", STAGES, scripts={"s-part": script}, env=INSECURE) as mesh:
            mesh.wait_metric("fastdecode_stages", lambda up: up == STAGES)
            pin_stages(mesh)
            warm(mesh, 4)
            model = stages_said(mesh)
            beside_plan(run_, mesh, host, "the second stage far away", model, model, 0, "--s-parts", STAGES)
    with Link() as host, Ours("--kv-workers", 0, "--local-pool", "1M", "--threads", 1, "--mini-batches", 2, env=INSECURE) as mesh:
        with FarWorker(mesh, host=host) as far:
            for name, pid in [*mesh.services().items(), ("far", far.process.pid)]:
                pin(pid, 0 if name == "s-part" else 1)
            warm(mesh, 4)
            beside_plan(run_, mesh, host, "a KV worker far away", said(mesh, "s-part"), said(mesh, "far"), 1, "--mini-batches", 2)


def pipeline(run_):
    os.makedirs(os.path.join(BUILD, "bench"), exist_ok=True)
    uniform_beside_whole(run_)
    in_groups(run_)
    over_a_link(run_)
