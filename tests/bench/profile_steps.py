#!/usr/bin/env python3
"""Where the time of steps went, from a trace (fastdecode up --trace FILE): means over steps, as a table or as JSON.

  tests/bench/profile_steps.py [--decode] [--skip N] [--json] FILE...

A step is the s-part's, from the moment it begins until its reply is sent; each of its parts is some of this time, and they add up to
it but for `rest`. What the other services did meanwhile stands below. The file may be one that was cut off. Several files: of services
with files of their own. Times within a service alone are compared, so they may be of several hosts.
"""
import argparse
import bisect
import json
import statistics
import sys

# name of the span on the s-part's tracks -> part of the step
PARTS = {"segment": "S-part: segments", "head": "S-part: head and sampling", "attend": "R-part: local pool", "prepare": "send",
         "send": "send", "wait": "wait for workers", "queued": "wait for the S-part", "plan": "begin", "begin": "begin",
         "reply": "reply"}
ORDER = ["S-part: segments", "S-part: head and sampling", "R-part: local pool", "send", "wait for workers", "wait for the S-part",
         "begin", "reply"]

# a device's tracks, one of each a mini-batch
DEVICE_TRACKS = ("S-part", "R-part, local pool", "transfer")


def read(path):
    """The events of a trace file, whole or cut off: one object a line."""
    events = []
    with open(path, encoding="utf-8") as file:
        for line in file:
            line = line.strip().rstrip(",")
            if line in ("", "[", "]"):
                continue
            try:
                events.append(json.loads(line))
            except ValueError:
                pass  # half a line of a service that was killed
    return events


class Trace:
    """Events by process and name."""

    def __init__(self, events):
        self.process = {e["pid"]: e["args"]["name"] for e in events if e["ph"] == "M" and e["name"] == "process_name"}
        self.track = {(e["pid"], e["tid"]): e["args"]["name"] for e in events if e["ph"] == "M" and e["name"] == "thread_name"}
        self.spans = [e for e in events if e["ph"] == "X"]
        self.dropped = sum(sum(e["args"].values()) for e in events if e["name"] == "trace end")
        self.overlapping = {}  # (pid, id, name) -> [begin, end]
        for e in events:
            if e["ph"] in "be":
                self.overlapping.setdefault((e["pid"], e["id2"]["local"], e["name"]), [None, None])["be".index(e["ph"])] = e["ts"]

    def named(self, name, track=None):
        return [e for e in self.spans if e["name"] == name and (track is None or self.track[e["pid"], e["tid"]] == track)]

    def durations(self, name):
        return [end - begin for (_, _, n), (begin, end) in self.overlapping.items() if n == name and None not in (begin, end)]


def steps_of(trace):
    """Each step of an s-part, with the microseconds of its parts."""
    found = {}
    for e in trace.named("step"):
        found[e["pid"], e["args"]["step"], e["ts"]] = {"began": e["ts"], "us": e["dur"], "mini_batch": trace.track[e["pid"], e["tid"]],
                                                       "pid": e["pid"], **e["args"], "parts": dict.fromkeys(ORDER, 0.0)}
    by_number = {}
    for (pid, number, _), step in found.items():
        by_number.setdefault((pid, number), []).append(step)
    for e in trace.spans:
        part = PARTS.get(e["name"])
        for step in by_number.get((e["pid"], e["args"].get("step")), []) if part else []:
            if step["began"] <= e["ts"] + 0.01 and e["ts"] + e["dur"] <= step["began"] + step["us"] + 0.01:
                step["parts"][part] += e["dur"]
    steps = sorted(found.values(), key=lambda step: step["began"])
    for step in steps:
        step["rest"] = step["us"] - sum(step["parts"].values())
    return steps


def covered(spans):
    """How long at least one of (begin, end) was under way: those of several mini-batches overlap."""
    total, until = 0.0, float("-inf")
    for begin, end in sorted(spans):
        total += max(0.0, end - max(begin, until))
        until = max(until, end)
    return total


def summarize(trace, decode=False, skip=0):
    steps = [s for s in steps_of(trace) if not decode or s["rows"] == s["outputs"]][skip:]
    if not steps:
        return None
    count = len(steps)
    mean = sum(s["us"] for s in steps) / count
    numbers = {s["step"] for s in steps}
    first, last = steps[0]["began"], max(s["began"] + s["us"] for s in steps)
    out = {"steps": count, "rows": sum(s["rows"] for s in steps) / count, "outputs": sum(s["outputs"] for s in steps) / count,
           "step_us": mean, "parts_us": {part: sum(s["parts"][part] for s in steps) / count for part in ORDER},
           "rest_us": sum(s["rest"] for s in steps) / count, "dropped": trace.dropped}
    gaps = []
    for track in {(s["pid"], s["mini_batch"]) for s in steps}:
        mine = [s for s in steps if (s["pid"], s["mini_batch"]) == track]
        gaps += [b["began"] - a["began"] - a["us"] for a, b in zip(mine, mine[1:])]
    out["between_us"] = statistics.median(gaps) if gaps else 0.0  # a median: without requests it is long
    out["workers"] = {}
    for e in trace.spans:
        track, name = trace.track[e["pid"], e["tid"]], trace.process[e["pid"]]
        if track == "R-part" and e["args"].get("step") in numbers:
            worker = out["workers"].setdefault(name, {"call": 0.0, "attend": 0.0, "calls": 0.0})
            worker[e["name"]] += e["dur"] / count
            worker["calls"] += (e["name"] == "call") / count

    starts = sorted(s["began"] for s in steps)

    def a_step(name, track):
        """Of spans between the first step and the last, whose service has the same clock."""
        spans = [e for e in trace.named(name, track) if bisect.bisect(starts, e["ts"] + e["dur"]) and e["ts"] <= last]
        return sum(e["dur"] for e in spans) / count

    out["device_us"] = {}
    for kind in DEVICE_TRACKS:
        spans = [(e["ts"], e["ts"] + e["dur"]) for e in trace.spans if trace.track[e["pid"], e["tid"]].startswith("device ")
                 and trace.track[e["pid"], e["tid"]].endswith(f", {kind}") and first <= e["ts"] <= last]
        out["device_us"][kind] = covered(spans) / count
    out["scheduler_us"] = {name: a_step(name, "scheduler") for name in ("tick", "schedule", "send step", "results")}
    out["http_us"] = {"answers": a_step("tokens", "answers"), "of which writing": a_step("write", "answers")}
    for name, key in (("first token", "first_token_us"), ("request", "request_us")):
        times = trace.durations(name)
        out[key] = sum(times) / len(times) if times else None
    parse = [e["dur"] for e in trace.named("parse")]
    out["parse_us"] = sum(parse) / len(parse) if parse else None
    out["seconds"] = (last - first) / 1e6
    return out


def show(s):
    def line(name, us, share=True):
        print(f"  {name:<34}{us / 1000:9.3f} ms" + (f"{100 * us / s['step_us']:8.1f} %" if share else ""))

    print(f"{s['steps']} steps in {s['seconds']:.1f} s, {s['rows']:.1f} rows and {s['outputs']:.1f} tokens a step")
    line("a step", s["step_us"])
    for part in ORDER:
        line("  " + part, s["parts_us"][part])
    line("  rest", s["rest_us"])
    line("from a step to the next (median)", s["between_us"])
    print("meanwhile, for each step")
    for name, worker in sorted(s["workers"].items()):
        line(f"{name}: {worker['calls']:.0f} calls", worker["call"])
        line("  R-part: attention", worker["attend"])
    for kind, us in s["device_us"].items() if any(s["device_us"].values()) else ():
        line(f"device: {kind}", us)
    line("scheduler: ticks", s["scheduler_us"]["tick"])
    for name in ("schedule", "send step", "results"):
        line("  " + name, s["scheduler_us"][name])
    line("HTTP: answers", s["http_us"]["answers"])
    line("  of which writing", s["http_us"]["of which writing"])
    print("for each request")
    for name, key in (("HTTP: parse and tokenize", "parse_us"), ("HTTP: first token after", "first_token_us"),
                      ("HTTP: request", "request_us")):
        if s[key] is not None:
            line(name, s[key], False)
    if s["dropped"]:
        print(f"{s['dropped']} spans were dropped: steps without some of their parts have a larger rest")


def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--decode", action="store_true", help="only steps in which every row gave a token: no prefill")
    arguments.add_argument("--skip", type=int, default=0, metavar="N", help="leave the first N steps out")
    arguments.add_argument("--json", action="store_true")
    arguments.add_argument("file", nargs="+")
    chosen = arguments.parse_args()
    found = summarize(Trace([e for path in chosen.file for e in read(path)]), chosen.decode, chosen.skip)
    if not found:
        print("there is no step in it", file=sys.stderr)
        return 1
    if chosen.json:
        print(json.dumps(found))
    else:
        show(found)
    return 0


if __name__ == "__main__":
    sys.exit(main())
