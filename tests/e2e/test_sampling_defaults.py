"""How requests are sampled that do not say: as --sampling says, else as the model's file does, else as the APIs document; in all forms of the API alike.

What the gateway asks of the scheduler is looked at, so that the numbers are seen themselves.
"""
import os
import struct
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

import tiny_model
from api_client import post
from conftest import BUILD, MODEL, ROOT, fastdecode, run, tiny
from played_scheduler import Played
from rpc_client import decode, one

sys.path.insert(0, f"{ROOT}/tests/golden")
import weights  # noqa: E402

ASK = [{"role": "user", "content": "Hi"}]
FORMS = {"/v1/chat/completions": {"messages": ASK}, "/v1/completions": {"prompt": "Hi"}, "/v1/responses": {"input": "Hi"},
         "/v1/messages": {"messages": ASK, "max_tokens": 8}, "/api/chat": {"messages": ASK, "stream": False},
         "/api/generate": {"prompt": "Hi", "stream": False}, "/api/generate, raw": {"prompt": "Hi", "stream": False, "raw": True}}
NUMBERS = {"temperature": 1, "top_k": 2, "top_p": 3, "min_p": 4, "presence_penalty": 5, "repetition_penalty": 7, "typical_p": 20, "xtc_probability": 21}
OWN = {"temperature": 1, "top_k": 0, "top_p": 1, "min_p": 0, "presence_penalty": 0, "repetition_penalty": 1, "typical_p": 0, "xtc_probability": 0}
FLOAT, INT32, STRING = 6, 5, 8
RECOMMENDED = {"temp": (FLOAT, 0.6), "top_k": (INT32, 20), "top_p": (FLOAT, 0.95), "min_p": (FLOAT, 0.02), "penalty_repeat": (FLOAT, 1.1),
               "xtc_probability": (FLOAT, 0.25), "mirostat": (INT32, 2)}
OF_FILE = {**OWN, "temperature": 0.6, "top_k": 20, "top_p": 0.95, "min_p": 0.02, "repetition_penalty": 1.1, "xtc_probability": 0.25}


def gguf(folder, recommended):
    """The small model with general.sampling.* keys, {name: (type, value)}."""
    forms = {FLOAT: "<If", INT32: "<Ii"}
    keys = [tiny_model.text(f"general.sampling.{name}") +
            (struct.pack(forms[kind], kind, value) if kind != STRING else struct.pack("<I", STRING) + tiny_model.text(value))
            for name, (kind, value) in recommended.items()]
    path = str(folder / "model.gguf")
    tiny_model.write(path, MODEL, more=keys)
    return path


def sampled(played, form, **more):
    """{name: number} of a request in that form, as the scheduler gets it."""
    played.answer("Well.")
    post(played, form.split(",")[0], {"model": "default", **FORMS[form], **more})
    return last_sampled(played)


def last_sampled(played):
    got = decode(one(played.scheduler.requests[-1], 3))
    return {name: round(one(got, number) if name == "top_k" else struct.unpack("<f", struct.pack("<I", one(got, number)))[0], 6)
            for name, number in NUMBERS.items()}


def asked_for(form, **fields):
    return {"options": {{"repetition_penalty": "repeat_penalty"}.get(k, k): v for k, v in fields.items()}} if form.startswith("/api") else fields


def test_the_apis_own():
    with Played() as played:
        assert {form: sampled(played, form) for form in FORMS} == {form: OWN for form in FORMS}
        assert post(played, "/api/show", {"model": "default"})["parameters"] == ""


def test_a_file_says(tmp_path):
    with Played(model=gguf(tmp_path, RECOMMENDED)) as played:
        assert {form: sampled(played, form) for form in FORMS} == {form: OF_FILE for form in FORMS}
        assert "SAMPLING-DEFAULTS temperature=0.6 top_p=0.95 min_p=0.02 top_k=20 repetition_penalty=1.1 xtc_probability=0.25" in played.log()


def test_the_option_says_more_than_the_file_and_a_request_more_than_both(tmp_path):
    with Played("--sampling", "temperature=0.2,top_p=0.9,presence_penalty=-0.5", model=gguf(tmp_path, RECOMMENDED)) as played:
        wanted = {**OF_FILE, "temperature": 0.2, "top_p": 0.9, "presence_penalty": -0.5}
        assert {form: sampled(played, form) for form in FORMS} == {form: wanted for form in FORMS}
        for form in FORMS:
            asked = sampled(played, form, **asked_for(form, temperature=0.7))
            assert asked == {**wanted, "temperature": 0.7}, form
            asked = sampled(played, form, **asked_for(form, temperature=1, top_p=1))
            assert asked == {**wanted, "temperature": 1, "top_p": 1}, form
        null = sampled(played, "/v1/chat/completions", temperature=None)
        assert null == wanted
        assert post(played, "/api/show", {"model": "default"})["parameters"].split("\n") == [
            "temperature 0.2", "top_p 0.9", "min_p 0.02", "top_k 20", "presence_penalty -0.5", "repeat_penalty 1.1", "xtc_probability 0.25"]


def test_an_option_undoes_what_a_file_says(tmp_path):
    with Played("--sampling", "top_k=-1,min_p=0,xtc_probability=0", model=gguf(tmp_path, RECOMMENDED)) as played:
        assert sampled(played, "/api/chat") == {**OF_FILE, "top_k": 0, "min_p": 0, "xtc_probability": 0}


@pytest.mark.parametrize("config, wanted", [
    ({"do_sample": True, "temperature": 0.6, "top_k": 20, "top_p": 0.95, "min_p": 0.02, "typical_p": 0.8, "repetition_penalty": 1.1},
     {"temperature": 0.6, "top_k": 20, "top_p": 0.95, "min_p": 0.02, "typical_p": 0.8, "repetition_penalty": 1.1}),
    ({"temperature": 0.6, "top_k": 20, "repetition_penalty": 1.1}, {"repetition_penalty": 1.1}),  # transformers reads no more of it then
    ({"do_sample": True, "temperature": None, "top_p": 0.5}, {"top_p": 0.5})])
def test_a_directory_says(tmp_path, config, wanted):
    folder = str(tmp_path / "model")
    weights.write(folder, "qwen2")
    weights.write_json(folder, "generation_config.json", config)
    with Played(model=folder) as played:
        assert sampled(played, "/v1/completions") == {**OWN, **wanted}
        assert "DEFAULT-IGNORED" not in played.log()


BAD = {"temp": (FLOAT, 1e9), "top_k": (INT32, -7), "top_p": (FLOAT, -1), "min_p": (FLOAT, float("nan")), "penalty_repeat": (STRING, "much"),
       "xtc_probability": (FLOAT, float("-inf")), "xtc_threshold": (INT32, 3)}


def test_what_a_file_must_not_say(tmp_path):
    """Each is left out with a line that names it; the others hold."""
    with Played(model=gguf(tmp_path, BAD)) as played:
        assert sampled(played, "/v1/completions") == OWN
        lines = [line for line in played.log().splitlines() if "DEFAULT-IGNORED" in line]
        assert [key for key in BAD if sum(f"key=general.sampling.{key} why=" in line for line in lines) == 1] == list(BAD), lines
        assert "'temperature' must be a number at least 0 and at most 2, not 1e+09" in played.log()


def test_what_a_directory_must_not_say(tmp_path):
    folder = str(tmp_path / "model")
    weights.write(folder, "qwen2")
    bad = {"temperature": 1e300, "top_k": -3, "top_p": "0.9", "min_p": 2, "typical_p": [], "repetition_penalty": 0}
    weights.write_json(folder, "generation_config.json", {"do_sample": True, **bad})
    with Played(model=folder) as played:
        assert sampled(played, "/v1/completions") == OWN
        names = {"min_p": "general.sampling.min_p", "repetition_penalty": "general.sampling.penalty_repeat"}
        for name in bad:
            assert f"key={names.get(name, name)} why=" in played.log(), name


@pytest.mark.parametrize("given, says", [
    ("temperature=5", "--sampling temperature=5: 'temperature' must be a number at least 0 and at most 2, not 5"),
    ("top_p=0.9,top_p=-1", "'top_p' must be a number at least 0 and at most 1, not -1"), ("top_k=-2", "'top_k' must be an integer from -1 to"),
    ("top_k=1.5", "--sampling top_k=1.5: 'top_k' must be an integer"), ("warmth=1", "there is no 'warmth', there are temperature, top_p"),
    ("max_tokens=1", "there is no 'max_tokens'"), ("seed=1", "there is no 'seed'"), ("temperature", "'temperature' is no NAME=VALUE"),
    ("temperature=", "'temperature' is '', want a number"), ("temperature=nan", "'temperature' is 'nan', want a number"),
    ("temperature=1,", "'' is no NAME=VALUE"), ("=1", "'=1' is no NAME=VALUE"), ("temperature=-1e999", "'temperature' is not a number")])
def test_what_is_refused(given, says):
    refused = run([f"{BUILD}/bin/gateway", "--model", tiny(), "--scheduler", "ipc:///none", "--sampling", given, "--check"])
    assert refused.returncode == 2 and says in refused.stderr, refused


def test_up_passes_it_on(start_mesh):
    refused = fastdecode("up", "--model", tiny(), "--check", "--sampling", "temperature=5")
    assert refused.returncode == 2 and "'temperature' must be a number at least 0 and at most 2, not 5" in refused.stderr
    mesh = start_mesh("--kv-workers", 0, "--sampling", "temperature=0")
    asked = {"model": "default", "prompt": "Rivers", "max_tokens": 24}
    said = [mesh.post("/v1/completions", {**asked, **more})["choices"][0]["text"] for more in ({}, {}, {"temperature": 0}, {"temperature": 2})]
    assert said[0] == said[1] == said[2] != said[3]


def test_chat_leaves_it_to_the_server():
    """`fastdecode chat`, unless it is told; test_pages.py has the page."""
    with Played("--sampling", "temperature=0.3") as played:
        for options, wanted in (((), {"temperature": 0.3}), (("--temperature", 0, "--min-p", 0.25), {"temperature": 0, "min_p": 0.25})):
            played.answer("Well.")
            said = fastdecode("chat", "--url", played.url, *options, input="Hi\n")
            assert said.returncode == 0 and "Well." in said.stdout, said
            assert last_sampled(played) == {**OWN, **wanted}


SUITS = "temperature=0.2,top_p=0.3,frequency_penalty=0.5"


def test_make_serve_has_what_suits_the_default_model():
    """And leaves it to another model's file. What ARGS says comes later, and holds."""
    def command(*words):
        return run(["make", "-n", "serve", *words], cwd=ROOT).stdout

    assert f"SmolLM2-135M-Instruct.Q4_1.gguf --sampling {SUITS} --sampling top_p=1" in command("MODEL=models/SmolLM2-135M-Instruct.Q4_1.gguf", "ARGS=--sampling top_p=1")
    assert "--sampling" not in command("MODEL=other.gguf")


POEM, FRANCE, IS_PARIS = "Write a short poem about the sea.", "What is the capital of France?", "The capital of France is Paris."
GREETED = ["Hi", "Hello! How can I help you today?"]


def in_a_loop(answer, last=60, longest=30):
    """Whether its last tokens are one unit again and again."""
    end = [token["token"] for token in answer["logprobs"]["content"]][-last:]
    return len(end) == last and any(end[unit:] == end[:-unit] for unit in range(1, longest + 1))


@pytest.mark.skipif(not os.path.basename(MODEL).startswith("SmolLM2-135M-Instruct.Q4_1"), reason="of the default model")
def test_the_default_model_knows_paris_and_writes_poems_that_end(start_mesh):
    """As make serve has it, with several seeds, alone and late in a chat. Texts differ between kernels, so that of poems one may go on."""
    mesh = start_mesh("--sampling", SUITS, model=MODEL)

    def answer(turns, seed):
        messages = [{"role": ("user", "assistant")[i % 2], "content": text} for i, text in enumerate(turns)]
        return mesh.post("/v1/chat/completions", {"model": "default", "messages": messages, "seed": seed, "max_tokens": 400, "logprobs": True})["choices"][0]

    def answers(*conversations):
        with ThreadPoolExecutor(16) as pool:
            return list(pool.map(answer, [turns for turns in conversations for _ in range(4)], [1, 2, 3, 4] * len(conversations)))

    said = answers([FRANCE], [*GREETED, FRANCE])
    assert all("Paris" in one["message"]["content"] for one in said), said
    poems = answers([POEM], [*GREETED, FRANCE, IS_PARIS, POEM], ["Write a poem about autumn."], ["Write a poem about my cat."])
    assert not any(in_a_loop(poem) for poem in poems), poems
    assert sum(poem["finish_reason"] == "stop" for poem in poems) >= 15, poems
