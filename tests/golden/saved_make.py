#!/usr/bin/env python3
"""Makes saved.json: the files other than weights that PyPI's newest `transformers` saves for the tiny models of make.py.

    /tmp/golden/bin/python tests/golden/saved_make.py

Each golden is written by weights.py, read by AutoModelForCausalLM and AutoTokenizer, and saved again. transformers changes the keys of config.json
from one major version to the next, and where the chat template is.

    versions        of torch and transformers
    tokenizers[]    the different tokenizer.json
    models          {golden: {file: content, "tokenizer.json": its number in tokenizers}}

Files of a model with quantized experts are not made: transformers saves these as plain floats.
"""
import json
import os
import tempfile

import torch
import transformers

import weights


def saved(name, tokenizers):
    """The files of a golden, and their contents."""
    golden, files = weights.golden(name), {}
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryDirectory() as out:
        weights.write(folder, golden)
        transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).save_pretrained(out)
        transformers.AutoTokenizer.from_pretrained(folder).save_pretrained(out)
        with open(os.path.join(out, "model.safetensors"), "rb") as file:
            header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
        header.pop("__metadata__", None)
        assert {key: entry["shape"] for key, entry in header.items()} == dict(golden["tensors"]), name
        for entry in sorted(os.listdir(out)):
            if entry.endswith((".json", ".jinja")):
                with open(os.path.join(out, entry), encoding="utf-8") as file:
                    files[entry] = json.load(file) if entry.endswith(".json") else file.read()
    if files["tokenizer.json"] not in tokenizers:
        tokenizers.append(files["tokenizer.json"])
    files["tokenizer.json"] = tokenizers.index(files["tokenizer.json"])
    return files


def main():
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    tokenizers = []
    models = {name: saved(name, tokenizers) for name in weights.names() if "quantization_config" not in weights.golden(name)["config"]}
    lines = [f'"versions": {json.dumps({"torch": torch.__version__, "transformers": transformers.__version__})}',
             '"tokenizers": [\n' + ",\n".join(json.dumps(one, separators=(",", ":")) for one in tokenizers) + "]",
             '"models": {\n' + ",\n".join(f"{json.dumps(name)}: {json.dumps(files)}" for name, files in models.items()) + "}"]
    with open(os.path.join(weights.HERE, "saved.json"), "w", encoding="utf-8") as file:
        file.write("{" + ",\n".join(lines) + "}\n")
    print(len(models), "models,", len(tokenizers), "tokenizers")


if __name__ == "__main__":
    main()
