#!/usr/bin/env python3
"""initializers.py: an initializer of a struct with three values or more names its fields; a pair may be positional.

Looks at `struct x y = {…}`, the rows of `struct x y[] = {{…}, …}`, `(struct x){…}` and the braces that a macro stands for. Exempt are rows
of settings (struct option), of which there are hundreds in the one order of common/base/options.h, and C++, which has no such names.
"""
import re
import subprocess
import sys

POSITIONAL_MOST = 2
OPTION_ROW = r'\{[^,{}]*,[\s\\]*OPTION_[A-Z]'
STRUCT = r"struct\s+\w+"
HEADS = re.compile(rf"\(\s*(?:const\s+)?{STRUCT}\s*(?P<literal_rows>\[[^\]]*\])?\s*\)\s*(?=\{{)"
                   rf"|\b{STRUCT}\s+\w+\s*(?P<rows>(?:\[[^\]]*\]\s*)*)=\s*(?=\{{)"
                   rf"|^[ \t]*#[ \t]*define[ \t]+\w+(?:\([^)]*\))?[ \t\\\n]+(?=\{{)", re.M)


def without_comments_and_texts(source):
    """The same length and lines, so that places stay."""
    def blank(match):
        text = match[0]
        return text[0] + "_" * (len(text) - 2) + text[-1] if text[0] in "\"'" else re.sub(r"[^\n]", " ", text)
    return re.sub(r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'', blank, source, flags=re.S)


def items(text, brace):
    """The places of the values between the brace at `brace` and its partner, and that partner's place."""
    depth, starts, begin = 0, [], brace + 1
    for at in range(brace, len(text)):
        letter = text[at]
        if letter in "([{":
            depth += 1
        elif letter in ")]}":
            depth -= 1
        if depth == 0 or (depth == 1 and letter == ","):
            if text[begin:at].strip(" \t\n\\"):
                starts.append(at - len(text[begin:at].lstrip(" \t\n\\")))
            begin = at + 1
        if depth == 0:
            return starts, at
    return starts, len(text)


def positional(text, brace, rows):
    """The places of braces, below `rows` levels of rows, whose values are positional and too many."""
    starts, _ = items(text, brace)
    if rows == 0:
        return [brace] if sum(text[start] not in ".[" for start in starts) > POSITIONAL_MOST else []
    found = []
    for start in starts:
        row = re.match(r"(?:\[[^\]]*\]\s*=\s*)?(?=\{)", text[start:])
        if row:
            found += positional(text, start + row.end(), rows - 1)
    return found


def main():
    files = subprocess.run(["git", "ls-files", *(sys.argv[1:] or ["common", "kernels", "services"])], capture_output=True, text=True, check=True).stdout.split()
    bad = 0
    for path in files:
        if not path.endswith((".c", ".h")):
            continue
        source = open(path, encoding="utf-8").read()
        text = without_comments_and_texts(source)
        for head in HEADS.finditer(text):
            rows = (head["rows"] or head["literal_rows"] or "").count("[")
            for place in positional(text, head.end(), rows):
                if re.match(OPTION_ROW, text[place:]):
                    continue
                line = text.count("\n", 0, place)
                print(f"{path}:{line + 1}: {source.splitlines()[line].strip()[:150]}")
                bad += 1
    if bad:
        print(f"{bad} initializers of more than {POSITIONAL_MOST} values without names: write .field = value")
    return bad > 0


if __name__ == "__main__":
    sys.exit(main())
