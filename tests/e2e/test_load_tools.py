"""Load generators and evaluators that others wrote, unmodified, against the default model: they end with success, and none of their requests fails.

Each has a Python environment of its own (`make venv-load`). They find nothing but the mesh: tokenizer and questions lie in folders."""
import glob
import json
import os
import subprocess
import sys

import pytest

import tokenizer_folder
from api_client import post
from conftest import MODEL, run, seconds

pytestmark = pytest.mark.full

QUESTIONS = [{"question": "The sky is", "choices": [" blue", " wood"], "answer": 0},
             {"question": "Water is", "choices": [" square", " wet"], "answer": 1},
             {"question": "Two and two are", "choices": [" four", " nine"], "answer": 0}]
CHOICE = {"output_type": "multiple_choice", "doc_to_choice": "{{choices}}", "doc_to_target": "{{answer}}", "target_delimiter": "",
          "metric_list": [{"metric": "acc"}]}
GENERATE = {"output_type": "generate_until", "doc_to_target": "{{choices[answer]}}", "metric_list": [{"metric": "exact_match"}],
            "generation_kwargs": {"until": ["\n"], "max_gen_toks": 8, "do_sample": False}}


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    return tokenizer_folder.write(MODEL, str(tmp_path_factory.mktemp("tokenizer")))


def tool(package, program):
    """Its path in the environment of its package."""
    path = os.path.join(f"{sys.prefix}-{package}", "bin", program)
    return path if os.path.exists(path) else pytest.skip(f"make venv-load installs {package}")


def use(command, folder, **variables):
    """Runs it to its end, which must be a success. variables: of its environment."""
    done = run(command, 900, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, capture_output=False,
               env=dict(os.environ, HF_HOME=str(folder), HOME=str(folder), NO_COLOR="1", DO_NOT_TRACK="1", **variables))
    assert done.returncode == 0, done.stdout[-6000:]
    return done.stdout


def lines(path):
    with open(path, encoding="utf-8") as file:
        return [json.loads(line) for line in file]


def test_aiperf(real_mesh, tokenizer, tmp_path):
    requests = 10
    output = use([tool("aiperf", "aiperf"), "profile", "--model", "default", "--url", real_mesh.url, "--endpoint-type", "chat", "--streaming",
                  "--tokenizer", tokenizer, "--concurrency", 4, "--request-count", requests, "--synthetic-input-tokens-mean", 40,
                  "--output-tokens-mean", 12, "--extra-inputs", "ignore_eos:true", "--artifact-dir", tmp_path / "out", "--ui", "none",
                  "--no-gpu-telemetry", "--request-timeout-seconds", seconds(300), "--random-seed", 1], tmp_path)
    records = lines(tmp_path / "out" / "profile_export.jsonl")
    assert len(records) == requests and not [record for record in records if record.get("error")], output[-3000:]
    for record in records:  # the usage that the server told: it says which
        assert record["metrics"]["usage_completion_tokens"]["value"] == 12, record


def test_guidellm(real_mesh, tokenizer, tmp_path):
    output = use([tool("guidellm", "guidellm"), "benchmark", "run", "--target", real_mesh.url, "--processor", tokenizer,
                  "--data", "prompt_tokens=40,output_tokens=12", "--rate-type", "concurrent", "--rate", 4, "--max-requests", 10,
                  "--backend-args", json.dumps({"timeout": seconds(300)}), "--output-path", tmp_path / "out.json", "--disable-progress",
                  "--random-seed", 1], tmp_path)
    (found,) = json.loads((tmp_path / "out.json").read_text())["benchmarks"]
    requests = found["requests"]
    assert len(requests["successful"]) == 10 and not requests["errored"] and not requests["incomplete"], output[-3000:]
    assert all(request["output_tokens"] == 12 for request in requests["successful"]), requests["successful"]


def write_task(folder, name, task):
    questions = folder / "questions.jsonl"
    questions.write_text("".join(json.dumps(question) + "\n" for question in QUESTIONS), encoding="utf-8")
    content = {"task": name, "dataset_path": "json", "dataset_kwargs": {"data_files": {"test": str(questions)}}, "test_split": "test",
               "doc_to_text": "{{question}}", **task}
    (folder / f"{name}.yaml").write_text(json.dumps(content), encoding="utf-8")  # JSON is YAML


def evaluate(folder, kind, url, names, *options, **model):
    """{name: the samples that lm-eval writes}"""
    settings = {"model": "default", "base_url": url, "num_concurrent": 2, "max_retries": 1, "timeout": seconds(300), **model}
    use([tool("lm-eval", "lm_eval"), "run", "--model", kind, "--tasks", ",".join(names), "--include_path", folder, "--output_path", folder / "out",
         "--log_samples", "--model_args", ",".join(f"{key}={value}" for key, value in settings.items()), *options], folder,
        HF_HUB_OFFLINE="1", HF_DATASETS_OFFLINE="1")
    return {name: lines(glob.glob(str(folder / "out" / "**" / f"samples_{name}_*.jsonl"), recursive=True)[0]) for name in names}


def own_logprob(mesh, context, text):
    """Of a text behind a context, both given as texts: what echo says of its tokens."""
    answer = post(mesh, "/v1/completions", {"prompt": context + text, "max_tokens": 1, "echo": True, "logprobs": 1, "temperature": 0})
    told = answer["choices"][0]["logprobs"]
    return sum(value for value, at in zip(told["token_logprobs"], told["text_offset"]) if len(context) <= at < len(context + text))


def test_lm_eval_completions(real_mesh, tokenizer, tmp_path):
    write_task(tmp_path, "fd_choice", CHOICE)
    write_task(tmp_path, "fd_generate", GENERATE)
    samples = evaluate(tmp_path, "local-completions", real_mesh.url + "/v1/completions", ("fd_choice", "fd_generate"), tokenizer_backend="huggingface",
                       tokenizer=tokenizer)
    assert len(samples["fd_choice"]) == len(samples["fd_generate"]) == len(QUESTIONS)
    for sample in samples["fd_choice"]:  # it sends token ids of its own tokenizer, with echo
        for arguments, (answer,) in zip(sample["arguments"].values(), sample["resps"]):
            assert float(answer[0]) == pytest.approx(own_logprob(real_mesh, arguments["arg_0"], arguments["arg_1"]), abs=1e-3), sample
    assert all(sample["resps"][0][0] for sample in samples["fd_generate"])


def test_lm_eval_chat(real_mesh, tmp_path):
    write_task(tmp_path, "fd_generate", GENERATE)
    samples = evaluate(tmp_path, "local-chat-completions", real_mesh.url + "/v1/chat/completions", ("fd_generate",), "--apply_chat_template")
    assert len(samples["fd_generate"]) == len(QUESTIONS) and all(sample["resps"][0][0] for sample in samples["fd_generate"])
