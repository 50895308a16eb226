"""The tokenizer of a GGUF file as a directory that Hugging Face's AutoTokenizer reads, for clients that count or send tokens themselves.

  tokenizer_folder.py FILE.gguf FOLDER      writes it; tests call tokenizer_folder.write()

Byte-level BPE with the rules "smollm" and "gpt-2" alone: what the default model has. It needs the standard library alone.
"""
import json
import os
import struct
import sys

from tiny_model import ARRAY, STRING, U32, Keys

PREFIX = "tokenizer."
CONTROL, USER_DEFINED = 3, 4  # token types
BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
RULES = {"smollm": {"type": "Sequence", "pretokenizers": [{"type": "Digits", "individual_digits": True}, BYTE_LEVEL]}, "gpt-2": BYTE_LEVEL}


class Values(Keys):
    """The keys of a GGUF file that have texts, numbers of 32 bits, or arrays of them."""

    def of(self, name, default=None):
        if name not in self.found:
            return default
        self.data, self.at = self.found[name], 0
        self.string()
        kind = self.take("<I")
        if kind != ARRAY:
            return self.one(kind)
        inner, count = self.take("<I"), self.take("<Q")
        return [self.one(inner) for _ in range(count)]

    def one(self, kind):
        if kind != STRING:
            return self.take("<I" if kind == U32 else "<i")
        size = self.take("<Q")
        self.at += size
        return self.data[self.at - size:self.at].decode()


def added(token, number):
    return {"id": number, "content": token, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}


def write(file, folder):
    """Writes tokenizer.json and tokenizer_config.json, and returns the folder."""
    values = Values(file)
    rule = values.of(PREFIX + "ggml.pre", "gpt-2")
    tokens, kinds = values.of(PREFIX + "ggml.tokens"), values.of(PREFIX + "ggml.token_type")
    special = [(token, i) for i, (token, kind) in enumerate(zip(tokens, kinds)) if kind in (CONTROL, USER_DEFINED)]
    model = {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None, "end_of_word_suffix": None, "fuse_unk": False,
             "byte_fallback": False, "ignore_merges": False, "vocab": {token: i for i, token in enumerate(tokens)},
             "merges": values.of(PREFIX + "ggml.merges")}
    tokenizer = {"version": "1.0", "truncation": None, "padding": None, "added_tokens": [added(*token) for token in special], "normalizer": None,
                 "pre_tokenizer": RULES[rule], "post_processor": BYTE_LEVEL, "decoder": BYTE_LEVEL, "model": model}
    begin, end = (tokens[values.of(PREFIX + f"ggml.{name}_token_id")] for name in ("bos", "eos"))
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": begin, "eos_token": end, "pad_token": end, "add_bos_token": False,
              "clean_up_tokenization_spaces": False, "chat_template": values.of(PREFIX + "chat_template")}
    os.makedirs(folder, exist_ok=True)
    for name, content in (("tokenizer.json", tokenizer), ("tokenizer_config.json", config)):
        with open(os.path.join(folder, name), "w", encoding="utf-8") as out:
            json.dump(content, out, ensure_ascii=False)
    return folder


if __name__ == "__main__":
    print(write(*sys.argv[1:]))
