"""The figures of a run: one table, one JSON file, and what is missing.

A figure is {name, value, unit, ceiling, ratio, target, pass, part}: `ratio` is value ÷ ceiling, both measured in the same run; the
ceiling is what the machine can do, or what a peer does. Benches in C write such objects, one a line (report.h).
"""
import json
import os
import statistics


def figure(part, name, value, unit, ceiling=None, target=None, at_most=False, ratio=None):
    """target: of the ratio, or of the value where there is no ceiling; None: reported only."""
    if ratio is None and ceiling:
        ratio = value / ceiling
    judged = ratio if ratio is not None else value
    passed = None if target is None else judged <= target if at_most else judged >= target
    return {"part": part, "name": name, "value": round(value, 6), "unit": unit, "ceiling": ceiling and round(ceiling, 6),
            "ratio": ratio and round(ratio, 4), "target": target, "at_most": at_most, "pass": passed}


def of_rounds(part, name, unit, pairs, target=None, at_most=False):
    """From (value, ceiling) of several rounds: medians, and the median of the rounds' ratios."""
    values, ceilings = zip(*pairs)
    return figure(part, name, statistics.median(values), unit, statistics.median(ceilings), target, at_most,
                  statistics.median(value / ceiling for value, ceiling in pairs))


def row(item):
    """A line of the table."""
    def number(value):
        if value is None:
            return ""
        return f"{value:.3f}" if abs(value) < 1 else f"{value:,.2f}" if abs(value) < 100 else f"{value:,.0f}"
    sign = "≤" if item.get("at_most") else "≥"
    target = "" if item["target"] is None else f"{sign} {item['target']:g}"
    verdict = {None: "", True: "pass", False: "SHORT"}[item["pass"]]
    return (f"{item['name']:92} {number(item['value']):>9} {item['unit'][:9]:9} {number(item['ceiling']):>9} "
            f"{number(item['ratio']):>7} {target:>8} {verdict}")


HEADING = f"{'figure':92} {'':>9} {'':9} {'ceiling':>9} {'ratio':>7} {'target':>8}"


def table(items):
    """All figures, by part; the last lines say how many targets were met."""
    lines, met = [HEADING], []
    for part in dict.fromkeys(item["part"] for item in items):
        of_part = [item for item in items if item["part"] == part]
        judged = [item["pass"] for item in of_part if item["pass"] is not None]
        lines += [f"--- {part}", *map(row, of_part)]
        met.append(f"{part}: {sum(judged)} of {len(judged)}")
    return "\n".join([*lines, "targets met: " + ", ".join(met or ["none was judged"])])


def write(path, items):
    """All or nothing: an interrupted run leaves the file before or the file after."""
    os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
    with open(path + ".new", "w", encoding="utf-8") as file:
        file.write("[\n" + ",\n".join("  " + json.dumps(item, ensure_ascii=False) for item in items) + "\n]\n")
    os.replace(path + ".new", path)


def read(path):
    try:
        with open(path, encoding="utf-8") as file:
            return json.load(file)
    except FileNotFoundError:
        return []
