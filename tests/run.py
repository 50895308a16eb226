#!/usr/bin/env python3
"""Runs groups of tests and says what failed; the last line is "N passed, N failed".

  tests/run.py [--build DIR] [--venv DIR] GROUP...

Groups: lint (tests/lint/*.sh), unit, kernels, integration (cmocka programs under DIR/tests/GROUP), fuzz (the corpus-less
short runs of DIR/tests/fuzz), e2e, e2e-full and e2e-sanitizer (pytest; by the markers `full` and `sanitizer`). Programs run two at a time, a
group after the other; each has a time limit. Output of what passed is not shown.
"""
import argparse
import concurrent.futures
import glob
import os
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree

LIMIT_S = {"unit": 120, "kernels": 240, "integration": 240, "lint": 120, "fuzz": 240, "e2e": 780, "e2e-full": 1500,
           "e2e-sanitizer": 900}


class Tally:
    def __init__(self):
        self.passed = 0
        self.failed = []

    def add(self, name, ok, detail=""):
        if ok:
            self.passed += 1
            return
        self.failed.append(name)
        print(f"FAILED {name}")
        if detail:
            print("    " + detail.strip().replace("\n", "\n    "))
        sys.stdout.flush()


def junit_cases(path):
    """(name, failure text or None) of each case in a JUnit file; cmocka writes several documents into one."""
    text = open(path, encoding="utf-8", errors="replace").read()
    documents = ["<?xml" + part for part in text.split("<?xml") if part.strip()]
    for document in documents:
        for case in xml.etree.ElementTree.fromstring(document.encode()).iter("testcase"):
            bad = [e for e in case if e.tag in ("failure", "error")]
            skipped = any(e.tag == "skipped" for e in case)
            name = ".".join(filter(None, (case.get("classname"), case.get("name"))))
            yield name, skipped, ((bad[0].text or bad[0].get("message") or "failed") if bad else None)


def run_command(command, limit_s, env=None):
    try:
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL,
                              timeout=limit_s, env=env, check=False)
        return done.returncode, done.stdout.decode(errors="replace")
    except subprocess.TimeoutExpired as late:
        return 124, (late.stdout or b"").decode(errors="replace") + f"\nnot done after {limit_s} s"


def run_cmocka(program, group):
    with tempfile.TemporaryDirectory() as folder:
        report = os.path.join(folder, "report.xml")
        env = dict(os.environ, CMOCKA_MESSAGE_OUTPUT="xml", CMOCKA_XML_FILE=report)
        code, output = run_command([program], LIMIT_S[group], env)
        cases = []
        try:
            cases = list(junit_cases(report))
        except (OSError, xml.etree.ElementTree.ParseError):
            pass
    return code, output, cases


def cmocka_group(tally, build, group):
    programs = sorted(p for p in glob.glob(f"{build}/tests/{group}/test_*") if not p.endswith(".d"))
    workers = 1 if group == "integration" else 2
    with concurrent.futures.ThreadPoolExecutor(workers) as pool:
        for program, (code, output, cases) in zip(programs, pool.map(lambda p: run_cmocka(p, group), programs)):
            name = f"{group}/{os.path.basename(program)}"
            for case, _, failure in cases:
                tally.add(f"{name}: {case}", failure is None, failure or "")
            if code and not any(failure for _, _, failure in cases):
                tally.add(name, False, f"exit status {code}\n" + output[-3000:])
            elif not cases:
                tally.add(name, False, "ran no test\n" + output[-2000:])
    if not programs:
        tally.add(group, False, "no test program was built")


def script_group(tally, pattern, group):
    for script in sorted(glob.glob(pattern)):
        code, output = run_command([script], LIMIT_S[group])
        tally.add(f"{group}/{os.path.basename(script)}", code == 0, output[-3000:])


def fuzz_group(tally, build):
    seconds = int(os.environ.get("FUZZ_SECONDS", "20"))
    for program in sorted(p for p in glob.glob(f"{build}/tests/fuzz/fuzz_*") if not p.endswith(".d")):
        with tempfile.TemporaryDirectory() as corpus:
            code, output = run_command([program, f"-max_total_time={seconds}", "-timeout=20", "-rss_limit_mb=4096",
                                        f"-artifact_prefix={corpus}/", "-print_final_stats=0", corpus],
                                       seconds + LIMIT_S["fuzz"])
        tally.add(f"fuzz/{os.path.basename(program)}", code == 0, output[-3000:])


def pytest_group(tally, venv, group):
    with tempfile.TemporaryDirectory() as folder:
        report = os.path.join(folder, "report.xml")
        command = [f"{venv}/bin/python", "-m", "pytest", "-q", "-x" if os.environ.get("FAIL_FAST") else "-q",
                   "--junitxml", report, "-m", {"e2e": "not full", "e2e-full": "full", "e2e-sanitizer": "sanitizer"}[group], "tests/e2e"]
        code, output = run_command(command, LIMIT_S[group], dict(os.environ, FD_SANITIZED="1") if group == "e2e-sanitizer" else None)
        count = 0
        try:
            for case, skipped, failure in junit_cases(report):
                count += 1
                if not skipped:
                    tally.add(f"{group}/{case}", failure is None, (failure or "")[-3000:])
        except (OSError, xml.etree.ElementTree.ParseError):
            pass
        if count == 0 or code not in (0, 1):
            tally.add(group, False, f"exit status {code}\n" + output[-4000:])


def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--build", default="build")
    arguments.add_argument("--venv", default="build/venv")
    arguments.add_argument("group", nargs="+", choices=list(LIMIT_S))
    chosen = arguments.parse_args()
    os.chdir(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    os.environ["FD_BUILD"] = chosen.build
    tally = Tally()
    for group in chosen.group:
        began, before = time.monotonic(), tally.passed
        if group in ("unit", "kernels", "integration"):
            cmocka_group(tally, chosen.build, group)
        elif group == "lint":
            script_group(tally, "tests/lint/*.sh", group)
        elif group == "fuzz":
            fuzz_group(tally, chosen.build)
        else:
            pytest_group(tally, chosen.venv, group)
        print(f"{group}: {tally.passed - before} passed in {time.monotonic() - began:.0f} s")
        sys.stdout.flush()
    if tally.failed:
        print("failed:", *tally.failed, sep="\n  ")
    if "FD_TALLY" in os.environ:  # of a longer check, which adds up
        with open(os.environ["FD_TALLY"], "a", encoding="utf-8") as file:
            file.write(f"{tally.passed} {len(tally.failed)}\n")
    print(f"{tally.passed} passed, {len(tally.failed)} failed")
    return 1 if tally.failed else 0


sys.exit(main())
