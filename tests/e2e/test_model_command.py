"""`fastdecode model FILE`: what it prints, and what it does not take for something else."""
import os
import subprocess

import pytest

from conftest import BUILD, MODEL


def describe(*options):
    return subprocess.run([os.path.join(BUILD, "bin", "fastdecode"), "model", *options], capture_output=True, text=True, timeout=60)


def test_a_plan():
    said = describe(MODEL, "--kv-type", "f32", "--compute", "int8")
    assert said.returncode == 0 and "architecture   llama" in said.stdout and "KV f32" in said.stdout


@pytest.mark.parametrize("option, value", [("--kv-type", "int3"), ("--compute", "fast")])
def test_an_unknown_mode_is_refused(option, value):
    said = describe(MODEL, option, value)
    assert said.returncode == 2 and f"{option} is '{value}', want " in said.stderr
