#!/usr/bin/env python3
"""links.py: what a page links to within the repository is there, headings too, and so is each file, folder and function() that it names in
`code`. A file's name may be the end of a path; a function may be a macro, or a static one."""
import os
import re
import subprocess
import sys

FILES = subprocess.run(["git", "ls-files"], capture_output=True, text=True, check=True).stdout.splitlines()
SOURCES = (".c", ".h", ".cu", ".cuh", ".cpp", ".py", ".js", ".sh", ".proto")
FOREIGN = {"module_verb_noun", "tests/bench/results/"}  # a pattern; a folder that bench-gpu makes


def read(path):
    with open(path, encoding="utf-8") as file:
        return file.read()


def headings(page):
    """The anchors that a forge makes of a page's headings."""
    text = re.sub(r"^```.*?^```", "", read(page), flags=re.M | re.S)
    titles = re.findall(r"^#+ +(.*)$", text, re.M)
    return {re.sub(r"[^\w\- ]", "", re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", title).lower()).replace(" ", "-") for title in titles}


def words():
    found = set()
    for path in FILES:
        if path.endswith(SOURCES) and os.path.exists(path):
            found.update(re.findall(r"\b[A-Za-z_]\w*(?=\()", read(path)))
    return found


def check(page, known, endings):
    folder = os.path.dirname(page)
    text = read(page)
    for target in sorted(set(re.findall(r"\]\(([^)]+)\)", text))):
        if re.match(r"https?:", target):
            continue
        path, _, anchor = target.partition("#")
        path = os.path.normpath(os.path.join(folder, path)) if path else page
        if not os.path.exists(path):
            yield f"links to {target}, which is not there"
        elif anchor and path.endswith(".md") and anchor not in headings(path):
            yield f"links to {target}, a heading that is not there"
    for code in sorted(set(re.findall(r"`([^`\n]+)`", text))):
        if re.fullmatch(r"[A-Za-z0-9/][\w/.-]*\.(c|h|cu|cuh|py|proto)", code):
            if not os.path.exists(code) and not os.path.exists(os.path.join(folder, code)) and "/" + code not in endings:
                yield f"names {code}, which is not there"
        elif re.fullmatch(r"(common|kernels|services|proto|deploy|docker|tests|docs)/[\w/.-]+", code) and "NAME" not in code and code not in FOREIGN and not os.path.exists(code):
            yield f"names {code}, which is not there"
        elif (name := re.fullmatch(r"(\w+)\(\)", code)) and name[1] not in known | FOREIGN:
            yield f"names {code}, which no source has"


def main():
    known = words()
    endings = {"/" + "/".join(path.split("/")[at:]) for path in FILES for at in range(path.count("/") + 1)}
    bad = [f"{page} {what}" for page in FILES if page.endswith(".md") and os.path.exists(page) for what in check(page, known, endings)]
    print(*bad, sep="\n", end="\n" if bad else "")
    return bool(bad)


if __name__ == "__main__":
    sys.exit(main())
