#!/usr/bin/env python3
"""Runs groups of tests, several items at a time and the longest first; the last line is "N passed, N failed, N skipped".

  tests/run.py [--build DIR] [--venv DIR] [--jobs N] [--only ITEM,ITEM | --changed REVISION] [--repeat N] [--beside-load] [--fail-fast] GROUP...

Groups: lint (tests/lint/*.sh), unit, kernels, integration (cmocka programs under DIR/tests/GROUP), fuzz (short runs of
DIR/tests/fuzz from the committed corpus), sim (DIR/tests/sim: failure schedules of the mesh in one process, and of disks), e2e, e2e-full and e2e-sanitizer (pytest; by the markers `full` and `sanitizer`).

An item is a script, a program or a file of pytest. Tests marked `alone` need all cores and run last, one after the other.
An item is ended when none of its tests has finished for LIMIT_S, times the pace of this machine by then (tests/e2e/pace.py): what
had finished before still counts. With --fail-fast the first failure ends the queue. Output of what passed is not shown. How long items took is kept in
DIR/durations.json and orders the next run.

With --repeat everything runs N times, and what failed is listed with how often. --beside-load keeps all cores busy meanwhile (stress-ng).

Settings: FD_JOBS (items at a time; two more than there are cores: tests wait half of their time), FUZZ_SECONDS (a fuzz target, 20), FD_TALLY (a
file to append the counts and the names of what failed to), FD_SIM_SEEDS (of sim, 3000), FD_SEED (seed.py: which cases of large tables), FD_SHARD=K/N (of e2e-full, the tests whose name falls to shard K of N).
"""
import argparse
import collections
import contextlib
import glob
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
import xml.etree.ElementTree

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path.insert(0, os.path.join(ROOT, "tests", "e2e"))
sys.path.insert(0, os.path.join(ROOT, "tests", "fuzz"))
import corpus  # noqa: E402
import pace  # noqa: E402
from seed import seed  # noqa: E402

PROGRAM_GROUPS = ("unit", "kernels", "integration")
MARKERS = {"e2e": "not full", "e2e-full": "full", "e2e-sanitizer": "sanitizer"}
# The most that each group of `make check` may take of the time of all its tests, in percent, and an item.
SHARES = {"lint": 6, "unit": 20, "kernels": 20, "integration": 15, "sim": 10, "e2e": 80}
ITEM_SHARE = 12
GROUPS = ("lint", *PROGRAM_GROUPS, "sim", "fuzz", *MARKERS)
LIMIT_S = {"lint": 120, "fuzz": 120, "sim": 600}  # without a finished test
DEFAULT_LIMIT_S = 150
# Seconds until an earlier run has measured them, for the tests that take longer than a few.
GUESSED_S = {name: seconds for seconds, names in {
    100: "e2e/test_failures.py",
    60: "e2e/test_cuda.py e2e/test_golden.py e2e/test_memory.py",
    40: "e2e/test_pages.py e2e/test_pipeline.py e2e/test_tls.py e2e/test_drafts.py e2e/test_cuda_architectures.py e2e/test_same_bytes.py",
    25: "e2e/test_sampling_fields.py e2e/test_grammar.py e2e/test_plan_command.py e2e/test_eval.py e2e/test_schemas.py e2e/test_tools.py "
        "e2e/test_weights.py e2e/test_otlp.py e2e/test_allocations.py e2e/test_cut_off.py lint/headers.sh unit/test_kv_share "
        "kernels/test_attention kernels/test_cuda_tier kernels/test_cuda_disk kernels/test_cuda_head",
    15: "e2e/test_capacity.py e2e/test_embeddings.py e2e/test_architectures.py e2e/test_hostile_rpc.py e2e/test_joining.py e2e/test_leaving.py "
        "e2e/test_up.py e2e/test_float_weights.py e2e/test_batch_api.py e2e/test_kv_choice.py e2e/test_local_migration.py lint/sched_pure.sh "
        "lint/sched_rooms.sh lint/format.sh unit/test_sched_balance unit/test_sched_load unit/test_sched_workloads unit/test_sched_migrate "
        "kernels/test_cuda_graph kernels/test_cuda_range kernels/test_cuda_quant kernels/test_cuda_sample kernels/test_gemm "
        "integration/test_gateway_limits integration/test_gateway_failures integration/test_gateway_batches integration/test_tls_rotation",
}.items() for name in names.split()}


class Item:
    """One process to run: a lint script, a test program, or a file of pytest."""

    def __init__(self, group, name, command, env=None, alone=False):
        self.group, self.name, self.command, self.alone = group, f"{group}/{name}", command, alone
        self.env = dict(os.environ, **(env or {}))
        self.limit_s = LIMIT_S.get(group, DEFAULT_LIMIT_S)
        self.round = 0  # of --repeat
        self.expired = False
        self.cases = []  # (name, "passed", "failed" or "skipped", text)

    def run(self):
        """Runs to the end, or until no test finishes any more. Sets cases."""
        with tempfile.TemporaryDirectory(prefix="fd-run-") as folder:
            report, output_path = os.path.join(folder, "report"), os.path.join(folder, "output")
            if self.group in PROGRAM_GROUPS:
                self.env.update(CMOCKA_MESSAGE_OUTPUT="xml", CMOCKA_XML_FILE=report)
            elif self.group in MARKERS:
                self.env.update(FD_RESULTS=report)
            with open(output_path, "wb") as output:
                process = subprocess.Popen(self.command, stdout=output, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL,
                                           env=self.env, process_group=0)  # no session of its own, which would have its share of time beside load()
                code = self.wait(process, report)
            with open(output_path, encoding="utf-8", errors="replace") as file:
                self.judge(code, file.read(), report)

    def wait(self, process, report):
        """Waits for the end. A process that makes no progress gets SIGINT, so that pytest stops its meshes, then its group is ended.
        Progress is a report that grows: after each test of pytest's, after each group of cmocka's."""
        size, deadline = 0, pace.Deadline(self.limit_s)
        while True:
            try:
                return process.wait(1)
            except subprocess.TimeoutExpired:
                pass
            now = os.path.getsize(report) if os.path.exists(report) else 0
            if now != size:
                size, deadline = now, pace.Deadline(self.limit_s)
            if deadline.passed():
                self.expired = True
                break
        process.send_signal(signal.SIGINT)
        try:
            process.wait(30 * pace.factor())
        except subprocess.TimeoutExpired:
            pass
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        process.wait()
        return 124

    def judge(self, code, output, report):
        if self.group in PROGRAM_GROUPS:
            self.cases = [(f"{self.name}: {name}", outcome, text) for name, outcome, text in junit_cases(report)]
        elif self.group in MARKERS:
            self.cases = [(f"{self.group}/{case['name']}", case["outcome"], case.get("text", "")) for case in json_lines(report)]
            if code == 5 and not self.cases:  # pytest collected nothing: all of the file's tests have another marker
                return
        failed = any(outcome == "failed" for _, outcome, _ in self.cases)
        if self.expired:
            self.cases.append((self.name, "failed", f"no test finished for {self.limit_s * pace.factor():.0f} s: ended\n" + output[-4000:]))
        elif code and not failed:
            self.cases.append((self.name, "failed", f"exit status {code}\n" + output[-4000:]))
        elif not self.cases:
            passed = self.group in ("lint", "fuzz", "sim")
            self.cases.append((self.name, "passed" if passed else "failed", "" if passed else "ran no test\n" + output[-2000:]))


def junit_cases(path):
    """(name, outcome, text) of each case in a JUnit file; cmocka writes a document a group into one, and none where it was killed."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            documents = ["<testsuites>" + part.partition("</testsuites>")[0] + "</testsuites>" for part in file.read().split("<testsuites>")[1:]]
        for document in documents:
            for case in xml.etree.ElementTree.fromstring(document).iter("testcase"):
                bad = [e for e in case if e.tag in ("failure", "error")]
                skipped = any(e.tag == "skipped" for e in case)
                text = (bad[0].text or bad[0].get("message") or "failed") if bad else ""
                yield case.get("name"), "failed" if bad else "skipped" if skipped else "passed", text
    except (OSError, xml.etree.ElementTree.ParseError):
        return


def json_lines(path):
    """What conftest.py wrote, a line a test; a last line that was cut off is left out."""
    try:
        with open(path, encoding="utf-8") as file:
            for line in file:
                if line.endswith("\n"):
                    yield json.loads(line)
    except OSError:
        return


def built(build, group):
    """The programs of a group: those whose source is still there."""
    sources = ("tests/cuda", f"tests/{group}") if group == "kernels" else (f"tests/{group}",)
    for path in sorted(glob.glob(f"{build}/tests/{group}/{'fuzz' if group == 'fuzz' else 'test'}_*")):
        name = os.path.basename(path)
        if any(os.path.exists(f"{folder}/{name}.c") for folder in sources):
            yield name, path


def pytest_items(venv, group):
    python = [f"{venv}/bin/python", "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    env = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", **({"FD_SANITIZED": "1"} if group == "e2e-sanitizer" else {})}  # clients bring plugins
    if group != "e2e-full":
        env["FD_SHARD"] = ""
    marker = MARKERS[group]
    for path in sorted(glob.glob("tests/e2e/test_*.py")):
        with open(path, encoding="utf-8") as file:
            text = file.read()
        if group != "e2e" and f"mark.{group[4:]}" not in text:
            continue
        name = os.path.basename(path)
        yield Item(group, name, [*python, "-m", f"({marker}) and not alone", path], env)
        if "mark.alone" in text:
            yield Item(group, name + " (alone)", [*python, "-m", f"({marker}) and alone", path], env, alone=True)


def items_of(group, build, venv):
    if group == "lint":
        return [Item(group, os.path.basename(path), [path]) for path in sorted(glob.glob("tests/lint/*.sh"))]
    if group in MARKERS:
        return list(pytest_items(venv, group))
    if group == "sim":
        return sim_items(build)
    if group == "fuzz":
        return [fuzz_item(name, path) for name, path in built(build, group)]
    items = [Item(group, name, [path]) for name, path in built(build, group)]
    return items or [Item(group, "build", ["sh", "-c", f"echo no test program of {group} was built; exit 1"])]


# Seeds that found what few do: results that were taken for synced, and old bytes amid new lines.
DISK_KEPT = ("2870", "5172", "22239")


def sim_items(build):
    """Schedules that failed once, and new ones: other seeds at each commit, as many as FD_SIM_SEEDS says."""
    mesh, count = f"{build}/tests/sim/mesh", os.environ.get("FD_SIM_SEEDS", "3000")
    return [Item("sim", "kept", [mesh, "--replay", *sorted(glob.glob("tests/sim/kept/*.txt"))]),
            Item("sim", "mesh", [mesh, "--seeds", count, "--from", str(seed() * 1000000), "--jobs", "1"]),
            *(Item("sim", f"disk-{known}", [f"{build}/tests/sim/disk", "--from", known, "--seeds", "1"]) for known in DISK_KEPT),
            Item("sim", "disk", [f"{build}/tests/sim/disk", "--seeds", "1000", "--from", str(seed() * 1000000)])]


def fuzz_item(name, path):
    """A short run from the committed corpus; what it finds new stays in a folder of its own."""
    found = tempfile.mkdtemp(prefix="fd-fuzz-")
    corpus.unpack(name, found)
    seconds = int(os.environ.get("FUZZ_SECONDS", "20"))
    item = Item("fuzz", name, [path, f"-max_total_time={seconds}", "-timeout=60", "-rss_limit_mb=4096", f"-artifact_prefix={found}/",
                               "-print_final_stats=0", found])
    item.limit_s += seconds
    return item


def sources(item, build):
    """The files under tests/ that an item is made of: a program's by what it includes, a file of pytest's by what it imports but for conftest.py."""
    group, name = item.name.split(" ")[0].split("/")
    if group == "sim":
        return set(glob.glob("tests/sim/*.[ch]"))
    if group not in PROGRAM_GROUPS:
        own = f"tests/{re.sub('^e2e-[a-z]+', 'e2e', group)}/{name}" if group != "fuzz" else f"tests/fuzz/{name}.c"
        with open(own, encoding="utf-8") as file:
            imported = re.findall(r"^\s*(?:from|import) (\w+)", file.read(), re.M)
        return {own, *(f"tests/e2e/{module}.py" for module in imported if module != "conftest")}
    found = set()
    for path in (f"{build}/obj/tests/{group}/{name}.d", f"{build}/obj/emulated/tests/cuda/{name}.c.d"):
        with contextlib.suppress(OSError), open(path, encoding="utf-8") as file:
            found.update(os.path.normpath(word) for word in file.read().split() if "tests/" in word)
    return found


def changed_since(revision):
    """Files under tests/ that differ from a revision, or are new."""
    commands = (["git", "diff", "--name-only", revision, "--", "tests"], ["git", "ls-files", "--others", "--exclude-standard", "tests"])
    return {line for command in commands for line in subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()}


@contextlib.contextmanager
def load(wanted):
    """Keeps as many cores busy as there are, at the priority of the tests."""
    if not wanted:
        yield
        return
    command = ["setpriv", "--pdeathsig", "TERM", "--", "stress-ng", "--quiet", "--cpu", str(len(os.sched_getaffinity(0)))]
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL)
    try:
        yield
    finally:
        process.terminate()
        process.wait()


class Run:
    """A queue of items, a few threads that take from it, and what came of them."""

    def __init__(self, items, jobs, durations_path, fail_fast):
        self.durations_path, self.fail_fast = durations_path, fail_fast
        try:
            with open(durations_path, encoding="utf-8") as file:
                self.durations = json.load(file)
        except (OSError, ValueError):
            self.durations = {}
        self.jobs, self.lock = jobs, threading.Lock()
        self.queue = sorted((item for item in items if not item.alone), key=lambda item: (-item.round, self.expected_s(item)))
        self.alone = [item for item in items if item.alone]
        self.count = {"passed": 0, "failed": 0, "skipped": 0}
        self.by_group = {}
        self.seconds = collections.Counter()
        self.failed, self.skipped = [], []

    def expected_s(self, item):
        return self.durations.get(item.name, GUESSED_S.get(re.sub("^e2e-[a-z]+", "e2e", item.name), 2 if item.group not in MARKERS else 8))

    def finish(self, item, seconds):
        with self.lock:
            self.durations[item.name] = round(seconds, 1)
            self.seconds[item.group] += seconds
            for name, outcome, text in item.cases:
                self.count[outcome] += 1
                group = self.by_group.setdefault(item.group, {"passed": 0, "failed": 0, "skipped": 0})
                group[outcome] += 1
                if outcome == "failed":
                    self.failed.append(name)
                    print(f"FAILED {name}")
                    print("    " + text.strip()[-6000:].replace("\n", "\n    "))
                elif outcome == "skipped":
                    self.skipped.append(name + (": " + text.strip().splitlines()[-1] if text.strip() else ""))
            outcomes = [outcome for _, outcome, _ in item.cases]
            if outcomes:
                print(f"  {'FAILED' if 'failed' in outcomes else 'ok':6} {seconds:6.1f} s  {item.name} ({len(outcomes)})")
            sys.stdout.flush()

    def take(self):
        while True:
            with self.lock:
                if not self.queue or (self.fail_fast and self.failed):
                    return
                item = self.queue.pop()
            began = time.monotonic()
            item.run()
            self.finish(item, time.monotonic() - began)

    def all(self):
        threads = [threading.Thread(target=self.take) for _ in range(self.jobs)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.queue = self.alone
        self.take()

    def keep_durations(self):
        os.makedirs(os.path.dirname(self.durations_path), exist_ok=True)
        with open(self.durations_path, "w", encoding="utf-8") as file:
            json.dump(self.durations, file, indent=0, sort_keys=True)


def options():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--build", default="build")
    arguments.add_argument("--venv", default="build/venv")
    arguments.add_argument("--jobs", type=int, default=int(os.environ.get("FD_JOBS") or len(os.sched_getaffinity(0)) + 2))
    arguments.add_argument("--only", help="the items of the groups to run, as unit/test_wire or e2e/test_api.py; several with commas")
    arguments.add_argument("--changed", metavar="REVISION", help="the items whose tests, or what these include or import, differ from a revision")
    arguments.add_argument("--repeat", type=int, default=1, metavar="N", help="run everything so many times")
    arguments.add_argument("--beside-load", action="store_true", help="keep all cores busy meanwhile, with stress-ng")
    arguments.add_argument("--fail-fast", action="store_true", help="start nothing more after a failure")
    arguments.add_argument("--shares", action="store_true", help="only say which share of its time each group of the last `make check` took")
    arguments.add_argument("group", nargs="*", metavar="group", help=", ".join(GROUPS))
    chosen = arguments.parse_args()
    if set(chosen.group) - set(GROUPS) or not (chosen.group or chosen.shares):
        arguments.error("groups of tests are " + ", ".join(GROUPS))
    return chosen


def chosen_items(chosen):
    """The items of all rounds."""
    changed = changed_since(chosen.changed) if chosen.changed else None
    for number in range(chosen.repeat):
        for item in (item for group in chosen.group for item in items_of(group, chosen.build, chosen.venv)):
            if chosen.only and item.name.split(" ")[0] not in chosen.only.split(","):
                continue
            if changed is not None and not changed & sources(item, chosen.build):
                continue
            if chosen.fail_fast:
                item.command += ["-x"] if item.group in MARKERS else []
            item.round = number
            yield item


def report(run, rounds):
    for group, count in run.by_group.items():
        print(f"{group}: {count['passed']} passed, {count['failed']} failed, {count['skipped']} skipped, {run.seconds[group]:.0f} s of tests")
    for title, names in (("skipped:", run.skipped), ("failed:", run.failed)):
        lines = [name + (f": {times} of {rounds}" if rounds > 1 else "") for name, times in collections.Counter(names).items()]
        if lines:
            print(title, *lines, sep="\n  ")
    if "FD_TALLY" in os.environ:  # of a longer check, which adds up
        with open(os.environ["FD_TALLY"], "a", encoding="utf-8") as file:
            file.write("{passed} {failed} {skipped}".format(**run.count) + "".join(f"\t{name}" for name in sorted(set(run.failed))) + "\n")


def check_shares(durations_path):
    """Whether the last runs of the groups of `make check` kept to their shares; a share is the same on every machine."""
    if not os.path.exists(durations_path):
        print("run `make check` first: there are no times")
        return 77
    with open(durations_path, encoding="utf-8") as file:
        durations = {name: seconds for name, seconds in json.load(file).items() if name.split("/")[0] in SHARES}
    total, groups = sum(durations.values()), collections.Counter()
    for name, seconds in durations.items():
        groups[name.split("/")[0]] += seconds
    if set(groups) != set(SHARES):
        print("run `make check` first: there are no times of all its groups")
        return 77
    over = [f"{name} takes {100 * seconds / total:.0f} % of make check's time, its share is {share} %"
            for name, seconds, share in [(name, groups[name], SHARES[name]) for name in SHARES] +
            [(name, seconds, ITEM_SHARE) for name, seconds in durations.items()] if 100 * seconds > share * total]
    print(*[f"{name}: {groups[name]:.0f} s, {100 * groups[name] / total:.0f} %" for name in SHARES], *over, sep="\n")
    return 1 if over else 0


def main():
    chosen = options()
    os.chdir(ROOT)
    if chosen.shares:
        return check_shares(f"{chosen.build}/durations.json")
    began = time.monotonic()
    with load(chosen.beside_load):
        os.environ["FD_BUILD"] = chosen.build
        os.environ["FD_PACE"] = str(pace.factor())
        os.environ["FD_SEED"] = str(seed())
        items = list(chosen_items(chosen))
        if chosen.changed and not items:
            print(f"no test of {', '.join(chosen.group)} differs from {chosen.changed}")
            return 0
        print(f"pace {pace.factor():.2f}: waits are that many times as long as on the reference machine; FD_SEED={seed()}")
        sys.stdout.flush()
        run = Run(items, chosen.jobs, f"{chosen.build}/durations.json", chosen.fail_fast)
        run.all()
    if not chosen.beside_load:
        run.keep_durations()
    report(run, chosen.repeat)
    print(f"in {time.monotonic() - began:.0f} s")
    print("{passed} passed, {failed} failed, {skipped} skipped".format(**run.count))
    return 1 if run.failed or not run.count["passed"] else 0


sys.exit(main())
