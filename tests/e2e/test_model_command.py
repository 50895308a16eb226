"""`fastdecode model FILE`: what it prints, and what it does not take for something else."""
import os

import pytest

from conftest import MODEL, fastdecode
from streams import body, run_all


def describe(*options):
    return fastdecode("model", *options, timeout=60)


def test_a_plan():
    said = describe(MODEL, "--kv-type", "f32", "--compute", "int8")
    assert said.returncode == 0 and "architecture   llama" in said.stdout and "KV f32" in said.stdout


@pytest.mark.parametrize("option, value, says", [("--kv-type", "int3", "is 'int3', want f16, "),
                                                 ("--compute", "fast", 'is "fast", want auto, f32 or int8')])
def test_an_unknown_mode_is_refused(option, value, says):
    said = describe(MODEL, option, value)
    assert said.returncode == 2 and f"{option} {says}" in said.stderr


def test_an_unknown_shape_is_refused(tmp_path):
    path = str(tmp_path / "x.gguf")
    for options, line in ((("--synthetic", "gpt-2"), "--synthetic is 'gpt-2', want one of llama-1b, "),
                          (("--synthetic", "llama-1b", "--type", "q2"), "--type is 'q2', want one of f16, ")):
        said = describe(path, *options)
        assert said.returncode == 2 and line in said.stderr and os.listdir(tmp_path) == []
    said = describe(str(tmp_path / "no" / "x.gguf"), "--synthetic", "llama-1b")
    assert said.returncode == 2 and "No such file" in said.stderr


def test_what_is_no_model_is_the_models_fault(tmp_path):
    """The exit codes of docs/operations.md, as services have them."""
    for path in (__file__, str(tmp_path / "none.gguf")):
        for command in (("model", path), ("eval", "--model", path, "--text", __file__)):
            said = fastdecode(*command, timeout=60)
            assert said.returncode == 4 and path in said.stderr, said


@pytest.mark.full
def test_a_synthetic_model_is_served(start_mesh, tmp_path):
    """Random weights in a known shape: the same bytes for a seed, a plan, and tokens."""
    path = str(tmp_path / "synthetic.gguf")
    assert describe(path, "--synthetic", "llama-1b").returncode == 0
    said = describe(path)
    assert "1100.0 M parameters" in said.stdout and "Q4_0, 156 tensors" in said.stdout
    streamed = fastdecode("model", "--synthetic", "llama-1b", "-", check=True, text=False).stdout
    with open(path, "rb") as file:
        assert file.read() == streamed
    mesh = start_mesh("--local-pool", "256M", "--kv-memory", "64M", model=path, threads=0)
    asked = body("bada kirono lutem", 8)
    stream = run_all(mesh.url, [asked])[0]
    assert stream.error is None and len(stream.tokens) == 8
    assert stream.usage["prompt_tokens"] < 12, "words are pieces, not letters"
