"""Tokenizers for tiny models, as the files that Hugging Face keeps beside a model: tokenizer.json and tokenizer_config.json.

Two kinds, each with 316 tokens for 320 rows of the embedding (published models have spare rows as well):
  byte_level(rule)        byte-level BPE with the pre-tokenizer of a rule: 256 bytes and 57 merges in the vocabulary, then three
                          special tokens that only `added_tokens` names
  sentencepiece(prefix)   BPE over characters with bytes for the rest, as SentencePiece models are converted: special tokens
                          first, then the bytes, characters and merges. prefix: a text gets a space in front, as Llama 2 does
                          and Gemma does not

Ids from FIRST_PLAIN to LAST_PLAIN are neither special nor spare in either kind.
"""

FIRST_PLAIN, LAST_PLAIN = 6, 312

CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
LLAMA3 = CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
QWEN2 = CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"

# In order of rank. "_" stands for the space's character of either kind.
MERGES = ("_ t,h e,i n,r e,_ a,e r,o n,_t he,a t,_ s,e n,_ w,o r,_ o,e s,_ c,i s,i t,n d,o u,_ b,_ f,_ p,in g,_ m,_o f,a n,_a nd,"
          "_t o,a l,_ h,_ d,e d,a r,_ in,r o,i c,l e,_ l,_ n,_ g,s t,v e,en t,i on,_t h,_ re,i l,_ e,o m,_w as,a s,o l,c t,u r,_b e,c h,"
          "l y").split(",")
BYTE_MERGES, PIECE_MERGES = 57, 25

CHATML = ("{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
          "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}")
GEMMA = ("{{ bos_token }}{% for message in messages %}{{ '<start_of_turn>' + ('model' if message['role'] == 'assistant' else "
         "message['role']) + '\n' + message['content'] | trim + '<end_of_turn>\n' }}{% endfor %}"
         "{% if add_generation_prompt %}{{ '<start_of_turn>model\n' }}{% endif %}")
LLAMA2 = ("{{ bos_token }}{% for message in messages %}{% if message['role'] == 'assistant' %}{{ ' ' + message['content'] + eos_token }}"
          "{% else %}{{ '[INST] ' + message['content'] + ' [/INST]' }}{% endif %}{% endfor %}")


def byte_characters():
    """The printable character that byte-level BPE writes for each byte: itself, or one from U+0100 on."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    spare = iter(range(256, 512))
    return [chr(byte) if byte in printable else chr(next(spare)) for byte in range(256)]


def merged(vocabulary, space, count):
    """Appends what the first merges give to the vocabulary, a list. Returns the merges as pairs."""
    pairs = []
    for merge in MERGES:
        left, right = merge.replace("_", space).split(" ")
        if left in vocabulary and right in vocabulary and left + right not in vocabulary and len(pairs) < count:
            pairs.append([left, right])
            vocabulary.append(left + right)
    assert len(pairs) == count
    return pairs


def added(token, number):
    return {"id": number, "content": token, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}


def adds_front(token, number):
    """The post-processor that puts a token in front of every text."""
    front, text = {"SpecialToken": {"id": token, "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}
    second = {"Sequence": {"id": "B", "type_id": 1}}
    return {"type": "TemplateProcessing", "single": [front, text], "pair": [front, text, second],
            "special_tokens": {token: {"id": token, "ids": [number], "tokens": [token]}}}


def document(vocabulary, merges, specials, **parts):
    model = {"type": "BPE", "dropout": None, "unk_token": parts.pop("unk_token", None), "continuing_subword_prefix": None,
             "end_of_word_suffix": None, "fuse_unk": parts["decoder"]["type"] == "Sequence",
             "byte_fallback": parts["decoder"]["type"] == "Sequence", "ignore_merges": parts.pop("ignore_merges", False),
             "vocab": {token: i for i, token in enumerate(vocabulary)}, "merges": merges}
    return {"version": "1.0", "truncation": None, "padding": None, "added_tokens": [added(token, i) for token, i in specials],
            "normalizer": parts["normalizer"], "pre_tokenizer": parts["pre_tokenizer"], "post_processor": parts["post_processor"],
            "decoder": parts["decoder"], "model": model}


def byte_level(rule):
    """rule: "gpt-2", "llama-bpe" or "qwen2". Returns (tokenizer.json, tokenizer_config.json, ids) as dictionaries."""
    vocabulary = byte_characters()
    merges = merged(vocabulary, "\u0120", BYTE_MERGES)
    specials = [(token, len(vocabulary) + i) for i, token in enumerate(("<|endoftext|>", "<|im_start|>", "<|im_end|>"))]
    begin = specials[0]
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": rule == "gpt-2"}
    pre = level
    if rule != "gpt-2":
        expression = {"llama-bpe": LLAMA3, "qwen2": QWEN2}[rule]
        pre = {"type": "Sequence", "pretokenizers": [
            {"type": "Split", "pattern": {"Regex": expression}, "behavior": "Isolated", "invert": False}, level]}
    front = rule == "llama-bpe"
    tokenizer = document(vocabulary, merges, specials, normalizer={"type": "NFC"} if rule == "qwen2" else None, pre_tokenizer=pre,
                         post_processor=adds_front(*begin) if front else level, decoder=dict(level, use_regex=True),
                         ignore_merges=rule == "llama-bpe")
    config = {"add_bos_token": front, "bos_token": begin[0], "eos_token": "<|im_end|>", "pad_token": begin[0], "chat_template": CHATML,
              "clean_up_tokenization_spaces": False, "model_max_length": 1024,
              "tokenizer_class": {"qwen2": "Qwen2Tokenizer", "gpt-2": "GPT2Tokenizer"}.get(rule, "PreTrainedTokenizerFast")}
    ids = {"bos_token_id": begin[1], "eos_token_id": [begin[1], begin[1] + 2], "pad_token_id": begin[1]}
    return tokenizer, config, ids


def sentencepiece(prefix):
    """Returns (tokenizer.json, tokenizer_config.json, ids) as dictionaries."""
    if prefix:
        names, ids = ["<unk>", "<s>", "</s>"], {"bos_token_id": 1, "eos_token_id": 2}
    else:
        names = ["<pad>", "<eos>", "<bos>", "<unk>", "<start_of_turn>", "<end_of_turn>"]
        ids = {"bos_token_id": 2, "eos_token_id": [1, 5], "pad_token_id": 0}
    space = "\u2581"
    letters = [space, *"etaoinshrdlcumwfgypbvkxjqz.,ETAOINSHR"][:316 - 256 - len(names) - PIECE_MERGES]
    vocabulary = [*names, *(f"<0x{byte:02X}>" for byte in range(256)), *letters]
    merges = merged(vocabulary, space, PIECE_MERGES)
    begin = names[ids["bos_token_id"]]
    spaces = {"type": "Replace", "pattern": {"String": " "}, "content": space}
    decoders = [{"type": "Replace", "pattern": {"String": space}, "content": " "}, {"type": "ByteFallback"}, {"type": "Fuse"}]
    if prefix:
        spaces = {"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": space}, spaces]}
        decoders.append({"type": "Strip", "content": " ", "start": 1, "stop": 0})
    tokenizer = document(vocabulary, merges, [(token, i) for i, token in enumerate(names)], normalizer=spaces, pre_tokenizer=None,
                         post_processor=adds_front(begin, ids["bos_token_id"]), decoder={"type": "Sequence", "decoders": decoders},
                         unk_token="<unk>")
    config = {"add_bos_token": True, "add_eos_token": False, "bos_token": begin, "eos_token": "</s>" if prefix else "<eos>", "unk_token": "<unk>",
              "chat_template": LLAMA2 if prefix else GEMMA, "clean_up_tokenization_spaces": False, "model_max_length": 1024,
              "tokenizer_class": "LlamaTokenizer" if prefix else "GemmaTokenizer"}
    if not prefix:
        config["pad_token"] = "<pad>"
    return tokenizer, config, ids


BYTE_LEVEL_RULES = {"llama": "llama-bpe", "smollm3": "llama-bpe", "qwen2": "qwen2", "qwen3": "qwen2", "qwen3_moe": "qwen2"}


def tokenizer_of(model_type):
    """The kind that models of this type have, as far as these few kinds go."""
    if model_type.startswith("gemma"):
        return sentencepiece(prefix=False)
    if model_type in ("mistral", "mixtral"):
        return sentencepiece(prefix=True)
    return byte_level(BYTE_LEVEL_RULES.get(model_type, "gpt-2"))
