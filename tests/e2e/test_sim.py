"""`fastdecode sim`: what it prints, the workloads that it takes, and that spaced starts keep the load even at the paper's scale."""
import json
import xml.etree.ElementTree

import pytest

from conftest import HARDWARE, MODEL, fastdecode


def run(*options):
    return fastdecode("sim", "--hardware-dir", HARDWARE, *options)


def figures(*options):
    said = run("--json", *options)
    assert said.returncode == 0, said.stderr
    return json.loads(said.stdout)


def test_every_token_is_counted(tmp_path):
    workload = tmp_path / "w.csv"
    workload.write_text("arrival_s,prompt_tokens,generated_tokens,max_tokens\n" +
                        "".join(f"{i / 20},{10 + i % 300},{1 + i % 77},200\n" for i in range(1000)), encoding="utf-8")
    got = figures("--shape", "llama-7b", "--gpu", "a10", "--workers", 4, "--batch", 64, "--workload", workload, "--noise", 0.1)
    assert got["finished"] == 1000 and got["lost"] == 0 and got["rejected"] == 0
    tokens = sum(1 + i % 77 for i in range(1000))
    assert abs(got["tokens_per_second"] * got["seconds"] - tokens) < 1
    assert got["prefill_rows"] >= sum(10 + i % 300 for i in range(1000))
    for times in (got["ttft_s"], got["tbt_s"]):
        assert 0 < times["p50"] <= times["p99"] <= times["max"]
    assert 0 < got["step_s_max"] and 0 < got["mean_batch"] <= 64


# Llama-7B on an A10 with 8 sockets and B = 1,024, as in the paper (arXiv 2403.11421).
PAPER = ("--shape", "llama-7b", "--gpu", "a10", "--link", "infiniband", "--workers", 8, "--batch", 1024, "--gen", 1024, "--backlog", "--mini-batches", 2,
         "--chunk", 512)


def test_more_workers_than_a_scheduler_takes():
    assert figures("--model", MODEL, "--gpu", "a10", "--workers", 300, "--batch", 600, "--prompt", 40, "--gen", 8, "--backlog", "--requests", 900)["finished"] == 900


def test_sls_keeps_the_load_even():
    """From the first start on. A spacing that is given means it, and another one gives other figures."""
    together, sls = (figures(*PAPER, "--requests", 4096, "--admission", name) for name in ("greedy", "sls"))
    assert 0.45 <= sls["peak_load"] / together["peak_load"] <= 0.55 and sls["step_s_max"] <= 0.7 * together["step_s_max"]
    narrow, wide = (figures(*PAPER, "--requests", 4096, "--spacing", steps) for steps in (32, 256))
    assert narrow["admission"] == wide["admission"] == "sls"
    assert narrow["peak_load"] <= 0.55 * together["peak_load"] < wide["peak_load"] <= 0.66 * together["peak_load"]
    same = figures(*PAPER, "--requests", 4096, "--spacing", 256, "--admission", "sls")
    assert same == wide


def test_auto_spaces_where_that_is_faster(tmp_path):
    """Over a link that occupies nobody, so that S-part and R-part bind in turn. The first life, of which only max_tokens is known, is not spaced;
    tests/unit/test_sched_load.c looks at peaks behind it."""
    link = tmp_path / "link.conf"
    link.write_text("name = a long link\nlink_gb_per_second = 25\nlink_round_trip_us = 1500\n", encoding="ascii")
    words = (*PAPER, "--link", link, "--requests", 12288)
    spaced = figures(*words, "--plot", tmp_path / "load.svg")
    together = figures(*words, "--admission", "greedy")
    assert spaced["admission"] == "auto" and spaced["finished"] == together["finished"] == 12288
    assert spaced["peak_load"] <= together["peak_load"] and spaced["step_s_max"] <= together["step_s_max"]
    assert spaced["tbt_s"]["p99"] <= 0.95 * together["tbt_s"]["p99"]
    assert spaced["tokens_per_second"] >= 1.05 * together["tokens_per_second"]  # with its slow start and end
    root = xml.etree.ElementTree.parse(tmp_path / "load.svg").getroot()
    assert root.tag.endswith("svg") and len(root) > 10


@pytest.mark.parametrize("least, load", [
    (0.8, "--shape llama-3.1-8b --gpu epyc-9554 --worker epyc-9554 --workers 2 --link eth25 --local-pool 4G --prompt 4000 --gen 100 --batch 16 --requests 60"),
    (0.8, "--shape qwen3-8b --gpu l4 --worker epyc-9654 --workers 4 --link eth100 --prompt 512 --gen 32 --batch 128 --requests 768"),
    (0.8, "--shape gpt-oss-20b --gpu xeon-8480 --worker xeon-8480 --workers 1 --link eth25 --prompt 4000 --gen 100 --batch 128 --requests 768"),
    (0.95, "--shape qwen3-32b --gpu rtx-4090 --worker epyc-9654 --workers 2 --link eth25 --prompt 500 --gen 100 --batch 3 --requests 120"),
    (0.95, "--shape llama-3.1-8b --gpu a100-80 --worker epyc-9654 --workers 6 --link ib-ndr --local-pool 8G --kv-type int8 --prompt 4192 --gen 100 --batch 128 "
           "--requests 600")])
def test_the_number_of_mini_batches_counts_prompts(least, load):
    """The first three: decode rows alone would be fastest in one, in which the S-part waits for what the workers attend for each chunk. The others: what
    prompts would gain in more is too little to believe."""
    rate = lambda *options: figures(*load.split(), "--weights", "q4_k", "--backlog", *options)["tokens_per_second"]
    assert rate() >= least * max(rate("--mini-batches", number) for number in (1, 2, 3))


def test_workers_are_balanced(tmp_path):
    """As in the service: with lengths from 16 to 2,000 sequences go to another worker, or to its other mini-batch."""
    workload = tmp_path / "w.csv"
    lengths = [round(8 * 125**(i * 0.381966 % 1)) for i in range(4000)]
    workload.write_text("arrival_s,prompt_tokens,generated_tokens,max_tokens\n" +
                        "".join(f"0,{lengths[i]},{lengths[i * 7 % 4000]},1000\n" for i in range(4000)), encoding="utf-8")
    got = figures("--shape", "llama-7b", "--gpu", "a10", "--workers", 4, "--batch", 256, "--workload", workload, "--noise", 0.1)
    assert got["finished"] == 4000 and got["lost"] == 0
    assert got["moved"] > 0 and got["relabelled"] > 0


def test_a_file_without_workers():
    got = figures("--model", MODEL, "--gpu", "a10", "--workers", 0, "--batch", 8, "--prompt", 85, "--gen", 128, "--requests", 32,
                  "--backlog")
    assert got["finished"] == 32 and got["mini_batches"] == 1 and got["r_part_busy"] == 0


def test_a_share_of_class_batch():
    """A job beside requests: their time between tokens is about as without it, and it gets all its tokens."""
    words = ("--shape", "llama-7b", "--gpu", "a10", "--workers", 0, "--ignore-capacity", "--batch", 64, "--gen", 100, "--rate", 2,
             "--requests", 400)
    alone, shared = figures(*words, "--requests", 200, "--rate", 1), figures(*words, "--batch-share", 0.5)
    assert alone["classes"] == {} and shared["finished"] == 400
    interactive, batch = (shared["classes"][name] for name in ("interactive", "batch"))
    assert interactive["tokens"] + batch["tokens"] == 400 * 100 and batch["tokens"] > 150 * 100
    assert interactive["tbt_s"]["p99"] < 1.15 * alone["tbt_s"]["p99"]
    assert "batch:" in run(*map(str, words), "--batch-share", "0.5").stdout


def test_capacity():
    """The rate that is found keeps the limits, the next one does not; whole prompts stall the streams beside them."""
    words = ("--capacity", "--shape", "llama-7b", "--gpu", "a10", "--workers", 0, "--ignore-capacity", "--trace", "arxiv", "--scale", 0.5,
             "--tbt-slo", "strict", "--seconds-per-rate", 200, "--precision", 0.1)
    chunks, whole = figures(*words), figures(*words, "--chunk", 8192)
    for got in (chunks, whole):
        assert got["complete"] and got["bound"] in ("tbt_p99", "delay_p50"), got
        assert got["targets"]["tbt_p99_s"] == pytest.approx(5 * got["undisturbed"]["step_s"], rel=1e-3)
        assert got["targets"]["delay_p50_s"] == 2
        for probe in got["probes"]:
            assert probe["met"] == (probe["tbt_s"]["p99"] <= got["targets"]["tbt_p99_s"] and probe["delay_s"]["p50"] <= 2), probe
            assert probe["finished"] == probe["requests"] and probe["ttft_s"]["p50"] >= probe["delay_s"]["p50"]
        assert got["requests_per_second"] in [probe["requests_per_second"] for probe in got["probes"] if probe["met"]]
    assert chunks["requests_per_second"] >= 2 * whole["requests_per_second"] > 0
    assert "capacity     " in run(*map(str, words)).stdout


@pytest.mark.parametrize("options, says", [
    (("--gpu", "a10", "--capacity", "--rate", 3, "--shape", "llama-7b"), "--capacity makes its own arrivals"),
    (("--gpu", "a10", "--capacity", "--shape", "llama-7b", "--trace", "alpaca"), "want sharegpt, arxiv or a CSV file"),
    (("--gpu", "a10", "--backlog"), "--model FILE, or --shape"),
    (("--shape", "llama-7b", "--backlog"), "--gpu is missing"),
    (("--shape", "llama-7b", "--gpu", "a10"), "--workload FILE, --rate R"),
    (("--shape", "llama-7b", "--gpu", "a10", "--backlog", "--rate", 3), "--workload FILE, --rate R"),
    (("--shape", "llama-7b", "--gpu", "a10", "--workload", "no/such", "--rate", 3), "without --rate"),
    (("--shape", "llama-7b", "--gpu", "a10", "--workload", "no/such"), "no/such"),
    (("--shape", "llama-7b", "--gpu", "a10", "--backlog", "--admission", "eager"), "want auto, sls or greedy"),
    (("--shape", "llama-7b", "--gpu", "a10", "--backlog", "--admission", "greedy", "--spacing", 8),
     "--spacing 8 with --admission greedy, which spaces nothing: want sls"),
    (("--shape", "llama-7b", "--gpu", "a10", "--backlog", "--placement", "gpu"), "want auto, local or workers"),
    (("--shape", "llama-7b", "--gpu", "a10", "--backlog", "--placement", "local"), "--local-pool 0 leaves no place"),
    (("--shape", "llama-70", "--gpu", "a10", "--backlog"), "llama-7b"),
    (("--shape", "llama-13b", "--gpu", "a10", "--backlog", "--workers", 0), "--ignore-capacity"),
])
def test_bad_words_are_named(options, says):
    said = run(*options)
    assert said.returncode == 2 and says in said.stderr, said.stderr
    assert said.stdout == ""


def test_help():
    said = run("--help")
    assert said.returncode == 0 and "--workload FILE" in said.stdout and "--plot FILE.svg" in said.stdout
    assert "--json on|off " in said.stdout and "--log-json on|off " in said.stdout
