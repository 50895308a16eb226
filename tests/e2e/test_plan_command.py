"""`fastdecode plan`: what it prints, what it refuses and with which numbers. The arithmetic is tests/unit/test_plan*.c's."""
import json
import os

import pytest

from conftest import HARDWARE, MODEL, fastdecode

PAPER = ("--gpu", "a10", "--worker", "epyc-7452", "--link", "infiniband", "--local-pool", "none")


def plan(*options):
    return fastdecode("plan", "--hardware-dir", HARDWARE, "--no-simulate", *options, timeout=60)


def planned(*options):
    said = plan("--json", *options)
    assert said.returncode == 0, said.stderr
    return json.loads(said.stdout)


def refused(*options, code=2):
    said = plan(*options)
    assert said.returncode == code and said.stdout == ""
    assert said.stderr.startswith("fastdecode plan: ") and said.stderr.count("\n") == 1
    return said.stderr


def priced(tmp_path, name, price):
    path = tmp_path / f"{name}.conf"
    with open(os.path.join(HARDWARE, f"{name}.conf"), encoding="utf-8") as shipped:
        path.write_text(shipped.read() + f"price_per_hour = {price}\n")
    return path


def test_a_table_and_an_object():
    said = plan("--shape", "llama-7b", *PAPER, "--batch", 128).stdout
    for words in ("llama-7b F16: 32 layers", "NVIDIA A10", "tokens a second", "bound by", "KV of each worker", "GiB of 23.3"):
        assert words in said
    found = planned("--shape", "llama-7b", *PAPER, "--batch", 128)
    assert {"batch", "mini_batches", "workers", "bound_by", "tokens_per_second", "step_ms", "kv_bytes_per_worker"} <= set(found)
    assert found["batch"] == 128 and found["bound_by"] in ("S-part", "R-part", "network", "capacity")
    assert found["tokens_per_second"] == pytest.approx(128 / found["step_ms"] * 1e3, rel=1e-4)
    assert found["price_per_hour"] is None and found["cost_per_million_tokens"] is None
    sequences = -(-128 // found["workers"])
    assert found["kv_bytes_per_worker"] == pytest.approx(sequences * (16 + 528 + 8) * 512 * 1024, rel=1e-4)


def test_the_bound_of_what_workers_gain():
    found = planned("--shape", "llama-7b", *PAPER, "--batch", 128, "--workers", 8, "--local-pool", "4G")
    weights_s = (32 * 404750336 + 2 * 4096 * 32000) / 600e9
    assert found["hybrid_pool_bytes"] == 4 << 30
    assert found["hybrid_gain_bound"] == pytest.approx(1 + 8 * 130e9 * (weights_s / (4 << 30) + 1 / 600e9), rel=1e-4)
    assert found["pool_sequences"] == (4 << 30) // (552 * 512 * 1024)
    said = plan("--shape", "llama-7b", *PAPER, "--batch", 128, "--workers", 8, "--local-pool", "4G").stdout
    assert f"hybrid_gain_bound      {found['hybrid_gain_bound']:10.2f}    times what 4.0 GiB of KV" in said


def test_more_workers_are_faster_until_something_else_binds(tmp_path):
    rates = [planned("--shape", "llama-7b", *PAPER, "--batch", 1024, "--workers", n)["tokens_per_second"] for n in (1, 2, 4, 8, 64)]
    assert rates == sorted(rates)
    assert planned("--shape", "llama-7b", *PAPER, "--batch", 1024, "--workers", 1)["bound_by"] == "R-part"
    link = tmp_path / "ethernet.conf"
    link.write_text("name = Ethernet\nlink_gb_per_second = 1.25\nlink_round_trip_us = 50\n", encoding="ascii")
    assert planned("--shape", "llama-7b", *PAPER, "--link", link, "--batch", 1024, "--workers", 64)["bound_by"] == "network"


def test_memory_that_is_not_there_is_refused_with_numbers():
    said = refused("--shape", "llama-13b", *PAPER, "--batch", 128)
    assert "llama-13b F16 takes 24.3 GiB" in said and "NVIDIA A10 has 23.3 GiB" in said and "--ignore-capacity" in said
    assert planned("--shape", "llama-13b", *PAPER, "--batch", 128, "--workers", 8, "--ignore-capacity")["tokens_per_second"] > 0
    assert planned("--shape", "llama-13b", "--weights", "q8_0", *PAPER, "--batch", 128)["workers"] >= 1
    said = refused("--shape", "llama-7b", *PAPER, "--batch", 8192, "--workers", 1)
    assert "2208.0 GiB of KV on each of 1 workers" in said and "has 512.0 GiB" in said
    assert planned("--shape", "llama-7b", *PAPER, "--batch", 8192)["workers"] >= 5
    assert "without workers" in refused("--shape", "llama-7b", *PAPER, "--batch", 1024, "--workers", 0)


def test_a_rate_and_a_time_between_tokens():
    found = planned("--shape", "llama-7b", *PAPER, "--tokens-per-second", 2000)
    assert 2000 <= found["tokens_per_second"] < 2100
    smaller = planned("--shape", "llama-7b", *PAPER, "--batch", found["batch"] - 16, "--workers", found["workers"])
    assert smaller["tokens_per_second"] < 2000
    found = planned("--shape", "llama-7b", *PAPER, "--latency-ms", 150)
    assert 100 < found["step_ms"] <= 150
    assert "even a single sequence takes 22.5 ms" in refused("--shape", "llama-7b", *PAPER, "--latency-ms", 10)
    assert "takes 116.8 ms on 8 workers" in refused("--shape", "llama-7b", *PAPER, "--batch", 128, "--workers", 8, "--latency-ms", 100)
    assert "such meshes" in refused("--shape", "llama-7b", *PAPER, "--tokens-per-second", 1e6)


def test_a_model_of_a_file():
    found = planned("--model", MODEL, "--gpu", "cpu", "--worker", "cpu", "--batch", 16, "--workers", 2)
    assert found["model"] == os.path.basename(MODEL) and found["link"] == found["worker"]
    assert found["kv_bytes_per_worker"] == 8 * (16 + 528 + 8) * 30 * 3 * 2 * 64 * 2
    assert "No such file" in refused("--model", "/nowhere.gguf", "--gpu", "cpu", code=4)


def test_a_sweep_has_a_knee():
    found = planned("--shape", "llama-7b", *PAPER, "--batch-sweep")
    rows = found["sweep"]
    assert [row["batch"] for row in rows] == [2**i for i in range(1, 15)]
    assert [row["batch"] for row in rows if row["knee"]] == [found["knee"]] == [512]
    for row in rows:
        assert row["worker_gb_per_second"] > 0 and row["network_gbit_per_second"] > 0 and row["kv_bytes"] > 0
    assert "knee" in plan("--shape", "llama-7b", *PAPER, "--batch-sweep").stdout


def test_the_cheapest_mix(tmp_path):
    a10, h200, epyc = priced(tmp_path, "a10", 1), priced(tmp_path, "h200", 4), priced(tmp_path, "epyc-7452", 0.1)
    shape = ("--shape", "llama-7b")
    single = planned(*shape, "--gpu", a10, "--worker", epyc, "--batch", 128, "--workers", 8)
    assert single["price_per_hour"] == pytest.approx(1.8)
    assert single["cost_per_million_tokens"] == pytest.approx(1.8 / 3600 / single["tokens_per_second"] * 1e6, rel=1e-4)

    mix = planned(*shape, "--gpu", f"{a10},{h200}", "--worker", epyc, "--tokens-per-second", 3000, "--latency-ms", 300)
    assert mix["tokens_per_second"] >= 3000
    assert mix["price_per_hour"] == pytest.approx(sum(m["count"] * m["price_per_hour"] for m in mix["meshes"]), rel=1e-4)
    for mesh in mix["meshes"]:
        assert mesh["step_ms"] <= 300
    for gpu, workers in ((a10, 0), (a10, 8), (h200, 0), (h200, 8)):  # none of these alone is cheaper
        batch = 32 if gpu == a10 and workers == 0 else 128
        one = planned(*shape, "--gpu", gpu, "--worker", epyc, "--batch", batch, "--workers", workers)
        assert mix["price_per_hour"] <= -(-3000 // one["tokens_per_second"]) * one["price_per_hour"] + 1e-6
    assert "in all" in plan(*shape, "--gpu", f"{a10},{h200}", "--worker", epyc, "--tokens-per-second", 3000).stdout
    assert "has no price_per_hour" in refused(*shape, "--gpu", "a10,h200", "--tokens-per-second", 3000)
    assert "--tokens-per-second is missing" in refused(*shape, "--gpu", f"{a10},{h200}", "--worker", epyc)
    assert "the mix is chosen" in refused(*shape, "--gpu", f"{a10},{h200}", "--worker", epyc, "--batch", 8)


def test_what_more_would_give_and_how_times_spread(tmp_path):
    """The scheduler's own code on what was planned; a bill for prompts and answers that adds up."""
    gpu, worker = priced(tmp_path, "l4", 0.7), priced(tmp_path, "epyc-9554", 1.1)
    load = ("--shape", "llama-3.1-8b", "--weights", "q4_k", "--gpu", gpu, "--worker", worker, "--prompt", 300, "--gen", 200)
    found = planned(*load, "--batch", 64, "--workers", 2, "--local-pool", "none", "--simulate")
    more, spread = found["tokens_per_second_with_one_more"], found["simulated"]
    assert more["link_twice_as_fast"] > found["tokens_per_second"] and found["bound_by"] == "network"
    assert more["worker"] >= 0.999 * found["tokens_per_second"]
    assert spread["load"] == 0.8 and 0 < spread["tokens_per_second"] < found["tokens_per_second"]
    assert 0 < spread["ttft_s"]["p50"] <= spread["ttft_s"]["p99"] and 0 < spread["tbt_s"]["p50"] <= spread["tbt_s"]["p99"]
    paid = found["cost_per_million_prompt_tokens"] * 1.5 + found["cost_per_million_answer_tokens"]  # 300 of 500 tokens
    assert paid == pytest.approx(found["cost_per_million_tokens"], rel=1e-3) == 2.9 / 3600 / found["tokens_per_second"] * 1e6
    assert found["watts"] == 72 + 2 * 360 and found["basis"] == "data sheets and estimated shares"
    cheap = planned(*load, "--tokens-per-second", found["tokens_per_second"])
    assert cheap["price_per_hour"] <= found["price_per_hour"] and cheap["step_ms"] <= 200
    said = plan(*load, "--requests", 3600, "--workers", 2, "--simulate").stdout
    for words in ("one more worker", "to the first token", "of prompts,", "hours", "from                   data sheets"):
        assert words in said, said


def test_the_load_doubles(tmp_path):
    mesh = tmp_path / "mesh.conf"
    mesh.write_text("gpu = l4\nworker = epyc-9554\nlink = eth25\nworkers = 1\n", encoding="ascii")
    load = ("--shape", "llama-3.1-8b", "--weights", "q4_k", "--add-to", mesh, "--tokens-per-second")
    now = planned(*load, 100)
    assert now["add"][0]["workers"] == now["add"][0]["s_parts"] == 0
    found = planned(*load, 2 * now["now"]["tokens_per_second"])
    for way in found["add"]:
        assert way["plan"]["tokens_per_second"] >= 2 * now["now"]["tokens_per_second"]
        assert (way["plan"]["workers"], way["plan"]["s_parts"]) == (1 + way["workers"], 1 + way["s_parts"])
    assert "there is   1 S-part and 1 worker: " in plan(*load, 5000).stdout and "add        1 S-part and " in plan(*load, 5000).stdout
    assert "reaches" in refused(*load, 1e6) and "--tokens-per-second is missing" in refused(*load, 0)
    assert "without --offload, --batch-sweep and --batch" in refused(*load, 100, "--batch", 8)
    mesh.write_text("gpu = l4\n", encoding="ascii")
    assert "want `workers = N`" in refused(*load, 100)


def test_an_error_is_an_object():
    said = plan("--json", "--shape", "llama-13b", *PAPER, "--batch", 128)
    assert said.returncode == 2 and json.loads(said.stdout)["error"]["status"] == "RESOURCE_EXHAUSTED"
    assert json.loads(said.stdout)["error"]["message"] in said.stderr
    for bad in (("--json", "--bach", 8), ("--batch", "many", "--json"), ("--bach", 8, "--json"), ("--requests", "10K", "--json"), ("--json", "--batch")):
        said = plan(*bad)
        assert said.returncode == 2 and json.loads(said.stdout)["error"]["message"] in said.stderr, said


@pytest.mark.parametrize("options, words", [
    (("--shape", "deepseek-v3", "--gpu", "cpu"), "does not serve models of class DeepseekV3ForCausalLM"),
    (("--shape", "qwen3-30b-a3b", "--gpu", "h200"), "has experts, which only the CPU backend computes"),
    (("--shape", "gemma-3-27b", "--gpu", "h200"), "has windows of attention, which only the CPU backend computes"),
])
def test_what_cannot_run_is_refused(options, words):
    assert words in refused(*options, code=4)
    assert planned(*options, "--hypothetical", "--ignore-capacity", "--batch", 8)["tokens_per_second"] > 0


def test_an_old_gpu_is_refused(tmp_path):
    path = priced(tmp_path, "t4", 1)
    path.write_text(path.read_text().replace("compute_capability = 7.5", "compute_capability = 7.0"))
    assert "its compute capability is 7.0, and the kernels need 7.5 or more" in refused("--shape", "opt-6.7b", "--gpu", path, code=4)
    assert planned("--shape", "opt-6.7b", "--weights", "q4_0", "--gpu", "t4")["tokens_per_second"] > 0


@pytest.mark.parametrize("options, words", [
    ((), "want --model FILE, or --shape NAME"),
    (("--shape", "llama-7b", "--model", "x"), "want --model FILE, or --shape NAME"),
    (("--shape", "gpt"), "--shape gpt: no such description; there are: deepseek-v3, gemma-3-27b, "),
    (("--shape", "llama-7b"), "--gpu is missing: "),
    (("--shape", "llama-7b", "--gpu", "a11"), "--gpu a11: no such description; there are: a10, a100-40, "),
    (("--shape", "llama-7b", "--gpu", "eth25"), "eth25 (Ethernet 25 Gbit/s) cannot be an S-part: it says no memory"),
    (("--shape", "llama-7b", "--gpu", "a10", "--worker", "infiniband"), "cannot be a worker: it says no memory"),
    (("--shape", "llama-7b", "--gpu", "a10", "--link", "a10"), "cannot be a link: it says no link_gb_per_second"),
    (("--shape", "llama-7b", "--gpu", "a10", "--workers", "many"), "--workers is 'many', want auto or a number"),
    (("--shape", "llama-7b", "--gpu", "a10", "--weights", "q3"), "--weights is 'q3', want one of F32, "),
    (("--shape", "llama-7b", "--gpu", "a10", "--kv-type", "int3"), "--kv-type is 'int3', want "),
    (("--shape", "llama-7b", "--gpu", "a10", "--gen", "0"), "--gen is "),
    (("--shape", "llama-7b", "--gpu", "a10", "--local-pool", "much"), "--local-pool is 'much', want auto, none or a size"),
    (("--shape", "llama-7b", "--gpu", "a10", "--kv-type", "int8", "--workers", "0"), "a GPU's own pool has KV in f16"),
    (("--shape", "llama-7b", "--gpu", "a10", "x"), "unexpected argument 'x'"),
])
def test_what_is_wrong_is_said(options, words):
    assert words in refused(*options)


def test_a_bad_line_of_a_file(tmp_path):
    path = tmp_path / "x.conf"
    path.write_text("name = x\nmemory = 8G\nspeed = 9\n")
    assert f"{path}:3: unknown setting 'speed'" in refused("--shape", "llama-7b", "--gpu", path)


def test_this_machine_is_measured(tmp_path):
    path = tmp_path / "here.conf"
    assert plan("--measure", path).returncode == 0
    text = path.read_text()
    assert text.startswith("# Written by fastdecode plan --measure, ")
    found = planned("--model", MODEL, "--gpu", path, "--worker", path, "--batch", 8, "--workers", 1)
    assert 0 < found["step_ms"] < 10000
    assert "memory_gb_per_second = " in plan("--measure", "--threads", 1).stdout
    assert "layer_us_at" not in text
    assert float(text.split("\nprompt_attention_tflops = ")[1].split()[0]) > 0  # what a worker does with prompts


def test_a_model_is_measured_on_this_machine(tmp_path):
    path = tmp_path / "here.conf"
    assert plan("--measure", "--model", MODEL, path).returncode == 0
    points = [line.split(" = ")[1].split() for line in path.read_text().splitlines() if line.startswith("layer_us_at")][0]
    layer_us = {int(rows): float(us) for rows, us in (point.split(":") for point in points)}
    assert list(layer_us) == [1 << i for i in range(len(layer_us))] and min(layer_us.values()) > 0  # as many as its time is enough for
    rows = min(8, max(layer_us))
    found = planned("--model", MODEL, "--gpu", path, "--worker", path, "--batch", rows, "--workers", 0, "--prompt", 0, "--gen", 64)
    assert found["s_part_layer_us"] == pytest.approx(layer_us[rows], rel=0.01)
    said = refused("--shape", "llama-7b", "--gpu", path, "--worker", path)
    assert f"was measured with {os.path.basename(MODEL)}, not with llama-7b F16" in said
    path.write_text(path.read_text().replace("layer_us_at = 1:", "layer_us_at = one:"))
    assert "layer_us_at" in refused("--model", MODEL, "--gpu", path, "--worker", path)
    assert "No such file" in refused("--measure", tmp_path / "no" / "x.conf")


T4 = ("--offload", "--policy", "paper", "--gpu", "t4", "--host-memory", "208G", "--disk-memory", "1500G", "--prompt", 512, "--gen", 32)


def test_offloading_is_planned():
    """The rates are tests/unit/test_offload_paper.c's; here they come out of the program, as an object and as text."""
    found = planned("--shape", "opt-30b", *T4)
    assert 7.10 <= found["tokens_per_second"] <= 7.15 and (found["gpu_batch"], found["gpu_batches"]) == (48, 3)
    for tensor in ("weights", "activations", "kv"):
        assert sum(found[tensor][tier] for tier in ("device", "host", "disk")) == pytest.approx(1, abs=1e-3)
    assert found["kv"]["host"] == 1 and found["disk_bytes"] == 0 and found["bound_by"] == "attention"
    assert 0 < found["device_bytes"] <= found["device_limit_bytes"] and 0 < found["host_bytes"] <= found["host_limit_bytes"]
    said = plan("--shape", "opt-30b", *T4).stdout
    for words in ("48 x 3: 144 sequences", "7.106", "bound by       attention", "memory, GiB"):
        assert words in said
    faster = planned("--shape", "opt-175b", *T4, "--disk-read-mbs", 10000)["tokens_per_second"]
    assert faster > 1.5 * planned("--shape", "opt-175b", *T4)["tokens_per_second"]
    assert planned("--shape", "opt-175b", *T4, "--compress")["weights"]["disk"] == 0
    delegated = planned("--shape", "opt-30b", *T4, "--workers", 8)
    assert delegated["workers"] == 8 and set(delegated["kv"].values()) == {0.0} and delegated["kv_bytes_per_worker"] > 0
    mesh = planned("--shape", "opt-30b", *T4, "--policy", "mesh", "--requests", 10000)
    assert mesh["kv"]["device"] == mesh["activations"]["device"] == 1 and mesh["weights"]["host"] > 0.9
    assert mesh["hours"] == pytest.approx(10000 * 32 / mesh["tokens_per_second"] / 3600, rel=1e-4)
    assert "--policy is for --offload" in refused("--shape", "llama-7b", *PAPER, "--policy", "paper")
    assert "--disk-read-mbs" in refused("--shape", "opt-30b", "--offload", "--gpu", "a10", "--host-memory", "8G", "--disk-memory", "1T")
    assert "weights take 324.0 GiB" in refused("--shape", "opt-175b", "--offload", "--gpu", "t4", "--host-memory", "32G")
    assert "--offload plans for the most tokens/s" in refused("--shape", "opt-30b", *T4, "--batch", 8)
    assert "are for --offload" in refused("--shape", "opt-30b", "--gpu", "a10", "--host-memory", "8G")
