"""The files of tiny models that tests/golden/weights.py and to_gguf.py write: whole, and with the same values in all forms."""
import array
import importlib.util
import json
import math
import os
import re
import struct
import sys

import pytest

from conftest import ROOT, fastdecode

sys.path.insert(0, os.path.join(ROOT, "tests", "golden"))
import mxfp4  # noqa: E402
import tiny_model  # noqa: E402
import tiny_tokenizers  # noqa: E402
import to_gguf  # noqa: E402
import tokenizer_texts  # noqa: E402
import weights  # noqa: E402

NAMES = weights.names()
SCALARS = {0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?", 10: "<Q", 11: "<q", 12: "<d"}
FORMS = {0: "f", 1: "e", 30: "H"}
SIZES = {0: (4, 1), 1: (2, 1), 8: (34, 32), 30: (2, 1), 39: (17, 32)}  # bytes of so many values


class Gguf:
    """keys, and tensors as name: (shape with the outermost dimension first, type, bytes). Fails where the file is malformed."""

    def __init__(self, path):
        with open(path, "rb") as file:
            self.data, self.at = file.read(), 0
        assert self.data[:4] == b"GGUF"
        self.at = 4
        version, tensor_count, key_count = self.take("<I"), self.take("<Q"), self.take("<Q")
        assert version == 3
        self.keys = {self.value(8): self.value(self.take("<I")) for _ in range(key_count)}
        entries = []
        for _ in range(tensor_count):
            name, dimensions = self.value(8), self.take("<I")
            shape = [self.take("<Q") for _ in range(dimensions)][::-1]
            entries.append((name, shape, self.take("<I"), self.take("<Q")))
        begin = -(-self.at // 32) * 32
        self.tensors, end = {}, 0
        for name, shape, kind, offset in entries:
            size = math.prod(shape) // SIZES[kind][1] * SIZES[kind][0]
            assert offset == -(-end // 32) * 32 and len(self.data) >= begin + offset + size
            end = offset + size
            self.tensors[name] = (shape, kind, self.data[begin + offset:begin + end])
        assert len(self.keys) == key_count and len(self.tensors) == tensor_count and len(self.data) - begin - end < 32

    def take(self, form):
        value, = struct.unpack_from(form, self.data, self.at)
        self.at += struct.calcsize(form)
        return value

    def value(self, kind):
        if kind == 8:
            size = self.take("<Q")
            self.at += size
            return self.data[self.at - size:self.at].decode()
        if kind == 9:
            inner, count = self.take("<I"), self.take("<Q")
            return [self.value(inner) for _ in range(count)]
        return self.take(SCALARS[kind])

    def rows(self, name):
        """The rows of a tensor, as tuples of numbers."""
        shape, kind, data = self.tensors[name]
        return [struct.unpack_from(f"<{shape[-1]}{FORMS[kind]}", data, i) for i in range(0, len(data), SIZES[kind][0] * shape[-1])]


def safetensors(path):
    """Name: (type, shape, bytes). Fails where the file is malformed."""
    with open(path, "rb") as file:
        data = file.read()
    begin = 8 + int.from_bytes(data[:8], "little")
    assert begin % 8 == 0
    found, end = {}, 0
    for name, entry in json.loads(data[8:begin]).items():
        if name != "__metadata__":
            first, last = entry["data_offsets"]
            assert first == end and last - first == math.prod(entry["shape"]) * weights.WIDTH[entry["dtype"]]
            end = last
            found[name] = (entry["dtype"], entry["shape"], data[begin + first:begin + last])
    assert begin + end == len(data)
    return found


@pytest.fixture(scope="module", name="made")
def made_once(tmp_path_factory):
    """(folder, Gguf) of a golden's name; written once."""
    kept = {}

    def find(name):
        if name not in kept:
            folder = str(tmp_path_factory.mktemp(name))
            weights.write(folder, name)
            to_gguf.convert(folder, folder + "/model.gguf")
            kept[name] = folder, Gguf(folder + "/model.gguf")
        return kept[name]
    return find


def tensors_of(folder):
    """The floats."""
    return {name: array.array("f", data) for name, (kind, _, data) in safetensors(folder + "/model.safetensors").items() if kind == "F32"}


@pytest.mark.parametrize("name", NAMES)
def test_golden(name):
    golden = weights.golden(name)
    tokens, found = golden["tokens"], golden["log_probability"]
    assert os.path.getsize(os.path.join(weights.HERE, name + ".json")) < 60000
    assert len(found) == len(tokens) - 1 and all(math.isfinite(x) and x < 0 for x in found)
    assert all(tiny_tokenizers.FIRST_PLAIN <= token <= tiny_tokenizers.LAST_PLAIN for token in tokens)
    for entry in golden["top"]:
        best = entry["log_probability"]
        assert len(set(entry["ids"])) == 3 and best == sorted(best, reverse=True) and sum(map(math.exp, best)) < 1
        if entry["after"] + 1 < len(tokens):
            assert found[entry["after"]] <= best[0]
    assert len(golden["top"]) == len(tokens) // 32 and all(change > 0.01 for change in golden["matters"].values())


@pytest.mark.parametrize("name", NAMES)
def test_directory(made, name):
    folder, _ = made(name)
    golden = weights.golden(name)
    found = safetensors(folder + "/model.safetensors")
    assert [[key, shape] for key, (_, shape, _) in found.items()] == golden["tensors"]
    assert weights.checksum(golden) == golden["sha256"], "the values are not those that the golden was made with"
    for key, values in tensors_of(folder).items():
        centre, spread = weights.distribution(key, found[key][1], golden["config"])
        mean = math.fsum(values) / len(values)
        deviation = math.sqrt(math.fsum((x - mean) ** 2 for x in values) / len(values))
        assert abs(mean - centre) < 4 * spread / math.sqrt(len(values)) + spread / 100, key
        assert abs(deviation / spread - 1) < 0.1 + 2 / math.sqrt(len(values)) or len(values) < 16, key
    with open(folder + "/config.json", encoding="utf-8") as file:
        assert json.load(file) == {**golden["config"], "torch_dtype": "float32"}


def test_types_and_shards(tmp_path):
    """BF16 in two files: the same values, each in one of the files, as the index says."""
    weights.write(str(tmp_path / "one"), "qwen3_moe")
    weights.write(str(tmp_path / "two"), "qwen3_moe", "BF16", 2)
    whole = safetensors(tmp_path / "one" / "model.safetensors")
    with open(tmp_path / "two" / "model.safetensors.index.json", encoding="utf-8") as file:
        index = json.load(file)
    files = {name: safetensors(tmp_path / "two" / name) for name in set(index["weight_map"].values())}
    assert len(files) == 2 and sum(map(len, files.values())) == len(whole) == len(index["weight_map"])
    total = 0
    for name, (_, shape, wide) in whole.items():
        kind, other_shape, narrow = files[index["weight_map"][name]][name]
        assert kind == "BF16" and shape == other_shape
        assert narrow[::2] == wide[2::4] and narrow[1::2] == wide[3::4] and not any(wide[::4]) and not any(wide[1::4])
        total += len(narrow)
    assert total == index["metadata"]["total_size"]


@pytest.mark.parametrize("name", NAMES)
def test_gguf(made, name):
    """All elements of the directory are there, and what a reader needs to know of the shape."""
    folder, gguf = made(name)
    arch, golden = gguf.keys["general.architecture"], weights.golden(name)
    own = sum(math.prod(shape) for key, (shape, _, _) in gguf.tensors.items() if not key.startswith("rope_"))
    assert own == sum(math.prod(shape) for _, shape in weights.plain_tensors(golden))
    assert gguf.tensors["token_embd.weight"][0] == [golden["config"]["vocab_size"], gguf.keys[f"{arch}.embedding_length"]]
    assert len(gguf.keys["tokenizer.ggml.tokens"]) == len(set(gguf.keys["tokenizer.ggml.tokens"])) == golden["config"]["vocab_size"]
    assert ("output.weight" in gguf.tensors) == ("lm_head.weight" in tensors_of(folder))
    layers = {key.split(".")[1] for key in gguf.tensors if key.startswith("blk.")}
    assert layers == {str(i) for i in range(gguf.keys[f"{arch}.block_count"])}


@pytest.mark.parametrize("kind, number", [("F16", 1), ("BF16", 30)])
def test_gguf_types(made, tmp_path, kind, number):
    """Nothing is rounded."""
    folder, wide = made("gpt_oss")
    to_gguf.convert(folder, str(tmp_path / "narrow.gguf"), kind)
    narrow = Gguf(tmp_path / "narrow.gguf")
    assert narrow.keys == wide.keys and narrow.tensors.keys() == wide.tensors.keys()
    for name in ("token_embd.weight", "blk.1.attn_q.weight", "blk.2.ffn_up_exps.weight"):
        rows = narrow.rows(name)
        if kind == "BF16":
            rows = [struct.unpack(f"<{len(row)}f", b"".join(struct.pack("<I", x << 16) for x in row)) for row in rows]
        assert narrow.tensors[name][1] == number and rows == wide.rows(name)
    assert all(narrow.tensors[f"blk.0.{name}"] == wide.tensors[f"blk.0.{name}"]
               for name in ("attn_norm.weight", "ffn_gate_inp.weight", "attn_sinks.weight", "ffn_up_exps.bias"))


def test_rows_of_pairs(made):
    """Element i of a head's first half lies beside element i of its second half; v stays."""
    folder, gguf = made("llama")
    source, rows, head = tensors_of(folder), gguf.rows("blk.2.attn_k.weight"), 16
    for i, row in enumerate(rows):
        other = i // head * head + i % head // 2 + (i % 2) * head // 2
        assert array.array("f", row) == source["model.layers.2.self_attn.k_proj.weight"][64 * other:64 * (other + 1)]
    assert gguf.tensors["blk.2.attn_v.weight"][2] == source["model.layers.2.self_attn.v_proj.weight"].tobytes()
    factors, = gguf.rows("rope_freqs.weight")
    assert factors[0] == 1 and factors[-1] == 8 and 1 < factors[3] < 8


def test_norms_of_gemma(made):
    folder, gguf = made("gemma3")
    source = tensors_of(folder)["model.layers.5.post_feedforward_layernorm.weight"]
    assert gguf.rows("blk.5.post_ffw_norm.weight")[0] == tuple(array.array("f", (x + 1 for x in source)))
    assert "blk.5.post_attention_norm.weight" in gguf.tensors and "blk.5.ffn_norm.weight" in gguf.tensors


def test_stacked_experts(made):
    folder, gguf = made("mixtral")
    source, (shape, _, data) = tensors_of(folder), gguf.tensors["blk.3.ffn_up_exps.weight"]
    assert shape == [8, 96, 64]
    assert data == b"".join(source[f"model.layers.3.block_sparse_moe.experts.{i}.w3.weight"].tobytes() for i in range(8))


def test_experts_of_gpt_oss(made):
    """[expert][hidden][gate and up in turn] becomes two tensors, [expert][ffn][hidden]."""
    folder, gguf = made("gpt_oss")
    source = tensors_of(folder)["model.layers.1.mlp.experts.gate_up_proj"]
    gate, up = gguf.rows("blk.1.ffn_gate_exps.weight"), gguf.rows("blk.1.ffn_up_exps.weight")
    for expert, i, column in ((0, 0, 0), (3, 17, 63), (7, 95, 5)):
        at = (expert * 64 + column) * 2 * 96 + 2 * i
        assert gate[expert * 96 + i][column] == source[at] and up[expert * 96 + i][column] == source[at + 1]


def test_experts_in_mxfp4(made):
    """Blocks and scales: the golden's plain values, and GGUF's blocks of the same numbers."""
    folder, gguf = made("gpt_oss_mxfp4")
    golden, name = weights.golden("gpt_oss_mxfp4"), "model.layers.1.mlp.experts.gate_up_proj"
    found = safetensors(folder + "/model.safetensors")
    (_, shape, blocks), (kind, _, scales) = found[name + "_blocks"], found[name + "_scales"]
    assert kind == "U8" and shape == [8, 192, 2, 16] and len(set(blocks)) == 256 and len(set(scales)) == 3
    plain = array.array("f", weights.values(name, [8, 64, 192], golden["config"], golden["seed"]))
    for expert, i, column in ((0, 0, 0), (3, 17, 63), (7, 95, 5), (5, 40, 32)):
        for own, matrix in enumerate(("gate", "up")):
            value = plain[(expert * 64 + column) * 192 + 2 * i + own]
            row = expert * 192 + 2 * i + own
            byte = blocks[row * 32 + column // 2]
            scale = 2.0 ** (scales[row * 2 + column // 32] - 127)
            assert value == mxfp4.CODES[byte >> 4 if column % 2 else byte & 15] * scale
            shape, kind, data = gguf.tensors[f"blk.1.ffn_{matrix}_exps.weight"]
            assert shape == [8, 96, 64] and kind == 39
            block = data[((expert * 96 + i) * 2 + column // 32) * 17:][:17]
            code = block[1 + column % 16] >> (column % 32 // 16 * 4) & 15
            assert value == mxfp4.CODES[code] * 2.0 ** (block[0] - 127)


with open(os.path.join(ROOT, "tests", "golden", "saved.json"), encoding="utf-8") as saved_file:
    SAVED = json.load(saved_file)


def read(folder, *warnings):
    """What the program reads of a directory, as a GGUF file in which nothing is rounded; these are the IDs of what it warns of."""
    out = folder + ".gguf"
    done = fastdecode("quantize", folder, out, "--type", "bf16")
    assert done.returncode == 0, done.stderr
    assert re.findall(r" warn fastdecode quantize (\S+)", done.stderr) == list(warnings)
    return Gguf(out)


@pytest.mark.parametrize("name", SAVED["models"])
def test_as_transformers_saves_it(tmp_path, name):
    """Files as the newest version writes them, with the same weights, are read as the same model."""
    old, new = str(tmp_path / "old"), str(tmp_path / "new")
    weights.write(old, name)
    weights.write(new, name)
    for file, content in SAVED["models"][name].items():
        with open(os.path.join(new, file), "w", encoding="utf-8") as out:
            if file.endswith(".jinja"):
                out.write(content)
            else:
                json.dump(SAVED["tokenizers"][content] if file == "tokenizer.json" else content, out)
    found, wanted = read(new), read(old)
    if name.startswith("gemma"):  # its class adds a token to a vocabulary without it
        added = found.keys["tokenizer.ggml.tokens"].index("<mask>")
        for key in ("tokenizer.ggml.tokens", "tokenizer.ggml.token_type", "fastdecode.token_flags"):
            found.keys[key][added] = wanted.keys[key][added]
    assert found.keys.keys() == wanted.keys.keys()
    assert not [(key, value, wanted.keys[key]) for key, value in found.keys.items() if value != wanted.keys[key]]
    assert found.tensors == wanted.tensors


def test_output_that_is_the_embedding(tmp_path):
    """An index may name it though no file has it, and a file may have it though the index does not name it."""
    plain, absent, no_file, extra = (str(tmp_path / name) for name in ("plain", "absent", "no_file", "extra"))
    for folder in (plain, absent, no_file, extra):
        weights.write(folder, "granite", "F32", 2)
    with open(plain + "/model.safetensors.index.json", encoding="utf-8") as file:
        index = json.load(file)
    assert "lm_head.weight" not in index["weight_map"]
    first = min(index["weight_map"].values())
    for folder, named in ((absent, first), (no_file, "model-00003-of-00003.safetensors")):
        weights.write_json(folder, "model.safetensors.index.json", {**index, "weight_map": {**index["weight_map"], "lm_head.weight": named}})
    golden = weights.golden("granite")
    kept = [[key, shape] for key, shape in golden["tensors"] if index["weight_map"][key] == first]
    weights.write_tensors(os.path.join(extra, first), [*kept, ["lm_head.weight", [320, 64]]], golden, "F32")
    wanted = read(plain)
    for folder, warnings in ((absent, ["HF-INDEX"]), (no_file, ["HF-INDEX"]), (extra, [])):
        found = read(folder, *warnings)
        assert found.keys == wanted.keys and found.tensors == wanted.tensors


@pytest.mark.parametrize("spaces", range(8))
def test_header_that_is_not_padded(tmp_path, spaces):
    """The format asks for no padding: some writers leave it out, and all numbers then lie at odd places."""
    folder, path = str(tmp_path / "model"), str(tmp_path / "model" / "model.safetensors")
    weights.write(folder, "gpt_oss_mxfp4")
    wanted = read(folder)
    with open(path, "rb") as file:
        data = file.read()
    begin = 8 + int.from_bytes(data[:8], "little")
    header = data[8:begin].rstrip(b" ") + b" " * spaces
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(header)) + header + data[begin:])
    found = read(folder, *["HF-COPIED"] * (len(header) % 4 > 0))  # F32 needs no more
    assert found.keys == wanted.keys and found.tensors == wanted.tensors


def test_end_beyond_the_vocabulary(tmp_path):
    folder = str(tmp_path / "model")
    weights.write(folder, "granite")
    wanted = read(folder)
    weights.write_json(folder, "generation_config.json", {"eos_token_id": [*weights.golden("granite")["config"]["eos_token_id"], 999999]})
    found = read(folder, "END-IGNORED")
    assert found.keys == wanted.keys and found.tensors == wanted.tensors


def vocabulary_file(path, pieces, template):
    """A GGUF file that has only a vocabulary of sentencepiece. pieces: (text, score, type)."""
    def array_of(kind, values, form):
        return struct.pack("<IIQ", tiny_model.ARRAY, kind, len(values)) + b"".join(map(form, values))

    texts, scores, types = zip(*pieces)
    keys = {"model": struct.pack("<I", tiny_model.STRING) + tiny_model.text("llama"),
            "tokens": array_of(tiny_model.STRING, texts, tiny_model.text),
            "scores": array_of(tiny_model.FLOAT, scores, lambda score: struct.pack("<f", score)),
            "token_type": array_of(5, types, lambda kind: struct.pack("<i", kind)),
            **{f"{name}_token_id": struct.pack("<II", tiny_model.U32, i) for i, name in enumerate(("unknown", "bos", "eos"))}}
    keys = {"tokenizer.ggml." + name: value for name, value in keys.items()}
    keys["tokenizer.chat_template"] = struct.pack("<I", tiny_model.STRING) + tiny_model.text(template)
    with open(path, "wb") as file:
        file.write(b"GGUF" + struct.pack("<IQQ", 3, 0, len(keys)) + b"".join(tiny_model.text(name) + value for name, value in keys.items()))


@pytest.mark.full
@pytest.mark.parametrize("version", ["240323.model.v3", "241114.model.v7"])
def test_real_vocabulary(start_mesh, tmp_path, version):
    """The ids of sentencepiece with a published vocabulary that has user-defined pieces, in prompts and in chats."""
    sentencepiece = pytest.importorskip("sentencepiece", reason="make venv-full installs sentencepiece")
    package = importlib.util.find_spec("mistral_common")
    if not package:
        pytest.skip("make venv-full installs mistral-common")
    from sentencepiece import sentencepiece_model_pb2  # pylint: disable=import-outside-toplevel
    with open(os.path.join(package.submodule_search_locations[0], "data", "mistral_instruct_tokenizer_" + version), "rb") as file:
        data = file.read()
    proto = sentencepiece_model_pb2.ModelProto.FromString(data)
    vocabulary_file(tmp_path / "vocabulary.gguf", [(piece.piece, piece.score, piece.type) for piece in proto.pieces],
                    "{{ bos_token }}[INST]{{ messages[0].content }}[/INST]")
    tiny_model.write(str(tmp_path / "model.gguf"), str(tmp_path / "vocabulary.gguf"))
    mesh = start_mesh("--kv-workers", 0, model=str(tmp_path / "model.gguf"))
    processor = sentencepiece.SentencePieceProcessor(model_proto=data)
    begin, end = map(processor.piece_to_id, ("[INST]", "[/INST]"))
    own, control = ([piece.piece for piece in proto.pieces if piece.type in types] for types in ((4,), (2, 3)))
    for i, text in enumerate(tokenizer_texts.markup(200) + own + [f"a{piece}b{piece}" for piece in own]):
        wanted = processor.encode(text)
        if not any(token in text for token in control):  # which a prompt may have, and a user's text may not
            assert mesh.post("/tokenize", {"prompt": text, "add_special_tokens": False})["tokens"] == wanted, (i, text)
        assert mesh.post("/tokenize", {"messages": [{"role": "user", "content": text}]})["tokens"] == [1, begin, *wanted, end], (i, text)
