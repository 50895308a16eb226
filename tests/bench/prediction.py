"""Is what `fastdecode plan` says of this machine what a mesh on it does? Settings drawn by a seed, predictions written before the runs.

Per number of workers one mesh. What it is predicted from is known before the first of its settings runs, and nothing is changed after:

    T(b), head, attention at each place   the mesh's own measurements at its start, from its log (CALIBRATED)
    the rest of a step, by its rows       gateway, scheduler, client, wakeups and messages share the two cores: the median step of
                                          three short loads (2, 24 and 96 streams, contexts below 100) less the above
    attention beside the S-part           one load of 6 streams with prompts of 400 words: what its prompts and its steps take
                                          beyond what the above predict, by prefill row and by context token

From these a hardware file is made, and `plan` predicts each setting: B prompts at once of P tokens, S new tokens each, contexts around C
= P + S/2, with --chunk 512. Batch, context and the part of prompts are therefore extrapolated. A run is measured from the first request to the last token.
"""
import json
import os
import random
import re
import statistics
import subprocess

from clients import completion, measure, run
from end_to_end import model_facts
from figures import figure
from servers import BUILD, MODEL, Ours

SEED, SETTINGS, WORKERS = 20261121, 5, (0, 1, 2)
CONTEXT_MIN, CONTEXT_MAX, TOKENS_MAX = 256, 4096, 20000  # tokens of all prompts of a setting, so that a run ends in time
REST_STREAMS, REST_WORDS, REST_TOKENS = (2, 24, 96), 24, 40
LONG_STREAMS, LONG_WORDS, LONG_TOKENS = 6, 400, 64
WITHIN = 0.10
CHUNK = 512  # of prompts, so that all of a setting soon decode
COSTS = ("call_us", "row_us", "token_us", "prefill_row_us", "pair_us")


def draw():
    """{workers: [(batch, context, new tokens)]}"""
    chance, settings = random.Random(SEED), {n: [] for n in WORKERS}
    for n in WORKERS:
        while len(settings[n]) < SETTINGS:
            batch = round(2 ** chance.uniform(0, 7))
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


def describe(folder, name, model, attention, rest=None):
    """A hardware file of what was measured; the link is in the rest."""
    def curve(points):
        return " ".join(f"{rows}:{us:.2f}" for rows, us in sorted(points.items()))

    path = os.path.join(folder, f"{name}.conf")
    lines = [f"name = {name}", "memory = 1T", "memory_gb_per_second = 1", "int8_tops = 1", "link_gb_per_second = 7",
             f"measured_model = {os.path.basename(MODEL)}", f"layer_us_at = {curve(model['layer_us'])}",
             f"head_us_at = {curve(model['head_us'])}"]
    lines += [f"attend_{key} = {attention[key]}" for key in COSTS]
    lines += [f"rest_us_at = {curve(rest or {1: 0})}"]
    with open(path, "w", encoding="utf-8") as file:
        file.write("\n".join(lines) + "\n")
    return path


def plan(files, workers, batch, prompt, tokens):
    command = [os.path.join(BUILD, "bin", "fastdecode"), "plan", "--json", "--model", MODEL, "--gpu", files[0], "--worker", files[1],
               "--workers", workers, "--batch", batch, "--prompt", prompt, "--gen", tokens, "--spacing", 1, "--mini-batches", 1, "--chunk", CHUNK]
    return json.loads(subprocess.run([*map(str, command)], check=True, capture_output=True, text=True).stdout)


def start_calibration(run_, mesh, workers, folder):
    """The two files that `plan` is given."""
    model, name = said(mesh, "s-part"), f"{workers}-workers"
    if workers:
        mesh.wait_metric("fastdecode_place_up", lambda up: up >= workers)
        each = [said(mesh, f"kv-worker-{i}") for i in range(workers)]
        attention = {key: statistics.mean(w[key] for w in each) for key in COSTS}
    else:
        attention = model
    files = [describe(folder, f"{name}-s-part", model, model), describe(folder, f"{name}-worker", model, attention)]
    measure(mesh.url, 4, REST_WORDS, 16, 11)  # warm
    rest = {}
    for streams in REST_STREAMS:
        gap_us, _ = short_load(run_, mesh, f"{workers} workers, {streams} streams", streams, REST_WORDS, REST_TOKENS)
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


def step_us(files, workers, streams, context, tokens):
    """A step without prompts in it, at a mean context (with a start each step it is half of what is generated)."""
    return 1e3 * plan(files, workers, streams, 0, 2 * (context + tokens // 2))["step_ms"]


def contended(run_, mesh, workers, folder, model, attention, rest, files):
    """Attention while the S-part's threads are on the same cores: what a load with longer contexts takes beyond what was predicted."""
    layers, _ = model_facts(MODEL)
    streams, tokens = LONG_STREAMS, LONG_TOKENS
    prompt = tokens_of(mesh, completion(LONG_WORDS, 1, 1)["prompt"])
    gap_us, prompts_us = short_load(run_, mesh, f"{workers} workers, {streams} longer streams", streams, LONG_WORDS, tokens)
    known_us = step_us(files, workers, streams, prompt, tokens)
    prompts_known_us = (1e3 * plan(files, workers, streams, prompt, tokens)["step_ms"] - known_us) * tokens
    fullest = -(-streams // workers) if workers else streams
    attention["token_us"] += max(gap_us - known_us, 0) / (layers * fullest * (prompt + tokens / 2))  # company only slows down
    attention["prefill_row_us"] += max(prompts_us - prompts_known_us, 0) / (layers * streams * prompt)
    run_.note(f"a step takes {gap_us / 1e3:.2f} ms, predicted {known_us / 1e3:.2f}; prompts {prompts_us / 1e3:.0f} ms, "
              f"predicted {prompts_known_us / 1e3:.0f}")
    local = attention if not workers else model
    name = f"{workers}-workers"
    return [describe(folder, f"{name}-s-part", model, local, rest), describe(folder, f"{name}-worker", model, attention)]


def tokens_of(mesh, text):
    return mesh.post("/tokenize", {"prompt": text})["count"]


def prediction(run_):
    """At least 12 settings in all; --streams 0,1,2 chooses numbers of workers."""
    settings, ratios = draw(), []
    for workers, in run_.chosen([(n,) for n in WORKERS]):
        folder = os.path.join(BUILD, "prediction")
        os.makedirs(folder, exist_ok=True)
        options = ("--kv-workers", workers, "--chunk", CHUNK, *(() if workers == 0 else ("--local-pool", 0)))
        with Ours(*map(str, options)) as mesh:
            a_word = tokens_of(mesh, completion(400, 1, 1)["prompt"]) / 400
            files, rows = start_calibration(run_, mesh, workers, folder), []
            for at, (batch, context, tokens) in enumerate(settings[workers]):
                words_each = round((context - tokens / 2) / a_word)
                requests = [completion(words_each, tokens, 9000 * workers + 1000 * at + i) for i in range(batch)]
                prompt = round(statistics.mean(tokens_of(mesh, request["prompt"]) for request in requests[:4]))
                said_ = plan(files, workers, batch, prompt, tokens)
                rows.append({"workers": workers, "batch": batch, "context": context, "prompt": prompt, "tokens": tokens,
                             "predicted": said_["tokens_per_second"], "requests": requests})
            with open(os.path.join(folder, f"{workers}-workers.json"), "w", encoding="utf-8") as file:
                json.dump([{k: v for k, v in row.items() if k != "requests"} for row in rows], file, indent=1)
            for row in rows:
                name = f"{row['workers']} workers, batch {row['batch']}, context {row['context']}"
                with run_.turn(name):
                    clients = run(mesh.url, row["requests"], run_.limit_s())
                bad = [client.trouble() for client in clients if client.trouble()]
                if bad:
                    raise RuntimeError(f"{len(bad)} of {row['batch']} streams went wrong; the first: {bad[0]}")
                seconds = max(c.last for c in clients) - min(c.began for c in clients)
                measured = row["batch"] * row["tokens"] / seconds
                item = figure("prediction", f"{name}: predicted tokens/s beside measured", row["predicted"], "tokens/s", measured)
                item["pass"] = abs(item["ratio"] - 1) <= WITHIN
                ratios.append(item["ratio"])
                run_.add(item)
    good = sum(abs(ratio - 1) <= WITHIN for ratio in ratios)
    run_.add(figure("prediction", f"of {len(ratios)} settings, within {WITHIN:.0%}", good, "settings", len(ratios), 1))
