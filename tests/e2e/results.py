"""Results test by test: as soon as a test has ended, one JSON object a line is appended to the file that FD_RESULTS names.

  {"outcome": "passed" | "failed" | "skipped", "name": node id, "seconds": with set-up and teardown, "text": why}

So nothing is lost when a run is cut off. A test that SIGINT interrupts is written as failed, with where it was and what the
meshes had logged. conftest.py imports the hooks."""
import json
import os
import signal
import time
import zlib


class Running:
    """The test that runs now."""

    def __init__(self, name):
        self.name, self.began, self.outcome, self.seconds, self.texts = name, time.monotonic(), "passed", 0.0, []

    def add(self, report):
        self.seconds += report.duration
        if report.failed:
            self.outcome = "failed"
            self.texts.append(report.longreprtext + "".join(f"\n--- {title}\n{text}" for title, text in report.sections))
        elif report.skipped:
            self.outcome = "skipped"
            self.texts.append(report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longreprtext)


running = None
settings = ""           # of this run, told beside failures
interrupted = False     # then whatever runs is killed, not asked to end
logs_of_meshes = set()  # functions that return text; conftest.py fills it


def write(outcome, name, seconds, text):
    path = os.environ.get("FD_RESULTS")
    if outcome == "failed":
        text = f"{settings}\n{text}"
    if path:
        line = json.dumps({"outcome": outcome, "name": name, "seconds": round(seconds, 3), "text": text})
        with open(path, "a", encoding="utf-8") as file:
            file.write(line + "\n")


def pytest_configure():
    for number in (signal.SIGINT, signal.SIGTERM):  # a shell's background jobs would ignore the first
        signal.signal(number, signal.default_int_handler)


def pytest_collection_modifyitems(config, items):
    """FD_SHARD=K/N keeps every test whose name falls to shard K of N."""
    shard, _, count = os.environ.get("FD_SHARD", "").partition("/")
    if count:
        left_out = [item for item in items if zlib.crc32(item.nodeid.encode()) % int(count) != int(shard)]
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in left_out]


def pytest_runtest_logstart(nodeid):
    global running
    running = Running(nodeid)


def pytest_runtest_logreport(report):
    running.add(report)


def pytest_runtest_logfinish():
    global running
    write(running.outcome, running.name, running.seconds, "\n".join(running.texts))
    running = None


def pytest_collectreport(report):
    if report.failed:
        write("failed", report.nodeid or "collection", 0, report.longreprtext)


def pytest_report_header():
    return settings


def pytest_terminal_summary(terminalreporter):
    if terminalreporter.stats.get("failed"):
        terminalreporter.write_line(settings)


def pytest_keyboard_interrupt(excinfo):
    global interrupted
    interrupted = True
    if running:
        here = [entry for entry in excinfo.traceback if str(entry.path).startswith(os.path.dirname(__file__))]
        where = "\n".join(f"{entry.path}:{entry.lineno + 1}: in {entry.name}" for entry in here)
        text = f"interrupted after {time.monotonic() - running.began:.1f} s\n{where}"
        write("failed", running.name, time.monotonic() - running.began, "\n".join([text, *(logs() for logs in logs_of_meshes)]))
