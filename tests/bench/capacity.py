"""Capacity: the highest rate of requests within the same limit of the time between tokens, of prompts in chunks, of whole prompts
(--chunk 8192) and of the peer.

The shape of arXiv's lengths at a scale at which a prompt takes as many steps here as it does on a GPU. The limit is Sarathi-Serve's strict
one: 5 times a step of 32 undisturbed streams of ours, for all three. `fastdecode capacity` is the client of all of them.
"""
import json
import os
import signal
import subprocess
import sys
import tempfile

from figures import figure
from peers import Peer, peer_check, peer_file
from servers import MODEL, Ours

SCALE, CONTEXT, UNDISTURBED, PEER_SLOTS = 0.15, 4096, 32, 16
SECONDS, REQUESTS, PRECISION, SEARCH_S = 20, 10, 0.15, 600
SLOTS, SERVICE_S = 8, 0.04


def capacity_of(run_, label, server, *options):
    """The report of a search."""
    command = [os.path.join(run_.build, "bin", "fastdecode"), "capacity", "--url", server.url, "--trace", "arxiv", "--scale", SCALE,
               "--context", CONTEXT, "--delay-p50", 2, "--seconds-per-rate", SECONDS, "--requests-per-rate", REQUESTS, "--precision", PRECISION,
               "--no-confirm", "--json", *options]
    with run_.turn(f"arXiv lengths times {SCALE}, {label}"):
        process = subprocess.Popen(list(map(str, command)), stdout=subprocess.PIPE, text=True)  # its progress is shown
        try:
            said, _ = process.communicate(timeout=min(SEARCH_S, run_.limit_s()))
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGINT)  # it says what it has
            said, _ = process.communicate()
    if not said:
        raise RuntimeError(f"{label}: no report")
    got = json.loads(said)
    run_.note(f"{got['requests_per_second']:.3f} requests/s, {got['prompt_tokens_per_second']:.0f} prompt tokens/s; bound by {got['bound']}"
              f"{'' if got['complete'] else '; the search was ended before its time'}")
    return got


def at_most(report):
    """(what a label says of it, the rate that was found, or the lowest that was missed if none was met)"""
    rate = report["requests_per_second"]
    return ("", rate) if rate else (", which misses at", min(probe["requests_per_second"] for probe in report["probes"]))


def known_limit(run_):
    """What is found of a server that gives SLOTS answers at a time, SERVICE_S each."""
    server = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "e2e", "fake_server.py")
    command = [os.path.join(run_.build, "bin", "fastdecode"), "capacity", "--tbt-slo", "none", "--seconds-per-rate", 10, "--precision", 0.02,
               "--guess", 100, "--json", "--quiet"]
    with run_.turn("a server whose capacity is known"), tempfile.NamedTemporaryFile("w", suffix=".csv") as trace, subprocess.Popen(
            [sys.executable, server, "--slots", str(SLOTS), "--service", str(SERVICE_S)], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            text=True) as process:
        trace.write("prompt_tokens,answer_tokens\n31,16\n")
        trace.flush()
        try:
            command += ["--url", process.stdout.readline().strip(), "--trace", trace.name]
            done = subprocess.run(list(map(str, command)), stdout=subprocess.PIPE, check=True, timeout=min(SEARCH_S, run_.limit_s()))
        finally:
            process.kill()
    rate = json.loads(done.stdout)["requests_per_second"]
    run_.add(figure("capacity", "requests a second found, beside those that a known server can take (0.95 to 1.05)", rate, "/s", SLOTS / SERVICE_S))


def capacity(run_):
    known_limit(run_)
    with Ours("--kv-type", "f16", "--kv-workers", 0) as ours:
        chunks = capacity_of(run_, "prompts in chunks", ours, "--tbt-slo", "strict", "--undisturbed-streams", UNDISTURBED, "--guess", 1.2)
    limit_s = chunks["targets"]["tbt_p99_s"]
    with Ours("--kv-type", "f16", "--kv-workers", 0, "--chunk", 8192) as ours:
        whole = capacity_of(run_, "whole prompts", ours, "--tbt-p99", limit_s, "--guess", 0.05)
    run_.add(figure("capacity", "5 undisturbed steps of 32 streams", 1e3 * limit_s, "ms"))
    rate, (misses, other) = chunks["requests_per_second"], at_most(whole)
    run_.add(figure("capacity", f"requests a second within that, prompts in chunks, beside whole prompts{misses}", rate, "/s", other, 2.0))
    peer_check(MODEL)
    with Peer(peer_file(MODEL), PEER_SLOTS, CONTEXT) as peer:
        peers = capacity_of(run_, "llama-server", peer, "--tbt-p99", limit_s, "--guess", 0.15)
    misses, other = at_most(peers)
    run_.add(figure("capacity", f"requests a second within that, prompts in chunks, beside llama-server Q4_0{misses}", rate, "/s", other))
