#!/usr/bin/env python3
"""start_time.py IMAGE ARGUMENT...: how soon a kv-worker's container is ready, beside one of the same image that only prints its version.

ARGUMENTs are those of `podman run`, so that the worker finds its mesh. Ready is when it has joined the mesh with memory for the model's pages: its log
says when, and its probe agrees. The limit is a multiple of the plain container's time: on a machine that starts one in a third of a second, a
worker is ready in one.
"""
import datetime
import re
import statistics
import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "e2e"))
from pace import wait_until  # noqa: E402 (its folder is named above)

TRIES = 3
LIMIT = 4  # times the plain container's
READY = re.compile(r"^(\S+Z) info kv-worker REGISTERED .*shape_known=1", re.MULTILINE)


def podman(*arguments):
    """What podman prints; a container's log is on stderr."""
    return subprocess.run(["podman", *arguments], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=True).stdout.strip()


def plain_s(image):
    began = time.time()
    podman("run", "--rm", "--network", "none", image, "--version")
    return time.time() - began


def ready_s(image, arguments):
    """(seconds from the command, seconds from the container's start) to ready"""
    began = time.time()
    container = podman("run", "--detach", *arguments, image).split()[-1]
    try:
        said = wait_until(lambda: READY.search(podman("logs", container)), 30, "the worker joins the mesh")
        podman("exec", container, "kv-worker", "--probe")
        ready = datetime.datetime.fromisoformat(said[1].replace("Z", "+00:00")).timestamp()
        started = podman("inspect", "--format", "{{.State.StartedAt.UnixMilli}}", container).split()[-1]
        return ready - began, ready - int(started) / 1e3
    finally:
        podman("stop", "--time", "75", container)
        podman("rm", container)


def main():
    image, arguments = sys.argv[1], sys.argv[2:]
    plain = statistics.median(plain_s(image) for _ in range(TRIES))
    for _ in range(TRIES):
        ready, since_start = ready_s(image, arguments)
        if ready <= LIMIT * plain:
            break
    print(f"kv-worker's container: ready after {ready:.2f} s, {since_start:.2f} s after its start; plain container: {plain:.2f} s")
    if ready > LIMIT * plain:
        sys.exit(f"a kv-worker's container takes {ready / plain:.1f} times as long as a plain one until it is ready, at most {LIMIT} times are allowed")


if __name__ == "__main__":
    main()
