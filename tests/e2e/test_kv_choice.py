"""--kv-type auto: what is chosen is told with its figures, is the whole mesh's, and is the same when the s-part starts again."""
import os
import re

import pytest

from conftest import MODEL, wait_until
from streams import body, run_all

MESH = ("--kv-workers", 1, "--local-pool", "64M", "--kv-memory", "64M")


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


def test_a_model_that_loses_too_much_keeps_f16(start_mesh):
    """The small model's random weights attend sharply: int8 costs it more than the limit, on every machine."""
    mesh = start_mesh(*MESH, calibrate=True)
    line, = said(mesh)
    assert line["chosen"] == "f16" and line["from"] == "measured"
    assert float(line["limit"]) == 1e-3 < float(line["int8_kl"]) < 1e-2 and 0 < float(line["least_kl"])
    assert of_mesh(mesh) == "f16" and answers(mesh)


def test_the_default_model_bears_int8(start_mesh):
    mesh = start_mesh(*MESH, calibrate=True, model=MODEL, threads=0)
    line, = said(mesh)
    if os.path.basename(MODEL).startswith("SmolLM2-135M"):
        assert 1e-4 < float(line["int8_kl"]) < 1e-3
    wanted = "int8" if float(line["int8_kl"]) < 1e-3 and float(line["int8_speed"]) > 1 else "f16"
    assert line["chosen"] == of_mesh(mesh) == wanted and answers(mesh)


def test_the_choice_is_kept(start_mesh, tmp_path):
    """A kept choice is taken without measuring: here one that says int8. The s-part that starts again has it too, and the mesh goes on."""
    options = (*MESH, "--cache-dir", tmp_path)
    start_mesh(*options, calibrate=True).stop()
    path, = tmp_path.glob("*.kv-type")
    fields = path.read_text().split()
    path.write_text(" ".join([*fields[:4], "int8", "128", "4e-4", "1e-5", "1.5"]) + "\n")
    mesh = start_mesh(*options, calibrate=True)
    line, = said(mesh)
    assert line["chosen"] == of_mesh(mesh) == "int8" and line["from"] == "file"
    before = answers(mesh)
    mesh.kill("s-part")
    wait_until(lambda: len(said(mesh)) == 2, 60, lambda: mesh.logs())
    assert said(mesh)[1]["chosen"] == "int8" and said(mesh)[1]["from"] == "file"
    mesh.wait_metric("fastdecode_place_up", lambda up: up == 2)
    assert answers(mesh) == before


@pytest.mark.parametrize("change", [lambda f: ["fastdecode-kv-type-0", *f[1:]], lambda f: [f[0], "0", *f[2:]], lambda f: [*f[:2], "int8/other", *f[3:]],
                                    lambda f: [*f[:3], "8", *f[4:]], lambda f: [*f[:4], "int8", *f[5:]], lambda f: [*f[:4], "int3", *f[5:]],
                                    lambda f: [*f[:6], "nan", *f[7:]], lambda f: f[:5], lambda f: ["x" * 5000]])
@pytest.mark.full
def test_a_file_of_another_choice_is_not_taken(start_mesh, tmp_path, change):
    options = (*MESH, "--cache-dir", tmp_path)
    start_mesh(*options, calibrate=True).stop()
    path, = tmp_path.glob("*.kv-type")
    path.write_text(" ".join(change(path.read_text().split())) + "\n")
    line, = said(start_mesh(*options, calibrate=True))
    assert line["chosen"] == "f16" and line["from"] == "measured"


def test_nothing_is_measured_without_calibration(start_mesh):
    mesh = start_mesh(*MESH)
    line, = said(mesh)
    assert line["chosen"] == of_mesh(mesh) == "f16" and "--calibrate off" in line["why"]
    assert not said(start_mesh(*MESH, "--kv-type", "f16", calibrate=True))
