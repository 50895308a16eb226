#!/usr/bin/env python3
"""What becomes of a folder of JSON Schemas with instances, as MaskBench has them (github.com/guidance-ai/jsonschemabench, maskbench/data):
each file is {"schema": ..., "tests": [{"valid": true, "data": ...}, ...]}.

    tests/bench/schema_files.py FOLDER [--closed] [--ignore] [--any-order] [--list FILE]

A schema passes if it compiles and its grammar takes the valid instances and none of the others; one without instances passes if it compiles. Needs
build/tests/e2e/schema_texts (`make programs`) and the packages of `make venv`. Run by hand: nothing here downloads anything.
"""
import argparse
import collections
import concurrent.futures
import decimal
import json
import os
import re
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "e2e"))
from schema_texts import Texts, parse  # noqa: E402  pylint: disable=wrong-import-position

KINDS = ("pass", "refused", "invalid accepted", "valid refused", "crash")


def text_of(value):
    """The text of an instance with its keys in the file's order and its numbers as the file has them, but for exponents."""
    if isinstance(value, decimal.Decimal):
        return format(value, "f")
    if isinstance(value, list):
        return "[" + ",".join(map(text_of, value)) + "]"
    if isinstance(value, dict):
        return "{" + ",".join(f"{text_of(key)}:{text_of(held)}" for key, held in value.items()) + "}"
    return json.dumps(value, ensure_ascii=False)


def judge(texts, path, options):
    """{"kind", "why", "us"} of a file; kind is one of KINDS."""
    with open(path, encoding="utf-8") as file:
        whole = parse(file.read())
    with open(path, encoding="utf-8") as file:
        schema = json.load(file)["schema"]
    tests = whole.get("tests", [])
    answer = texts.ask(schema, [text_of(test["data"]) for test in tests], **options)
    result = {"name": os.path.basename(path), "us": answer.get("compile_us", 0), "tests": len(tests), "taken": 0}
    if answer["status"] != "OK":
        return result | {"kind": "refused", "why": answer["error"]}
    wrong = [(test["valid"], i) for i, (test, taken) in enumerate(zip(tests, answer["accepted"])) if taken != test["valid"]]
    if not wrong:
        return result | {"kind": "pass", "why": ""}
    kind = "valid refused" if all(valid for valid, _ in wrong) else "invalid accepted"
    return result | {"kind": kind, "why": " ".join(str(i) for _, i in wrong)}


def judge_all(paths, options):
    """The results of some files by one process, which is begun anew after a crash."""
    results = []
    while len(results) < len(paths):
        with Texts(with_model=False) as texts:
            try:
                while len(results) < len(paths):
                    results.append(judge(texts, paths[len(results)], options))
            except (AssertionError, BrokenPipeError) as problem:
                results.append({"name": os.path.basename(paths[len(results)]), "kind": "crash", "why": str(problem)[:200], "us": 0, "tests": 0})
    return results


def reason(why):
    """An error without what differs from schema to schema: the keyword and what is said of it."""
    place, _, said = why.partition(": ")
    return f"{place.rsplit('/', 1)[-1] if '/' in place else '#'}: {re.sub(r'[0-9]+', 'N', said)}"[:150]


def table(results):
    kinds = collections.Counter(result["kind"] for result in results)
    times = sorted(result["us"] / 1000 for result in results if result["kind"] not in ("refused", "crash"))
    print(f"{len(results)} schemas, {sum(result['tests'] for result in results)} instances")
    for kind in KINDS:
        print(f"{kinds[kind]:7,}  {kind}")
    if times:
        print(f"compile: median {times[len(times) // 2]:.2f} ms, p99 {times[len(times) * 99 // 100]:.1f} ms, most {times[-1]:.1f} ms of the processor")
    for why, count in collections.Counter(reason(result["why"]) for result in results if result["kind"] == "refused").most_common(30):
        print(f"{count:7,}  refused  {why}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder")
    parser.add_argument("--closed", action="store_true", help="objects with properties that say nothing of others take none")
    parser.add_argument("--ignore", action="store_true", help="pass over what cannot be guaranteed, as requests without strict do")
    parser.add_argument("--any-order", action="store_true", help="the keys of small objects may come in any order")
    parser.add_argument("--list", metavar="FILE", help="write each schema's result there, one a line")
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    args = parser.parse_args()
    if not os.path.isdir(args.folder):
        parser.error(f"{args.folder} is no folder")
    paths = sorted(os.path.join(args.folder, name) for name in os.listdir(args.folder) if name.endswith(".json"))
    if not paths:
        parser.error(f"{args.folder} has no *.json")
    options = {"closed": args.closed, "strict": not args.ignore}
    if args.any_order:
        options["any_order"] = True
    with concurrent.futures.ProcessPoolExecutor(args.jobs) as pool:
        parts = list(pool.map(judge_all, [paths[i::args.jobs] for i in range(args.jobs)], [options] * args.jobs))
    results = sorted((result for part in parts for result in part), key=lambda result: result["name"])
    table(results)
    if args.list:
        with open(args.list, "w", encoding="utf-8") as file:
            file.writelines(json.dumps(result) + "\n" for result in results)


if __name__ == "__main__":
    main()
