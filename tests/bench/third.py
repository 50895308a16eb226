"""What a third mini-batch gives where a link's latency binds: one to three mini-batches, KV at a worker behind a relay that holds all bytes back.

The worker is in a network namespace (as root), and the relay there delays bytes both ways by half of a round trip. Of a step of one of M mini-batches,
S is the S-part's time and W what it waits for attention with one mini-batch. The formula that core, planner and simulator share says

    round = max(M·S, S + W)

and lock step, in which nobody is served while another waits, M·max(S, W). Both stand beside what a round took: sequences over tokens a second.
"""
import json
import os
import statistics
import subprocess
import sys
import threading

from clients import check, completion, run
from end_to_end import warm
from far_host import FarHost
from figures import figure
from servers import FarWorker, Ours

ROUND_TRIPS_US = (500, 2000, 4000)
STREAMS, WORDS, TOKENS = 24, 12, 160
RELAY = os.path.join(os.path.dirname(os.path.abspath(__file__)), "relay.py")


class FarLink(FarHost):
    """A host behind a link with that round trip: connections to `relayed` there reach `port` there."""

    def __init__(self, round_trip_us):
        super().__init__("fd-third")
        self.delay_s, self.port = round_trip_us * 0.5e-6, 20000 + os.getpid() % 20000
        self.relayed, self.relay = self.port + 1, None

    def __enter__(self):
        super().__enter__()
        self.relay = subprocess.Popen(self.inside([sys.executable, RELAY, self.address, str(self.relayed), str(self.port), str(self.delay_s)]),
                                      stdout=subprocess.PIPE, text=True)
        assert self.relay.stdout.readline() == "ready\n"
        return self

    def __exit__(self, *_):
        self.relay.kill()
        self.relay.wait()
        super().__exit__()


def look(mesh):
    """(S, W, rows) of the latest steps that only decode, microseconds."""
    state = json.loads(mesh.get("/mesh/state"))["mesh"]
    return [(step["s_part_us"], step["total_us"] - step["s_part_us"], step["decode_rows"])
            for step in (state["recent_steps"] if state else []) if not step["prompt_rows"]]


def measure(run_, count, round_trip_us):
    """(S, W, a round) in microseconds."""
    steps, clients = [], []
    with FarLink(round_trip_us) as host, \
         Ours("--kv-workers", 0, "--local-pool", "1M", "--threads", 1, "--mini-batches", count, env={"FD_INSECURE": "on"}) as mesh, \
         FarWorker(mesh, f"--listen-tensors=tcp://{host.address}:{host.port}", f"--advertise-tensors=tcp://{host.address}:{host.relayed}", host=host):
        warm(mesh, 4)
        requests = [completion(WORDS, TOKENS, i) for i in range(STREAMS)]
        with run_.turn(f"{count} mini-batches, round trip of {round_trip_us} us"):
            asked = threading.Thread(target=lambda: clients.extend(run(mesh.url, requests, run_.limit_s())))
            asked.start()
            while asked.is_alive():
                steps.append(look(mesh))
                asked.join(0.25)
    check(clients)
    first, last = max(c.first for c in clients), min(c.last for c in clients)  # all decode
    tokens = sum(now - before for c in clients for (moment, now), (_, before) in zip(c.events, [(0, 0)] + c.events) if first < moment <= last)
    full = [step for seen in steps[len(steps) // 3:] for step in seen if step[2] >= 0.8 * STREAMS / count]
    s_us, w_us = (statistics.median(step[i] for step in full) for i in (0, 1))
    return s_us, w_us, 1e6 * STREAMS * (last - first) / tokens


def third(run_):
    for round_trip_us in ROUND_TRIPS_US:
        s_us, w_us, one_us = measure(run_, 1, round_trip_us)
        run_.note(f"S {s_us:.0f} us, W {w_us:.0f} us, a round {one_us:.0f} us")
        for count in (2, 3):
            s_us, _, took_us = measure(run_, count, round_trip_us)
            run_.note(f"S {s_us:.0f} us; lock step {count * max(s_us, w_us):.0f} us")
            run_.add(figure(run_.part, f"round trip {round_trip_us} us, {count} mini-batches: a round ({one_us / took_us:.2f} times one mini-batch's tokens/s) "
                            "beside the formula's", took_us, "us", max(count * s_us, s_us + w_us)))
