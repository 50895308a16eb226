"""Several s-parts in a pipeline, each with a part of the layers: the same bytes as from one, wherever KV is, and through every failure."""
import glob
import os
import re
import signal
import time
from itertools import product

import pytest

from conftest import BUILD, MODEL, PACED, SANITIZED, fastdecode, run, seconds, shard, tiny, wait_until
from streams import Stream, assert_same, body, join_all, of_place, run_all, words

LAYERS = 4  # of the tiny model
PROBES = [
    body("The sea is", 40, logprobs=3),
    body(words(60, 1), 30, 1, True, logprobs=3),
    body(words(700, 6), 12, 3, True, logprobs=3),
    body(words(150, 2), 8, 4, True, logprobs=3, echo=True),
    body(words(150, 2) + " and then", 20, 5, logprobs=3),  # begins like the one before
    body("one two three one two three one two three one two", 60, 6),  # what drafts find
]


@pytest.fixture(scope="module")
def wanted(mesh):
    streams = run_all(mesh.url, PROBES)
    assert [stream.error for stream in streams if stream.error] == []
    return streams


def ready(mesh, stages):
    mesh.wait_metric("fastdecode_stages", lambda count: count == stages)


PLACES = [(0, "64M"), (1, "0"), (1, "64M"), (2, "0")]


@pytest.mark.parametrize("stages,places", shard([(stages, places) for stages in (2, 3) for places in PLACES], 4))
def test_same_bytes(start_mesh, wanted, stages, places):
    workers, pool = places
    mesh = start_mesh("--s-parts", stages, "--kv-workers", workers, "--local-pool", pool, "--kv-memory", "64M")
    ready(mesh, stages)
    assert_same(run_all(mesh.url, PROBES), wanted)
    assert_same([run_all(mesh.url, [probe])[0] for probe in PROBES[:2]], wanted[:2])
    assert mesh.metric("fastdecode_sequences_rebuilt_total") == 0


def test_default_options_give_the_text_of_one(start_mesh):
    """Of the default model, with no option but --s-parts and measured at start as users have it: nothing that is timed changes the text."""
    probes = [body("The sea is", 40), body("What is the capital of France?", 40, 2, True)]
    texts = []
    for stages in (1, 2, 3):
        mesh = start_mesh("--s-parts", stages, model=MODEL, threads=0, calibrate=True)
        ready(mesh, stages)
        texts.append(run_all(mesh.url, probes))
        mesh.stop()
    assert_same(texts[1], texts[0])
    assert_same(texts[2], texts[0])


def test_a_split_of_ones_own(start_mesh, wanted):
    mesh = start_mesh("--s-parts", 2, "--split", "3,1", "--kv-workers", 1, "--kv-memory", "64M")
    ready(mesh, 2)
    for stage, layers in enumerate(("0:3", "3:4")):
        with open(os.path.join(mesh.run_dir, f"s-part-{stage}.log"), encoding="utf-8") as file:
            assert f"layers={layers} " in file.read()
    assert_same(run_all(mesh.url, PROBES[:2]), wanted[:2])


@pytest.mark.parametrize("check", [["--check"], []])
@pytest.mark.parametrize("options, says", [
    (["--s-parts", 2, "--split", "3,1,1"], "--split 3,1,1 has 3 stages, 2 are wanted"), (["--split", "3,x"], "--split is '3,x', want the layers"),
    (["--split", "2,1"], "--split 2,1 has 3 layers in all, the model has 4"),
    (["--s-parts", 2, "--split", "10,10"], "--split 10,10 has 20 layers in all, the model has 4"),
    (["--s-parts", 5], "--s-parts 5: the model has 4 layers, each s-part needs one")])
def test_a_split_that_is_not_the_models(options, says, check):
    """It says so at once: stages that leave layers out, or overlap, would wait for each other for ever."""
    refused = fastdecode("up", "--model", tiny(), "--port", 0, *options, *check)
    assert refused.returncode == 2 and says in refused.stderr, refused


def test_as_many_stages_as_the_split_has(start_mesh):
    ready(start_mesh("--split", "1,2,1", "--kv-workers", 1, "--kv-memory", "64M"), 3)


def test_most_mini_batches(start_mesh, wanted):
    """A worker has a place for each of the most mini-batches in flight, with one s-part and with several."""
    for stages in (1, 2):
        mesh = start_mesh("--s-parts", stages, "--mini-batches", 16, "--kv-workers", 1, "--local-pool", 0, "--kv-memory", "64M")
        assert_same(run_all(mesh.url, PROBES * 4), wanted * 4)
        assert mesh.metric("fastdecode_sequences_rebuilt_total") == 0


# --- when a stage fails ---------------------------------------------------------------------------------------------------------

STREAMS, TOKENS = (6, 48) if SANITIZED else (16, 64)
REQUESTS = [body(words(24 + 9 * i, i), TOKENS, i, sampled=i % 2 == 1) for i in range(STREAMS)]
PREFILL, CACHED = "fastdecode_prefill_tokens_total", "fastdecode_prefix_cached_tokens_total"
AT_WORKERS = ("--kv-workers", 2, "--local-pool", 0, "--kv-memory", "256M")
IN_POOLS = ("--kv-workers", 0, "--local-pool", "256M")
SILENCE_S = min(seconds(2), 5)


@pytest.fixture(scope="module")
def undisturbed(mesh):
    streams = run_all(mesh.url, REQUESTS)
    assert [stream.error for stream in streams if stream.error] == []
    return streams


def half_way(mesh, skip=8):
    streams = [Stream(mesh.url, request) for request in REQUESTS]
    for stream in streams:
        stream.wait_tokens(TOKENS // 2 - skip)
    return streams


def needed(mesh):
    """Tokens whose KV was needed by prompts and by what was rebuilt: computed, or found."""
    return mesh.metric(PREFILL) + mesh.metric(CACHED)


def fail(mesh, service, number, stages):
    """The stage is killed, or stopped for longer than it may be silent; returns when all take steps again."""
    downs = of_place(mesh, "fastdecode_place_lost_total", "local")
    pid = mesh.kill(service, number)
    mesh.wait_metric("fastdecode_stages", lambda count: count == 0)
    if number == signal.SIGSTOP:
        time.sleep(0.2)  # while the others know that it is gone
        os.kill(pid, signal.SIGCONT)
    ready(mesh, stages)
    assert of_place(mesh, "fastdecode_place_lost_total", "local") > downs


def disturb(mesh, undisturbed, victims, stages, local):
    for service, number in victims:
        before = needed(mesh)
        streams = half_way(mesh)
        fail(mesh, service, number, stages)
        assert_same(join_all(streams), undisturbed)
        again = needed(mesh) - before - sum(stream.usage["prompt_tokens"] for stream in streams)
        most = sum(stream.usage["prompt_tokens"] + TOKENS for stream in streams) if local else 0
        assert (again > 0) == local and again <= most, f"{again:.0f} tokens were computed anew after {service} got signal {number}"


VICTIMS = [("s-part-0", signal.SIGKILL), ("s-part-1", signal.SIGKILL), ("s-part-0", signal.SIGSTOP), ("s-part-1", signal.SIGSTOP)]


@pytest.mark.sanitizer
@pytest.mark.parametrize("victim", shard(range(len(VICTIMS)), 2))
def test_stage_fails(start_mesh, undisturbed, victim):
    """Workers keep their pages: steps are repeated, and nothing else."""
    mesh = start_mesh("--s-parts", 2, *AT_WORKERS, "--worker-timeout-ms", round(1000 * SILENCE_S), **PACED)
    disturb(mesh, undisturbed, [VICTIMS[victim]], 2, local=False)
    assert mesh.metric("fastdecode_sequences_rebuilt_total") == 0


@pytest.mark.parametrize("victim", shard(range(len(VICTIMS)), 4))
def test_stage_fails_with_everything_local(start_mesh, undisturbed, victim):
    """The pool of a pipeline is gone with any of its stages: all is rebuilt from token logs."""
    mesh = start_mesh("--s-parts", 2, *IN_POOLS, "--worker-timeout-ms", round(1000 * SILENCE_S), **PACED)
    disturb(mesh, undisturbed, [VICTIMS[victim]], 2, local=True)


def test_worker_fails_beside_a_pipeline(start_mesh, undisturbed):
    """Its rows are lost at whichever stage they are; the others go on."""
    mesh = start_mesh("--s-parts", 3, *AT_WORKERS, **PACED)
    streams = half_way(mesh)
    mesh.kill("kv-worker-0")
    assert_same(join_all(streams), undisturbed)
    assert mesh.metric("fastdecode_sequences_rebuilt_total") > 0 and of_place(mesh, "fastdecode_place_lost_total", "local") == 0


@pytest.mark.full
@pytest.mark.parametrize("places", (AT_WORKERS, IN_POOLS))
@pytest.mark.parametrize("stages", (2, 3))
def test_stages_fail_again_and_again(start_mesh, undisturbed, stages, places):
    """Each stage, killed and stopped five times: the first two stages twenty times in the four meshes together."""
    mesh = start_mesh("--s-parts", stages, *places, "--worker-timeout-ms", round(1000 * SILENCE_S), **PACED)
    victims = [(f"s-part-{stage}", number) for stage in range(stages) for number in (signal.SIGKILL, signal.SIGSTOP)]
    disturb(mesh, undisturbed, 5 * victims, stages, local=places is IN_POOLS)


# --- which stages fit together ----------------------------------------------------------------------------------------------------


def test_stages_that_do_not_fit(by_hand):
    wait_until(lambda: "no s-part is up" in by_hand.health(), 20, by_hand.health)
    first, _ = by_hand.s_part("0:2")
    wait_until(lambda: "layers 2:4 are on no s-part" in by_hand.health(), 20, by_hand.health)
    assert "layers 1:3 overlap with 0:2 of s-part-1" in by_hand.refused("1:3")
    assert "layers 0:4 overlap with 0:2 of s-part-1" in by_hand.refused("all")
    assert "it computes in f32/" in by_hand.refused("2:4", "--compute=f32")
    assert "another model" in by_hand.refused("2:4", f"--model={MODEL}")
    assert "this s-part has --kv-type f32, and the mesh f16" in by_hand.refused("2:4", "--kv-type=f32")
    assert "this s-part has --context 64, and the mesh " in by_hand.refused("2:4", "--context=64")
    assert "layers 1:3 overlap with 0:2 of s-part-1" in by_hand.refused("1:3", "--mini-batches=1")
    by_hand.s_part("3:4")
    wait_until(lambda: "layers 2:3 are on no s-part" in by_hand.health(), 20, by_hand.health)
    by_hand.s_part("2:3")
    wait_until(lambda: by_hand.health().strip().endswith("ready"), 20, by_hand.health)
    assert "layers 0:3 overlap with 0:2 of s-part-1" in by_hand.refused("0:3")
    first.kill()  # another split, of which the others are a part
    wait_until(lambda: "layers 0:2 are on no s-part" in by_hand.health(), 20, by_hand.health)
    by_hand.s_part("0:1")
    wait_until(lambda: "layers 1:2 are on no s-part" in by_hand.health(), 20, by_hand.health)
    by_hand.s_part("1:2")
    wait_until(lambda: by_hand.health().strip().endswith("ready"), 20, by_hand.health)


@pytest.mark.parametrize("layers,why", [("2:9", "the model has 4"), ("0/5", "4 layers over 5 s-parts"), ("3:3", "want all, FIRST:END"),
                                        ("x", "want all, FIRST:END"), ("1:2:3", "want all, FIRST:END"), ("-1:2", "want all, FIRST:END"),
                                        ("2/2", "STAGE/STAGES"), ("0/9", "STAGE/STAGES"), ("0/2/3", "STAGE/STAGES")])
def test_layers_option(layers, why):
    done = run([os.path.join(BUILD, "bin", "s-part"), "--model", tiny(), "--calibrate", "off", f"--layers={layers}"])
    assert done.returncode == 2 and why in done.stderr, done


def test_more_stages_than_layers():
    done = fastdecode("up", "--model", tiny(), "--s-parts", 5)
    assert done.returncode == 2 and "--s-parts 5: the model has 4 layers" in done.stderr, done


# --- what is measured -----------------------------------------------------------------------------------------------------------


def stage_seconds(mesh, stage):
    """(computing, idle by cause) of a stage, since it began."""
    text = mesh.metrics()
    busy = re.search(rf'^fastdecode_stage_busy_seconds_total{{stage="{stage}"}} (\S+)$', text, re.M)[1]
    idle = re.findall(rf'^fastdecode_bubble_seconds_total{{stage="{stage}",kind="(\w+)"}} (\S+)$', text, re.M)
    return float(busy), {kind: float(value) for kind, value in idle}


def between(before, after):
    (busy0, idle0), (busy1, idle1) = before, after
    return busy1 - busy0, {kind: idle1[kind] - idle0[kind] for kind in idle1}


def unknown_share(before, after, stage):
    """Share of the time between two readings in which the stage did neither, or both; more where one came late, as of a process without a core."""
    (asked0, read0, seconds0), (asked1, read1, seconds1) = before, after
    busy, idle = between(seconds0[stage], seconds1[stage])
    known = busy + sum(idle.values())
    return max(asked1 - read0 - known, known - (read1 - asked0)) / (read1 - asked0)


def core_waits(mesh, stage):
    """Seconds for which each thread of a stage has been ready to run and had no core: neither computing nor a bubble."""
    waits = {}
    for path in glob.glob(f"/proc/{mesh.pid(f's-part-{stage}')}/task/*/schedstat"):
        with open(path, encoding="ascii") as file:
            waits[path] = int(file.read().split()[1]) / 1e9
    return waits


def layers_of(mesh):
    """How many layers each stage has."""
    ranges = dict(re.findall(r"STAGE-UP stage=(\d) name=\S+ layers=(\d+:\d+)", mesh.logs(200)))
    return [int(end) - int(first) for first, end in (ranges[str(stage)].split(":") for stage in range(len(ranges)))]


@pytest.mark.parametrize("mini_batches", (1, 0))
def test_bubbles(start_mesh, tmp_path, mini_batches):
    """While steps are in the pipeline a stage computes or has a bubble. Attention at workers takes 3 ms a layer here: with one mini-batch that is
    each stage's bubble of kind r, and pb3 is while the other stage has the step."""
    trace = tmp_path / "trace.json"
    mesh = start_mesh("--s-parts", 2, "--mini-batches", mini_batches, "--kv-workers", 1, "--local-pool", 0, "--kv-memory", "64M", "--trace", trace,
                      **PACED)
    streams = [Stream(mesh.url, body(words(20, i), 200, i)) for i in range(4)]

    def read_at(tokens):
        """When it was asked, when it was answered, and what each stage did until then."""
        for stream in streams:
            stream.wait_tokens(tokens)
        asked = time.monotonic()
        seconds_of = [stage_seconds(mesh, stage) for stage in range(2)]
        return asked, time.monotonic(), seconds_of

    read_at(20)
    steps = mesh.metric("fastdecode_steps_total")
    waits = [core_waits(mesh, stage) for stage in range(2)]
    early, late = [read_at(20), read_at(30)], [read_at(140), read_at(150)]
    cores = [max(wait - before.get(path, 0) for path, wait in core_waits(mesh, stage).items()) for stage, before in enumerate(waits)]
    steps = mesh.metric("fastdecode_steps_total") - steps
    join_all(streams)
    waited = []
    for stage in range(2):
        (began, _, first), (_, ended, last) = early[0], late[-1]
        wall, busy, idle = ended - began, *between(first[stage], last[stage])
        unknown = min(unknown_share(one, other, stage) for one, other in product(early, late))
        print(f"stage {stage}: {wall:.3f} s, computing {busy:.3f}, idle {idle}, unknown {unknown:.3f}, without a core up to {cores[stage]:.3f}")
        assert set(idle) == {"pb1", "pb2", "pb3", "r"} and min(idle.values()) >= 0
        assert idle["pb1"] + idle["pb2"] < 0.1 * wall, "nobody prefills"
        assert unknown < 0.05 + cores[stage] / wall, "time that is neither"
        waited.append(idle["r"])
    if mini_batches == 1:
        assert all(r > 0.9 * 0.003 * layers * steps for r, layers in zip(waited, layers_of(mesh), strict=True)), f"{waited} {steps}"
    assert min(waited) > 0
    mesh.stop()
    text = trace.read_text()
    for name in ("s-part-0", "s-part-1"):
        assert f'"{name}"' in text
    assert text.count('"bubbles"') == 2 and '"pb3"' in text and '"r"' in text
