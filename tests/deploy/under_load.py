#!/usr/bin/env python3
"""under_load.py URL|@FILE FOLDER [--streams N] [--key KEY] [--texts FILE]: streams without end, while somebody changes the mesh behind them.

Asks each prompt once for the right text, writes FOLDER/started, and goes on until there is FOLDER/stop. Then prints how many streams there
were, how many were lost (an error, a broken connection, no end) or changed (another text), and the gaps between tokens. Exit status 1: some were lost or
changed. --texts: the right texts are kept there and not asked for again. @FILE: a file with the addresses of several gateways, read at each request. A new request that is refused with 429 or 503 is repeated, as clients do; a stream that has begun is not.
"""
import argparse
import contextlib
import http.client
import json
import os
import sys
import threading
import time
import urllib.parse

TOKENS = 48
TRIES, TRY_AGAIN_S = 240, 0.5


class Streams:
    """What all streams share."""

    def __init__(self, arguments):
        self.url = arguments.url
        self.headers = {"Content-Type": "application/json", "Authorization": f"Bearer {arguments.key}"}
        self.folder, self.lock = arguments.folder, threading.Lock()
        self.ended, self.problems, self.gaps = 0, [], []

    def stopped(self):
        return os.path.exists(os.path.join(self.folder, "stop"))

    def address(self, attempt):
        """Of one of the gateways, each in its turn."""
        urls = [self.url]
        if self.url.startswith("@"):
            with open(self.url[1:], encoding="utf-8") as file:
                urls = file.read().split()
        return urllib.parse.urlparse(urls[attempt % len(urls)]).netloc

    def begin(self, prompt):
        """A connection with an answer that streams."""
        request = {"model": "default", "prompt": prompt, "max_tokens": TOKENS, "temperature": 0, "ignore_eos": True, "stream": True}
        for attempt in range(TRIES):
            try:
                connection = http.client.HTTPConnection(self.address(attempt), timeout=300)
                connection.request("POST", "/v1/completions", json.dumps(request), self.headers)
                answer = connection.getresponse()
                if answer.status == 200:
                    return connection, answer
                problem = f"{answer.status} {answer.read(300)}"
                if answer.status not in (429, 502, 503):
                    break
            except OSError as error:
                problem = repr(error)
            time.sleep(TRY_AGAIN_S)
        raise RuntimeError(f"not begun: {problem}")

    def ask(self, prompt):
        """(text, gaps between its pieces in seconds)"""
        connection, answer = self.begin(prompt)
        text, gaps, last, is_whole = "", [], None, False
        with contextlib.closing(connection):
            while line := answer.readline():
                if line.startswith(b"data: [DONE]"):
                    is_whole = True
                elif line.startswith(b"data: "):
                    event = json.loads(line[6:])
                    if "error" in event:
                        raise RuntimeError(f"after {len(text)} characters: {event['error']}")
                    now = time.monotonic()
                    gaps += [now - last] if last else []
                    text, last = text + "".join(choice["text"] for choice in event["choices"]), now
        if not is_whole:
            raise RuntimeError(f"cut off after {len(text)} characters")
        return text, gaps

    def right_texts(self, prompts, kept):
        """The text of each prompt, asked for alone, or as an earlier run kept it."""
        if kept and os.path.exists(kept):
            with open(kept, encoding="utf-8") as file:
                return json.load(file)
        texts = [self.ask(prompt)[0] for prompt in prompts]
        if kept:
            with open(kept, "w", encoding="utf-8") as file:
                json.dump(texts, file)
        return texts

    def run(self, prompt, wanted):
        while not self.stopped():
            try:
                text, gaps = self.ask(prompt)
                problem = None if text == wanted else f"changed: {text!r} instead of {wanted!r}"
            except (OSError, RuntimeError, ValueError, http.client.HTTPException) as error:
                problem, gaps = f"lost: {error!r}", []
            with self.lock:
                self.ended += 1
                self.gaps += gaps
                if problem:
                    self.problems.append(problem)


def main():
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("url")
    options.add_argument("folder")
    options.add_argument("--streams", type=int, default=16)
    options.add_argument("--key", default="none")
    options.add_argument("--texts")
    arguments = options.parse_args()
    streams = Streams(arguments)
    prompts = [f"The story of harbour number {i} begins" for i in range(arguments.streams)]
    wanted = streams.right_texts(prompts, arguments.texts)
    threads = [threading.Thread(target=streams.run, args=pair) for pair in zip(prompts, wanted, strict=True)]
    for thread in threads:
        thread.start()
    with open(os.path.join(arguments.folder, "started"), "w", encoding="ascii"):
        pass
    for thread in threads:
        thread.join()
    gaps = sorted(streams.gaps) or [0]
    lost = sum(problem.startswith("lost") for problem in streams.problems)
    print(f"{streams.ended} streams: {lost} lost, {len(streams.problems) - lost} changed; between tokens: median {1e3 * gaps[len(gaps) // 2]:.0f} ms, "
          f"99 % {1e3 * gaps[int(0.99 * len(gaps))]:.0f} ms, longest {gaps[-1]:.2f} s")
    for problem in streams.problems[:5]:
        print(problem, file=sys.stderr)
    return bool(streams.problems)


if __name__ == "__main__":
    sys.exit(main())
