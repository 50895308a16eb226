"""TLS: tokens a second of 32 streams over two KV workers, every connection with certificates on both sides, beside plain tcp.

All KV lies at the workers, so that q, k, v and o of each layer cross a connection. Each run has a mesh of its own, started for it; the two take turns.
The model is small: its messages are many and its steps short, which is the worst case.
"""
import tempfile

from end_to_end import one_round, warm
from figures import of_rounds
from servers import Ours
from tls_mesh import ReadsGateway, certs, over_tcp

STREAMS, WORDS, TOKENS, ROUNDS, LEAST = 32, 64, 96, 9, 0.9
OPTIONS = ("--kv-workers", 2, "--local-pool", 0, "--kv-memory", "512M")


class OverTls(ReadsGateway, Ours):
    def __init__(self, folder):
        super().__init__(*OPTIONS, "--tls", folder)


class OverTcp(ReadsGateway, Ours):
    def __init__(self, _):
        super().__init__(*OPTIONS, scripts=over_tcp())


def one_run(run_, label, kind, folder, seed):
    with kind(folder) as mesh:
        mesh.wait_metric("fastdecode_place_up", lambda up: up >= 2)
        warm(mesh, 4)
        return one_round(run_, label, mesh, STREAMS, WORDS, TOKENS, seed)


def tls(run_):
    kinds = {"mutual TLS": OverTls, "plain tcp": OverTcp}
    rounds = []
    with tempfile.TemporaryDirectory(prefix="fd-tls-") as parent:
        folder = certs(f"{parent}/certs")
        for turn in range(ROUNDS):
            got = {label: one_run(run_, label, kinds[label], folder, 900 + turn) for label in sorted(kinds, reverse=turn % 2 == 1)}
            rounds.append((got["mutual TLS"], got["plain tcp"]))
    run_.add(of_rounds(run_.part, f"{STREAMS} streams over two workers, mutual TLS beside plain tcp", "tokens/s",
                       [(a["tokens_per_s"], b["tokens_per_s"]) for a, b in rounds], LEAST))
    run_.add(of_rounds(run_.part, "the same: 99th percentile of the times between tokens", "ms",
                       [(1e3 * a["between_p99_s"], 1e3 * b["between_p99_s"]) for a, b in rounds]))
