#!/usr/bin/env python3
"""Tokens a second, time to first token and time between tokens of a running server, as its clients see them.

  tests/bench/bench_serve.py --url http://127.0.0.1:8080 [--streams 1,8,32] [--words 64] [--tokens 128]

Every stream sends a prompt of its own of so many words and reads so many tokens, greedy, ignoring the end of text. A round is
all streams at once; tokens/s is all generated tokens over the time from the first request to the last token. Any server with
OpenAI's /v1/completions will do.
"""
import argparse

from clients import measure


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
