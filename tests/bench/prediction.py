"""Is what `fastdecode plan` says of this machine what a mesh on it does? Settings drawn by a seed, predictions written before the runs.

Per number of workers one mesh. What it is predicted from is known before the first of its settings runs, and nothing is changed after:

    T(b), head, attention at each place   the mesh's own measurements at its start, from its log (CALIBRATED), medians of STARTS starts:
                                          a virtual machine's speed differs by a tenth and more from second to second. Before
                                          the first of them a mesh has worked for a while: one that was idle may get its cores only
                                          then, and was once measured at six times what a layer takes
    the rest of a step, by its rows       gateway, scheduler, client, wakeups and messages share the two cores: the median step of
                                          short loads (REST_STREAMS, contexts below 160, each LOADS times) less the above
    attention beside the S-part           LOADS loads of 6 and of 24 streams with prompts of 400 words: what their prompts and steps
                                          take beyond what the above predict, by prefill row (with workers most of it is the link's
                                          bytes), and by call and context token

From these a hardware file is made, and `plan` predicts each setting: B prompts at once of P tokens, S new tokens each, contexts around C
= P + S/2, with --chunk 512. A batch is drawn from each fifth of 1 to 128, by its logarithm. A run is measured from the first request to
the last token, ROUNDS times in turn with the others; its figure is their mean.
"""
import json
import os
import random
import re
import statistics
import subprocess

from clients import check, completion, measure, run
from end_to_end import model_facts
from figures import figure
from servers import BUILD, MODEL, Ours

SEED, SETTINGS, WORKERS = 20261122, 5, (0, 1, 2)
STARTS, LOADS, ROUNDS = 5, 4, 3
BATCH_MAX = 128
CONTEXT_MIN, CONTEXT_MAX, TOKENS_MAX = 256, 4096, 14000  # tokens of all prompts of a setting, so that a run ends in time
REST_STREAMS, REST_WORDS, REST_TOKENS = (1, 2, 8, 32, 96), 24, 96
LONG_STREAMS, LONG_WORDS, LONG_TOKENS = (6, 24), 400, 64
WITHIN = 0.10
CHUNK = 512  # of prompts, so that all of a setting soon decode
COSTS = ("call_us", "row_us", "token_us", "prefill_row_us", "pair_us")


def draw():
    """{workers: [(batch, context, new tokens)]}"""
    chance, settings = random.Random(SEED), {n: [] for n in WORKERS}
    for n in WORKERS:
        while len(settings[n]) < SETTINGS:
            batch = round(BATCH_MAX ** ((len(settings[n]) + chance.random()) / SETTINGS))
            context = round(CONTEXT_MIN * (CONTEXT_MAX / CONTEXT_MIN) ** chance.random())
            if batch * context <= TOKENS_MAX or (batch > TOKENS_MAX // CONTEXT_MIN and context < 1.3 * CONTEXT_MIN):
                settings[n].append((batch, context, max(64, min(192, 6144 // batch))))
    return settings


def said(mesh, service):
    """What a service measured at its start: {key: number, or {rows: us}}"""
    with open(os.path.join(mesh.run_dir, f"{service}.log"), encoding="utf-8") as file:
        line = [text for text in file if "CALIBRATED" in text][-1]
    found = {}
    for key, text, number in re.findall(r'(\w+)=(?:"([^"]*)"|([\d.]+))', line):
        found[key] = float(number) if number else {int(r): float(us) for r, us in (p.split(":") for p in text.split())}
    return {**found, **{key.removeprefix("attend_"): value for key, value in found.items()}}


def middle(several):
    """Of {key: number or {rows: us}} of several starts, the medians of what all of them have."""
    first = several[0]
    return {key: {rows: statistics.median(one[key][rows] for one in several) for rows in first[key]
                  if all(rows in one[key] for one in several)} if isinstance(first[key], dict)
            else statistics.median(one[key] for one in several) for key in first}


def measured_at_start(mesh, workers):
    """(s-part's, workers')"""
    model = said(mesh, "s-part")
    if workers:
        mesh.wait_metric("fastdecode_place_up", lambda up: up >= workers)
        return model, middle([said(mesh, f"kv-worker-{i}") for i in range(workers)])
    return model, model


def describe(folder, name, model, attention, rest=None, *, link_gbs=7, shares_cores=True):
    """A hardware file of what was measured; a link within the machine is in the rest."""
    def curve(points):
        return " ".join(f"{rows}:{us:.2f}" for rows, us in sorted(points.items()))

    path = os.path.join(folder, f"{name}.conf")
    lines = [f"name = {name}", "memory = 1T", "memory_gb_per_second = 1", "f32_tflops = 1", f"link_gb_per_second = {link_gbs}",
             f"measured_model = {os.path.basename(MODEL)}", f"layer_us_at = {curve(model['layer_us'])}",
             f"head_us_at = {curve(model['head_us'])}", f"shares_cores = {'on' if shares_cores else 'off'}"]
    lines += [*(f"attend_{key} = {attention[key]}" for key in COSTS), f"rest_us_at = {curve(rest or {1: 0})}"]
    with open(path, "w", encoding="utf-8") as file:
        file.write("\n".join(lines) + "\n")
    return path


def plan(files, workers, batch, prompt, tokens, *more):
    """more: further options; of one that is given twice the last counts."""
    command = [os.path.join(BUILD, "bin", "fastdecode"), "plan", "--json", "--no-simulate", "--model", MODEL, "--gpu", files[0], "--worker", files[1],
               *(("--local-pool", "none") if workers else ()), "--workers", workers, "--batch", batch, "--prompt", prompt, "--gen", tokens, "--spacing", 1,
               "--mini-batches", 1, "--chunk", CHUNK, *more]
    return json.loads(subprocess.run([*map(str, command)], check=True, capture_output=True, text=True).stdout)


def start_calibration(run_, mesh, workers, folder, starts):
    """The two files that `plan` is given."""
    name = f"{workers}-workers"
    model, attention = (middle(list(each)) for each in zip(*starts, measured_at_start(mesh, workers)))
    files = [describe(folder, f"{name}-s-part", model, model), describe(folder, f"{name}-worker", model, attention)]
    measure(mesh.url, 4, REST_WORDS, 16, 11)  # warm
    rest = {}
    for streams in REST_STREAMS:
        gap_us = statistics.mean(short_load(run_, mesh, f"{workers} workers, {streams} streams", streams, REST_WORDS, REST_TOKENS)[0]
                                 for _ in range(LOADS))
        known_us = step_us(files, workers, streams, REST_WORDS, REST_TOKENS)
        rest[streams] = max(gap_us - known_us, 0)
        run_.note(f"a step takes {gap_us / 1e3:.2f} ms, layers, head and attention {known_us / 1e3:.2f}")
    files[0] = describe(folder, f"{name}-s-part", model, model, rest)
    return contended(run_, mesh, workers, folder, model, dict(attention), rest, files)


def short_load(run_, mesh, what, streams, words_each, tokens):
    """(median step once all decode, until then), microseconds"""
    with run_.turn(what):
        clients = run(mesh.url, [completion(words_each, tokens, 50 * streams + i) for i in range(streams)], run_.limit_s())
    first = max(client.first for client in clients)
    gaps = [b[0] - a[0] for client in clients for a, b in zip(client.events, client.events[1:]) if a[0] >= first]
    return 1e6 * statistics.median(gaps), 1e6 * (first - min(client.began for client in clients))


def step_us(files, workers, streams, context, tokens, *more):
    """A step without prompts in it, at a mean context (with a start each step it is half of what is generated)."""
    return 1e3 * plan(files, workers, streams, 0, 2 * (context + tokens // 2), *more)["step_ms"]


def contended(run_, mesh, workers, folder, model, attention, rest, files):
    """Attention while the S-part's threads are on the same cores: what loads with longer contexts take beyond what was predicted, as a line
    through two of them. What it begins with comes on top of the rest of a step, which loads with short contexts have shown."""
    layers, _ = model_facts(MODEL)
    prompt = tokens_of(mesh, completion(LONG_WORDS, 1, 1)["prompt"])
    (few, few_us, *few_prompts), (many, many_us, *many_prompts) = (
        beyond(run_, mesh, workers, files, streams, prompt) for streams in LONG_STREAMS)
    token_us = max(min((many_us - few_us) / (many - few), many_us / many), 0)  # company only slows down
    attention["token_us"] += token_us / layers
    attention["call_us"] += max(many_us - token_us * many, 0) / layers / max(workers, 1)  # each is called in turn
    rows, rows_us = (sum(each) for each in zip(few_prompts, many_prompts))
    attention["prefill_row_us"] += max(rows_us, 0) / (layers * rows)
    local = attention if not workers else model
    name = f"{workers}-workers"
    return [describe(folder, f"{name}-s-part", model, local, rest), describe(folder, f"{name}-worker", model, attention)]


def beyond(run_, mesh, workers, files, streams, prompt):
    """(context tokens of a step, what it takes beyond what is predicted, rows of the prompts, what they take beyond that), microseconds"""
    tokens = LONG_TOKENS
    loads = [short_load(run_, mesh, f"{workers} workers, {streams} longer streams", streams, LONG_WORDS, tokens) for _ in range(LOADS)]
    gap_us, prompts_us = (statistics.mean(each) for each in zip(*loads))
    known_us = step_us(files, workers, streams, prompt, tokens)
    prompts_known_us = (1e3 * plan(files, workers, streams, prompt, tokens)["step_ms"] - known_us) * tokens
    run_.note(f"a step takes {gap_us / 1e3:.2f} ms, predicted {known_us / 1e3:.2f}; prompts {prompts_us / 1e3:.0f} ms, "
              f"predicted {prompts_known_us / 1e3:.0f}")
    return streams * (prompt + tokens / 2), gap_us - known_us, streams * prompt, prompts_us - prompts_known_us


def tokens_of(mesh, text):
    return mesh.post("/tokenize", {"prompt": text})["count"]


def title(row):
    return f"{row['workers']} workers, batch {row['batch']}, context {row['context']}"


def write(folder, workers, rows):
    with open(os.path.join(folder, f"{workers}-workers.json"), "w", encoding="utf-8") as file:
        json.dump(rows, file, indent=1)


def tokens_per_s(run_, mesh, row, round_):
    """One run of a setting, with prompts of its own."""
    seed = 1000000 * (round_ + 1) + 10000 * row["workers"] + 1000 * row["at"]
    with run_.turn(title(row)):
        clients = run(mesh.url, [completion(row["words"], row["tokens"], seed + i) for i in range(row["batch"])], run_.limit_s())
    check(clients)
    return row["batch"] * row["tokens"] / (max(c.last for c in clients) - min(c.began for c in clients))


def prediction(run_):
    """At least 12 settings in all; --streams 0,1,2 chooses numbers of workers."""
    settings, ratios = draw(), []
    for workers, in run_.chosen([(n,) for n in WORKERS]):
        folder = os.path.join(BUILD, "prediction")
        os.makedirs(folder, exist_ok=True)
        options = ("--kv-workers", workers, "--chunk", CHUNK, *(() if workers == 0 else ("--local-pool", 0)))
        starts = []
        with Ours(*map(str, options)) as mesh:
            short_load(run_, mesh, f"{workers} workers, to wake the machine", 96, REST_WORDS, REST_TOKENS)
            run_.note("")
        for _ in range(STARTS - 1):
            with Ours(*map(str, options)) as mesh:
                starts.append(measured_at_start(mesh, workers))
        with Ours(*map(str, options)) as mesh:
            a_word = tokens_of(mesh, completion(400, 1, 1)["prompt"]) / 400
            files, rows = start_calibration(run_, mesh, workers, folder, starts), []
            for at, (batch, context, tokens) in enumerate(settings[workers]):
                words_each = round((context - tokens / 2) / a_word)
                prompt = round(statistics.mean(tokens_of(mesh, completion(words_each, 1, 90000 + i)["prompt"]) for i in range(4)))
                predicted = plan(files, workers, batch, prompt, tokens)["tokens_per_second"]
                rows.append({"workers": workers, "batch": batch, "context": context, "prompt": prompt, "words": words_each,
                             "tokens": tokens, "predicted": predicted, "measured": [], "at": at})
            write(folder, workers, rows)
            for round_ in range(ROUNDS):
                for row in rows:
                    row["measured"].append(tokens_per_s(run_, mesh, row, round_))
                    run_.note(f"{row['measured'][-1]:.1f} tokens/s, predicted {row['predicted']:.1f}")
            write(folder, workers, rows)
        for row in rows:
            item = figure("prediction", f"{title(row)}: predicted tokens/s beside measured", row["predicted"], "tokens/s",
                          statistics.mean(row["measured"]))
            item["pass"] = abs(item["ratio"] - 1) <= WITHIN
            ratios.append(item["ratio"])
            run_.add(item)
    good = sum(abs(ratio - 1) <= WITHIN for ratio in ratios)
    run_.add(figure("prediction", f"of {len(ratios)} settings, within {WITHIN:.0%}", good, "settings", len(ratios), 1))
