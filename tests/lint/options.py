"""docs/options.md from --help of all programs. usage: options.py BUILD-FOLDER [--write]"""
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../deploy/host"))
from help import PROGRAMS, help_of  # noqa: E402

PAGE = "docs/options.md"
# Options that every program has; said once at the top.
SHARED = ("config", "log-level", "log-json", "log-file", "log-max-size", "log-keep", "check", "help", "version")
HEAD = """# Options

Made from `--help` by `tests/lint/options.sh --write`; lint fails if it is not up to date.

Each setting is taken from the flag, else from the environment variable `FD_` + name (`--max-batch` is `FD_MAX_BATCH`), else from the
file that `--config` names (lines of `name = value`, `#` starts a comment), else it has its default. A variable that names no
setting is not looked at. `--NAME` alone turns a switch on,
`--no-NAME` turns it off. `SIZE` is bytes, or a number with K, M, G or T (powers of 1,024). `--check` validates and exits.

`fastdecode up` hands the settings that concern a service on to it, and does not pass `FD_` variables on.

`make install` calls the services `fastdecode-gateway` and so on. In the build folder and in images they are `gateway`, `scheduler`, `s-part` and
`kv-worker`.
"""


def rows_of(h, wanted):
    for o in h.options:
        if wanted(o.name):
            cells = [f"`--{o.name}{' ' + o.value if o.value else ''}`", f"`{o.default}`" if o.default else "", o.says]
            yield "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |\n"


def table(rows):
    return "| option | default | |\n| --- | --- | --- |\n" + "".join(rows) + "\n"


def page(build):
    helps = [help_of(build, program) for program in PROGRAMS]
    out = HEAD + "\n## All programs\n\n" + table(rows_of(helps[0], lambda name: name in SHARED))
    for h in helps:
        out += f"## {' '.join(h.program)}\n\n{h.purpose[0].upper()}{h.purpose[1:]}. `{h.usage}`\n\n"
        rows = list(rows_of(h, lambda name: name not in SHARED))
        out += table(rows) if rows else "No options of its own.\n\n"
    return out.rstrip("\n") + "\n"


def main():
    text = page(sys.argv[1])
    if "--write" in sys.argv:
        with open(PAGE, "w", encoding="utf-8") as file:
            file.write(text)
        return 0
    with open(PAGE, encoding="utf-8") as file:
        if file.read() == text:
            return 0
    print(f"{PAGE} is not what --help prints: tests/lint/options.sh --write")
    return 1


if __name__ == "__main__":
    sys.exit(main())
