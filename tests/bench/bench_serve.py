#!/usr/bin/env python3
"""Tokens a second, time to first token and time between tokens of a running server, as its clients see them.

  tests/bench/bench_serve.py --url http://127.0.0.1:8080 [--streams 1,8,32] [--words 64] [--tokens 128]

Every stream sends a prompt of its own of so many words and reads so many tokens, greedy, ignoring the end of text. A round is
all streams at once; tokens/s is all generated tokens over the time from the first request to the last token.
"""
import argparse
import os
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "e2e"))

from streams import body, run_all, words  # noqa: E402


def percentile(values, share):
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0.0


def measure(url, count, prompt_words=64, tokens=128, seed=1):
    """One round; a dictionary of figures in seconds and tokens a second."""
    requests = [{**body(words(prompt_words, seed * 1000 + i), tokens), "logprobs": None} for i in range(count)]
    began = time.monotonic()
    streams = run_all(url, requests, 600)
    failed = [stream.error for stream in streams if stream.error]
    assert not failed, failed[:3]
    got = sum(stream.usage["completion_tokens"] for stream in streams)
    assert got == count * tokens, f"{got} tokens, want {count * tokens}"
    ended = max(stream.event_times[-1] for stream in streams)
    gaps = [b - a for stream in streams for a, b in zip(stream.event_times, stream.event_times[1:])]
    return {"streams": count, "tokens_per_s": got / (ended - began), "seconds": ended - began,
            "first_s": percentile([stream.event_times[0] - stream.began for stream in streams], 0.5),
            "between_p50_s": percentile(gaps, 0.5), "between_p99_s": percentile(gaps, 0.99)}


def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--url", required=True)
    arguments.add_argument("--streams", default="1,8,32")
    arguments.add_argument("--words", type=int, default=64)
    arguments.add_argument("--tokens", type=int, default=128)
    chosen = arguments.parse_args()
    measure(chosen.url, 1, chosen.words, 16, 99)  # warm
    print("streams  tokens/s  first token ms  between p50 ms  between p99 ms")
    for turn, count in enumerate(map(int, chosen.streams.split(","))):
        m = measure(chosen.url, count, chosen.words, chosen.tokens, turn + 1)
        print(f"{count:7d}  {m['tokens_per_s']:8.1f}  {1e3 * m['first_s']:14.1f}  {1e3 * m['between_p50_s']:14.2f}  "
              f"{1e3 * m['between_p99_s']:14.2f}")


if __name__ == "__main__":
    main()
