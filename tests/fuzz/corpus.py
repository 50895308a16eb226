#!/usr/bin/env python3
"""The committed corpus: tests/fuzz/corpus/TARGET.txt has one input a line, in base64, the shortest first.

  tests/fuzz/corpus.py [--build DIR] [--seconds N] [TARGET...]   fuzzes N seconds from what is there and writes the smallest set of
                                                                  inputs that reaches the same code (after `make fuzz`)

unpack() gives a target its inputs as files, which is how libFuzzer takes them.
"""
import argparse
import base64
import glob
import os
import subprocess
import tempfile

FOLDER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "corpus")
INPUT_BYTES_MAX = 2048


def unpack(target, folder):
    """Writes the inputs of a target into a folder; returns how many there were."""
    count = 0
    try:
        with open(os.path.join(FOLDER, target + ".txt"), encoding="ascii") as file:
            for count, line in enumerate(file, 1):
                with open(os.path.join(folder, f"{count:05}"), "wb") as out:
                    out.write(base64.b64decode(line))
    except FileNotFoundError:
        pass
    return count


def grow(program, seconds):
    target = os.path.basename(program)
    limits = [f"-max_len={INPUT_BYTES_MAX}", "-timeout=60", "-rss_limit_mb=4096"]
    with tempfile.TemporaryDirectory() as found, tempfile.TemporaryDirectory() as least:
        before = unpack(target, found)
        subprocess.run([program, f"-max_total_time={seconds}", *limits, found], check=True, capture_output=True)
        subprocess.run([program, "-merge=1", *limits, least, found], check=True, capture_output=True)
        inputs = set()
        for path in glob.glob(least + "/*"):
            with open(path, "rb") as file:
                inputs.add(base64.b64encode(file.read()).decode())
    with open(os.path.join(FOLDER, target + ".txt"), "w", encoding="ascii") as file:
        file.writelines(line + "\n" for line in sorted(filter(None, inputs), key=lambda line: (len(line), line)))
    print(f"{target}: {before} inputs before, {len(inputs)} now")


if __name__ == "__main__":
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--build", default="build")
    arguments.add_argument("--seconds", type=int, default=60)
    arguments.add_argument("target", nargs="*")
    chosen = arguments.parse_args()
    for built in sorted(path for path in glob.glob(f"{chosen.build}/tests/fuzz/fuzz_*") if not path.endswith(".d")):
        if not chosen.target or os.path.basename(built) in chosen.target:
            grow(built, chosen.seconds)
