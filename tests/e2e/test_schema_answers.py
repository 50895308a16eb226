"""Two thousand answers under schemas of applications, over the API, at all temperatures: each that is finished is valid by `jsonschema`, and those
under schemas with finitely many texts all end by themselves."""
import collections
import concurrent.futures
import json
import os
import random

import pytest

from api_client import post
from conftest import ROOT, SEED, Mesh
from finite_schema import finite
from schema_texts import Validator, parse
from streams import words

ANSWERS, PARTS, STREAMS = 2000, 10, 32
SCHEMAS = 40  # so many with finitely many texts, and so many others
TEMPERATURES = (0, 0.25, 0.5, 0.75, 1, 1.25, 1.5, 1.75, 2)  # 2: the largest that the API takes
FINITE_BYTES = 2500  # of the longest text: the context has room for it
OTHER_TOKENS = 160  # of answers that may go on for ever
# These would hardly come to an end: the small model's tokens are nearly equally likely, and one in thousands closes a string. So those that close
# something are as likely as all others together, nearly.
CLOSING, BIAS = ('"', '"}', "}", "]"), 9


def schemas():
    """[(name, schema, tokens that it may take at most, whether its texts are finitely many)]"""
    with open(os.path.join(ROOT, "tests", "golden", "schemas.json"), encoding="utf-8") as file:
        everything = json.load(file)
    narrowed, source = [], random.Random(SEED)
    for name, schema in everything.items():
        try:
            part, size = finite(schema)
        except KeyError:  # it has formats or keywords without a bound
            continue
        if size <= FINITE_BYTES:
            narrowed.append((name, part, size, True))  # a token has a byte at least
    others = [(name, schema, OTHER_TOKENS, False) for name, schema in everything.items()]
    assert len(narrowed) >= SCHEMAS, f"only {len(narrowed)} schemas could be narrowed"
    return source.sample(narrowed, SCHEMAS) + source.sample(others, SCHEMAS)


def temperature(number):
    return TEMPERATURES[number % len(TEMPERATURES)]


def ask(mesh, number, schema, tokens, is_finite):
    """(text, finish_reason)"""
    bias = 0 if is_finite else BIAS * max(temperature(number), TEMPERATURES[1])
    answer = post(mesh, "/v1/completions", {"prompt": words(8, SEED + number), "max_tokens": tokens + 1, "seed": SEED + number,
                                            "temperature": temperature(number), "logit_bias": {token: bias for token in mesh.closing},
                                            "structured_outputs": {"json": schema}})
    return answer["choices"][0]["text"], answer["choices"][0]["finish_reason"]


@pytest.fixture(scope="module")
def busy_mesh():
    with Mesh("--max-batch", STREAMS) as running:
        running.closing = [post(running, "/tokenize", {"prompt": text, "add_special_tokens": False})["tokens"][0] for text in CLOSING]
        yield running


@pytest.mark.full
@pytest.mark.parametrize("part", range(PARTS))
def test_two_thousand_answers(busy_mesh, part):
    cases = schemas()[part::PARTS]
    validators = [Validator(parse(json.dumps(schema)), format_checker=Validator.FORMAT_CHECKER) for _, schema, _, _ in cases]
    numbers = range(part * ANSWERS // PARTS, (part + 1) * ANSWERS // PARTS)
    with concurrent.futures.ThreadPoolExecutor(STREAMS) as pool:
        answers = list(pool.map(lambda number: ask(busy_mesh, number, *cases[number % len(cases)][1:]), numbers))
    counts, wrong = collections.Counter(), []
    for number, (text, reason) in zip(numbers, answers):
        name, _, _, is_finite = cases[number % len(cases)]
        what = f"{name}, temperature {temperature(number)}, answer {number}: {text}"
        counts["finite" if is_finite else "other", reason] += 1
        if reason == "stop":
            try:
                wrong += [f"{what}: {error.message}" for error in validators[number % len(cases)].iter_errors(parse(text))]
            except ValueError as problem:
                wrong.append(f"{what}: {problem}")
        elif is_finite or reason != "length":
            wrong.append(f"{what}: ended by {reason}")
    print(f"\n{len(numbers)} answers: under schemas with finitely many texts {counts['finite', 'stop']} ended by themselves, "
          f"{counts['finite', 'length']} by max_tokens; under others {counts['other', 'stop']} and {counts['other', 'length']}; {len(wrong)} are wrong")
    assert not wrong, "\n".join(wrong[:10])
    assert counts["finite", "stop"] >= len(numbers) * 0.4 and counts["other", "stop"] >= len(numbers) * 0.1
