"""--kv-type: f16 unless one is named; auto follows from the model alone, is told with its figures, and is the whole mesh's."""
import os
import re

import pytest

from conftest import BUILD, MODEL, fastdecode, run, tiny
from streams import body, run_all

MESH = ("--kv-workers", 1, "--local-pool", "64M", "--kv-memory", "64M")
AUTO = (*MESH, "--kv-type", "auto")


def said(mesh):
    """The KV-TYPE lines so far, each as {key: value}."""
    with open(os.path.join(mesh.run_dir, "s-part.log"), encoding="utf-8") as file:
        return [dict(re.findall(r'(\w+)=("[^"]*"|\S+)', line)) for line in file if " KV-TYPE " in line]


def of_mesh(mesh):
    """The types that the scheduler and the worker have."""
    mesh.wait_metric("fastdecode_place_up", lambda up: up == 2)
    return re.search(r'"kv_type":\s*"(\w+)"', mesh.get("/mesh/state")).group(1)


def answers(mesh):
    stream = run_all(mesh.url, [body("The sea is", 8)])[0]
    assert stream.error is None and stream.usage["completion_tokens"] == 8
    return stream.tokens


def test_the_default_is_f16(start_mesh):
    """Of a model that bears int8, too, and measured at start as users have it."""
    mesh = start_mesh(*MESH, calibrate=True, model=MODEL, threads=0)
    assert of_mesh(mesh) == "f16" and not said(mesh)


def test_a_model_that_loses_too_much_keeps_f16(start_mesh):
    """The small model's random weights attend sharply: int8 costs it more than the limit."""
    mesh = start_mesh(*AUTO)
    line, = said(mesh)
    assert line["chosen"] == "f16"
    assert float(line["limit"]) == 1e-3 < float(line["int8_kl"]) < 1e-2 and 0 < float(line["least_kl"])
    assert of_mesh(mesh) == "f16" and answers(mesh)


def test_the_default_model_bears_int8(start_mesh):
    """The same figures with one thread and with several, measured at start and not, and in a mesh of another shape."""
    lines = []
    for options, settings in ((AUTO, {"threads": 1, "calibrate": True}),
                              ((*AUTO, "--mini-batches", 2, "--max-batch", 7, "--context", 300), {"threads": 3, "env": {"FD_ISA": "avx2"}})):
        mesh = start_mesh(*options, model=MODEL, **settings)
        line, = said(mesh)
        lines.append({key: line[key] for key in ("chosen", "int8_kl", "least_kl", "positions")})
        assert line["chosen"] == of_mesh(mesh) and answers(mesh)
        mesh.stop()
    assert lines[0] == lines[1]
    assert lines[0]["chosen"] == ("int8" if float(lines[0]["int8_kl"]) < 1e-3 else "f16")
    if os.path.basename(MODEL).startswith("SmolLM2-135M"):
        assert 1e-4 < float(lines[0]["int8_kl"]) < 1e-3


@pytest.mark.parametrize("options, says", [
    (("--s-parts", 2), "--kv-type auto reads a text with all layers, and each of 2 s-parts has some: name a type"),
    (("--split", "1,2,1"), "--kv-type auto reads a text with all layers, and each of 3 s-parts has some: name a type")])
def test_several_s_parts_want_a_type(options, says):
    refused = fastdecode("up", "--model", tiny(), "--port", 0, "--kv-type", "auto", *options, "--check")
    assert refused.returncode == 2 and says in refused.stderr, refused


@pytest.mark.parametrize("options, says", [
    (("--layers", "1:4"), "--kv-type auto reads a text with all layers, and --layers 1:4 has 3 of 4: name a type"),
    (("--layers", "0/2"), "--kv-type auto reads a text with all layers, and --layers 0/2 has 3 of 4: name a type"),
    (("--context", "100"), "--kv-type auto reads a text of up to 256 tokens, and --context is 100: name a type"),
    (("--weights-memory", "20M", "--cache-dir"), "--kv-type auto wants all weights in memory, and ")])
def test_an_s_part_that_cannot_read_the_text_wants_a_type(options, says, tmp_path):
    if options[-1] == "--cache-dir":
        options += (tmp_path,)
    refused = run([os.path.join(BUILD, "bin", "s-part"), "--model", tiny(), "--kv-type", "auto", "--scheduler", "tcp://127.0.0.1:9", *options])
    assert refused.returncode == 2 and says in refused.stderr and "name a type, such as f16 or int8" in refused.stderr, refused
