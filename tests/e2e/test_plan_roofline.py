"""`fastdecode plan` beside a roofline that is reckoned here, from the same files: questions that buyers ask, answers within 15 %.

A step of B sequences with p prompt and S generated tokens has, for each sequence, one row and p / S rows of prompts. The S-part reads its weights once
a mini-batch, and multiplies them by all rows; a worker reads the KV of its sequences and multiplies their prompts' pairs; the link carries q, k, v and
o of all rows as 32-bit floats. Two mini-batches take turns; without workers there is one."""
import json
import math
import os

import pytest

from conftest import HARDWARE, fastdecode

SHAPES = os.path.join(os.path.dirname(HARDWARE), "shapes")
WORKER_BITS = {"f16": 16, "q4_0": 4.5, "q4_k": 4.625, "q8_0": 8.5, "q2_k": 5.125}
GPU_BITS = {**WORKER_BITS, "q2_k": 16}
# Parameters as the models' publishers count them, in billions, and matrices beside the layers: embedding and head, or one for both.
PARAMETERS = {"llama-7b": (6.74, 2), "llama-13b": (13.02, 2), "llama-70b": (68.98, 2), "llama-3.2-3b": (3.21, 1), "llama-3.1-8b": (8.03, 2),
              "llama-3.3-70b": (70.55, 2), "llama-3.1-405b": (405.85, 2), "qwen3-8b": (8.19, 2), "qwen3-14b": (14.77, 2), "qwen3-32b": (32.76, 2),
              "qwen3-30b-a3b": (30.53, 2), "qwen3-235b-a22b": (235.09, 2), "opt-30b": (29.97, 1), "opt-175b": (174.6, 1)}


def hardware(name):
    values = {}
    with open(os.path.join(HARDWARE, name + ".conf"), encoding="utf-8") as file:
        for line in file:
            key, equals, value = line.split("#")[0].partition("=")
            if equals:
                values[key.strip()] = value.strip()
    return {key: value if key in ("name", "memory") else float(value) for key, value in values.items()}


def shape(name):
    with open(os.path.join(SHAPES, name + ".json"), encoding="utf-8") as file:
        return json.load(file)


def reckoned(model, weights, gpu, worker, link, batch, workers, prompt, generated):
    """Tokens a second, and what binds."""
    c, device, host, wire = shape(model), hardware(gpu), hardware(worker), hardware(link)
    layers, hidden, heads = c["num_hidden_layers"], c["hidden_size"], c["num_attention_heads"]
    kv_heads, head_dim = c.get("num_key_value_heads", heads), c.get("head_dim") or hidden // heads
    is_gpu = "copy_in_gb_per_second" in device
    peak = 1e12 * (device["f16_tflops"] if is_gpu else device["int8_tops"] if weights.startswith("q") else device["f32_tflops"])
    value_bytes = (GPU_BITS if is_gpu else WORKER_BITS)[weights] / 8
    billions, matrices = PARAMETERS[model]
    head = hidden * c["vocab_size"]
    layer = (billions * 1e9 - matrices * head) / layers
    mini_batches = 2 if workers else 1
    decode = math.ceil(batch / mini_batches)
    rows = decode * (1 + prompt / generated)

    read_rate = 1e9 * device["memory_gb_per_second"] * device.get("weights_share", 1)
    read, used = layer, layer
    if "num_experts" in c:  # those that some row has chosen are read; a row is multiplied by its own
        experts = 3 * hidden * c["moe_intermediate_size"] * c["num_experts"]
        share = c["num_experts_per_tok"] / c["num_experts"]
        read, used = layer - experts * (1 - share)**rows, layer - experts * (1 - share)
    products_s = max(read * value_bytes / read_rate, 2 * used * rows / peak)
    head_s = max(head * value_bytes / read_rate, 2 * head * decode / peak)

    place = host if workers else device
    attend_peak = 1e12 * place.get("prompt_attention_tflops", place.get("f16_tflops", place.get("f32_tflops")))
    context = prompt + (generated + max(1, generated // 32)) / 2
    decode_s = context * 2 * kv_heads * head_dim * 2 / (1e9 * place["memory_gb_per_second"] * place.get("attention_share", 1))
    prompts_s = prompt / generated * (prompt + 1) / 2 * 4 * heads * head_dim / attend_peak
    spread = max(workers, 1)
    attention_s = math.ceil(decode / spread) * decode_s + decode / spread * prompts_s
    if not workers:
        return batch / (layers * (products_s + attention_s) + head_s), "S-part"
    carried_s = rows * 4 * (2 * heads + 2 * kv_heads) * head_dim / (1e9 * wire["link_gb_per_second"])
    s_part_s, waited_s = layers * products_s + head_s, layers * (attention_s + carried_s + 1e-6 * wire["link_round_trip_us"])
    busy = {"S-part": 2 * s_part_s, "R-part": 2 * layers * attention_s, "network": 2 * layers * carried_s}
    return batch / max(*busy.values(), s_part_s + waited_s), max(busy, key=busy.get)


# model, weights, device, worker, link, batch, workers, prompt, generated
QUESTIONS = [
    ("llama-3.1-8b", "f16", "rtx-4090", "epyc-9654", "eth25", 64, 2, 500, 500),
    ("llama-3.1-8b", "q4_0", "rtx-4090", "epyc-9654", "eth100", 256, 4, 500, 500),
    ("llama-3.1-8b", "q4_k", "l4", "epyc-9554", "eth25", 64, 2, 200, 800),
    ("llama-3.1-8b", "q4_k", "l4", "graviton4", "cloud-16g", 32, 2, 1000, 200),
    ("llama-3.1-8b", "q8_0", "rtx-3090", "xeon-8380", "eth10", 32, 1, 100, 1000),
    ("llama-3.1-8b", "f16", "h100-sxm", "epyc-9654", "ib-ndr", 512, 8, 32000, 500),
    ("llama-3.1-8b", "f16", "h100-sxm", "epyc-9654", "ib-ndr", 16, 0, 4000, 500),
    ("llama-3.1-8b", "q4_k", "epyc-9654", "epyc-9654", "eth25", 16, 0, 500, 500),
    ("llama-3.1-8b", "q4_k", "epyc-9654", "epyc-9654", "eth25", 128, 0, 500, 500),
    ("llama-3.1-8b", "f16", "ryzen-7950x", "ryzen-7950x", "eth10", 4, 0, 200, 200),
    ("llama-3.2-3b", "q4_0", "ryzen-7950x", "ryzen-7950x", "eth10", 8, 0, 200, 200),
    ("llama-3.2-3b", "f16", "rtx-a6000", "epyc-7763", "eth25", 128, 2, 2000, 200),
    ("qwen3-8b", "q8_0", "l40s", "xeon-8480", "eth100", 128, 4, 1000, 1000),
    ("qwen3-8b", "q4_k", "xeon-6980p", "xeon-6980p", "eth25", 32, 0, 1000, 500),
    ("qwen3-14b", "q4_k", "rtx-4090", "epyc-9554", "eth25", 64, 2, 300, 700),
    ("qwen3-14b", "q4_k", "rtx-5090", "epyc-9755", "eth100", 256, 4, 300, 700),
    ("qwen3-32b", "q4_0", "rtx-5090", "epyc-9654", "eth100", 64, 2, 500, 500),
    ("qwen3-32b", "q4_k", "rtx-6000-ada", "epyc-9654", "eth100", 128, 4, 4000, 500),
    ("qwen3-30b-a3b", "q4_k", "epyc-9654", "epyc-9654", "eth25", 1, 0, 100, 500),
    ("qwen3-30b-a3b", "q4_k", "epyc-9654", "epyc-9654", "eth25", 32, 0, 500, 500),
    ("qwen3-30b-a3b", "q8_0", "xeon-6980p", "xeon-6980p", "eth25", 64, 0, 1000, 500),
    ("qwen3-235b-a22b", "q4_k", "epyc-9755", "epyc-9755", "eth100", 16, 2, 500, 500),
    ("llama-3.3-70b", "q4_k", "l40s", "epyc-9654", "eth25", 64, 2, 500, 500),
    ("llama-3.3-70b", "q4_k", "l40s", "epyc-9654", "eth100", 64, 2, 1000, 300),
    ("llama-3.3-70b", "q4_0", "a100-80", "epyc-9654", "ib-ndr", 128, 8, 32000, 1000),
    ("llama-3.3-70b", "f16", "b200", "xeon-6980p", "ib-ndr", 256, 4, 2000, 1000),
    ("llama-3.3-70b", "q4_k", "h100-pcie", "epyc-9554", "eth100", 128, 4, 500, 500),
    ("llama-3.1-405b", "q2_k", "epyc-9755", "epyc-9755", "eth100", 8, 1, 500, 500),
    ("llama-70b", "q8_0", "h200", "epyc-7763", "eth100", 128, 8, 200, 800),
    ("llama-7b", "f16", "a100-40", "epyc-7452", "eth100", 512, 8, 16, 1024),
    ("opt-30b", "f16", "a100-80", "epyc-7763", "ib-ndr", 128, 8, 512, 32),
]


@pytest.mark.parametrize("question", QUESTIONS, ids=lambda q: "-".join(str(part) for part in q))
def test_a_question_of_a_buyer(question):
    model, weights, gpu, worker, link, batch, workers, prompt, generated = question
    said = fastdecode("plan", "--json", "--hardware-dir", HARDWARE, "--shape", model, "--weights", weights, "--gpu", gpu, "--worker", worker,
                      "--link", link, "--batch", batch, "--workers", workers, "--prompt", prompt, "--gen", generated, "--mini-batches",
                      2 if workers else 1)
    assert said.returncode == 0, said.stderr
    plan, (rate, bound) = json.loads(said.stdout), reckoned(*question)
    print(f"{rate:10.1f} reckoned, {plan['tokens_per_second']:10.1f} planned, {bound}, {plan['bound_by']}")
    assert plan["tokens_per_second"] == pytest.approx(rate, rel=0.15)
    carried = 4 * 2 * (1 + prompt / generated) * rate if workers else 0
    c = shape(model)
    heads = c["num_attention_heads"] + c.get("num_key_value_heads", c["num_attention_heads"])
    bytes_a_row = heads * (c.get("head_dim") or c["hidden_size"] // c["num_attention_heads"]) * c["num_hidden_layers"]
    assert plan["network_gbit_per_second"] == pytest.approx(carried * bytes_a_row * 8 / 1e9, rel=0.15)


@pytest.mark.parametrize("weights, gpu, fits", [("q4_k", "rtx-4090", False), ("q2_k", "l40s", False), ("q4_k", "l40s", True), ("q8_0", "h100-sxm", True),
                                                ("f16", "h200", True), ("f16", "h100-sxm", False), ("q2_k", "epyc-9654", True)])
def test_what_70_b_fits(weights, gpu, fits):
    """By the bits in that device's memory: Q2_K is 16 bits on a GPU."""
    said = fastdecode("plan", "--hardware-dir", HARDWARE, "--shape", "llama-3.3-70b", "--weights", weights, "--gpu", gpu, "--worker", "epyc-9654",
                      "--batch", 8, "--workers", 2)
    assert (said.returncode == 0) == fits, said.stdout + said.stderr
    assert fits or "for weights and activations" in said.stderr
