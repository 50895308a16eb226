"""What the programs' --help says, as data: docs/options.md, man pages and shell completions are made from it."""
import os
import re
import subprocess
import sys

COMMANDS = ("up", "chat", "batch", "model", "quantize", "plan", "eval", "sim", "capacity", "key", "certs", "health")
SERVICES = ("gateway", "scheduler", "s-part", "kv-worker")
PROGRAMS = [["fastdecode", command] for command in COMMANDS] + [[service] for service in SERVICES]
OPTION = re.compile(r"^  --(\S+) ?(\S*)\s+(.*?)(?: \[([^][]*)\])?$")


def installed_name(program):
    """That of its man page; a service is called so, too."""
    return "-".join(program if program[0] == "fastdecode" else ["fastdecode", *program])


class Option:
    """value: "FILE", "on|off", "" for none. default: None if none is given."""

    def __init__(self, name, value, says, default):
        self.name, self.value, self.says, self.default = name, value, says, default


class Help:
    """One program's help."""

    def __init__(self, program, text):
        self.program, self.name = program, installed_name(program)
        self.purpose = text.split("\n", 1)[0].split(": ", 1)[1]
        self.usage = re.search(r"^usage: (.*)$", text, re.M)[1]
        self.options = [Option(*found.groups()) for found in map(OPTION.match, text.splitlines()) if found]
        self.notes = text[text.rindex("\n\n") + 2:].strip() if text.count("\n\n") > 2 else ""


def output(build, program, *arguments):
    path = os.path.join(build, "bin", program[0])
    if not os.path.exists(path):
        sys.exit(f"{path} is not there: build first (make all)")
    environment = {name: value for name, value in os.environ.items() if not name.startswith("FD_")}
    name = program[0] if program[0] == "fastdecode" else installed_name(program)  # what users type is what help shows
    return subprocess.run([name, *program[1:], *arguments], executable=path, capture_output=True, text=True, check=True, env=environment).stdout


def help_of(build, program):
    return Help(program, output(build, program, "--help"))


def commands_of(build):
    """(name, help) of each command of fastdecode."""
    found = re.findall(r"^  (\w+) +(\S.*)$", output(build, ["fastdecode"], "--help"), re.M)
    if tuple(sorted(name for name, _ in found)) != tuple(sorted(COMMANDS)):
        sys.exit(f"fastdecode --help has other commands than {__file__}: {[name for name, _ in found]}")
    return found
