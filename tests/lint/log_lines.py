"""log_lines.py: the IDs that code logs at level warn or error are the rows of docs/log-lines.md: each once, in alphabetical order within its
table, with words in all cells. Its services are those in whose folders it is logged; of what several share, any that may call the room by the
Makefile's table."""
import collections
import os
import re
import sys

from graph import run, table

PAGE = "docs/log-lines.md"
SERVICES = {"gateway": "services/gateway", "scheduler": "services/scheduler", "s-part": "services/s-part", "kv-worker": "services/kv-worker",
            "up": "services/fastdecode/up"}
ALL = [service for service in SERVICES if service != "up"]
CALL = re.compile(r"(?:\blog_(?:warn|error|write)\(|LOG_(?:WARN|ERROR), *)([^,;]*),")
ID = re.compile(r'"([A-Z][A-Z0-9-]+)"')
LOG = ("common/base/log.h", "common/base/log.c")  # define these
LOADED = {"s-part": "kernels/cuda"}  # a library that is no part of the program


def logged():
    """(ID -> files that log it, complaints)"""
    found, bad = collections.defaultdict(set), []
    for path in run("git", "ls-files", "services", "common", "kernels").split():
        if not path.endswith((".c", ".h", ".cu", ".cuh")) or path == LOG[0] or not os.path.exists(path):
            continue
        with open(path, encoding="utf-8") as file:
            text = re.sub(r"//[^\n]*", "", file.read())
        for call in CALL.finditer(text):
            ids = ID.findall(call[1])
            if not ids and path not in LOG:
                bad.append(f"{path}: {' '.join(call[0].split())} names no ID, so no page can have it")
            for name in ids:
                found[name].add(path)
    return found, bad


def rooms_of():
    """Service -> rooms that it may call, however indirectly."""
    uses = table()
    reached = {}
    for room in uses:  # those that it names are above it
        reached[room] = {room}.union(*(reached[other] for other in uses[room][0]))
    return {service: {LOADED.get(service, "")}.union(*(reached[room] for room in uses if (room + "/").startswith(folder + "/")))
            for service, folder in SERVICES.items()}


def rows():
    """(table's number, cells) of each row that begins with an ID."""
    with open(PAGE, encoding="utf-8") as file:
        lines = file.read().split("\n")
    number = 0
    for line in lines:
        number += line.startswith("## ")
        if re.match(r"\| [A-Z][A-Z0-9-]+ \|", line) and not line.startswith("| ID |"):
            yield number, [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]


def check_services(name, cell, files, rooms):
    given = set(ALL if cell == "all" else [*ALL, "up"] if cell == "all, up" else cell.split(", "))
    folders = {os.path.dirname(path) for path in files}
    at_home = {service for service, folder in SERVICES.items() if any((path + "/").startswith(folder + "/") for path in folders)}
    possible = {service for service in SERVICES if folders & rooms[service]}
    where = " ".join(sorted(files))
    for service in sorted(given - possible):
        yield f"{name} names {service}, which does not reach {where}"
    for service in sorted(at_home - given):
        yield f"{name} does not name {service}, which logs it in {where}"


def main():
    found, bad = logged()
    rooms, seen, before = rooms_of(), set(), (0, "")
    for number, cells in rows():
        name = cells[0]
        if name in seen or (number, name) < before:
            bad.append(f"{name} is there twice, or not in alphabetical order")
        seen.add(name)
        before = (number, name)
        if len(cells) != 4 or not all(cells):
            bad.append(f"{name} does not have the four cells ID, service, what happened, do")
        elif name not in found:
            bad.append(f"no code logs {name} at level warn or error")
        else:
            bad += check_services(name, cells[1], found[name], rooms)
    bad += [f"{name} has no row, which is logged in {' '.join(sorted(found[name]))}" for name in sorted(set(found) - seen)]
    print(*(f"{PAGE}: {line}" for line in bad), sep="\n", end="\n" if bad else "")
    return bool(bad)


if __name__ == "__main__":
    sys.exit(main())
