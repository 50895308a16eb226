"""JSON Schemas as grammars, beside what others say of them: the official test suite's instances, and `jsonschema`, which validates texts that
were made up under the masks of the default model's vocabulary.

A schema of the suite that compiles takes exactly the valid instances (in some order of their keys: a grammar has one), but for DIFFERENT."""
import collections
import glob
import itertools
import json
import os
import re

import jsonschema
import pytest

from conftest import SEED
from schema_suite import folder
from schema_texts import Texts, all_orders, parse, write

MAX_TEXTS = 720
ANSWERS = 50

# What the standard takes and we do not, or the other way round, and why.
DIFFERENT = {
    ("optional/format/time.json", "leap second"): "no leap seconds: other readers refuse them",
    ("optional/format/date-time.json", "leap second"): "no leap seconds",
    ("optional/float-overflow.json", "valid if optional overflow handling is implemented"): "309 digits, and we write 64",
    ("vocabulary.json", "no validation: invalid number, but it still validates"): "the meta-schema is elsewhere",
}
# `format` there is an annotation; and expressions that Python's `re` reads in another way than ECMA-262.
NOT_OURS = ("format.json",)
PYTHON_DIFFERS = ("optional/ecmascript-regex.json", "optional/non-bmp-regex.json", "vocabulary.json", "optional/format-assertion.json",
                  "optional/cross-draft.json")


@pytest.fixture(scope="module")
def texts():
    with Texts() as running:
        yield running


def pattern(_, expression, instance, __):
    if isinstance(instance, str) and not re.search(expression, instance, re.ASCII):
        yield jsonschema.ValidationError(f"{instance!r} does not match {expression!r}")


Validator = jsonschema.validators.extend(jsonschema.Draft202012Validator, {"pattern": pattern})


def check_answers(schema, answer, what):
    """All texts that were made up are JSON, and valid. schema: with exact numbers. Returns how many there were: chance may not find an end."""
    validator = Validator(schema, format_checker=Validator.FORMAT_CHECKER)
    ended = [text for text in answer["texts"] if text is not None]
    for text in ended:
        errors = list(validator.iter_errors(parse(text)))
        assert not errors, f"{what}: {text}: {errors[0].message}"
    return len(ended)


def groups():
    """(file, schema, its groups of the suite) with exact numbers."""
    paths = [path for where in ("", "optional", "optional/format") for path in sorted(glob.glob(os.path.join(folder(), where, "*.json")))]
    for path in paths:
        name = os.path.relpath(path, folder())
        if name not in NOT_OURS:
            with open(path, encoding="utf-8") as file:
                for group in parse(file.read()):
                    yield name, group


def is_different(name, description):
    return any(name == file and part in description for file, part in DIFFERENT)


def test_the_official_suite(texts):
    refused, compiled, instances, made, asked = collections.Counter(), 0, 0, 0, 0
    for name, group in groups():
        schema = json.dumps(group["schema"], default=float)
        tries = [list(itertools.islice(write(test["data"], all_orders), MAX_TEXTS)) for test in group["tests"]]
        answer = texts.ask(schema, itertools.chain(*tries), random=0 if name in PYTHON_DIFFERS else ANSWERS, seed=SEED)
        what = f"{name}: {group['description']}"
        if answer["status"] != "OK":
            if answer["error"].endswith("no value is valid under the schema"):  # then no instance may be
                assert not any(test["valid"] for test in group["tests"]), what
            else:
                assert answer["status"] in ("UNIMPLEMENTED", "UNREADABLE"), f"{what}: {answer}"
                refused[re.sub(r".*/(?=\S+: )|: .*", "", answer["error"]) if answer["status"] == "UNIMPLEMENTED" else "numbers over 64 bits"] += 1
            continue
        compiled += 1
        accepted = iter(answer["accepted"])
        for test, tried in zip(group["tests"], tries):
            taken = any(list(itertools.islice(accepted, len(tried))))
            instances += 1
            if not is_different(name, test["description"]):
                assert taken == test["valid"], f"{what}: {test['description']}: {tried[0]} is {'taken' if taken else 'refused'}"
        made += check_answers(group["schema"], answer, what)
        asked += len(answer["texts"])
    print(f"\nofficial suite: {compiled} schemas compiled, {instances} instances right, {made} of {asked} texts came to an end and are valid; refused by keyword: {dict(refused.most_common())}")
    assert compiled >= 280 and instances >= 1250 and made >= 0.98 * asked
