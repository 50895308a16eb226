"""Embeddings and ranks beside `transformers` (tests/golden/embeddings.json, which embeddings_make.py wrote), with tiny models of both kinds of file,
in chunks of several sizes, at places of all kinds; the official client; what is refused; a worker that is killed meanwhile."""
import base64
import json
import math
import os
import struct
import sys
import threading
import urllib.error
import urllib.request

import ollama
import openai
import pytest

from conftest import BUILD, PACED, ROOT, SANITIZED, Mesh, fastdecode, seconds, wait_until

sys.path.insert(0, os.path.join(ROOT, "tests", "golden"))

import to_gguf  # noqa: E402  pylint: disable=wrong-import-position
import weights  # noqa: E402  pylint: disable=wrong-import-position

with open(os.path.join(ROOT, "tests", "golden", "embeddings.json"), encoding="utf-8") as golden_file:
    GOLDEN = json.load(golden_file)

INPUTS = GOLDEN["inputs"]
LIMIT = 1e-4
MODES = {"mean": "pooling_mode_mean_tokens", "cls": "pooling_mode_cls_token", "last": "pooling_mode_lasttoken"}
EXACT = ("--compute", "f32", "--kv-type", "f32", "--kv-memory", "32M")
FOLDER = os.path.join(BUILD, "tests", "embeddings")


def once(name, make):
    """A folder that is made once a build."""
    path = os.path.join(FOLDER, name)
    if not os.path.exists(path):
        os.makedirs(FOLDER, exist_ok=True)
        make(path + ".part")
        os.rename(path + ".part", path)
    return path


def put_modules(folder, mode, normalize=True):
    """The files of sentence-transformers."""
    kinds = ["Transformer", "Pooling"] + ["Normalize"] * normalize
    weights.write_json(folder, "modules.json", [
        {"idx": i, "name": str(i), "path": f"{i}_{kind}" if i else "", "type": f"sentence_transformers.models.{kind}"} for i, kind in enumerate(kinds)])
    os.makedirs(os.path.join(folder, "1_Pooling"), exist_ok=True)
    weights.write_json(os.path.join(folder, "1_Pooling"), "config.json",
                       {"word_embedding_dimension": 64, **{own: own == MODES[mode] for own in MODES.values()}})


def strip_prefix(folder):
    """As a model is saved without what generates: no lm_head, no prefix."""
    path = os.path.join(folder, "model.safetensors")
    with open(path, "rb") as file:
        data = file.read()
    begin = 8 + int.from_bytes(data[:8], "little")
    header, body = {}, b""
    for name, entry in json.loads(data[8:begin]).items():
        if name.startswith("model."):
            first, last = entry["data_offsets"]
            header[name.removeprefix("model.")] = {**entry, "data_offsets": [len(body), len(body) + last - first]}
            body += data[begin + first:begin + last]
    text = json.dumps(header).encode()
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text + body)


def embedder(name, mode, bare=False, normalize=True):
    def make(folder):
        weights.write(folder, name)
        put_modules(folder, mode, normalize)
        if bare:
            strip_prefix(folder)
            config = weights.golden(name)["config"]
            weights.write_json(folder, "config.json", dict(config, architectures=[config["architectures"][0].replace("ForCausalLM", "Model")]))
    return once(f"{name}-{mode}{'-bare' * bare}{'' if normalize else '-as-is'}", make)


def reranker(labels, folder_name="ranks", **config):
    def make(folder):
        what = dict(weights.golden(GOLDEN["rank"]["model"]))
        what["config"] = {**what["config"], "architectures": ["Qwen3ForSequenceClassification"], "num_labels": labels, **config}
        what["tensors"] = [tensor for tensor in what["tensors"] if tensor[0] != "lm_head.weight"] + [["score.weight", [labels, 64]]]
        weights.write(folder, what)
    return once(f"{folder_name}-{labels}", make)


def as_gguf(folder):
    path = folder + ".gguf"
    if not os.path.exists(path):
        to_gguf.convert(folder, path + ".part")
        os.replace(path + ".part", path)
    return path


def embed(mesh, inputs=None, **fields):
    """The vectors of an answer, in order."""
    reply = mesh.post("/v1/embeddings", {"model": "default", "input": INPUTS if inputs is None else inputs, **fields})
    assert reply["object"] == "list" and [item["index"] for item in reply["data"]] == list(range(len(reply["data"])))
    return [item["embedding"] for item in reply["data"]]


def check(found, wanted, limit=LIMIT):
    for own, other in zip(found, wanted, strict=True):
        apart = max(abs(a - b) for a, b in zip(own, other, strict=True))
        cosine = sum(a * b for a, b in zip(own, other)) / math.hypot(*own) / math.hypot(*other)
        assert apart <= limit and 1 - cosine <= limit, (apart, cosine)
    assert len(found) == len(wanted)


# (model, mode, how it is stored, options)
PLACES = [
    ("qwen3", "mean", "bare", ("--chunk", 16, "--kv-workers", 1, "--local-pool", 0)),
    ("llama", "last", "gguf", ("--chunk", 1, "--kv-workers", 0)),
    ("qwen3", "last", "folder", ("--chunk", 64, "--kv-workers", 2, "--local-pool", 0)),
    ("llama", "mean", "flag", ("--chunk", 64, "--kv-workers", 0)),
    ("qwen3", "cls", "gguf", ("--chunk", 16, "--kv-workers", 0, "--s-parts", 2)),
    ("llama", "mean", "gguf", ("--chunk", 1, "--kv-workers", 1, "--local-pool", 0, "--s-parts", 2)),
]


@pytest.mark.parametrize("name,mode,form,options", PLACES)
def test_vectors(start_mesh, name, mode, form, options):
    folder = embedder(name, mode, bare=form == "bare")
    if form == "flag":  # a file that does not say how it pools
        options = (*options, "--pooling", mode)
        folder = once(name, lambda path: weights.write(path, name))
    mesh = start_mesh(*EXACT, *options, model=as_gguf(folder) if form in ("gguf", "flag") else folder)
    check(embed(mesh), GOLDEN["vectors"][name][mode])
    check([embed(mesh, [tokens])[0] for tokens in INPUTS], GOLDEN["vectors"][name][mode])  # KV of some may be held by now


@pytest.mark.skipif(SANITIZED, reason="the emulated device switches stacks, which sanitizers do not follow")
def test_device(start_mesh):
    """A device computes in f16."""
    mesh = start_mesh("--device", "cuda", "--kv-workers", 0, "--chunk", 32, model=embedder("llama", "mean"),
                      env={"FD_CUDA_LIBRARY": os.path.join(BUILD, "tests", "cuda", "libfastdecode-cuda.so")})
    check(embed(mesh), GOLDEN["vectors"]["llama"]["mean"], 0.02)


def test_same_bytes(start_mesh):
    """Bytes do not depend on chunks, workers, stages, or what runs beside it; not even of vectors that are not scaled."""
    wanted = None
    for options in (("--chunk", 64, "--kv-workers", 0), ("--chunk", 1, "--kv-workers", 1, "--local-pool", 0),
                    ("--chunk", 16, "--kv-workers", 2, "--local-pool", 0, "--s-parts", 2)):
        mesh = start_mesh("--quantize", 8, "--kv-memory", "32M", *options, model=embedder("llama", "mean", normalize=False))
        found = [embed(mesh), [embed(mesh, [tokens])[0] for tokens in reversed(INPUTS)][::-1]]
        wanted = wanted or found[0]
        assert found == [wanted, wanted]
        assert any(abs(math.hypot(*vector) - 1) > 0.01 for vector in wanted), "these are not to be scaled"
        mesh.stop()


@pytest.fixture(scope="module")
def served():
    with Mesh(*EXACT, "--kv-workers", 0, model=embedder("qwen3", "last")) as running:
        yield running


def test_official_client(served):
    client = openai.OpenAI(base_url=served.url + "/v1", api_key="none", max_retries=0)
    texts = ["The weather in the city", "A second text"]
    numbers = client.embeddings.create(model="default", input=texts, encoding_format="float")
    coded = client.embeddings.create(model="default", input=texts, encoding_format="base64")
    usual = client.embeddings.create(model="default", input=texts, user="somebody")  # the client asks for base64 and decodes it
    raw = [list(struct.unpack("<64f", base64.b64decode(item.embedding))) if isinstance(item.embedding, str) else item.embedding for item in coded.data]
    single = [list(struct.unpack("<64f", struct.pack("<64f", *item.embedding))) for item in numbers.data]
    assert [item.index for item in numbers.data] == [0, 1] and single == raw == [list(item.embedding) for item in usual.data]
    assert all(abs(math.hypot(*vector) - 1) < 1e-6 for vector in raw)
    tokens = [served.post("/tokenize", {"prompt": text})["tokens"] for text in texts]
    assert [item.embedding for item in client.embeddings.create(model="default", input=tokens, encoding_format="float").data] == [
        item.embedding for item in numbers.data], "ids of a text are the text"
    assert numbers.usage.prompt_tokens == numbers.usage.total_tokens == sum(map(len, tokens))
    one = client.embeddings.create(model="default", input=texts[0], encoding_format="float", dimensions=16).data
    scale = math.hypot(*numbers.data[0].embedding[:16])
    assert len(one) == 1 and len(one[0].embedding) == 16
    assert all(abs(a - b / scale) < 1e-6 for a, b in zip(one[0].embedding, numbers.data[0].embedding))
    with pytest.raises(openai.BadRequestError) as refused:
        client.embeddings.create(model="default", input="a", dimensions=65)
    assert refused.value.param == "dimensions"


def test_ollama_client(served, start_mesh):
    client = ollama.Client(host=served.url, timeout=seconds(60))
    texts = ["The weather in the city", "A second text"]
    wanted = embed(served, texts)
    reply = client.embed(model="default:latest", input=texts, keep_alive="5m", options={"num_ctx": 512})
    check(reply.embeddings, wanted, 1e-6)
    assert reply.prompt_eval_count == sum(len(served.post("/tokenize", {"prompt": text})["tokens"]) for text in texts)
    assert client.show("default").capabilities == ["embedding"]
    assert reply.total_duration > 0 and reply.load_duration == 0 and reply.model
    check(client.embed(model="default", input=texts[0], dimensions=16).embeddings, embed(served, texts[:1], dimensions=16), 1e-6)
    check([client.embeddings(model="default", prompt=texts[0]).embedding], wanted[:1], 1e-6)
    assert [list(client.embed(model="default", input=nothing).embeddings) for nothing in ("", [])] == [[], []]
    assert served.post("/api/embed", {"model": "default"})["embeddings"] == [] and served.post("/api/embeddings", {"model": "default"})["embedding"] == []
    long = "word " * 3000
    tokens = served.post("/tokenize", {"prompt": long})["tokens"]
    check(client.embed(model="default", input=long).embeddings, embed(served, [tokens[:1024]]), 1e-6)
    for ask, status, words in ((lambda: client.embed(model="default", input=long, truncate=False), 400, "input length exceeds the context length"),
                               (lambda: client.embed(model="default", input="x", dimensions=65), 400, "dimensions"),
                               (lambda: client.embed(model="gpt-17", input="x"), 404, "model 'gpt-17' not found"),
                               (lambda: client.embed(model="default", input=["x"] * 2049), 400, "at most 2048")):
        with pytest.raises(ollama.ResponseError, match=words) as caught:
            ask()
        assert caught.value.status_code == status
    mesh = start_mesh(*EXACT, "--kv-workers", 0, model=embedder("llama", "mean", normalize=False))
    client = ollama.Client(host=mesh.url, timeout=seconds(60))
    own, scaled = client.embeddings(model="default", prompt="a text").embedding, client.embed(model="default", input="a text").embeddings[0]
    check([own], embed(mesh, ["a text"]), 1e-6)
    check([scaled], [[value / math.hypot(*own) for value in own]], 1e-6)
    begin, both = mesh.post("/tokenize", {"prompt": ""})["tokens"], client.embed(model="default", input=["a text", ""]).embeddings
    empty = embed(mesh, [begin])[0]
    check(both, [scaled, [value / math.hypot(*empty) for value in empty]], 1e-6)  # the empty text is what the tokenizer puts around one
    with pytest.raises(ollama.ResponseError, match="'input' has a text without tokens"):  # of this one nothing
        ollama.Client(host=served.url, timeout=seconds(60)).embed(model="default", input=["a text", ""])


def test_batches(start_mesh, tmp_path):
    """A batch has the vectors that requests have, to the byte where products promise that: over the API and from the command line. What is refused has
    its own line."""
    served = start_mesh("--quantize", 8, "--kv-workers", 0, "--batch-dir", tmp_path / "batches", model=embedder("qwen3", "last"))
    texts = [f"text {i}" for i in range(12)]
    lines = [{"custom_id": text, "method": "POST", "url": "/v1/embeddings", "body": {"input": text}} for text in texts]
    lines.append({**lines[0], "custom_id": "bad", "body": {"input": []}})
    data = "\n".join(map(json.dumps, lines)).encode()
    client = openai.OpenAI(base_url=served.url + "/v1", api_key="none", max_retries=0)
    batch = client.batches.create(input_file_id=client.files.create(file=("in.jsonl", data), purpose="batch").id, endpoint="/v1/embeddings",
                                  completion_window="24h")
    wait_until(lambda: client.batches.retrieve(batch.id).status == "completed", 60, lambda: client.batches.retrieve(batch.id))
    batch = client.batches.retrieve(batch.id)
    assert (batch.request_counts.completed, batch.request_counts.failed) == (12, 1)
    (tmp_path / "in.jsonl").write_bytes(data)
    fastdecode("batch", tmp_path / "in.jsonl", tmp_path / "out.jsonl", "--url", served.url)
    for output in (client.files.content(batch.output_file_id).text, (tmp_path / "out.jsonl").read_text()):
        found = {result["custom_id"]: result["response"] for result in map(json.loads, output.splitlines())}
        assert found.pop("bad", {"status_code": 400})["status_code"] == 400
        assert {text: response["body"]["data"][0]["embedding"] for text, response in found.items()} == dict(zip(texts, embed(served, texts)))


def refused(mesh, path, body):
    """(status, parameter, message) of an answer that is an error."""
    request = urllib.request.Request(mesh.url + path, json.dumps(body).encode(), {"Content-Type": "application/json"})
    with pytest.raises(urllib.error.HTTPError) as caught:
        urllib.request.urlopen(request, timeout=seconds(30))
    error = json.loads(caught.value.read())["error"]
    return caught.value.code, error["param"], error["message"]


@pytest.mark.parametrize("body,param", [
    ({}, "input"),
    ({"input": None}, "input"),
    ({"input": []}, "input"),
    ({"input": 5}, "input"),
    ({"input": {"text": "a"}}, "input"),
    ({"input": ["a", 5]}, "input[1]"),
    ({"input": ["a", ["b"]]}, "input[1]"),
    ({"input": [[1], [2.5]]}, "input[1][0]"),
    ({"input": [1, 320]}, "input[1]"),
    ({"input": [[1], []]}, "input"),
    ({"input": ["a"] * 2049}, "input"),
    ({"input": [7] * 1025}, "input"),
    ({"input": "word " * 3000}, "input"),
    ({"input": "a", "encoding_format": "hex"}, "encoding_format"),
    ({"input": "a", "encoding_format": 1}, "encoding_format"),
    ({"input": "a", "dimensions": 0}, "dimensions"),
    ({"input": "a", "dimensions": 65}, "dimensions"),
    ({"input": "a", "dimensions": "8"}, "dimensions"),
    ({"input": "a", "truncate_prompt_tokens": 5}, "truncate_prompt_tokens"),
])
def test_refused(served, body, param):
    status, found, message = refused(served, "/v1/embeddings", {"model": "default", **body})
    assert (status, found) == (400, param) and message


def test_refused_by_the_model(served, mesh):
    assert refused(served, "/v1/rerank", {"query": "a", "documents": ["b"]})[:2] == (400, "model")
    status, param, message = refused(mesh, "/v1/embeddings", {"input": "a"})
    assert (status, param) == (400, "model") and "--pooling" in message
    assert refused(served, "/v1/embeddings", {"model": "another", "input": "a"})[0] == 404
    assert served.post("/v1/completions", {"prompt": "a", "max_tokens": 2})["choices"], "the model still answers"


def rank_of(labels, outputs):
    logit = outputs if labels == 1 else outputs[1] - outputs[0]
    return 1 / (1 + math.exp(-logit))


@pytest.mark.parametrize("labels,form,options", [(1, "folder", ("--kv-workers", 0, "--chunk", 16)), (2, "gguf", ("--kv-workers", 1, "--s-parts", 2)),
                                                 (2, "folder", ("--kv-workers", 0,))])
def test_ranks(start_mesh, labels, form, options):
    """Documents whose tokens, behind those of the query, are the inputs of the golden file."""
    extra = {"id2label": {"0": "no", "1": "yes"}} if labels == 2 else {}
    folder = reranker(labels, **extra)
    mesh = start_mesh(*EXACT, *options, model=as_gguf(folder) if form == "gguf" else folder)
    texts = [mesh.post("/detokenize", {"tokens": tokens})["prompt"] for tokens in INPUTS]
    wanted = [rank_of(labels, outputs) for outputs in GOLDEN["rank"]["labels"][str(labels)]]
    for text, tokens, score in zip(texts, INPUTS, wanted):
        if mesh.post("/tokenize", {"prompt": text, "add_special_tokens": False})["tokens"] != tokens or len(tokens) < 2:
            continue  # random ids need not be what their text is cut into
        reply = mesh.post("/v1/rerank", {"query": "", "documents": [text]})
        assert abs(reply["results"][0]["relevance_score"] - score) < LIMIT
    reply = mesh.post("/v1/rerank", {"model": "default", "query": "the", "documents": texts})
    scores = [item["relevance_score"] for item in reply["results"]]
    assert scores == sorted(scores, reverse=True) and sorted(item["index"] for item in reply["results"]) == list(range(len(texts)))
    assert all(item["document"]["text"] == texts[item["index"]] for item in reply["results"]) and reply["usage"]["total_tokens"] > 0
    first = mesh.post("/v1/rerank", {"query": "the", "documents": [{"text": text} for text in texts], "top_n": 2, "return_documents": False})
    score_of = {item["index"]: item["relevance_score"] for item in reply["results"]}
    assert len(first["results"]) == 2
    for item, score in zip(first["results"], scores):  # but for the last digits: the class f32 promises no bytes, they depend on what is computed together
        assert set(item) == {"index", "relevance_score"}
        assert abs(item["relevance_score"] - score) < LIMIT and abs(item["relevance_score"] - score_of[item["index"]]) < LIMIT
    for body, param in (({"documents": ["a"]}, "query"), ({"query": 5, "documents": ["a"]}, "query"), ({"query": "a"}, "documents"),
                        ({"query": "a", "documents": []}, "documents"), ({"query": "a", "documents": "b"}, "documents"),
                        ({"query": "a", "documents": ["b", {"title": "c"}]}, "documents[1]"), ({"query": "a", "documents": ["b"], "top_n": 0}, "top_n"),
                        ({"query": "a", "documents": ["b"], "instruction": "c"}, "instruction"),
                        ({"query": "a", "documents": ["b " * 3000]}, "documents")):
        assert refused(mesh, "/v1/rerank", body)[:2] == (400, param), body
    assert len(mesh.post("/v1/rerank", {"query": "the", "documents": ["a"] * 300})["results"]) == 300
    assert refused(mesh, "/v1/rerank", {"query": "the", "documents": ["a"] * 2049})[:2] == (400, "documents")
    assert refused(mesh, "/v1/embeddings", {"input": "a"})[:2] == (400, "model")


def test_ranks_with_words(start_mesh):
    """A reranker without a head, known by its name: the softmax of its tokens "yes" and "no" behind the prompt that was published with it."""
    def make(folder):
        weights.write(folder, "qwen3")
        with open(os.path.join(folder, "tokenizer.json"), encoding="utf-8") as file:
            tokenizer = json.load(file)
        vocabulary = tokenizer["model"]["vocab"]
        for old, new in ((200, "yes"), (201, "no")):  # bytes of no text that is asked here
            vocabulary[new] = vocabulary.pop(next(token for token, i in vocabulary.items() if i == old))
        weights.write_json(folder, "tokenizer.json", tokenizer)
    mesh = start_mesh(*EXACT, "--kv-workers", 0, model=once("Tiny-Reranker", make))
    query, document = "is it warm", "a hot day"
    prompt = ("<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and the Instruct provided. Note that the "
              'answer can only be "yes" or "no".<|im_end|>\n<|im_start|>user\n<Instruct>: Given a web search query, retrieve relevant passages that '
              f"answer the query\n<Query>: {query}\n<Document>: {document}<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n")
    ids = mesh.post("/tokenize", {"prompt": prompt, "add_special_tokens": False})["tokens"]
    scores = [mesh.post("/v1/completions", {"prompt": [*ids, word], "max_tokens": 0, "echo": True, "logprobs": 0})["choices"][0]["logprobs"]
              ["token_logprobs"][-1] for word in (200, 201)]
    found = mesh.post("/v1/rerank", {"query": query, "documents": [document]})
    assert found["usage"]["prompt_tokens"] == len(ids)
    assert abs(found["results"][0]["relevance_score"] - 1 / (1 + math.exp(scores[1] - scores[0]))) < LIMIT
    sly = mesh.post("/v1/rerank", {"query": query, "documents": [document + "<|im_end|>"]})
    assert sly["usage"]["prompt_tokens"] > len(ids) + 4, "a document's text became a special token"


@pytest.mark.parametrize("victim", ["kv-worker-1", "s-part", "scheduler"])
def test_killed(start_mesh, victim):
    """What is killed in the middle of prompts changes no byte: what was summed up is not summed up twice, nor left out."""
    inputs = [[(7 * i + 11 * k) % 300 + 6 for k in range(100 + i)] for i in range(16)]
    mesh = start_mesh("--quantize", 8, "--kv-memory", "32M", "--chunk", 16, "--kv-workers", 2, "--local-pool", 0, model=embedder("qwen3", "mean"), **PACED)
    mesh.wait_metric("fastdecode_place_up", lambda up: up >= 2)
    wanted, found = embed(mesh, inputs), []
    rows = mesh.metric("fastdecode_prefill_tokens_total")
    thread = threading.Thread(target=lambda: found.extend(embed(mesh, inputs)))
    thread.start()
    mesh.wait_metric("fastdecode_prefill_tokens_total", lambda now: now >= rows + 300)
    mesh.kill(victim)
    thread.join(seconds(120))
    assert found == wanted


def test_many_inputs(start_mesh):
    """Clients send hundreds of texts in one request, up to 2,048; the mesh has some of them at a time, so that who asks for one does not wait for all."""
    mesh = start_mesh("--quantize", 8, "--kv-memory", "32M", "--kv-workers", 0, model=embedder("qwen3", "mean"))
    inputs = [[(7 * i + 11 * k) % 300 + 6 for k in range(4 + i % 9)] for i in range(2048)]
    single, found = [embed(mesh, [inputs[i]])[0] for i in (0, 31, 32, 2047)], []
    rows = mesh.metric("fastdecode_prefill_tokens_total")
    thread = threading.Thread(target=lambda: found.extend(embed(mesh, inputs)))
    thread.start()
    mesh.wait_metric("fastdecode_prefill_tokens_total", lambda now: now > rows)
    beside = embed(mesh, [inputs[2047]])[0]
    before_all = thread.is_alive()
    thread.join(seconds(120))
    assert before_all and len(found) == 2048 and beside == single[3]
    assert [found[i] for i in (0, 31, 32, 2047)] == single
    coded = mesh.post("/v1/embeddings", {"input": inputs, "encoding_format": "base64", "dimensions": 16})["data"]
    assert [item["index"] for item in coded] == list(range(2048))


def test_deadline(start_mesh):
    """There is no half of a vector: a request that is not done in time is an error, and the next one is answered."""
    mesh = start_mesh("--quantize", 8, "--kv-memory", "32M", "--chunk", 16, "--kv-workers", 1, "--local-pool", 0, "--request-timeout", seconds(1),
                      model=embedder("qwen3", "mean"), **PACED)
    status, _, message = refused(mesh, "/v1/embeddings", {"input": [[7 + i] * 1000 for i in range(16)]})
    assert status == 504 and "--request-timeout" in message
    mesh.wait_metric("fastdecode_requests_running", lambda running: running == 0)
    assert len(embed(mesh, ["a"])) == 1


def test_prefix(start_mesh):
    """Pages that are held serve the last token's vector; a mean is of rows that were computed for it. Both have the same bytes as without."""
    for mode, cached in (("last", True), ("mean", False)):
        mesh = start_mesh("--quantize", 8, "--kv-workers", 0, model=embedder("qwen3", mode))
        bodies = [{"model": "default", "input": [INPUTS[-1][:count]]} for count in (150, 140)]
        first = [mesh.post("/v1/embeddings", body) for body in bodies]
        again = [mesh.post("/v1/embeddings", body) for body in bodies]
        assert [reply["data"] for reply in first] == [reply["data"] for reply in again]
        assert (again[0]["usage"]["prompt_tokens_details"]["cached_tokens"] > 0) == cached
        salted = mesh.post("/v1/embeddings", {**bodies[0], "cache_salt": "own"})
        assert salted["usage"]["prompt_tokens_details"]["cached_tokens"] == 0 and salted["data"] == first[0]["data"]
        mesh.stop()


def test_an_s_part_that_does_not_pool(start_mesh):
    mesh = start_mesh("--kv-workers", 0, model=embedder("qwen3", "last"), scripts={"s-part": 'exec "$program" "$@" --pooling=none'})
    status, _, message = refused(mesh, "/v1/embeddings", {"input": "a"})
    assert status == 503 and "--pooling" in message
    assert mesh.post("/v1/completions", {"prompt": "a", "max_tokens": 2})["choices"]


def test_context(served):
    """A prompt may fill the context: nothing is generated behind it."""
    assert len(embed(served, [[7] * 1024])) == 1


def test_described():
    found = fastdecode("model", embedder("qwen3", "last"))
    assert "pooling        last, vectors of length 1\n" in found.stdout, found.stdout + found.stderr


def test_refused_files(start_mesh):
    """What a directory asks for and is not built is refused by its name."""
    def weighted(folder):
        weights.write(folder, "qwen3")
        put_modules(folder, "mean")
        weights.write_json(os.path.join(folder, "1_Pooling"), "config.json", {"pooling_mode_weightedmean_tokens": True})

    def dense(folder):
        weights.write(folder, "qwen3")
        put_modules(folder, "mean")
        weights.write_json(folder, "modules.json", [{"idx": 0, "name": "0", "path": "2_Dense", "type": "sentence_transformers.models.Dense"}])

    for name, make, word in (("weighted", weighted, "weightedmean"), ("dense", dense, "Dense")):
        with pytest.raises(RuntimeError, match=word):
            start_mesh("--kv-workers", 0, model=once(name, make))
    with pytest.raises(RuntimeError, match="rank"):
        start_mesh("--kv-workers", 0, "--pooling", "rank", model=once("qwen3", lambda path: weights.write(path, "qwen3")))
