"""Other models beside llama-server on the same file: Gemma 3 270M (get_gemma.sh), and a synthetic one with experts (8 of 64).

Speed: prompts of 64 words, 128 new tokens. Agreement: what the peer generates greedily from short prompts, token by token: its log-probability
beside ours, and whether ours is the same best token; and the ids of texts that tokenizers find hard.
"""
import json
import os
import statistics
import urllib.request

from end_to_end import against_peers, synthetic
from figures import figure
from peers import Peer, peer_check
from servers import MODEL, Ours

GEMMA = os.environ.get("FD_BENCH_GEMMA") or os.path.join(os.path.dirname(MODEL), "gemma-3-270m-q4_k_m.gguf")
TOKENS, TOP1, MEAN = 72, 0.95, 0.05
STARTS = ["Once upon a time, there was a", "The capital of France is", "Water boils at", "In 1969 the first", "def fibonacci(n):\n",
          "The most important thing about trees is", "Dear Sir or Madam,", "Recipe for bread:\n1.", "The year was 1815 and",
          "She opened the door and", "A good engineer", "Rivers flow from", "#include <stdio.h>\n", "To be, or not to be:", "My favourite colour is",
          "Scientists have found that"]
HARD = ["  leading spaces", "tabs\tand\nnewlines\r\n", "naïve café ☕️ 東京 🤖👩‍👩‍👧", "x=1;y=2//comment", "a" * 50, "1234567890", "don't can't I'll",
        "<bos><eos>", "\u00a0nbsp", "ﬁ ligature", "Ω≈ç√∫", "<start_of_turn>user\nhi<end_of_turn>"]


def needed():
    if not os.path.exists(GEMMA):
        raise RuntimeError(f"no {GEMMA}: tests/bench/get_gemma.sh gets it")
    return GEMMA


def models(run_):
    cases = [(1, 3, 1.5), (8, 3, 2.0), (32, 3, 2.0)]
    against_peers(run_, run_.part, run_.chosen(cases), 64, 128, model=needed(), what="Gemma 3 270M Q4_K_M, ")
    against_peers(run_, run_.part, run_.chosen(cases), 64, 128, model=synthetic("qwen3moe-1b"), what="qwen3moe, 8 of 64 experts, Q4_0, ")


def post(url, body):
    request = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=600) as reply:
        return json.loads(reply.read())


def generated(url):
    """[(ids of a prompt, [(token, its log-probability) that followed])], of the peer."""
    found = []
    for start in STARTS:
        ids = post(url + "/tokenize", {"content": start, "add_special": True})["tokens"]
        said = post(url + "/completion", {"prompt": ids, "n_predict": TOKENS, "temperature": 0, "n_probs": 1, "cache_prompt": False,
                                          "samplers": ["temperature"]})
        found.append((ids, [(one["id"], one["logprob"]) for one in said["completion_probabilities"]]))
    return found


def agreement(run_):
    peer_check(needed())
    with Peer(GEMMA, 1, 4096) as peer, run_.turn("what llama-server says"):
        texts = generated(peer.url)
        ids = [post(peer.url + "/tokenize", {"content": text, "add_special": False})["tokens"] for text in HARD]
    apart, best = [], 0
    with Ours("--kv-type", "f16", "--kv-workers", 0, model=GEMMA) as ours, run_.turn("what we say of it"):
        for prompt, tokens in texts:
            said = post(ours.url + "/v1/completions", {"model": "default", "prompt": prompt + [token for token, _ in tokens], "max_tokens": 0,
                                                       "echo": True, "logprobs": 1})["choices"][0]["logprobs"]
            for i, (_, log_probability) in enumerate(tokens, len(prompt)):
                apart.append(abs(said["token_logprobs"][i] - log_probability))
                best += max(said["top_logprobs"][i], key=said["top_logprobs"][i].get) == said["tokens"][i]
        same = sum(post(ours.url + "/tokenize", {"prompt": text, "add_special_tokens": False})["tokens"] == wanted
                   for text, wanted in zip(HARD, ids, strict=True))
    run_.add(figure(run_.part, "Gemma 3 270M: positions at which the best token is llama-server's", best, "positions", len(apart), TOP1))
    run_.add(figure(run_.part, "Gemma 3 270M: mean difference of log-probabilities", statistics.fmean(apart), "", MEAN, 1, at_most=True))
    run_.add(figure(run_.part, "Gemma 3 270M: hard texts with the same token ids", same, "texts", len(HARD), 1))
