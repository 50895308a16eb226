#!/usr/bin/env python3
"""Writes a GGUF model as a Hugging Face directory in bfloat16, for vLLM. Needs torch, transformers and gguf (tests/bench/peer.sh vllm has them).

  peer_convert.py FILE.gguf FOLDER
"""
import os
import shutil
import sys

import torch
import transformers

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "e2e"))

import tokenizer_folder  # noqa: E402


def main(file, folder):
    new = folder + ".new"
    shutil.rmtree(new, ignore_errors=True)
    source, name = os.path.split(os.path.abspath(file))
    options = {}
    if hasattr(transformers, "GgufConfig"):  # since 5.19 weights stay in the file's types, which cannot be written, unless this is asked
        options["quantization_config"] = transformers.GgufConfig(dequantize=True)
    model = transformers.AutoModelForCausalLM.from_pretrained(source, gguf_file=name, dtype=torch.bfloat16, **options)
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    model.save_pretrained(new)
    tokenizer_folder.write(file, new)
    shutil.rmtree(folder, ignore_errors=True)
    os.rename(new, folder)


if __name__ == "__main__":
    main(*sys.argv[1:])
