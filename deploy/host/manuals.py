#!/usr/bin/env python3
"""manuals.py BUILD-FOLDER FOLDER: writes a man page of each program and command into FOLDER, from --help."""
import os
import sys
import time

from help import PROGRAMS, commands_of, help_of, output

SERVICE_NOTE = "A service of a mesh. It is usually started by fastdecode-up(1), a container or a unit of systemd(1)."
# The date of the sources if the build gives one, so that pages are the same bytes each time.
DATE = time.strftime("%Y-%m-%d", time.gmtime(int(os.environ.get("SOURCE_DATE_EPOCH") or os.path.getmtime(__file__))))
FILES = [("/etc/fastdecode/*.conf", "settings files of the systemd units, lines of `name = value` for --config")]


def roff(text):
    """Text as it is: no escapes, no requests."""
    text = text.replace("\\", "\\e").replace("-", "\\-").replace("'", "\\(aq")
    return "\\&" + text if text.startswith((".", "\\(aq")) else text


def heading(name, version):
    return f'.TH "{roff(name.upper())}" "1" "{DATE}" "FastDecode {version}" "FastDecode"\n'


def section(title, text):
    return f'.SH "{title}"\n{text}'


def option(o):
    said = f".TP\n\\fB\\-\\-{roff(o.name)}\\fR" + (f" \\fI{roff(o.value)}\\fR" if o.value else "") + "\n"
    return said + roff(o.says) + (f" [{roff(o.default)}]" if o.default else "") + "\n"


def page(h, version):
    text = heading(h.name, version) + section("NAME", f"{roff(h.name)} \\- {roff(h.purpose)}\n")
    text += section("SYNOPSIS", f".B {roff(h.usage)}\n")
    if len(h.program) == 1:
        text += section("DESCRIPTION", roff(SERVICE_NOTE) + "\n")
    text += section("OPTIONS", "".join(map(option, h.options)))
    if h.notes:
        text += section("NOTES", roff(" ".join(h.notes.split())) + "\n")
    if len(h.program) == 1:
        text += section("FILES", "".join(f".TP\n\\fI{roff(path)}\\fR\n{roff(says)}\n" for path, says in FILES))
    return text + section("SEE ALSO", ".BR fastdecode (1)\n")


def overview(build, version):
    text = heading("fastdecode", version)
    text += section("NAME", "fastdecode \\- serves large language models from few GPUs and many CPUs\n")
    text += section("SYNOPSIS", ".B fastdecode\n.I COMMAND\n[options]\n")
    text += section("COMMANDS", "".join(f".TP\n\\fB{roff(name)}\\fR\n{roff(says)}. See\n.BR fastdecode\\-{name} (1).\n"
                                        for name, says in commands_of(build)))
    services = [f"fastdecode-{program[0]}" for program in PROGRAMS if len(program) == 1]
    return text + section("SEE ALSO", "".join(f".BR {roff(name)} (1)\n" for name in services))


def main():
    build, folder = sys.argv[1:]
    version = output(build, ["fastdecode"], "--version").split()[1]
    os.makedirs(folder, exist_ok=True)
    pages = {"fastdecode": overview(build, version)}
    pages.update((h.name, page(h, version)) for h in (help_of(build, program) for program in PROGRAMS))
    for name, text in pages.items():
        with open(os.path.join(folder, name + ".1"), "w", encoding="utf-8") as file:
            file.write(text)


if __name__ == "__main__":
    main()
