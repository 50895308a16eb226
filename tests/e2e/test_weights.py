"""Weights from a packed file: written at the first start, read at the next, and the same bytes either way."""
import os
import re

from streams import assert_same, body, run_all, words

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
