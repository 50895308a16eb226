"""Files whose matrices are F16, BF16 or F32, computed as they are (`--compute auto`): the numbers of --compute f32, and what OpenBLAS does not
promise: the same bytes alone and in company, with drafts, through a pipeline, and from weights that are read in each step."""
import os
import re
import tempfile

import pytest

from conftest import BUILD, shard
from streams import assert_same, body, run_all, words
from test_architectures import LIMIT, scores

import to_gguf
import weights

LEVELS = {"F16": "f16w", "BF16": "bf16w", "F32": "f32w"}
MEMORY = ("--kv-memory", "32M", "--local-pool", "32M")
FEW = {str(token): 30 for token in range(70, 74)}  # random weights do not repeat themselves; with so few tokens they do, so that there are drafts
PROBES = [body(words(70, 1), 30, logprobs=2), body(words(20, 5), 60, logprobs=2, logit_bias=FEW), body(words(9, 2), 40, 1, True, logprobs=2),
          body(words(40, 3), 24, 2, True, logprobs=2), body(words(30, 4), 8, logprobs=2, echo=True)]
# A step takes the same time whatever its rows, so that drafts pay.
DRAFTED = {"slow_workers": ("kv-worker", "s-part"), "env": {"FD_SLOW_LAYER_US": "500"}}
# A model with experts, one with windows, and one in its simplest form.
CASES = [("qwen3_moe", "F16"), ("gemma3", "BF16"), ("llama", "F16"), ("mixtral", "F32")]


def file_of(name, kind):
    """A golden model with matrices in F32, F16 or BF16, all of which hold its values exactly; made once a build."""
    path = os.path.join(BUILD, "tests", "golden", f"{name}-{kind}.gguf")
    if not os.path.exists(path):
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with tempfile.TemporaryDirectory() as folder:
            weights.write(folder, name, plain=True)
            to_gguf.convert(folder, path + ".part", kind)
        os.replace(path + ".part", path)
    return path


def level(mesh):
    return re.search(r"MODEL-LOADED .* level=(\w+)/", mesh.logs(200)).group(1)


@pytest.mark.parametrize("name", shard(weights.names(), 2))
def test_log_probabilities(start_mesh, name):
    golden = weights.golden(name)
    original = golden["config"].get("original_max_position_embeddings")
    context = ("--context", original) if original and len(golden["tokens"]) <= original else ()
    kind = list(LEVELS)[weights.names().index(name) % len(LEVELS)]
    found = {}
    for compute in ("auto", "f32"):
        mesh = start_mesh("--compute", compute, "--kv-type", "f32", "--kv-workers", 0, *MEMORY, *context, model=file_of(name, kind))
        assert level(mesh) == (LEVELS[kind] if compute == "auto" else "f32")
        found[compute] = scores(mesh, golden["tokens"])
        mesh.stop()
    for other in (found["f32"], golden["log_probability"]):
        apart = [abs(a - b) for a, b in zip(found["auto"], other, strict=True)]
        print(f"{name}, {kind}: largest {max(apart):.2e}")
        assert max(apart) < LIMIT, (name, kind, apart.index(max(apart)))


@pytest.mark.parametrize("name, kind", CASES)
def test_same_bytes(start_mesh, name, kind):
    """Alone without drafts; then among others with drafts, at workers, in another number of rows a step, and in a pipeline of two."""
    path = file_of(name, kind)
    mesh = start_mesh("--kv-workers", 0, *MEMORY, "--draft-tokens", 0, "--batch-invariant", model=path)
    wanted = [run_all(mesh.url, [probe])[0] for probe in PROBES]
    assert not [stream.error for stream in wanted if stream.error] and len({tuple(stream.tokens) for stream in wanted}) == len(wanted)
    assert_same(run_all(mesh.url, PROBES * 4), wanted * 4)
    mesh.stop()
    for options, settings in ((("--kv-workers", 0), DRAFTED), (("--kv-workers", 1, "--local-pool", 0, "--chunk", 16), {}),
                              (("--s-parts", 2), {"threads": 2})):
        mesh = start_mesh(*MEMORY, *options, model=path, **settings)
        assert_same([run_all(mesh.url, [probe])[0] for probe in PROBES[:2]], wanted[:2])
        assert_same(run_all(mesh.url, PROBES * 4), wanted * 4)
        if settings is DRAFTED:
            right, drafts = mesh.metric("fastdecode_draft_tokens_right_total"), mesh.metric("fastdecode_draft_tokens_total")
            print(f"{name}, {kind}: {right:.0f} of {drafts:.0f} drafts were right")
            assert drafts > 0
        mesh.stop()


def test_packed_files(start_mesh, tmp_path):
    """Read from a packed file, and what does not fit in each step: the same bytes."""
    path = file_of("llama", "F16")
    wanted = None
    for options, said in (((), None), (("--cache-dir", tmp_path), "WEIGHTS-PACKED "), (("--cache-dir", tmp_path), "WEIGHTS-READ "),
                          (("--cache-dir", tmp_path, "--weights-memory", "320K"), "weight_slots=[23]")):
        mesh = start_mesh("--kv-workers", 0, *MEMORY, *options, model=path)
        wanted = wanted or [run_all(mesh.url, [probe])[0] for probe in PROBES]
        assert_same(run_all(mesh.url, PROBES), wanted)
        assert said is None or re.search(said, mesh.logs(200)), said
        mesh.stop()
    assert [name.endswith("-f16w.fdw") for name in os.listdir(tmp_path)] == [True]
