"""The first marks of speed: 64-word prompts, 128 new tokens, streaming, default settings, on 2 cores with nothing else."""
import os
import sys
import time

import pytest

from conftest import ROOT

sys.path.insert(0, os.path.join(ROOT, "tests", "bench"))

from clients import measure  # noqa: E402

pytestmark = pytest.mark.full


PROMPT_WORDS, TOKENS = 64, 128
TICKS_PER_S = os.sysconf("SC_CLK_TCK")


def cpu_seconds(mesh):
    """(of everybody on this machine and of its host, of this process and of the mesh) since they began."""
    with open("/proc/stat", encoding="ascii") as file:
        fields = list(map(int, file.readline().split()[1:9]))
    everybody = sum(fields) - fields[3] - fields[4]  # all but idle and iowait; steal is one of them
    ours = sum(os.times()[:2]) * TICKS_PER_S
    for name in os.listdir(mesh.run_dir):
        if name.endswith(".pid"):
            with open(f"/proc/{mesh.pid(name[:-4])}/stat", encoding="utf-8") as file:
                ours += sum(map(int, file.read().rsplit(")", 1)[1].split()[11:13]))
    return everybody / TICKS_PER_S, ours / TICKS_PER_S


@pytest.mark.parametrize("streams,tokens_per_s", [(1, 105), (32, 300)])
def test_tokens_a_second(mesh, streams, tokens_per_s):
    """In one of up to ten rounds; rounds in which others took more than a tenth of the machine say nothing."""
    measure(mesh.url, 1, PROMPT_WORDS, 16, 90 + streams)
    reached, quiet = [], []
    for turn in range(10):
        began, (everybody, ours) = time.monotonic(), cpu_seconds(mesh)
        reached.append(round(measure(mesh.url, streams, PROMPT_WORDS, TOKENS, streams + turn)["tokens_per_s"], 1))
        everybody, ours = (after - before for after, before in zip(cpu_seconds(mesh), (everybody, ours)))
        others = max(0.0, everybody - ours) / (time.monotonic() - began) / len(os.sched_getaffinity(0))
        quiet.append(others <= 0.1)
        if turn >= 2 and max(reached) >= tokens_per_s:
            break
    print(f"{streams} streams, tokens/s: {reached}, rounds without others: {quiet}")
    if max(reached) < tokens_per_s and not any(quiet):
        pytest.skip(f"{max(reached)} tokens/s, but others were busy on this machine in every round")
    assert max(reached) >= tokens_per_s, (reached, quiet)
