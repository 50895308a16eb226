"""The include and call graph of common/, kernels/ and services/ against the tables below. usage: graph.py BUILD-FOLDER

Checked:
  rooms     a directory includes and calls only the directories that ROOMS gives it, all of which are above it in the table, so there
            is no circle of directories and nothing points upward
  libraries a library is included only where LIBRARIES says
  circles   no circle of files: a .c and its .h are one unit; A depends on B if it includes B's header or uses a symbol that B's
            object defines. A file may include its room's own interface (common/sched/sched.h), whose .c is on top of the room:
            it is where the types are. A header without a .c is no unit. Headers must not include each other in a circle either
  private   a header named *_internal.h, *_state.h or internal.h is included only from its own directory: it holds what the files
            there share

Exceptions are what is still to be mended. The lists may only shrink: an entry that is no longer needed is an error too.
"""
import collections
import fnmatch
import os
import re
import subprocess
import sys

# Directory -> directories that it may depend on, beside itself. Only names further up may be used.
ROOMS = {
    "proto": "",  # generated
    "common/base": "",
    "common/trace": "common/base",
    "common/service": "common/base",
    "common/otlp": "proto common/base",
    "common/disk": "common/base",
    # kernels: instruction sets, then operations, then the table that picks a variant
    "kernels/simd": "common/base",
    "kernels/quant": "common/base kernels/simd",
    "kernels/gemm": "common/base kernels/simd kernels/quant",
    "kernels/attention": "common/base kernels/simd",
    "kernels/norm_rope": "common/base kernels/simd",
    "kernels/dispatch": "common/base kernels/simd kernels/quant kernels/gemm kernels/attention kernels/norm_rope",
    # what a model and its state are
    "common/json": "common/base",
    "common/jinja": "common/base common/json",
    "common/tokenizer": "common/base",
    "common/model": "common/base common/json kernels/simd kernels/quant kernels/norm_rope",
    "common/sampler": "common/base",
    "common/vocabulary": "common/base common/model common/tokenizer",
    "common/kv": "common/base kernels/simd kernels/attention kernels/dispatch",
    # devices
    "kernels/backend": "common/base common/disk common/model common/sampler common/kv kernels/simd kernels/quant kernels/gemm kernels/attention "
                       "kernels/norm_rope kernels/dispatch",
    "kernels/cuda": "common/base common/disk common/model common/sampler common/kv kernels/simd kernels/quant kernels/norm_rope kernels/dispatch "
                    "kernels/backend",
    # scheduling: pure, so that the simulator runs the same code
    "common/sched": "common/base",
    "common/plan": "common/base common/model common/kv common/sched kernels/quant kernels/attention",
    "common/sim": "common/base common/sched common/plan",
    "common/capacity": "common/base",
    # the mesh
    "common/wire": "proto common/base",
    "common/messages": "proto common/base common/wire common/sampler common/kv common/model common/sched",
    "common/rpc": "proto common/base common/wire",
    "common/member": "proto common/base common/rpc common/messages",
    "common/handover": "proto common/base common/wire common/messages common/rpc",
    "common/apikey": "",
    "common/batch": "common/base common/json",
    "common/grammar": "common/base common/json",
    # programs: none includes another
    "common/answer": "common/base common/json common/grammar",
    "services/gateway": "proto common/answer common/apikey common/base common/json common/batch common/grammar common/otlp common/trace common/service common/kv common/jinja common/model common/tokenizer common/vocabulary "
                        "common/wire common/messages common/rpc",
    "services/scheduler": "proto common/base common/otlp common/trace common/service common/kv common/sched common/plan common/wire common/messages "
                          "common/rpc common/member",
    "services/kv-worker": "proto common/base common/otlp common/trace common/service common/kv common/wire common/messages common/rpc "
                          "common/member common/handover kernels/simd kernels/dispatch",
    "services/s-part": "proto common/base common/otlp common/trace common/service common/disk common/model common/tokenizer common/vocabulary common/grammar common/sampler common/kv common/sched common/plan "
                       "common/wire common/messages common/rpc common/member common/handover kernels/simd kernels/dispatch "
                       "kernels/backend",
    "services/fastdecode": "proto common/apikey common/base common/json common/batch common/otlp common/trace common/service common/disk common/model common/tokenizer common/vocabulary common/sampler common/kv "
                           "common/sched common/plan common/sim common/capacity common/rpc kernels/simd kernels/quant kernels/dispatch kernels/backend",
}

# Beginning of an <included> name -> where it may be.
LIBRARIES = {
    "nng/": "common/rpc",
    "protobuf-c/": "common/rpc common/wire common/messages",
    "microhttpd": "services/gateway",
    "cblas": "kernels/backend",
    "openblas": "kernels/backend",
    "cuda": "kernels/cuda",
    "cublas": "kernels/cuda",
    "pcre2": "common/tokenizer",
    "utf8proc": "common/jinja common/tokenizer services/fastdecode",
    "jansson": "common/answer common/batch common/grammar common/jinja common/json common/model services/gateway services/fastdecode",
    "curl/": "common/otlp services/fastdecode",
    "coin/": "common/plan",
    "sqlite3": "services/gateway",
    "liburing": "common/disk",
    "seccomp": "common/service",
    "sodium": "common/apikey common/rpc services/fastdecode services/gateway services/scheduler",
    "openssl/": "common/rpc services/fastdecode",
    "gnutls": "services/gateway",
}

# --- exceptions ------------------------------------------------------------------------------------------------------------

# "FROM TO" of directories
ROOM_EXCEPTIONS = """
""".split("\n")[1:-1]

# "UNIT UNIT ..." of a circle, each without its extension, or patterns of them
CIRCLE_EXCEPTIONS = """
""".split("\n")[1:-1]

# A file that compiles only where CUDA is -> the object that defines the same functions for the tests.
STAND_INS = {"kernels/cuda/gemm.c": "emulated/tests/cuda/gemm_emulated.c.o"}

PRIVATE = re.compile(r"[/_](internal|state)\.h$")
INCLUDE = re.compile(r'^\s*#\s*include\s*(?:"([^"]+)"|<([^>]+)>)', re.M)


def run(*command):
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


class Graph:
    def __init__(self, build):
        self.build, self.bad = build, []
        self.files = [path for path in run("git", "ls-files", "common", "kernels", "services").split()
                      if path.endswith((".c", ".h", ".cu", ".cuh")) and os.path.exists(path)]
        self.with_code = {os.path.splitext(path)[0] for path in self.files if path.endswith((".c", ".cu"))}
        self.units = collections.defaultdict(set)     # unit -> units
        self.headers = collections.defaultdict(set)   # header -> headers
        self.rooms = collections.defaultdict(dict)    # directory -> {directory: why}

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
        if path.endswith(".h") and name.endswith(".h"):
            self.headers[path].add(name)
        room = os.path.dirname(name)
        is_own_interface = os.path.dirname(path) == room and name == f"{room}/{os.path.basename(room)}.h"
        if not is_own_interface and not name.startswith("tests/"):  # those are for kernels/cuda on the emulated device
            self.depend(path, name, f"includes {name}")

    def include_library(self, path, name):
        for library, rooms in LIBRARIES.items():
            if name.startswith(library) and os.path.dirname(path) not in rooms.split():
                self.bad.append(f"{path} includes <{name}>: only {rooms} may")

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
        for room, allowed in ROOMS.items():
            for other in set(allowed.split()) - above:
                self.bad.append(f"ROOMS: {room} may not name {other}, which is not above it")
            above.add(room)
        unused = set(ROOM_EXCEPTIONS)
        for room, others in sorted(self.rooms.items()):
            if room not in ROOMS:
                self.bad.append(f"ROOMS has no line for {room}")
                continue
            for other, why in sorted(others.items()):
                if other in ROOMS[room].split():
                    continue
                if f"{room} {other}" in unused:
                    unused.remove(f"{room} {other}")
                else:
                    self.bad.append(f"{room} may not depend on {other}: {why}")
        for entry in sorted(unused):
            self.bad.append(f"ROOM_EXCEPTIONS: '{entry}' is mended, remove the line")

    def check_circles(self):
        unused = set(CIRCLE_EXCEPTIONS)
        for circle in circles(self.units):
            covering = [entry for entry in CIRCLE_EXCEPTIONS if all(matches(unit, entry) for unit in circle)]
            unused -= set(covering)
            if not covering:
                self.bad.append("a circle of files: " + " ".join(circle))
                self.bad += [f"    {unit} -> {other}" for unit in circle for other in sorted(self.units[unit]) if other in circle]
        for entry in sorted(unused):
            self.bad.append(f"CIRCLE_EXCEPTIONS: '{entry}' is mended, remove the line")
        for circle in circles(self.headers):
            self.bad.append("headers that include each other: " + " ".join(circle))


def matches(unit, entry):
    return any(fnmatch.fnmatch(unit, pattern) for pattern in entry.split())


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


def main():
    graph = Graph(sys.argv[1] if len(sys.argv) > 1 else "build")
    graph.read_includes()
    graph.read_calls()
    graph.check_rooms()
    graph.check_circles()
    print(*graph.bad, sep="\n", end="\n" if graph.bad else "")
    return 1 if graph.bad else 0


if __name__ == "__main__":
    sys.exit(main())
