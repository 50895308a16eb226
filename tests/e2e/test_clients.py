"""Client libraries and agent frameworks that others wrote, unmodified: client_programs.py has a program for each.

The model's answers are played, so that each program meets what a good model would say; where an answer is held to a schema, the default model gives it."""
import json
import os
import subprocess
import sys

import pytest

from client_programs import SHORT, WEATHER
from conftest import Mesh, run
from played_scheduler import Played
from test_tools import TEMPLATES, said

pytestmark = pytest.mark.full

CALL = f"<tool_call>\n{said(WEATHER, {'city': 'Aix', 'days': 3})}\n</tool_call>"
LOOP = [CALL, SHORT]  # of an agent: a call of its tool, and what it says then
DSPY = f"[[ ## answer ## ]]\n{SHORT}\n\n[[ ## completed ## ]]"
FINAL = f"<tool_call>\n{said('final_answer', {'answer': SHORT})}\n</tool_call>"
# program: what the model says, how many texts the program returns
PLAYED = {
    "litellm": ([CALL] + [SHORT] * 5, 5),
    "openai_agents": (LOOP * 2, 2),
    "langgraph": (LOOP * 3, 3),
    "llama_index": ([SHORT] * 2, 2),
    "smolagents": ([CALL, FINAL], 1),
    "dspy": ([DSPY], 1),
    "llm": ([SHORT] + LOOP, 2),
    "haystack": (LOOP, 1),
    "strands": (LOOP, 1),
    "pydantic_ai": (LOOP * 3, 3),
}


def use(program, url, folder):
    """Runs a program of client_programs.py, which must end with success; returns what it printed."""
    python = os.path.join(f"{sys.prefix}-clients", "bin", "python")
    if not os.path.exists(python):
        pytest.skip("make venv-clients installs the clients")
    quiet = {"HOME": folder, "LLM_USER_PATH": folder, "LITELLM_LOCAL_MODEL_COST_MAP": "True", "HAYSTACK_TELEMETRY_ENABLED": "False",
             "DSPY_CACHEDIR": folder, "OTEL_SDK_DISABLED": "true", "HF_HUB_OFFLINE": "1"}
    done = run([python, os.path.join(os.path.dirname(__file__), "client_programs.py"), program, url], 300, cwd=folder, stdout=subprocess.PIPE,
               stderr=subprocess.PIPE, capture_output=False, env={**os.environ, **quiet})
    assert done.returncode == 0, (done.stdout, done.stderr[-4000:])
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("program", PLAYED)
def test_client(program, tmp_path):
    answers, count = PLAYED[program]
    with Played(template=TEMPLATES["hermes"]) as played:
        played.answer(*answers)
        got = use(program, played.url, str(tmp_path))
        assert got["texts"] == [SHORT] * count
        assert got.get("call", [WEATHER, {"city": "Aix", "days": 3}]) == [WEATHER, {"city": "Aix", "days": 3}]
        if CALL in answers[:-1] and program != "litellm":  # the tool's answer has reached the model
            assert "Aix: sunny for 3" in played.prompt()


@pytest.mark.parametrize("program, count", [("instructor", 2), ("pydantic_ai_people", 2)])
def test_structured_answers(real_mesh, program, count, tmp_path):
    """What a program gets has the type that it asked for: its library checks that."""
    people = use(program, real_mesh.url, str(tmp_path))["people"]
    assert len(people) == count and all(set(one) == {"name", "age"} for one in people)


def test_embeddings_in_large_pieces(tmp_path):
    with Mesh("--kv-workers", 0, "--pooling", "mean") as mesh:
        got = use("langchain_embeddings", mesh.url, str(tmp_path))
    assert got == {"counts": [300, 300], "same": True}


def test_wrong_key(tmp_path):
    (tmp_path / "keys").touch(0o600)
    (tmp_path / "keys").write_text("right\n")
    with Played("--api-key-file", tmp_path / "keys") as played:
        assert use("litellm_wrong_key", played.url, str(tmp_path)) == {"error": "AuthenticationError"}
