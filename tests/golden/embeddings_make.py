#!/usr/bin/env python3
"""Makes embeddings.json: what PyPI's `transformers` computes for the tiny models of make.py (which says how it is set up) behind the final norm.

    /tmp/golden/bin/python tests/golden/embeddings_make.py

A golden file:
    versions         of torch and transformers
    inputs           lists of token ids
    vectors          {model: {"mean", "cls", "last": [one of length 1 for each input]}}, of AutoModel's last_hidden_state
    rank             {"model", "labels": {"1": [logit of each input], "2": [[logits] of each input]}}, of …ForSequenceClassification; the
                     head's values are weights.py's for a tensor "score.weight"

All is computed in double precision, as in make.py.
"""
import json
import os
import random
import tempfile

import torch
import transformers

import make
import tiny_tokenizers
import weights

MODELS = ("qwen3", "llama")
LENGTHS = (1, 2, 17, 64, 150)


def loaded(model_class, what, **extra):
    """A model from the files of weights.py, in double."""
    with tempfile.TemporaryDirectory() as folder:
        weights.write(folder, what)
        weights.write_json(folder, "config.json", {**what["config"], **extra})
        model = model_class.from_pretrained(folder, dtype=torch.float64, attn_implementation="eager")
    with make.all_double():
        for name, module in list(model.named_modules()):
            if any("inv_freq" in buffer for buffer, _ in module.named_buffers(recurse=False)):
                model.set_submodule(name, type(module)(module.config))
    return model.eval()


def computed(model, tokens):
    with torch.no_grad(), make.all_double():
        return model(torch.tensor([tokens]))


def unit(vector):
    return make.rounded(vector / vector.norm())


def vectors(name, inputs):
    found = {"mean": [], "cls": [], "last": []}
    model = loaded(transformers.AutoModel, weights.golden(name))
    for tokens in inputs:
        hidden = computed(model, tokens).last_hidden_state[0]
        assert hidden.dtype == torch.float64
        found["mean"].append(unit(hidden.mean(dim=0)))
        found["cls"].append(unit(hidden[0]))
        found["last"].append(unit(hidden[-1]))
    return found


def ranks(name, inputs, labels):
    what = dict(weights.golden(name))
    what["tensors"] = [[tensor, shape] for tensor, shape in what["tensors"] if tensor != "lm_head.weight"] + [
        ["score.weight", [labels, what["config"]["hidden_size"]]]]
    model = loaded(transformers.AutoModelForSequenceClassification, what, num_labels=labels)
    logits = [make.rounded(computed(model, tokens).logits[0]) for tokens in inputs]
    return [logit[0] for logit in logits] if labels == 1 else logits


def main():
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    source = random.Random("embeddings")
    inputs = [[source.randint(tiny_tokenizers.FIRST_PLAIN, tiny_tokenizers.LAST_PLAIN) for _ in range(length)] for length in LENGTHS]
    result = {"versions": {"torch": torch.__version__, "transformers": transformers.__version__}, "inputs": inputs,
              "vectors": {name: vectors(name, inputs) for name in MODELS},
              "rank": {"model": "qwen3", "labels": {str(labels): ranks("qwen3", inputs, labels) for labels in (1, 2)}}}
    with open(os.path.join(weights.HERE, "embeddings.json"), "w", encoding="utf-8") as file:
        file.write("{\n" + ",\n".join(f'"{key}": {json.dumps(value)}' for key, value in result.items()) + "\n}\n")


if __name__ == "__main__":
    main()
