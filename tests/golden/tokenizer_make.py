#!/usr/bin/env python3
"""Makes tokenizer.json: the ids that Hugging Face's tokenizers and Google's sentencepiece give for hard texts.

Run: python3 tests/golden/tokenizer_make.py [model.gguf]    (PyPI: tokenizers, gguf, sentencepiece)
Byte-level BPE: the vocabulary and merges of the default model under each pre-tokenizer rule, as published.
SentencePiece: tiny BPE models trained here on made-up words, two of them with user-defined pieces; their pieces and scores are stored with
the ids.
Added tokens: tokenizer.json of tiny_tokenizers.py, by kind, and lists of tokens added to it with the flags at random.
A text is "text", or "base64" where JSON could not hold it; "times": that often. "special": the model's special tokens are recognized.
"""
import base64
import io
import json
import random
import sys
import unicodedata
from pathlib import Path

import sentencepiece
from gguf import GGUFReader
from tokenizers import AddedToken, Regex, Tokenizer, models, normalizers, pre_tokenizers

import tiny_tokenizers
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


def train(byte_fallback, vocab_size, add_dummy_prefix=True, **options):
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(sentence_iterator=iter(corpus(7)), model_writer=model, model_type="bpe", vocab_size=vocab_size,
        byte_fallback=byte_fallback, normalization_rule_name="identity", remove_extra_whitespaces=False, add_dummy_prefix=add_dummy_prefix,
        num_threads=1, minloglevel=2, **options)
    return sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())


def piece_type(processor, i, user_defined):
    if processor.is_unknown(i):
        return 2
    if processor.id_to_piece(i) in user_defined:
        return 4  # no function of the processor says so
    return 3 if processor.is_control(i) else 6 if processor.is_byte(i) else 1


def spm_model(processor, prefix, list_of, user_defined=()):
    ids = range(processor.get_piece_size())
    cases = []
    for text, times in list_of:
        encoded = processor.encode((text * times).decode("utf-8", errors="replace"))
        cases.append(case_of(text, times) | {"ids": encoded})
    return {"pieces": [processor.id_to_piece(i) for i in ids], "scores": [round(processor.get_score(i), 3) for i in ids],
            "types": [piece_type(processor, i, user_defined) for i in ids], "unknown": processor.unk_id(), "prefix": prefix, "cases": cases}


def spm_models():
    plain = [(t, 1) for t in texts.all_texts() if t.decode("utf-8", errors="replace") and b"\0" not in t] + [(t.encode(), 1) for t in corpus(8)[:40]]
    plain = plain[::2] + [(t, max(n // 3, 1)) for t, n in texts.RUNS]
    marked = [(t.encode(), 1) for t in texts.markup(200)]
    models_of = [spm_model(train(True, 900), True, plain),
                 spm_model(train(False, 640, split_by_whitespace=False, allow_whitespace_only_pieces=True), True, plain)]
    return models_of + [spm_model(train(True, 420, prefix, user_defined_symbols=texts.USER_DEFINED), prefix, marked[i::2], texts.USER_DEFINED)
                        for i, prefix in enumerate((False, True))]


# --- added tokens ---
FLAGS = ("single_word", "lstrip", "rstrip", "normalized", "special")


def kinds():
    """Kinds of tokenizer.json: with each pre-tokenizer of bytes, and with spaces marked by a normalizer, by a pre-tokenizer or by both."""
    found = {rule: tiny_tokenizers.byte_level(rule)[0] for rule in ("gpt-2", "qwen2", "llama-bpe")}
    found |= {"prepend": tiny_tokenizers.sentencepiece(True)[0], "replace": tiny_tokenizers.sentencepiece(False)[0]}
    for name, scheme, replaces in (("always", "always", False), ("first", "first", False), ("never", "never", False), ("both", "first", True)):
        found[name] = tiny_tokenizers.sentencepiece(True)[0]
        found[name]["normalizer"] = found["replace"]["normalizer"] if replaces else None
        found[name]["pre_tokenizer"] = {"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": scheme, "split": False}
    for document in found.values():
        document["post_processor"] = None
    return found


def same_text(text):
    """What normalizers may make of a text. tokenizers does not say which of two tokens it finds that are the same then."""
    return unicodedata.normalize("NFC", text).replace(" ", "\u2581")


def some_added(document, source):
    """added_tokens of the document, and some more."""
    vocab, out = document["model"]["vocab"], [dict(token) for token in document["added_tokens"]]
    following = max([*vocab.values(), *(token["id"] for token in out)]) + 1
    for content in source.sample(texts.ADDED, source.randint(1, 14)):
        if any(same_text(content) == same_text(token["content"]) for token in out):
            continue
        number, flags = vocab.get(content, following), {flag: source.random() < 0.5 for flag in FLAGS}
        flags["special"] &= content not in vocab  # merges make those of it, and these must not be special
        following += number == following
        out.append({"id": number, "content": content, **flags})
    for token in out:
        if source.random() < 0.3:
            token |= {flag: source.random() < 0.5 for flag in FLAGS[:4]}
    return sorted(out, key=lambda token: token["id"])


def added_cases(document, source):
    tokenizer, special = Tokenizer.from_str(json.dumps(document)), [t["content"] for t in document["added_tokens"] if t["special"]]
    parts, cases = texts.ADDED + [t["content"] for t in document["added_tokens"]] + texts.AROUND, []
    while len(cases) < 24:
        text = "".join(source.choice(parts) for _ in range(source.randint(1, 9)))
        try:
            ids = tokenizer.encode(text, add_special_tokens=False).ids
        except BaseException as error:  # it panics where a token begins in what another one took
            assert "bad split" in str(error)
            continue
        cases.append({"text": text, "ids": ids} | ({} if any(same_text(token) in same_text(text) for token in special) else {"plain": True}))
    return cases


def added_sets(name, document):
    out = []
    for i in range(4):
        source = random.Random(f"{name} {i}")
        added = some_added(document, source)
        out.append({"added": added, "cases": added_cases(document | {"added_tokens": added}, source)})
    return out


def main():
    path = Path(sys.argv[1]) if len(sys.argv) > 1 else HERE / "../../models/SmolLM2-135M-Instruct.Q4_1.gguf"
    fields = GGUFReader(path).fields
    tokens, types = fields["tokenizer.ggml.tokens"].contents(), fields["tokenizer.ggml.token_type"].contents()
    merges = [tuple(m.split(" ")) for m in fields["tokenizer.ggml.merges"].contents()]
    vocab = {t: i for i, t in enumerate(tokens)}
    control = [t for t, kind in zip(tokens, types) if kind in (3, 4)]
    out = {"bpe": {rule: bpe_cases(rule, vocab, merges, control) for rule in RULES},
           "spm": spm_models(), "added": {name: {"document": document, "sets": added_sets(name, document)} for name, document in kinds().items()}}
    lines = []
    for rule, cases in out["bpe"].items():
        lines.append(json.dumps(rule) + ":[\n" + ",\n".join(json.dumps(c, separators=(",", ":")) for c in cases) + "]")
    spm = []
    for model in out["spm"]:
        head = {k: v for k, v in model.items() if k != "cases"}
        spm.append(json.dumps(head, separators=(",", ":"))[:-1] + ',"cases":[\n' + ",\n".join(json.dumps(c, separators=(",", ":")) for c in model["cases"]) + "]}")
    added = []
    for name, kind in out["added"].items():
        sets = [json.dumps(one, separators=(",", ":")) for one in kind["sets"]]
        added.append(json.dumps(name) + ':{"document":' + json.dumps(kind["document"], separators=(",", ":")) + ',"sets":[\n' + ",\n".join(sets) + "]}")
    text = '{"bpe":{\n' + ",\n".join(lines) + '},\n"spm":[\n' + ",\n".join(spm) + '],\n"added":{\n' + ",\n".join(added) + "}}\n"
    json.loads(text)
    (HERE / "tokenizer.json").write_text(text)
    for rule, cases in out["bpe"].items():
        print(rule, len(cases))
    for model in out["spm"]:
        print("spm", len(model["pieces"]), len(model["cases"]))


main()
