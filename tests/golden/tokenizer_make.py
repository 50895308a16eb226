#!/usr/bin/env python3
"""Makes tokenizer.json: the ids that Hugging Face's tokenizers and Google's sentencepiece give for hard texts.

Run: python3 tests/golden/tokenizer_make.py [model.gguf]    (PyPI: tokenizers, gguf, sentencepiece)
Byte-level BPE: the vocabulary and merges of the default model under each pre-tokenizer rule, as published.
SentencePiece: two tiny BPE models trained here on made-up words; their pieces and scores are stored with the ids.
A text is "text", or "base64" where JSON could not hold it; "times": that often. "special": the model's special tokens are recognized.
"""
import base64
import io
import json
import random
import sys
from pathlib import Path

import sentencepiece
from gguf import GGUFReader
from tokenizers import AddedToken, Regex, Tokenizer, models, normalizers, pre_tokenizers

import tokenizer_texts as texts
from tiny_tokenizers import LLAMA3, QWEN2

HERE = Path(__file__).parent


def byte_level(use_regex):
    return pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=use_regex)


def split(expression):
    return pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(expression), "isolated"), byte_level(False)])


RULES = {
    "smollm": lambda: pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), byte_level(True)]),
    "gpt-2": lambda: byte_level(True),
    "llama-bpe": lambda: split(LLAMA3),
    "qwen2": lambda: split(QWEN2),
}


def build(rule, vocab, merges, control):
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=merges, ignore_merges=rule == "llama-bpe"))
    tokenizer.pre_tokenizer = RULES[rule]()
    if rule == "qwen2":
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in control])
    return tokenizer


def case_of(text, times=1, special=False):
    case = {}
    try:
        case["text"] = text.decode()
        if "\0" in case["text"]:
            raise ValueError
    except ValueError:
        case = {"base64": base64.b64encode(text).decode()}
    if times > 1:
        case["times"] = times
    if special:
        case["special"] = True
    return case


def bpe_cases(rule, vocab, merges, control):
    plain, marking = build(rule, vocab, merges, []), build(rule, vocab, merges, control)
    list_of = [(t, 1, False) for t in texts.all_texts()] + [(t.encode(), 1, True) for t in texts.MARKED] + [(t, n, False) for t, n in texts.RUNS]
    if rule != "smollm":  # fewer and shorter ones for the others
        list_of = [(t, max(n // 5, 1), s) for i, (t, n, s) in enumerate(list_of) if i % 2 == 0 or n > 1 or b"'" in t or b"\n" in t]
    out = []
    for text, times, special in list_of:
        encoding = (marking if special else plain).encode((text * times).decode("utf-8", errors="replace"), add_special_tokens=False)
        out.append(case_of(text, times, special) | {"ids": encoding.ids})
    return out


def corpus(seed):
    source = random.Random(seed)
    syllables = ["ka", "to", "mi", "ren", "th", "ing", "er", "an", "st", "o", "é", "ü", "да", "не", "ли", "ση", "の", "日本", "本", "ab", "abc", "ing"]
    words = ["".join(source.choice(syllables) for _ in range(source.randint(1, 4))) for _ in range(400)]
    return [" ".join(source.choice(words) for _ in range(source.randint(3, 14))) + source.choice([".", "!", "?", " 12", "  34"]) for _ in range(1500)]


def train(byte_fallback, **options):
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(sentence_iterator=iter(corpus(7)), model_writer=model, model_type="bpe", vocab_size=900 if byte_fallback else 640,
        byte_fallback=byte_fallback, normalization_rule_name="identity", remove_extra_whitespaces=False, add_dummy_prefix=True, num_threads=1,
        minloglevel=2, **options)
    return sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())


def piece_type(processor, i):
    if processor.is_unknown(i):
        return 2
    return 3 if processor.is_control(i) else 6 if processor.is_byte(i) else 1


def spm_model(processor):
    ids = range(processor.get_piece_size())
    list_of = [(t, 1) for t in texts.all_texts() if t.decode("utf-8", errors="replace") and b"\0" not in t] + [(t.encode(), 1) for t in corpus(8)[:40]]
    list_of = list_of[::2] + [(t, max(n // 3, 1)) for t, n in texts.RUNS]
    cases = []
    for text, times in list_of:
        encoded = processor.encode((text * times).decode("utf-8", errors="replace"))
        cases.append(case_of(text, times) | {"ids": encoded})
    return {"pieces": [processor.id_to_piece(i) for i in ids], "scores": [round(processor.get_score(i), 3) for i in ids],
            "types": [piece_type(processor, i) for i in ids], "unknown": processor.unk_id(), "cases": cases}


def main():
    path = Path(sys.argv[1]) if len(sys.argv) > 1 else HERE / "../../models/SmolLM2-135M-Instruct.Q4_1.gguf"
    fields = GGUFReader(path).fields
    tokens, types = fields["tokenizer.ggml.tokens"].contents(), fields["tokenizer.ggml.token_type"].contents()
    merges = [tuple(m.split(" ")) for m in fields["tokenizer.ggml.merges"].contents()]
    vocab = {t: i for i, t in enumerate(tokens)}
    control = [t for t, kind in zip(tokens, types) if kind in (3, 4)]
    out = {"bpe": {rule: bpe_cases(rule, vocab, merges, control) for rule in RULES},
           "spm": [spm_model(train(True)), spm_model(train(False, split_by_whitespace=False, allow_whitespace_only_pieces=True))]}
    lines = []
    for rule, cases in out["bpe"].items():
        lines.append(json.dumps(rule) + ":[\n" + ",\n".join(json.dumps(c, separators=(",", ":")) for c in cases) + "]")
    spm = []
    for model in out["spm"]:
        head = {k: v for k, v in model.items() if k != "cases"}
        spm.append(json.dumps(head, separators=(",", ":"))[:-1] + ',"cases":[\n' + ",\n".join(json.dumps(c, separators=(",", ":")) for c in model["cases"]) + "]}")
    text = '{"bpe":{\n' + ",\n".join(lines) + '},\n"spm":[\n' + ",\n".join(spm) + "]}\n"
    json.loads(text)
    (HERE / "tokenizer.json").write_text(text)
    for rule, cases in out["bpe"].items():
        print(rule, len(cases))
    for model in out["spm"]:
        print("spm", len(model["pieces"]), len(model["cases"]))


main()
