"""Never slower: every setting of `prediction` (drawn by its seed) on a mesh with two KV workers beside one with none, `--placement auto`.

All cores are shared, so that workers can add nothing but what leaving them alone does not cost. Each run has a mesh of its own,
started for it: of two that are up at the same time the one that was started second was 5 % slower, whichever it was. ROUNDS turns
a setting; what is judged is the median of its turns' ratios.
"""
from clients import completion
from end_to_end import warm
from figures import figure, of_rounds
from prediction import draw, tokens_of, tokens_per_s
from servers import Ours

ROUNDS, LEAST = 4, 0.97


def settings(mesh):
    """The rows that prediction.tokens_per_s takes, of all numbers of workers."""
    a_word = tokens_of(mesh, completion(400, 1, 1)["prompt"]) / 400
    for workers, drawn in draw().items():
        for at, (batch, context, tokens) in enumerate(drawn):
            yield {"workers": workers, "at": at, "batch": batch, "context": context, "tokens": tokens,
                   "words": round((context - tokens / 2) / a_word)}


def one_run(run_, workers, row, round_):
    with Ours("--kv-workers", workers) as mesh:
        mesh.wait_metric("fastdecode_place_up", lambda up: up == 1 + int(workers))  # those that calibrate are no places yet
        warm(mesh, 4)
        got = tokens_per_s(run_, mesh, row, round_)
    run_.note(f"with {workers} workers on this mesh {got:.1f} tokens/s")
    return got


def never_slower(run_):
    passed = []
    with Ours("--kv-workers", "0") as mesh:
        rows = list(settings(mesh))
    for row in rows:
        pairs = []
        for round_ in range(ROUNDS):
            order = ("0", "2") if round_ % 2 else ("2", "0")
            got = {workers: one_run(run_, workers, row, round_) for workers in order}
            pairs.append((got["2"], got["0"]))
        item = of_rounds(run_.part, f"batch {row['batch']}, context {row['context']}: two workers, tokens/s beside none", "tokens/s",
                         pairs, LEAST)
        passed.append(item["pass"])
        run_.add(item)
    run_.add(figure(run_.part, f"of {len(passed)} settings, at least {LEAST} of none", sum(passed), "settings", len(passed), 1))
