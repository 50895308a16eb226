"""`fastdecode chat` against a running mesh: an answer, and what the mesh has to say where there is none."""
from conftest import fastdecode


def talk(mesh, *options):
    return fastdecode("chat", "--url", mesh.url, *options, input="Say hello.\n", timeout=60)


def test_an_answer(real_mesh):
    said = talk(real_mesh, "--max-tokens", "8", "--temperature", "0")
    assert said.returncode == 0 and said.stdout.strip() and not said.stderr


def test_a_refusal_is_shown(mesh):
    said = talk(mesh, "--model", "nobody")
    assert said.returncode == 2 and "The model 'nobody' does not exist" in said.stderr
