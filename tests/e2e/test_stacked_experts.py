"""Directories of gpt-oss: experts in one tensor, input by input with gate and up by turns, or in MXFP4 with the scales apart. They give
`transformers`' log-probabilities, and the bytes of the GGUF file with the same values, however they are loaded."""
import json
import os
import re
import shutil

import pytest

from conftest import BUILD, HARDWARE, fastdecode, run
from streams import assert_same, body, run_all, words
from test_architectures import INT8, LIMIT, scores
from test_tiny_files import Gguf

import to_gguf
import weights

# How the directory is written: a golden, the type of its floats, the number of files, and whether what it has in MXFP4 is written as floats.
FORMS = {"f32": ("gpt_oss", "F32", 1, False), "bf16": ("gpt_oss", "BF16", 3, False), "mxfp4": ("gpt_oss_mxfp4", "BF16", 2, False),
         "mxfp4-as-f32": ("gpt_oss_mxfp4", "F32", 1, True)}
PROBES = [body(words(70, 1), 24, logprobs=2), body(words(9, 2), 30, 1, True, logprobs=2), body(words(40, 3), 16, 2, True, logprobs=2)]
SOME_LAYERS = {"f32": "2200K", "bf16": "1100K", "mxfp4": "700K"}  # of 2.9, 1.5 and 1.0 MiB
MOST = ("--kv-memory", "32M", "--local-pool", "32M")


def folder_of(form):
    """The directory, made once a build."""
    name, kind, shards, plain = FORMS[form]
    folder = os.path.join(BUILD, "tests", "golden", "stacked-" + form)
    if not os.path.exists(folder):
        shutil.rmtree(folder + ".part", ignore_errors=True)
        weights.write(folder + ".part", name, kind, shards, plain)
        os.replace(folder + ".part", folder)
    return folder


def gguf_of(form, kind):
    path = f"{folder_of(form)}-{kind}.gguf"
    if not os.path.exists(path):
        to_gguf.convert(folder_of(form), path + ".part", kind)
        os.replace(path + ".part", path)
    return path


@pytest.mark.parametrize("chunk", [1, 16, 64])
@pytest.mark.parametrize("form", FORMS)
def test_log_probabilities(start_mesh, form, chunk):
    golden = weights.golden(FORMS[form][0])
    tokens = golden["tokens"][:256]
    mesh = start_mesh("--compute", "f32", "--kv-type", "f32", "--chunk", chunk, "--kv-workers", 0, *MOST, "--prefix-cache", "off",
                      model=folder_of(form))
    apart = [abs(a - b) for a, b in zip(scores(mesh, tokens), golden["log_probability"], strict=False)]
    print(f"{form}, chunks of {chunk}: largest {max(apart):.2e} of {len(apart)}")
    assert len(apart) == len(tokens) - 1 and max(apart) < LIMIT, (form, chunk, apart.index(max(apart)))


@pytest.mark.parametrize("form, kind", [("f32", "F32"), ("bf16", "BF16"), ("mxfp4", "BF16")])
def test_same_bytes_as_the_gguf_file(start_mesh, tmp_path, form, kind):
    """As the file has them and in fewer bits; then from a packed file with layers that are read in each step, at the start that writes it and at the
    next."""

    def found(model, *options):
        mesh = start_mesh("--kv-workers", 0, *options, model=model)
        streams, log = run_all(mesh.url, PROBES), mesh.logs(400)
        mesh.stop()
        return streams, log

    streamed = (*MOST, "--cache-dir", tmp_path, "--weights-memory", SOME_LAYERS[form])
    wanted, _ = found(gguf_of(form, kind), *MOST)
    assert len({stream.text for stream in wanted}) == len(PROBES)
    assert_same(found(folder_of(form), *MOST)[0], wanted)
    assert_same(found(folder_of(form), *INT8)[0], found(gguf_of(form, kind), *INT8)[0])
    for is_first in (True, False):
        streams, log = found(folder_of(form), *streamed)
        assert_same(streams, wanted)
        assert ("WEIGHTS-PACKED " in log) == is_first and re.search(r"MEMORY-PLAN .* streamed_mib=(?!0\.0)\d", log), log
    assert [name.endswith(".fdw") for name in os.listdir(tmp_path)] == [True]


@pytest.mark.parametrize("form", ["f32", "mxfp4"])
def test_written_as_gguf(tmp_path, form):
    """`quantize` writes the tensors that it makes of the GGUF file, in GGUF's order, whether a matrix is converted or stays."""
    made = []
    for source in (folder_of(form), gguf_of(form, "F32")):
        fastdecode("quantize", source, tmp_path / "out.gguf", "--type", "q8_0", check=True)
        made.append(Gguf(tmp_path / "out.gguf").tensors)
    assert made[0].keys() == made[1].keys()
    experts = [name for name in made[0] if "_exps." in name]
    assert len(experts) == 4 * 6 and all(made[0][name] == made[1][name] for name in experts if name.endswith(".weight"))
    assert {made[0][name][1] for name in experts if name.endswith(".weight")} == {8 if form == "f32" else 39}
    if form == "f32":  # else vectors are BF16 in one of the files
        assert made[0] == made[1]


def test_a_quantized_file_is_what_is_quantized_at_load(start_mesh, tmp_path):
    """The router and the experts' biases stay as they are in both."""
    fastdecode("quantize", folder_of("f32"), tmp_path / "q8.gguf", "--type", "q8_0", check=True)
    streams = [run_all(start_mesh("--kv-workers", 0, *MOST, *options, model=str(model)).url, PROBES)
               for model, options in ((tmp_path / "q8.gguf", ()), (folder_of("f32"), ("--quantize", "8")))]
    assert_same(streams[0], streams[1])


def test_sizes_are_those_of_the_gguf_file():
    said, planned = [], []
    for model in (folder_of("mxfp4"), gguf_of("mxfp4", "BF16")):
        said.append(fastdecode("model", model, check=True).stdout)
        plan = fastdecode("plan", "--hardware-dir", HARDWARE, "--model", model, "--gen", 64, "--gpu", "cpu", "--worker", "epyc-7452", "--json", check=True)
        planned.append({key: value for key, value in json.loads(plan.stdout).items() if key not in ("model", "shape")})
    assert "MXFP4, 12 tensors                      306.0 KiB            313344 B" in said[0] and "MXFP4, 12 tensors" in said[1]
    assert "experts        8, each row goes through 4" in said[0]
    assert planned[0]["kv_bytes_per_worker"] == planned[1]["kv_bytes_per_worker"] and planned[0].keys() == planned[1].keys()


def test_a_scale_that_is_not_a_number(tmp_path):
    """Scales are read when weights are: a start and `quantize` name the tensor, and leave nothing."""
    folder = tmp_path / "model"
    shutil.copytree(folder_of("mxfp4"), folder)
    name = "model.layers.2.mlp.experts.down_proj_scales"
    with open(folder / "model.safetensors.index.json", encoding="utf-8") as file:
        path = folder / json.load(file)["weight_map"][name]
    data = bytearray(path.read_bytes())
    begin = 8 + int.from_bytes(data[:8], "little")
    data[begin + json.loads(data[8:begin])[name]["data_offsets"][1] - 1] = 255
    path.write_bytes(data)
    said = fastdecode("quantize", folder, tmp_path / "out.gguf")
    assert said.returncode == 4 and "tensor 'blk.2.ffn_down_exps.weight' has a scale of 255, which is not a number" in said.stderr, said
    assert os.listdir(tmp_path) == ["model"]
    said = run([os.path.join(BUILD, "bin", "s-part"), "--model", str(folder), "--calibrate", "off"])
    assert said.returncode != 0 and "tensor 'blk.2.ffn_down_exps.weight' cannot be converted: a scale is 255" in said.stderr, said
