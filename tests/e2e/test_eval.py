"""`fastdecode eval`: perplexity against the numpy oracle's, what each KV type may cost, and what it refuses."""
import json
import math
import os
import statistics
import sys

import pytest

from conftest import MODEL, ROOT, fastdecode, tiny

sys.path.append(os.path.join(ROOT, "tests", "golden"))
from oracle_texts import SCORED  # noqa: E402

TEXT = os.path.join(ROOT, "docs", "design.md")


def run(*options):
    return fastdecode("eval", "--model", MODEL, *options)


def figures(*options):
    said = run("--json", *options)
    assert said.returncode == 0, said.stderr
    return json.loads(said.stdout)


def test_perplexity_is_the_oracles(tmp_path):
    with open(os.path.join(ROOT, "tests", "golden", "oracle.json"), encoding="utf-8") as file:
        oracle = json.load(file)
    if os.path.basename(MODEL) != oracle["model"]["file"]:
        pytest.skip("the golden file is of another model")
    wanted = max((item for item in oracle["scored"] if item["name"] in {text["name"] for text in SCORED}),
                 key=lambda item: len(item["tokens"]))
    path = tmp_path / "text"
    path.write_text(next(text["text"] for text in SCORED if text["name"] == wanted["name"]), encoding="utf-8")
    got = figures("--text", path, "--kv-type", "f32", "--context", 2048)
    assert got["tokens"] == len(wanted["tokens"]) and got["positions"] == got["tokens"] - 1
    assert got["reference_perplexity"] == pytest.approx(math.exp(-statistics.fmean(wanted["log_probability"])), rel=1e-4)
    # the same on both sides: not a bit may differ, in either mode
    assert got["kl_mean"] == got["kl_max"] == 0 and got["same_best"] == 1 and got["perplexity"] == got["reference_perplexity"]
    got = figures("--text", path, "--kv-type", "f32", "--context", 64, "--tokens", 130, "--compute", "int8")
    assert got["kl_max"] == 0 and got["tokens"] == 130 and got["positions"] == 63 + 63 + 1


@pytest.mark.full
def test_f16():
    got = figures("--text", TEXT, "--kv-type", "f16", "--tokens", 700)
    assert got["positions"] == 698 and 0 < got["kl_mean"] < 2e-6 and got["same_best"] > 0.99
    assert got["kl_mean"] < got["kl_max"] < 1e-3
    assert got["perplexity"] == pytest.approx(got["reference_perplexity"], rel=1e-3)
    said = run("--text", TEXT, "--tokens", 100)
    assert said.returncode == 0 and "perplexity" in said.stdout and "KV f16" in said.stdout


# Mean KL against f32 KV: what a type promises on the default model; int4x promises nothing, and costs 0.08.
@pytest.mark.full
@pytest.mark.parametrize("kv_type, most", [("f16", 2e-6), ("bf16", 1e-4), ("int8", 1e-3), ("int4", 1e-2), ("int4x", 0.2)])
def test_what_a_type_costs(kv_type, most):
    got = figures("--text", TEXT, "--kv-type", kv_type, "--tokens", 2000)
    print(f"{kv_type}: mean KL {got['kl_mean']:.2e} +- {got['kl_standard_error']:.0e}, largest {got['kl_max']:.2g}, perplexity "
          f"{got['perplexity']:.3f} ({got['reference_perplexity']:.3f} with f32), {100 * got['same_best']:.2f} % best tokens alike")
    assert got["positions"] >= 1990 and 0 < got["kl_mean"] < most


def test_weights_in_fewer_bits(tmp_path):
    """Each bit less costs more; the table has all KV types and both kinds of weights, and says what the paper claims."""
    model = tmp_path / "f16.gguf"
    fastdecode("model", "--synthetic", "llama-tiny", "--type", "f16", model, check=True)

    def of(*options):
        return fastdecode("eval", "--model", model, "--text", TEXT, "--tokens", 100, "--context", 64, *options)

    rows = json.loads(of("--table", "--json").stdout)
    assert [(row["kv_type"], row["quantize_bits"]) for row in rows] == [
        ("f16", 0), ("bf16", 0), ("int8", 0), ("int4", 0), ("int4x", 0), ("f32", 8), ("f32", 4), ("int4", 4), ("int4x", 4)]
    costs = {(row["kv_type"], row["quantize_bits"]): row["kl_mean"] for row in rows}
    assert 0 < 20 * costs["f32", 8] < costs["f32", 4] < 0.1 and costs["int4x", 4] > max(costs["f32", 4], costs["int4x", 0])
    assert json.loads(of("--json", "--kv-type", "f32", "--quantize", "4").stdout)["kl_mean"] == costs["f32", 4]
    said = fastdecode("eval", "--model", tiny(), "--text", TEXT, "--tokens", 40, "--table")
    assert said.returncode == 0 and "Weights in fewer bits are left out" in said.stdout
    assert "FlexGen (arXiv 2303.06865) claims" in said.stdout
    assert len([line for line in said.stdout.splitlines() if line.endswith(" %")]) == 5
    said = fastdecode("eval", "--model", tiny(), "--text", TEXT, "--tokens", 40, "--quantize", "4")
    assert said.returncode == 2 and "has its matrices in Q4_1 already" in said.stderr


def test_refusals(tmp_path):
    short, broken = tmp_path / "short", tmp_path / "broken"
    short.write_text("a")
    broken.write_bytes(b"some text, then \xff\xfe")
    for options, line in (((), "--text FILE is missing: any UTF-8 text"),
                          (("--text", tmp_path / "none"), "No such file"),
                          (("--text", tmp_path), "Is a directory"),
                          (("--text", short), "1 tokens are too few"),
                          (("--text", broken), "byte 0xff at offset 16 is not UTF-8"),
                          (("--text", TEXT, "--kv-type", "int3"), "--kv-type is 'int3', want "),
                          (("--text", TEXT, "--compute", "fast"), '--compute is "fast", want f32 or int8'),
                          (("--text", TEXT, "--context", 1), "--context"),
                          (("--text", TEXT, "--context", 1 << 20), "the model's is")):
        said = run(*options)
        assert said.returncode == 2 and line in said.stderr and not said.stdout, (options, said.stderr)
