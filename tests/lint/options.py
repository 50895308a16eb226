"""docs/options.md from --help of all programs. usage: options.py BUILD-FOLDER [--write]"""
import os
import re
import subprocess
import sys

PAGE = "docs/options.md"
PROGRAMS = [["fastdecode", command] for command in ("up", "chat", "batch", "model", "quantize", "eval", "plan", "sim", "capacity", "certs", "health")]
PROGRAMS += [[service] for service in ("gateway", "scheduler", "s-part", "kv-worker")]
# Options that every program has; said once at the top.
SHARED = ("config", "log-level", "log-json", "log-file", "log-max-size", "log-keep", "check", "help", "version")
HEAD = """# Options

Made from `--help` by `tests/lint/options.sh --write`; lint fails if it is not up to date.

Each setting is taken from the flag, else from the environment variable `FD_` + name (`--max-batch` is `FD_MAX_BATCH`), else from the
file that `--config` names (lines of `name = value`, `#` starts a comment), else it has its default. `--NAME` alone turns a switch on,
`--no-NAME` turns it off. `SIZE` is bytes, or a number with K, M, G or T (powers of 1,024). `--check` validates and exits.

`fastdecode up` hands the settings that concern a service on to it, and does not pass `FD_` variables on.
"""
OPTION = re.compile(r"^  --(\S+) ?(\S*)\s+(.*?)(?: \[([^][]*)\])?$")


def help_of(build, program):
    path = os.path.join(build, "bin", program[0])
    if not os.path.exists(path):
        sys.exit(f"{path} is not there: build first (make all)")
    environment = {name: value for name, value in os.environ.items() if not name.startswith("FD_")}
    return subprocess.run([path, *program[1:], "--help"], capture_output=True, text=True, check=True, env=environment).stdout


def rows_of(text, wanted):
    for line in text.splitlines():
        found = OPTION.match(line)
        if found and wanted(found[1]):
            name, value, says, default = found.groups()
            cells = [f"`--{name}{' ' + value if value else ''}`", f"`{default}`" if default else "", says]
            yield "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |\n"


def table(rows):
    return "| option | default | |\n| --- | --- | --- |\n" + "".join(rows) + "\n"


def page(build):
    texts = [(program, help_of(build, program)) for program in PROGRAMS]
    out = HEAD + "\n## All programs\n\n" + table(rows_of(texts[0][1], lambda name: name in SHARED))
    for program, text in texts:
        purpose = text.split("\n", 1)[0].split(": ", 1)[1]
        usage = re.search(r"^usage: (.*)$", text, re.M)[1]
        out += f"## {' '.join(program)}\n\n{purpose[0].upper()}{purpose[1:]}. `{usage}`\n\n"
        rows = list(rows_of(text, lambda name: name not in SHARED))
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
