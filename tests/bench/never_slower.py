"""Never slower: every setting of `prediction` (drawn by its seed) on a mesh with two KV workers beside one with none, `--placement auto`.

All cores are shared, so that workers can add nothing but what leaving them alone does not cost. Both meshes are up; one is
measured while the other sleeps, in turns, each setting ROUNDS times; what is judged is the median of the rounds' ratios, for each setting.
"""
from clients import completion
from end_to_end import sleeping, warm
from figures import figure, of_rounds
from prediction import draw, tokens_of, tokens_per_s
from servers import Ours

ROUNDS, LEAST = 3, 0.97


def settings(mesh):
    """The rows that prediction.tokens_per_s takes, of all numbers of workers."""
    a_word = tokens_of(mesh, completion(400, 1, 1)["prompt"]) / 400
    for workers, drawn in draw().items():
        for at, (batch, context, tokens) in enumerate(drawn):
            yield {"workers": workers, "at": at, "batch": batch, "context": context, "tokens": tokens,
                   "words": round((context - tokens / 2) / a_word)}


def never_slower(run_):
    ratios = []
    with Ours("--kv-workers", "0") as none, Ours("--kv-workers", "2") as two:
        for mesh in (none, two):
            warm(mesh, 4)
        for row in settings(none):
            pairs = []
            for round_ in range(ROUNDS):
                got = {}
                for mesh, other in ((none, two), (two, none))[:: 1 if round_ % 2 else -1]:
                    sleeping(run_, [other])
                    got[mesh] = tokens_per_s(run_, mesh, row, round_)
                    run_.note(f"{got[mesh]:.1f} tokens/s with {'two' if mesh is two else 'no'} workers")
                pairs.append((got[two], got[none]))
            item = of_rounds(run_.part, f"batch {row['batch']}, context {row['context']}: two workers, tokens/s beside none",
                             "tokens/s", pairs, LEAST)
            ratios.append(item["ratio"])
            run_.add(item)
    run_.add(figure(run_.part, f"of {len(ratios)} settings, at least {LEAST} of none",
                    sum(ratio >= LEAST for ratio in ratios), "settings", len(ratios), 1))
