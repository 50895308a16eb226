#!/usr/bin/env python3
"""A long run of a real mesh under mixed load, in which services are killed, stopped and drained: does anything grow, get lost or change?

  build/venv/bin/python tests/bench/soak.py [--minutes 120] [--seed N] [--clients 6] [--out build/soak]

Scheduler, s-part with a local pool, two KV workers and a gateway with --batch-dir are processes of their own, on loopback; copies of the programs,
so that they can be built anew meanwhile. Each is started again when it has ended. First an undisturbed mesh answers a fixed set of requests; then
clients ask them in any order, whole, streamed, in class batch, through /v1/batches, or leave early, and every answer must be the same again.

What is killed when follows from the seed (PHASES): a storm, a stretch without kills, then stretches in each of which one kind of service is spared
while the others are killed. A life is a service's time from a start to its end. Lives of a quarter of an hour or more are judged without their first
five minutes; of shorter ones the last two thirds are shown. A line is laid through the service's own memory (anonymous pages without those of the KV
pool, which become resident as they are first used), and another through its later half: memory grows if both rise, since a single step lifts only
one. Descriptors and threads are flat if their median in the last third is that of the first.

OUT/soak.json has settings, kills, counts, troubles and lives, written every minute; OUT/samples.jsonl a line per service every 5 s; OUT/run the logs.
Exit status: 1 if a criterion is not met."""
import argparse
import collections
import http.client
import json
import os
import random
import re
import shutil
import signal
import statistics
import subprocess
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

from servers import BUILD, MODEL, cpu_seconds  # noqa: E402
from conftest import free_port, spawn  # noqa: E402
from soak_load import BATCH_LIMIT_S, Load, request_set  # noqa: E402

WORKERS = ("kv-worker-0", "kv-worker-1")
KINDS = {"gateway": ("gateway",), "scheduler": ("scheduler",), "s-part": ("s-part",), "workers": WORKERS}
PHASES = (("nobody", 0.08), ("all", 0.28), ("gateway", 0.16), ("scheduler", 0.16), ("s-part", 0.16), ("workers", 0.16))  # who is spared, how long
HELD = ("requests_running", "requests_waiting", "batch_requests_running", "batch_requests_waiting", "kv_pages_used")
SAMPLE_S, DEADLINE_S, SLOPE_LIMIT_MBH, JUDGED_MIN, SHOWN_S = 5, 90, 1.0, 15, 120


# --- the mesh --------------------------------------------------------------------------------------------------------------------


class Mesh:
    """The services, started and started again by the thread that made it: they die with that thread."""

    def __init__(self, folder):
        self.folder, self.port_file = folder, os.path.join(folder, "gateway.port")
        shutil.rmtree(folder, ignore_errors=True)
        os.makedirs(os.path.join(folder, "bin"))
        with open(os.open(f"{folder}/secret", os.O_CREAT | os.O_WRONLY, 0o600), "w", encoding="ascii") as file:
            file.write(f"{random.SystemRandom().getrandbits(256):064x}\n")
        for program in ("scheduler", "s-part", "kv-worker", "gateway"):
            shutil.copy(os.path.join(BUILD, "bin", program), os.path.join(folder, "bin"))
        scheduler = f"tcp://127.0.0.1:{free_port()}"
        member = ("--scheduler", scheduler, "--listen", "tcp://127.0.0.1:0")
        self.commands = {
            "scheduler": ("scheduler", "--listen", scheduler, "--max-batch", 32),
            "s-part": ("s-part", *member, "--model", MODEL, "--local-pool", "48M", "--mini-batches", 1, "--max-batch", 32),
            **{name: ("kv-worker", *member, "--name", name, "--kv-memory", "64M", "--threads", 1, "--shares-cores") for name in WORKERS},
            "gateway": ("gateway", "--scheduler", scheduler, "--model", MODEL, "--host", "127.0.0.1", "--port", 0, "--port-file", self.port_file,
                        "--batch-dir", f"{folder}/batches", "--request-timeout", DEADLINE_S)}
        self.processes, self.killed, self.began, self.due = {}, {}, {}, {}
        self.deaths = []          # that nobody asked for, or that were not as they should be
        self.gateways = 0         # how many have been killed; clients compare
        for name in self.commands:
            self.start(name)

    def start(self, name):
        program, *options = map(str, self.commands[name])
        if name == "gateway" and os.path.exists(self.port_file):
            os.unlink(self.port_file)
        with open(f"{self.folder}/{name}.log", "ab") as log:
            self.processes[name] = spawn([f"{self.folder}/bin/{program}", *options, "--mesh-secret-file", f"{self.folder}/secret"], stdout=log,
                                         stderr=subprocess.STDOUT, start_new_session=True)  # which Ctrl-C does not reach
        self.killed[name], self.began[name] = None, time.monotonic()
        self.due.pop(name, None)

    def signal(self, name, number):
        if number in (signal.SIGKILL, signal.SIGTERM):
            self.gateways += name == "gateway"
            self.killed[name] = number
        self.processes[name].send_signal(number)

    def tick(self):
        """Starts what has ended, half a second later. What ended by itself, or badly after SIGTERM, is noted."""
        for name, process in self.processes.items():
            status = process.poll()
            if status is not None and name not in self.due:
                self.due[name] = time.monotonic() + 0.5
                young = time.monotonic() - self.began[name] < 5  # it may not wait for signals yet
                if status not in {signal.SIGKILL: (-9,), signal.SIGTERM: (0, -15) if young else (0,)}.get(self.killed[name], ()):
                    with open(f"{self.folder}/{name}.log", "rb") as file:
                        last = file.read()[-2000:].decode(errors="replace").splitlines()[-3:]
                    self.deaths.append({"name": name, "at": time.time(), "status": status, "asked": self.killed[name], "log": last})
            elif status is not None and time.monotonic() >= self.due[name]:
                self.start(name)

    def port(self):
        try:
            with open(self.port_file, encoding="ascii") as file:
                return int(file.read())
        except (OSError, ValueError):
            raise ConnectionRefusedError("no gateway listens") from None

    def get(self, path):
        connection = http.client.HTTPConnection("127.0.0.1", self.port(), timeout=30)
        connection.request("GET", path)
        reply = connection.getresponse()
        text = reply.read().decode()
        connection.close()
        return reply.status, text

    def held(self):
        """What requests hold, by the mesh's metrics; None: it does not say."""
        try:
            text = self.get("/metrics")[1]
            values = {name: re.findall(rf"^fastdecode_{name}(?:{{.*}})? (\S+)$", text, re.M) for name in HELD}
            return {name: sum(map(float, found)) for name, found in values.items()} if all(values.values()) else None
        except (OSError, http.client.HTTPException):
            return None

    def wait(self, condition, limit_s):
        """Ticks until condition() is true; returns that."""
        deadline = time.monotonic() + limit_s
        while not (found := condition()) and time.monotonic() < deadline:
            self.tick()
            time.sleep(0.2)
        return found

    def ready(self):
        try:
            return self.get("/ready")[0] == 200
        except (OSError, http.client.HTTPException):
            return False

    def errors(self):
        """Lines of the logs that are errors."""
        found = []
        for name in self.commands:
            with open(f"{self.folder}/{name}.log", encoding="utf-8", errors="replace") as file:
                found += [f"{name}: {line.strip()}"[:400] for line in file if " error " in line[:40] or "ASSERT-FAILED" in line]
        return found

    def stop(self):
        for number in (signal.SIGTERM, signal.SIGKILL):  # the gateway first, the scheduler before the workers
            for name in ("gateway", "scheduler", "s-part", *WORKERS):
                if self.processes[name].poll() is None:
                    self.signal(name, signal.SIGCONT)
                    self.signal(name, number)
                    try:
                        status = self.processes[name].wait(40 if name == "gateway" else 15)
                        if number == signal.SIGTERM and status:
                            self.deaths.append({"name": name, "status": status, "why": "ended so after SIGTERM"})
                    except subprocess.TimeoutExpired:
                        self.deaths.append({"name": name, "status": None, "why": "did not end in time after SIGTERM"})


def kills_of(seconds, chance):
    """([(second, signal, names)], [(second of the phase's end, who is spared)])"""
    kills, phases, at, end = [], [], 0.0, 0.0
    for spared, share in PHASES:
        end += share * seconds
        phases.append((end, spared))
        kinds = [names for kind, names in KINDS.items() if kind != spared]
        while spared != "all" and (at := at + chance.uniform(10, 50)) < end:
            what = chance.random()
            if what < 0.6:
                kills.append((at, signal.SIGKILL, [chance.choice(chance.choice(kinds))]))
            elif what < 0.72:
                kills.append((at, signal.SIGKILL, chance.sample(sum(kinds, ()), 2)))
            elif what < 0.87 or spared == "workers":
                name = chance.choice(chance.choice(kinds))
                kills += [(at, signal.SIGSTOP, [name]), (at + chance.uniform(1, 6), signal.SIGCONT, [name])]
            else:
                kills.append((at, signal.SIGTERM, [chance.choice(WORKERS)]))
        at = max(at, end)
    return sorted(kills), phases


# --- what the services take ------------------------------------------------------------------------------------------------------


def sample(name, pid):
    """Memory in MB, descriptors and threads of a process; None: it has ended. own: anonymous pages without those of the KV pool, whose
    mappings are writable and left out of a dump."""
    try:
        with open(f"/proc/{pid}/smaps", encoding="ascii", errors="replace") as file:
            mappings = re.split(r"^(?=[0-9a-f]+-[0-9a-f]+ )", file.read(), flags=re.M)[1:]
        sums = collections.Counter()
        for text in mappings:
            field = dict(re.findall(r"^(\w+):\s+(\d+) kB", text, re.M))
            flags = re.search(r"^VmFlags: (.*)$", text, re.M)[1].split()
            sums.update(rss=int(field["Rss"]), pss=int(field["Pss"]), dirty=int(field["Private_Dirty"]))
            sums["kv" if "dd" in flags and "wr" in flags else "own"] += int(field["Anonymous"])
        with open(f"/proc/{pid}/status", encoding="ascii") as file:
            threads = int(re.search(r"Threads:\s+(\d+)", file.read())[1])
        if not mappings:  # it is about to end
            return None
        memory = {key: round(sums[key] / 1024, 3) for key in ("rss", "pss", "dirty", "own", "kv")}
        return {"at": round(time.time(), 1), "name": name, "pid": pid, **memory, "fds": len(os.listdir(f"/proc/{pid}/fd")), "threads": threads}
    except (OSError, TypeError, KeyError):
        return None


def slope(samples):
    """MB an hour."""
    return 3600 * statistics.linear_regression([one["at"] for one in samples], [one["own"] for one in samples]).slope


def lives_of(samples):
    """What each life that is long enough shows; one of JUDGED_MIN minutes without its first five, a shorter one without its first third."""
    by_life = collections.defaultdict(list)
    for one in samples:
        by_life[one["name"], one["pid"]].append(one)
    found = []
    for (name, pid), seen in by_life.items():
        lived_s = seen[-1]["at"] - seen[0]["at"] + SAMPLE_S
        if lived_s < SHOWN_S:
            continue
        judged = lived_s >= 60 * JUDGED_MIN
        seen = [one for one in seen if one["at"] >= seen[0]["at"] + (300 if judged else lived_s / 3)]
        third, minutes = len(seen) // 3, (seen[-1]["at"] - seen[0]["at"]) / 60
        rises = {f"{key}_rise": statistics.median(one[key] for one in seen[-third:]) - statistics.median(one[key] for one in seen[:third])
                 for key in ("fds", "threads")}
        spans = {f"{key}_span": max(one[key] for one in seen) - min(one[key] for one in seen) for key in ("fds", "threads")}
        found.append({"name": name, "pid": pid, "minutes": round(minutes, 1), "slope_mb_h": round(slope(seen), 3),
                      "later_half_mb_h": round(slope(seen[len(seen) // 2:]), 3), "first_mb": seen[0]["own"], "own_mb": seen[-1]["own"],
                      "kv_mb": seen[-1]["kv"], "rss_mb": seen[-1]["rss"], **rises, **spans, "judged": judged})
    return found


class Soak:
    """One run."""

    def __init__(self, minutes, seed, clients, out):
        self.minutes, self.seed, self.clients, self.out = minutes, seed, clients, out
        os.makedirs(out, exist_ok=True)
        self.samples, self.done_kills, self.at_end, self.interrupted = [], [], None, False
        self.kills, self.phases = kills_of(60 * minutes, random.Random(seed))
        self.mesh = Mesh(os.path.join(out, "run"))
        self.load = Load(self.mesh, request_set(), seed)
        self.sample_file = open(os.path.join(out, "samples.jsonl"), "w", encoding="ascii")

    def take_samples(self):
        for name, process in self.mesh.processes.items():
            if process.poll() is None and (one := sample(name, process.pid)):
                self.samples.append(one)
                self.sample_file.write(json.dumps(one) + "\n")
        self.sample_file.flush()

    def criteria(self, lives):
        """{what is asked for: whether it is so}"""
        counts, judged = self.load.counts, [life for life in lives if life["judged"]]
        met = {"0 changed": counts["CHANGED"] == 0, "0 lost": counts["LOST"] == 0, "services end only when asked, and well": not self.mesh.deaths,
               "nothing is held at the end": bool(self.at_end) and not any(self.at_end.values()), "run to its end": not self.interrupted}
        for name in self.mesh.commands if self.minutes >= 60 else sorted({life["name"] for life in judged}):
            mine = [life for life in judged if life["name"] == name]
            met[f"{name}: memory grows by less than {SLOPE_LIMIT_MBH:g} MB/h"] = bool(mine) and all(
                min(life["slope_mb_h"], life["later_half_mb_h"]) < SLOPE_LIMIT_MBH for life in mine)
            met[f"{name}: descriptors and threads are flat"] = bool(mine) and all(
                life["fds_rise"] <= 2 and life["threads_rise"] <= 0 for life in mine)
        return met

    def write(self):
        lives = lives_of(self.samples)
        with open(os.path.join(self.out, "soak.json.new"), "w", encoding="utf-8") as file:
            json.dump({"minutes": self.minutes, "seed": self.seed, "clients": self.clients, "phases": self.phases, "kills": self.done_kills,
                       "counts": self.load.counts, "troubles": self.load.troubles, "deaths": self.mesh.deaths, "held_at_end": self.at_end,
                       "errors_in_logs": self.mesh.errors(), "lives": lives, "criteria": self.criteria(lives)}, file, indent=1)
        os.replace(file.name, os.path.join(self.out, "soak.json"))
        return lives

    def progress(self, at, cores):
        spared = next((name for end, name in self.phases if at < end), "-")
        own = " ".join(f"{name} {one['own']:.1f}" for name in self.mesh.commands
                       for one in [next((one for one in self.samples[:-16:-1] if one["name"] == name), None)] if one)
        counts = ", ".join(f"{value} {key}" for key, value in sorted(self.load.counts.items()))
        print(f"{at / 60:5.0f} min, {spared} spared, {len(self.done_kills)} signals, {cores:.1f} cores: {counts}; MB: {own}", flush=True)

    def cpu(self):
        return {(name, process.pid): cpu_seconds(process.pid) for name, process in self.mesh.processes.items()}

    def run(self):
        mesh, load = self.mesh, self.load
        if not mesh.wait(mesh.ready, 120):
            raise RuntimeError(f"the mesh is not ready; see {mesh.folder}")
        began = time.monotonic()
        load.learn()
        print(f"{len(load.wanted)} answers learned in {time.monotonic() - began:.0f} s; {self.minutes:g} minutes with seed {self.seed}", flush=True)
        load.run([*(lambda number=number: load.client(number) for number in range(self.clients)), load.batches])
        began, next_sample, next_minute, kills, used = time.monotonic(), 0.0, 60.0, collections.deque(self.kills), self.cpu()
        while (at := time.monotonic() - began) < 60 * self.minutes:
            mesh.tick()
            while kills and kills[0][0] <= at:
                _, number, names = kills.popleft()
                for name in names:
                    mesh.signal(name, number)
                self.done_kills.append((round(at, 1), number.name, names))
            if at >= next_sample:
                self.take_samples()
                next_sample += SAMPLE_S
            if at >= next_minute:
                now = self.cpu()
                self.progress(at, sum(max(0, spent - used.get(key, 0)) for key, spent in now.items()) / 60)
                self.write()
                next_minute, used = next_minute + 60, now
            time.sleep(0.1)
        self.end_load()

    def end_load(self):
        """The clients get their last answers, and then nothing may be held."""
        self.load.over.set()
        for name in self.mesh.commands:
            self.mesh.signal(name, signal.SIGCONT)
        alive = lambda: [thread for thread in self.load.threads if thread.is_alive()]  # noqa: E731
        if not self.mesh.wait(lambda: not alive(), BATCH_LIMIT_S):
            self.load.trouble("LOST", why=f"{len(alive())} clients wait for an answer at the end")
        self.mesh.wait(lambda: (held := self.mesh.held()) is not None and not any(held.values()), 30)
        self.at_end = self.mesh.held()

    def table(self):
        lives = self.write()
        print(f"\n{'life':14} {'minutes':>7} {'MB/h':>8} {'later half':>10} {'own MB':>14} {'KV MB':>7} {'RSS MB':>7}  descriptors  threads")
        for life in sorted(lives, key=lambda life: (list(self.mesh.commands).index(life["name"]), -life["minutes"])):
            print(f"{life['name']:14} {life['minutes']:7.1f} {life['slope_mb_h']:8.2f} {life['later_half_mb_h']:10.2f} "
                  f"{life['first_mb']:6.1f} {life['own_mb']:7.1f} {life['kv_mb']:7.1f} {life['rss_mb']:7.1f}  "
                  f"{life['fds_rise']:+.0f} of {life['fds_span']:<4}   {life['threads_rise']:+.0f} of "
                  f"{life['threads_span']:<3}{'' if life['judged'] else ' too short to judge'}")
        for one in self.load.troubles[:20] + self.mesh.deaths[:20] + self.mesh.errors()[:20]:
            print(json.dumps(one)[:600])
        met = self.criteria(lives)
        print(f"\n{dict(self.load.counts)}\n" + "\n".join(f"{'met' if well else 'NOT MET':8} {what}" for what, well in met.items()))
        return 0 if all(met.values()) else 1


def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--minutes", type=float, default=120)
    arguments.add_argument("--seed", type=int, default=1)
    arguments.add_argument("--clients", type=int, default=6)
    arguments.add_argument("--out", default=os.path.join(BUILD, "soak"))
    chosen = arguments.parse_args()
    for number in (signal.SIGINT, signal.SIGTERM):  # a shell's background jobs would ignore the first
        signal.signal(number, signal.default_int_handler)
    soak = Soak(chosen.minutes, chosen.seed, chosen.clients, os.path.abspath(chosen.out))
    try:
        soak.run()
    except KeyboardInterrupt:
        soak.interrupted = True
        soak.load.over.set()
        soak.at_end = soak.mesh.held()
    finally:
        soak.mesh.stop()
    return soak.table()


if __name__ == "__main__":
    sys.exit(main())
