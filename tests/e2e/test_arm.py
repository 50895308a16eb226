"""A mesh whose services are AArch64's programs, run by qemu, answers with the bytes of this machine's own.

FD_ARM_RUN: the command that runs such a program, FD_ARM_BIN: their folder. tests/arm/check_arm.sh builds them and says so."""
import os
import re
import shlex

import pytest

from conftest import MODEL
from streams import assert_same, body, run_all

RUN, PROGRAMS = os.environ.get("FD_ARM_RUN"), os.environ.get("FD_ARM_BIN")
pytestmark = pytest.mark.skipif(not (RUN and PROGRAMS), reason="make check-arm has the programs that this needs")
# qemu takes some fifty times as long, and more beside other tests.
LIMIT_S = 600


def scripts(*services):
    return {name: f'exec {RUN} {shlex.quote(os.path.join(PROGRAMS, name))} "$@"' for name in services}


def level(mesh, service):
    with open(os.path.join(mesh.run_dir, service + ".log"), encoding="utf-8") as file:
        return re.search(r"(?:kernels=|level=\w+/)(\w+)", file.read()).group(1)


REQUEST = body("The capital of France is", 8)


def start(start_mesh, kv_type, *services):
    return start_mesh("--kv-workers", 1, "--local-pool", 0, "--worker-timeout-ms", 60000, "--kv-type", kv_type, model=MODEL,
                      ready_s=LIMIT_S, scripts=scripts(*services))


@pytest.mark.parametrize("kv_type", ["f16", "int8"])
def test_whole_mesh(start_mesh, kv_type):
    """Gateway, scheduler, s-part and worker of the other architecture, with the default model."""
    wanted = run_all(start(start_mesh, kv_type).url, [REQUEST])[0]
    mesh = start(start_mesh, kv_type, "gateway", "scheduler", "s-part", "kv-worker")
    assert level(mesh, "s-part") == level(mesh, "kv-worker-0") == "i8mm"
    found = run_all(mesh.url, [REQUEST], LIMIT_S)[0]
    assert_same([found], [wanted])
    assert "Paris" in found.text


def test_worker_beside_this_architecture(start_mesh):
    """A worker of the other architecture, and an s-part of this one."""
    wanted = run_all(start(start_mesh, "f16").url, [REQUEST])
    mesh = start(start_mesh, "f16", "kv-worker")
    assert level(mesh, "kv-worker-0") == "i8mm"
    assert_same(run_all(mesh.url, [REQUEST], LIMIT_S), wanted)
