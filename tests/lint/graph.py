"""The include and call graph of common/, kernels/ and services/ against the table of rooms in the Makefile.

usage: graph.py BUILD-FOLDER [figures]

Checked:
  rooms     a directory includes and calls only those that its row of the table names, and each that it names; the row names only
            rooms above it, so there is no circle of rooms and nothing points upward
  libraries a library is included only in rooms whose row has it
  circles   no circle of files: a .c and its .h are one unit; A depends on B if it includes B's header or uses a symbol that B's
            object defines. A file may include its room's own interface (common/sched/sched.h), whose .c is on top of the room:
            it is where the types are. A header without a .c is no unit. Headers must not include each other in a circle either
  pointers  no function pointer of a struct that one room alone sees has its only target in another file of that room: it would hide a
            circle. Callbacks that have a `void *arg` or `user`, and tables with several targets, are interfaces
  private   a header named *_internal.h, *_state.h or internal.h is included only from its own directory: it holds what the files
            there share. One that says "Private to ROOM" is included only from there, too; "and what is in it": and from rooms below

`figures` prints the sizes of the tree instead.
"""
import collections
import os
import re
import subprocess
import sys

# Beginning of an <included> name -> the library in the Makefile's table; None: of the toolkit of CUDA, which kernels/cuda alone uses.
LIBRARIES = {
    "nng/": "nng", "protobuf-c/": "protobuf-c", "microhttpd": "microhttpd", "gnutls": "gnutls", "jansson": "jansson",
    "sqlite3": "sqlite3", "curl/": "curl", "pcre2": "pcre2-8", "utf8proc": "utf8proc", "sodium": "sodium", "openssl/": "ssl",
    "liburing": "uring", "seccomp": "seccomp", "coin/": "Clp", "cblas": "openblas", "openblas": "openblas",
    "cuda": None, "cublas": None,
}

# A file that compiles only where CUDA is -> the object that defines the same functions for the tests.
STAND_INS = {"kernels/cuda/gemm.c": "emulated/tests/cuda/gemm_emulated.c.o"}

PRIVATE = re.compile(r"[/_](internal|state)\.h$")
PRIVATE_TO = re.compile(r"^//.*\bPrivate to\s+(?://\s+)?([\w/-]+)( and what is in it)?", re.M)
ROW = re.compile(r"^\$\(eval \$\(call room,([^,]*),([^,]*),([^,)]*)\)\)", re.M)
INCLUDE = re.compile(r'^\s*#\s*include\s*(?:"([^"]+)"|<([^>]+)>)', re.M)


def table():
    """Room -> (rooms it may use, libraries it may use), in the Makefile's order."""
    with open("Makefile", encoding="utf-8") as file:
        text = file.read().replace("\\\n", " ")
    return {room: (uses.split(), libraries.split()) for room, uses, libraries in ROW.findall(text)}


def run(*command):
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


class Graph:
    def __init__(self, build):
        self.build, self.bad, self.table = build, [], table()
        self.files = [path for path in run("git", "ls-files", "common", "kernels", "services").split()
                      if path.endswith((".c", ".h", ".cu", ".cuh")) and os.path.exists(path)]
        self.with_code = {os.path.splitext(path)[0] for path in self.files if path.endswith((".c", ".cu"))}
        self.units = collections.defaultdict(set)     # unit -> units
        self.headers = collections.defaultdict(set)   # header -> headers
        self.rooms = collections.defaultdict(dict)    # directory -> {directory: why}
        self.libraries = collections.defaultdict(set)  # directory -> libraries

    def depend(self, path, other, why):
        unit, target = os.path.splitext(path)[0], os.path.splitext(other)[0]
        if unit != target and {unit, target} <= self.with_code:
            self.units[unit].add(target)
        room, target_room = os.path.dirname(path), os.path.dirname(other)
        if room != target_room:
            self.rooms[room].setdefault(target_room, f"{path} {why}")

    def read_includes(self):
        for path in self.files:
            with open(path, encoding="utf-8") as file:
                text = file.read()
            for own, library in INCLUDE.findall(text):
                if own:
                    self.include(path, own)
                else:
                    self.include_library(path, library)

    def include(self, path, name):
        if name.endswith(".pb-c.h"):
            self.rooms[os.path.dirname(path)].setdefault("proto", f"{path} includes {name}")
            return
        if not os.path.exists(name):
            self.bad.append(f"{path} includes {name}, which is not there")
            return
        if PRIVATE.search(name) and os.path.dirname(name) != os.path.dirname(path):
            self.bad.append(f"{path} includes {name}, which is private to {os.path.dirname(name)}")
        self.check_claim(path, name)
        if path.endswith(".h") and name.endswith(".h"):
            self.headers[path].add(name)
        room = os.path.dirname(name)
        is_own_interface = os.path.dirname(path) == room and name == f"{room}/{os.path.basename(room)}.h"
        if not is_own_interface and not name.startswith("tests/"):  # those are for kernels/cuda on the emulated device
            self.depend(path, name, f"includes {name}")

    def check_claim(self, path, name):
        """A header is included from where it says that it is private to, and from its own directory."""
        with open(name, encoding="utf-8") as file:
            claim = PRIVATE_TO.search(file.read())
        room = os.path.dirname(path)
        if claim and room not in (claim[1], os.path.dirname(name)) and not (claim[2] and room.startswith(claim[1] + "/")):
            self.bad.append(f"{path} includes {name}, which is private to {claim[1]}")

    def include_library(self, path, name):
        room = os.path.dirname(path)
        for beginning, library in LIBRARIES.items():
            if name.startswith(beginning):
                self.libraries[room].add(library)
                if (library not in self.table.get(room, ((), ()))[1]) if library else room != "kernels/cuda":
                    self.bad.append(f"{path} includes <{name}>: the table of rooms does not give {room} that library")

    def objects(self):
        """Object -> its file. What has none cannot be checked: a directory without any is an error."""
        objects, missing = {}, set()
        for path in self.files:
            stem, kind = os.path.splitext(path)
            name = STAND_INS.get(path) or (f"emulated/{path}.o" if path.startswith("kernels/cuda/") else f"{stem}.o")
            if kind not in (".c", ".cu"):
                continue
            if os.path.exists(f"{self.build}/obj/{name}"):
                objects[f"{self.build}/obj/{name}"] = path
            else:
                missing.add(os.path.dirname(path))
        for room in sorted(missing - {os.path.dirname(path) for path in objects.values()}):
            self.bad.append(f"no object of {room} in {self.build}/obj: build first (make programs)")
        return objects

    def read_calls(self):
        """Undefined symbols of an object that another one defines."""
        objects, defined, used = self.objects(), {}, []
        if not objects:
            return
        for line in run("nm", "-A", *objects).splitlines():
            name, rest = line.split(":", 1)
            *_, kind, symbol = rest.split()
            path = objects[name]
            if kind == "U":
                used.append((path, symbol))
            elif kind in "TDBRVW" and symbol != "main" and not symbol.startswith("_Z"):  # C++: templates, in each object
                defined[symbol] = path
        for path in STAND_INS:  # what it calls itself: names that a comment has count too
            with open(path, encoding="utf-8") as file:
                used += [(path, word) for word in sorted(set(re.findall(r"\w+", file.read())))]
        for path, symbol in used:
            if symbol in defined:
                self.depend(path, defined[symbol], f"uses {symbol}() of {defined[symbol]}")

    def check_rooms(self):
        above = set()
        for room, (allowed, libraries) in self.table.items():
            used = self.rooms.get(room, {})
            self.bad += [f"Makefile: {room} may not name {other}, which is not above it" for other in allowed if other not in above]
            self.bad += [f"Makefile: {room} does not use {other}" for other in allowed if other not in used]
            self.bad += [f"Makefile: {room} does not use the library {library}"
                         for library in libraries if library not in self.libraries[room] | {"crypto"} and room != "proto"]
            self.bad += [f"{room} may not depend on {other}: {why}" for other, why in sorted(used.items()) if other not in allowed]
            above.add(room)
        for room in sorted({os.path.dirname(path) for path in self.files} - set(self.table)):
            self.bad.append(f"the Makefile's table has no row for {room}")

    def check_circles(self):
        for circle in circles(self.units):
            self.bad.append("a circle of files: " + " ".join(circle))
            self.bad += [f"    {unit} -> {other}" for unit in circle for other in sorted(self.units[unit]) if other in circle]
        for circle in circles(self.headers):
            self.bad.append("headers that include each other: " + " ".join(circle))

    def check_pointers(self):
        """Function pointers by name, and what is assigned to them anywhere, tests included. A table whose entries have several targets is
        an interface, and so is a set of callbacks with the `void *arg` or `user` of whoever is called."""
        texts, tables, targets, homes, seen = {}, [], collections.defaultdict(set), {}, collections.defaultdict(set)
        for path in run("git", "ls-files", "common", "kernels", "services", "tests").split():
            if path.endswith((".c", ".h", ".cu", ".cuh")) and os.path.exists(path):
                with open(path, encoding="utf-8") as file:
                    texts[path] = re.sub(r"//[^\n]*", "", file.read())
        for path, text in texts.items():
            for own, _ in INCLUDE.findall(text):
                seen[own].add(os.path.dirname(path))
            for name in re.findall(r"^(?:static )?(?:[a-z_]\w*[ *]+)+(\w+)\([^;{}]*\)\s*\{", text, re.M):
                homes.setdefault(name, set()).add(path)
            if path.endswith(".h") and not path.startswith("tests/"):
                for body in re.findall(r"^struct \w+ \{\n(.*?)^\};", text, re.M | re.S):
                    tables.append((path, body, {a or b for a, b in re.findall(r"\(\*(\w+)\)\(|\b\w+_fn \*(\w+);", body)}))
        for path, text in texts.items():
            for name, target in re.findall(r"(?:\.|->)(\w+) = &?(\w+)\s*[,;}]", text):
                if target in homes:
                    targets[name].add((path if path in homes[target] else min(homes[target]), target))
        for path, body, names in tables:
            if re.search(r"void \*(arg|user);", body) or any(len(targets[name]) > 1 for name in names):
                continue
            for name in sorted(names):
                home, target = min(targets[name], default=("", ""))
                if seen[path] == {os.path.dirname(home)} and os.path.splitext(path)[0] != os.path.splitext(home)[0]:
                    self.bad.append(f"{path}: the function pointer `{name}` has one target, {target}() of {home}")


def circles(graph):
    """The strongly connected components of more than one node (Tarjan)."""
    index, low, stack, on_stack, found = {}, {}, [], set(), []

    def visit(node):
        index[node] = low[node] = len(index)
        stack.append(node)
        on_stack.add(node)
        for other in sorted(graph.get(node, ())):
            if other not in index:
                visit(other)
                low[node] = min(low[node], low[other])
            elif other in on_stack:
                low[node] = min(low[node], index[other])
        if low[node] == index[node]:
            members = []
            while not members or members[-1] != node:
                members.append(stack.pop())
                on_stack.discard(members[-1])
            if len(members) > 1:
                found.append(sorted(members))

    sys.setrecursionlimit(10000)
    for node in sorted(graph):
        if node not in index:
            visit(node)
    return sorted(found)


def figures(graph):
    def count(path):
        with open(path, encoding="utf-8") as file:
            return sum(1 for _ in file)

    sizes = {path: count(path) for path in graph.files}
    order = list(graph.table)
    arrows = [(room, other) for room, others in graph.rooms.items() for other in others]
    up = [arrow for arrow in arrows if set(arrow) <= set(order) and order.index(arrow[1]) > order.index(arrow[0])]
    tests = [path for path in run("git", "ls-files", "tests").split()
             if path.endswith((".c", ".h", ".cpp", ".py", ".sh")) and os.path.exists(path)]
    headers = [path for path in sizes if path.endswith((".h", ".cuh"))]
    product = [path for path in run("git", "ls-files", "common", "kernels", "services", "proto").split() if os.path.exists(path)]
    print(f"product: {len(sizes)} files of C and CUDA C, {len(product)} in all, {sum(sizes.values()):,} lines of C and CUDA C")
    print(f"tests: {len(tests)} files, {sum(map(count, tests)):,} lines")
    print(f"headers: {len(headers)}, {sum(sizes[path] < 40 for path in headers)} of under 40 lines")
    print(f"rooms: {len(order)}; arrows: {len(arrows)}, {len(up)} upward; circles of files: {len(circles(graph.units))}")
    largest = collections.Counter(os.path.dirname(path) for path in sizes).most_common(8)
    print("largest rooms: " + ", ".join(f"{room} {files}" for room, files in largest))


def main():
    graph = Graph(sys.argv[1] if len(sys.argv) > 1 else "build")
    graph.read_includes()
    graph.read_calls()
    if "figures" in sys.argv[2:]:
        figures(graph)
        return 0
    graph.check_rooms()
    graph.check_circles()
    graph.check_pointers()
    print(*graph.bad, sep="\n", end="\n" if graph.bad else "")
    return 1 if graph.bad else 0


if __name__ == "__main__":
    sys.exit(main())
