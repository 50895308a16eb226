"""Time limits that scale: how slow this machine is now, beside the one on which the limits of the tests were written.

  pace.py     prints the factor; whoever runs several programs measures once and sets FD_PACE to it

A fixed loop (BLAKE2b, which needs no memory bandwidth) is timed on one thread and on two at once. The factor is how many times longer it takes
than it should, on the worse of both, and at least 1; builds with sanitizers count FACTOR_SANITIZED times that. Every wait of the tests is
multiplied by it, and before a wait fails the loop is timed again: something else may run on the machine since.
"""
import hashlib
import os
import threading
import time

DATA = bytes(1 << 18)
ROUNDS, REPEATS = 64, 4
REFERENCE_S = 0.024           # of one round of one thread, or of two that have a core each
FACTOR_SANITIZED = 4
SANITIZED = bool(os.environ.get("FD_SANITIZED"))  # then all is several times slower, and tests do less of it


def loop():
    for _ in range(ROUNDS):
        hashlib.blake2b(DATA).digest()  # without the interpreter's lock


def timed(threads):
    workers = [threading.Thread(target=loop) for _ in range(threads)]
    began = time.monotonic()
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    return time.monotonic() - began


def measure():
    """The factor as of now, without that of sanitizers. Takes a quarter of a second."""
    slowest = max(sum(timed(threads) for _ in range(REPEATS)) / REPEATS for threads in (1, 2))
    return max(1.0, slowest / REFERENCE_S)


_pace = 0.0


def factor(again=False):
    """What limits are multiplied by; it never falls. again: measured anew."""
    global _pace
    if _pace == 0:
        _pace = float(os.environ.get("FD_PACE") or measure())
    if again:
        _pace = max(_pace, measure())
    return _pace * (FACTOR_SANITIZED if SANITIZED else 1)


def seconds(limit_s):
    return limit_s * factor()


class Deadline:
    """A limit that has begun to run."""

    def __init__(self, limit_s):
        self.began, self.limit_s, self.scale = time.monotonic(), limit_s, factor()

    def left(self):
        return max(0.0, self.began + self.limit_s * self.scale - time.monotonic())

    def passed(self):
        if self.left() > 0:
            return False
        now = factor(again=True)
        if now <= 1.2 * self.scale:
            return True
        self.scale = now
        return self.passed()

    def __str__(self):
        return f"{self.limit_s * self.scale:.1f} s"


def wait_until(condition, limit_s=30, what="", every_s=0.02):
    """Polls until condition() is true and returns what it returned. what: says in a failure what has not happened; text, or a function
    that returns it."""
    deadline = Deadline(limit_s)
    while True:
        found = condition()
        if found:
            return found
        assert not deadline.passed(), f"not within {deadline}: {what() if callable(what) else what}"
        time.sleep(every_s)


if __name__ == "__main__":
    print(f"{measure():.2f}")
