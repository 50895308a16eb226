"""What grammars cost: the time between tokens of streams with a JSON Schema beside streams without, on one mesh, in turns.

Both have the same prompts, run to their last token, and draw at temperature 1: with a schema of a list without an end, as much of which is objects,
numbers, choices and free text as in usual ones. The first round is not counted: the vocabulary and the schema are met there for the first time.
"""
import statistics

from clients import check, completion, run
from end_to_end import warm
from figures import of_rounds
from servers import Ours

ROUNDS, TOKENS, WORDS, MOST = 9, 96, 64, 1.05
SCHEMA = {"type": "array", "minItems": 1000, "items": {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer"}, "kind": {"enum": ["lamp", "river", "garden", "window"]},
                   "note": {"type": "string", "maxLength": 40}, "tags": {"type": "array", "items": {"type": "string"}},
                   "home": {"anyOf": [{"type": "null"}, {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}]}},
    "required": ["name", "age", "kind", "note", "tags", "home"], "additionalProperties": False}}
FORMS = {"a schema": {"structured_outputs": {"json": SCHEMA}}, "a regular expression": {"structured_outputs": {"regex": "[A-Za-z0-9 ,.'\\n-]*"}}}


def between_ms(run_, mesh, streams, seed, fields):
    """The mean time between tokens, in the middle of the streams."""
    requests = [{**completion(WORDS, TOKENS, 1000 * seed + i), "temperature": 1, "seed": i, **fields} for i in range(streams)]
    clients = run(mesh.url, requests, run_.limit_s())
    check(clients)
    return statistics.median(1e3 * (client.last - client.first) / (TOKENS - 1) for client in clients)


def grammar(run_):
    with Ours("--kv-workers", 0) as mesh:
        warm(mesh, 4)
        for streams in (1, 32):
            for what, fields in FORMS.items():
                pairs = []
                with run_.turn(f"{streams} streams with {what}"):
                    for round_ in range(ROUNDS + 1):
                        got = {with_: between_ms(run_, mesh, streams, round_, fields if with_ else {})
                               for with_ in ((True, False) if round_ % 2 else (False, True))}
                        pairs.append((got[True], got[False]))
                run_.note(f"{statistics.median(p[0] for p in pairs[1:]):.2f} ms, {statistics.median(p[1] for p in pairs[1:]):.2f} without")
                run_.add(of_rounds(run_.part, f"time between tokens of {streams} stream{'s' if streams > 1 else ''} with {what} beside none", "ms",
                                   pairs[1:], MOST, at_most=True))
