"""`fastdecode quantize IN OUT` and `--quantize 4`: what they print and refuse; that nothing is left of what failed. The conversion itself is
tests/unit/test_quantize.c's and tests/kernels/test_encode.c's."""
import fcntl
import os
import re
import resource
import signal
import subprocess

import pytest

from conftest import BUILD, fastdecode, seconds, wait_until
from streams import body, run_all


@pytest.fixture(scope="module", name="source")
def synthetic(tmp_path_factory):
    path = tmp_path_factory.mktemp("quantize") / "f16.gguf"
    fastdecode("model", "--synthetic", "llama-tiny", "--type", "f16", path, check=True)
    return path


def test_a_file_in_fewer_bits_is_served(source, tmp_path, start_mesh):
    out = tmp_path / "q4.gguf"
    said = fastdecode("quantize", source, out)
    assert said.returncode == 0, said.stderr
    assert re.search(r"16 matrices in Q4_1, 5\.00 bits a value \(before 16\.00\), 5 tensors as they were; 6\.1 MB \(before 17\.9\)", said.stdout)
    assert os.listdir(tmp_path) == ["q4.gguf"]
    assert "Q4_1, 16 tensors" in fastdecode("model", out, check=True).stdout
    again = tmp_path / "again.gguf"
    fastdecode("quantize", source, again, "--threads", 1, check=True)
    assert again.read_bytes() == out.read_bytes(), "the same bytes whatever the threads"
    asked = body("bada kirono lutem", 12)
    streams = [run_all(start_mesh("--local-pool", "64M", "--kv-memory", "64M", *options, model=str(model)).url, [asked])[0]
               for model, options in ((out, ()), (source, ("--quantize", "4")))]
    assert streams[0].error is None and len(streams[0].tokens) == 12
    assert streams[0].tokens == streams[1].tokens, "quantized while loaded: the same text as from the file"


def test_refusals(source, tmp_path):
    out = tmp_path / "out.gguf"
    fastdecode("quantize", source, tmp_path / "q8.gguf", "--type", "q8_0", check=True)
    for arguments, line in (((source,), "want IN and OUT"),
                            ((source, out, "--type", "q4_k"), "--type is 'q4_k', want one of q4_1, q8_0, "),
                            ((tmp_path / "q8.gguf", out), "its matrices are quantized already"),
                            ((source, source), "is the file that is read"),
                            ((source, tmp_path), "is a directory"),
                            ((source, tmp_path / "no" / "x"), "No such file or directory"),
                            ((__file__, out), "not a GGUF file"),
                            ((tmp_path / "none", out), "No such file")):
        said = fastdecode("quantize", *arguments)
        assert said.returncode == (4 if arguments[0] in (__file__, tmp_path / "none") else 2) and line in said.stderr, said.stderr
        assert said.stdout == "" and said.stderr.count("\n") == 1, said.stderr
    assert os.listdir(tmp_path) == ["q8.gguf"]


def test_files_in_the_way(source, tmp_path):
    """IN that is OUT.part, an OUT that is no regular file, and another run on the same OUT: all stay as they are."""
    part, out, pipe = tmp_path / "out.gguf.part", tmp_path / "out.gguf", tmp_path / "pipe"
    part.write_bytes(source.read_bytes())
    said = fastdecode("quantize", part, out)
    assert said.returncode == 2 and "out.gguf.part is the file that is read" in said.stderr, said
    assert part.read_bytes() == source.read_bytes()
    os.mkfifo(pipe)
    said = fastdecode("quantize", source, pipe)
    assert said.returncode == 2 and "is not a regular file" in said.stderr and pipe.is_fifo(), said
    with open(part, "r+b") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        said = fastdecode("quantize", source, out)
        assert said.returncode == 3 and "is being written by another run" in said.stderr, said
        assert part.read_bytes() == source.read_bytes() and not out.exists()
    fastdecode("quantize", source, out, check=True)
    assert sorted(os.listdir(tmp_path)) == ["out.gguf", "pipe"]


def test_nothing_is_left_of_a_disk_that_is_full(source, tmp_path):
    said = subprocess.run([os.path.join(BUILD, "bin", "fastdecode"), "quantize", source, tmp_path / "out.gguf"], capture_output=True, text=True,
                          timeout=seconds(60), check=False, preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (3 << 20, 3 << 20)))
    assert said.returncode == 3 and "File too large after" in said.stderr
    assert os.listdir(tmp_path) == []


def test_an_interruption_leaves_nothing(tmp_path):
    """IN is large enough to be under way when the signal comes: its size is known from OUT.part being there."""
    source, out = tmp_path / "f16.gguf", tmp_path / "out.gguf"
    fastdecode("model", "--synthetic", "llama-1b", "--layers", 1, "--type", "f16", source, check=True)
    process = subprocess.Popen([os.path.join(BUILD, "bin", "fastdecode"), "quantize", source, out, "--threads", "1"], stderr=subprocess.PIPE,
                               text=True)
    wait_until((tmp_path / "out.gguf.part").exists, every_s=0.001)
    process.send_signal(signal.SIGINT)
    assert process.wait(seconds(30)) == 130 and "interrupted" in process.stderr.read()
    assert sorted(os.listdir(tmp_path)) == ["f16.gguf"]
