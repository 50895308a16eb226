"""Requests that schemathesis makes from /openapi.json: no answer is of status 5xx, and each is as the document says."""
import subprocess
import sys

import pytest

from conftest import SEED, seconds

pytest.importorskip("schemathesis", reason="make venv-full installs schemathesis")

CHECKS = "not_a_server_error,status_code_conformance,content_type_conformance,response_headers_conformance,response_schema_conformance"


@pytest.mark.full
def test_generated_requests(start_mesh, tmp_path):
    mesh = start_mesh(env={"FD_CONTEXT": "256", "FD_REQUEST_TIMEOUT": str(seconds(2))})  # so that an answer does not take long
    command = [sys.executable, "-c", "from schemathesis.cli import schemathesis; schemathesis()", "run", mesh.url + "/openapi.json",
               "--phases", "fuzzing", "--max-examples", "30", "--checks", CHECKS, "--seed", str(SEED), "--request-timeout",
               str(seconds(60)), "--no-color", "--generation-database", "none"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=seconds(600), check=False, cwd=tmp_path)
    assert result.returncode == 0, result.stdout[-8000:] + result.stderr[-2000:]
    mesh.get("/health")
