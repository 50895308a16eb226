"""schema_texts.c as a Python object, JSON texts as a grammar wants them, and what judges them."""
import decimal
import itertools
import json
import os
import re
import subprocess

import jsonschema

from conftest import BUILD, MODEL

decimal.getcontext().prec = 400


class Texts:
    """A running schema_texts. Use as a context manager."""

    def __init__(self, with_model=True):
        command = [os.path.join(BUILD, "tests", "e2e", "schema_texts"), *([MODEL] if with_model else [])]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def ask(self, schema, accept=(), random=0, seed=1, space="none", strict=True, **options):
        """What a schema's grammar takes and makes up. schema: a value, or its JSON text. options: booleans of schema_texts.c."""
        text = schema if isinstance(schema, str) else json.dumps(schema)
        request = json.dumps({"accept": list(accept), "random": random, "seed": seed, "space": space, "strict": strict, **options})
        self.process.stdin.write(f'{{"schema":{text},{request[1:]}\n'.encode())
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        assert line, f"schema_texts ended at {text[:1000]}"
        return json.loads(line)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.stdin.close()
        self.process.wait()
        self.process.stdout.close()


def pattern(_, expression, instance, __):
    if isinstance(instance, str) and not re.search(expression, instance, re.ASCII):
        yield jsonschema.ValidationError(f"{instance!r} does not match {expression!r}")


Validator = jsonschema.validators.extend(jsonschema.Draft202012Validator, {"pattern": pattern})


@Validator.FORMAT_CHECKER.checks("relative-json-pointer")
def is_relative_json_pointer(value):
    """jsonschema 4.26's own takes any 0 within the number for a leading one: it refuses 603/a."""
    return not isinstance(value, str) or re.fullmatch(r"(?:0|[1-9][0-9]*)(?:#|(?:/(?:[^~/]|~[01])*)*)", value) is not None


def parse(text):
    """A value whose numbers are exact."""
    return json.loads(text, parse_float=decimal.Decimal)


def number(value):
    exact = decimal.Decimal(value)
    return format(exact.normalize(), "f") if exact != exact.to_integral_value() else format(exact.to_integral_value(), "f")


def write(value, orders, space=("", "")):
    """The text of a value. orders: a function from an object's keys to the list of orders to try; all combinations are yielded."""
    if isinstance(value, bool) or value is None or isinstance(value, str):
        yield json.dumps(value, ensure_ascii=False)
    elif isinstance(value, (int, float, decimal.Decimal)):
        yield number(value)
    elif isinstance(value, list):
        for parts in itertools.product(*(list(write(item, orders, space)) for item in value)):
            yield "[" + ("," + space[1]).join(parts) + "]"
    else:
        for order in orders(list(value)):
            for parts in itertools.product(*(list(write(value[key], orders, space)) for key in order)):
                pairs = (json.dumps(key, ensure_ascii=False) + ":" + space[0] + part for key, part in zip(order, parts))
                yield "{" + ("," + space[1]).join(pairs) + "}"


def all_orders(keys):
    return list(itertools.permutations(keys)) if len(keys) <= 5 else [keys]
