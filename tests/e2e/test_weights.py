"""Weights from a packed file: written at the first start, read at the next, or in each step; and the same bytes either way."""
import os
import re
import time

import pytest

from conftest import MODEL, PACED, wait_until
from groups import held_bytes, memory_group
from streams import Stream, assert_same, body, join_all, run_all, start_all, words

PROBES = [body("The sea is", 24, logprobs=5), body(words(120, 2), 12, 4, True, logprobs=5)]


def log_of(mesh, service="s-part"):
    with open(os.path.join(mesh.run_dir, service + ".log"), encoding="utf-8", errors="replace") as file:
        return file.read()


def test_the_next_start_reads_them(mesh, start_mesh, tmp_path):
    wanted = run_all(mesh.url, PROBES)
    first = start_mesh("--cache-dir", tmp_path)
    assert_same(run_all(first.url, PROBES), wanted)
    assert "WEIGHTS-PACKED " in log_of(first)
    first.stop()
    files = os.listdir(tmp_path)
    assert len(files) == 1 and files[0].endswith("-int8.fdw"), files
    for method in "uring", "threads":
        if method == "uring" and not os.path.exists("/proc/sys/kernel/io_uring_disabled"):
            continue
        again = start_mesh("--cache-dir", tmp_path, "--disk-reads", method)
        assert_same(run_all(again.url, PROBES), wanted)
        assert re.search(r"WEIGHTS-READ file=\S+-int8\.fdw", log_of(again)) and "WEIGHTS-PACKED" not in log_of(again)
        again.stop()
    assert os.listdir(tmp_path) == files


LEAST = "20M"  # for the small model, all of which takes 20.3 MiB: two thirds of its layers do not fit


def streamed(start_mesh, folder, *options, **settings):
    mesh = start_mesh("--cache-dir", folder, "--weights-memory", LEAST, *options, **settings)
    assert re.search(r"MEMORY-PLAN .* streamed_mib=1\.\d weight_slots=[23]", log_of(mesh))
    return mesh


@pytest.mark.parametrize("options", [("--kv-workers", 0), ("--kv-workers", 0, "--mini-batches", 4),
                                     ("--kv-workers", 2, "--local-pool", 0, "--mini-batches", 2), ("--kv-workers", 2, "--mini-batches", 3)],
                         ids=["alone", "4-mini-batches", "2-workers", "workers-and-pool"])
def test_same_bytes_where_they_do_not_fit(mesh, start_mesh, tmp_path, options):
    wanted = run_all(mesh.url, PROBES)
    small = streamed(start_mesh, tmp_path, *options)
    beside = [Stream(small.url, body(words(3 + 17 * i, i), 12 + 5 * i, i, i % 2 == 0)) for i in range(8)]
    assert_same(run_all(small.url, PROBES), wanted)
    assert [stream.error for stream in join_all(beside) if stream.error] == []


def cut_file_and_check(mesh, folder, request):
    """Cuts the only packed file of a folder while a stream reads it in each step."""
    wanted = run_all(mesh.url, [request])
    stream = Stream(mesh.url, request)
    stream.wait_tokens(10)
    path, = (os.path.join(folder, name) for name in os.listdir(folder))
    os.truncate(path, 8192)
    stream.join()
    assert stream.error is None
    assert_same([stream], wanted)
    assert re.search(r'DEVICE-FAILED why="\S+\.fdw: bytes \d+ to \d+ cannot be read: the file ends before', log_of(mesh))
    wait_until(lambda: "WEIGHTS-PACKED-ANEW" in log_of(mesh))
    wait_until(lambda: re.search(r"CHILD-DIED name=s-part pid=\d+ status=3 ", "".join(mesh.output)))  # the environment


def test_a_read_that_fails_ends_the_s_part(start_mesh, tmp_path):
    """The packed file is cut while steps read it. The s-part ends as with a lost device, writes the file anew when it is started again, and
    the streams go on with the text that they would have had."""
    small = streamed(start_mesh, tmp_path, "--kv-workers", 1, "--local-pool", 0, **PACED)
    cut_file_and_check(small, tmp_path, body("The sea is", 200))


def test_too_little_memory_is_refused_with_numbers(start_mesh, tmp_path):
    with pytest.raises(RuntimeError) as refused:
        start_mesh("--cache-dir", tmp_path, "--weights-memory", "2M")
    assert re.search(r"--weights-memory 2M: the weights need [\d.]+ MiB of memory even if all layers are fetched anew each step, "
                     r"there are 2.0 MiB for them", str(refused.value))
    assert os.listdir(tmp_path) == []


def at_rest(mesh, name):
    """A number that heartbeats carry, twice a second, and that a gateway asks for once a second: unchanged for three."""
    seen = []

    def unchanged(value):
        if not seen or seen[-1][1] != value:
            seen.append((time.monotonic(), value))
        return value > 0 and time.monotonic() - seen[-1][0] > 3

    return mesh.wait_metric(name, unchanged)


def test_reads_do_not_grow_with_mini_batches(start_mesh, tmp_path):
    """Eight streams in one, two and four mini-batches: each reading of the weights serves all that are in flight, so that as many rounds read as
    much. A mini-batch that begins late waits for the others once."""
    reads = {}
    for mini_batches in 1, 2, 4:
        small = streamed(start_mesh, tmp_path, "--kv-workers", 0, "--mini-batches", mini_batches, "--draft-tokens", 0)
        streams = start_all(small.url, [body(words(8, i), 60, i) for i in range(8)])
        assert [stream.error for stream in join_all(streams) if stream.error] == []
        read = at_rest(small, "fastdecode_weights_read_segments_total")
        small.stop()
        reads[mini_batches] = read
    print(reads)
    assert reads[2] <= 1.3 * reads[1] and reads[4] <= 1.3 * reads[1], reads


def plan_of(mesh):
    return {key: float(value) for key, value in re.findall(r"(\w+)=([0-9.]+)", re.findall(r"MEMORY-PLAN (.*)", log_of(mesh))[-1])}


def test_auto_in_a_control_group(start_mesh, tmp_path):
    """--weights-memory auto sees the group's limit: with memory for about two thirds of the weights some stay, the others are read each step,
    and the text is the same."""
    pool_mib, mib = 16, 1048576
    options = "--kv-workers", 0, "--local-pool", f"{pool_mib}M", "--cache-dir", tmp_path
    group = memory_group()
    if not group:
        pytest.skip("no control group of version 1 can be made here")
    with group:
        with group.inside():
            whole = start_mesh(*options, model=MODEL)
        wanted, plan = run_all(whole.url, PROBES), plan_of(whole)
        with open(f"/proc/{whole.pid('s-part')}/status", encoding="ascii") as file:
            s_part = 1024 * int(re.search(r"RssAnon:\s+(\d+)", file.read()).group(1))
        others_mib = (held_bytes(group) - s_part) / mib
        whole.stop()
        assert "streamed_mib" not in plan
        # Less a little: when the s-part plans, the others have only begun, and hold less than they do now.
        limit_mib = others_mib + plan["process_mib"] + plan["fixed_mib"] + pool_mib - (1 / 3 + 1 / 20) * plan["weights_mib"]
        group.limit(memory__limit_in_bytes=int(limit_mib * mib))
        with group.inside():
            part = start_mesh(*options, model=MODEL)
        assert_same(run_all(part.url, PROBES), wanted)
        chosen = plan_of(part)
        part.stop()
    # How much stays depends on what the others held just then: more than what is streamed, and no more than the limit allows.
    assert 0 < chosen["streamed_mib"] < chosen["weights_mib"] < plan["weights_mib"], (chosen, plan, limit_mib)
    assert chosen["weights_mib"] + chosen["streamed_mib"] >= plan["weights_mib"], (chosen, plan)  # all of it is somewhere
    assert chosen["process_mib"] + chosen["fixed_mib"] + pool_mib <= limit_mib, (chosen, limit_mib)
