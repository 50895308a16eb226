"""Memory is a plan: what the services say before they load is what the processes take at their peak, within 10 %.

A service's peak is what its process had when it made the plan, its fixed part, and the larger of what it takes only while it
starts and its pages at their peak times the bytes of a page.
"""
import os
import re
import time

import pytest

from conftest import MODEL, pace
from streams import body, join_all, run_all, samples, start_all, words

MIB = 1048576.0


def peak_rss(pid):
    with open(f"/proc/{pid}/status", encoding="ascii", errors="replace") as file:
        return int(re.search(r"VmHWM:\s+(\d+) kB", file.read()).group(1)) * 1024


def services(mesh):
    return sorted(name[:-4] for name in os.listdir(mesh.run_dir) if name.endswith(".pid"))


def plan_of(mesh, service):
    """The MEMORY-PLAN line of a service as numbers, or None."""
    with open(os.path.join(mesh.run_dir, service + ".log"), encoding="utf-8", errors="replace") as file:
        text = file.read()
    found = re.findall(r"MEMORY-PLAN (.*)", text)
    if service == "s-part":  # the tokenizer that --kv-type auto reads a text with has a plan too; then pages may be of another type
        found = found[:1] + re.findall(r"KV-TYPE .*?(page_kib=\S+)", text)
        found = [" ".join(found)]
    return {key: float(value) for key, value in re.findall(r"(\w+)=([0-9.]+)", found[-1])} if found and found[-1] else None


def planned_mib(mesh, service):
    plan = plan_of(mesh, service)
    assert plan, f"{service} has no plan"
    place = "local" if service == "s-part" else service
    pages = samples(mesh, "fastdecode_kv_pages_peak").get(f'place="{place}"', 0)
    return plan["process_mib"] + plan["fixed_mib"] + max(plan["start_mib"], pages * plan["page_kib"] / 1024), pages


@pytest.mark.parametrize("options", [(), ("--kv-type", "auto", "--kv-workers", 1, "--local-pool", 0), pytest.param(("--mini-batches", 2, "--kv-workers", 2), marks=pytest.mark.full)],
                         ids=["default", "worker", "two-workers"])
def test_plan_and_peak(start_mesh, options):
    mesh = start_mesh(*options, calibrate=True, model=MODEL, threads=0)
    streams = join_all(start_all(mesh.url, [body(words(20 + 12 * i, i), 12, i, i % 2 == 0) for i in range(24)]))
    assert [stream.error for stream in streams if stream.error] == []
    deadline = pace.Deadline(10)
    while True:  # the peaks of pages come with heartbeats, and only grow
        planned, peak, told = 0.0, 0.0, []
        for service in services(mesh):
            (mine, pages), rss = planned_mib(mesh, service), peak_rss(mesh.pid(service)) / MIB
            told.append(f"{service}: planned {mine:.1f} MiB, peak {rss:.1f} MiB, {pages:.0f} pages")
            planned, peak = planned + mine, peak + rss
        told.append(f"all: planned {planned:.1f} MiB, peak {peak:.1f} MiB, {planned / peak - 1:+.1%}")
        if abs(planned - peak) <= 0.1 * peak or deadline.passed():
            break
        time.sleep(0.2)
    print("\n".join(told))
    assert abs(planned - peak) <= 0.1 * peak, "\n".join(told)


def test_kv_memory_is_kept_to(start_mesh):
    """A worker with 4 MiB for pages takes no more for them, whatever is asked of it."""
    mesh = start_mesh("--kv-workers", 1, "--local-pool", 0, "--kv-memory", "4M")
    assert [stream.error for stream in run_all(mesh.url, [body(words(16), 2)]) if stream.error] == []  # code is in memory once it has run
    streams = start_all(mesh.url, [body(words(200, i), 64, i) for i in range(24)])
    before = peak_rss(mesh.pid("kv-worker-0"))
    assert [stream.error for stream in join_all(streams) if stream.error] == []
    total = mesh.metric("fastdecode_kv_pages")
    plan = plan_of(mesh, "s-part")
    assert total * plan["page_kib"] * 1024 <= 4 * MIB
    assert peak_rss(mesh.pid("kv-worker-0")) - before <= 4 * MIB + 4 * MIB


def test_file_map_is_released(real_mesh):
    """After repacking, the model file takes no memory of the s-part: nothing of its map is resident."""
    with open(f"/proc/{real_mesh.pid('s-part')}/smaps", encoding="ascii", errors="replace") as file:
        text = file.read()
    resident = [int(size) for size in re.findall(r"^\S+ \S+ \S+ \S+ \S+ +\S+\.gguf\n(?:.*\n)*?Rss: +(\d+) kB", text, re.M)]
    assert sum(resident) <= 8 * 1024, f"{resident} KiB of the model file are resident"
