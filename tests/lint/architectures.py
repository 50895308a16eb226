"""The table of architectures in docs/models.md beside `fastdecode model --architectures`. usage: architectures.py BUILD-FOLDER [--write]"""
import os
import re
import subprocess
import sys

PAGE = "docs/models.md"
TABLE = re.compile(r"^\| architecture \| models .*?\n(?=\n)", re.M | re.S)


def main():
    build, write = sys.argv[1], "--write" in sys.argv[2:]
    program = os.path.join(build, "bin", "fastdecode")
    if not os.path.exists(program):
        sys.exit(f"{program} is not there: build first (make all)")
    wanted = subprocess.run([program, "model", "--architectures"], capture_output=True, text=True, check=True).stdout
    with open(PAGE, encoding="utf-8") as file:
        page = file.read()
    if not TABLE.search(page):
        sys.exit(f"{PAGE} has no table of architectures")
    changed = TABLE.sub(lambda _: wanted, page)
    if changed == page:
        return 0
    if not write:
        sys.exit(f"{PAGE}: the table of architectures is not what the rows say: tests/lint/architectures.sh --write")
    with open(PAGE, "w", encoding="utf-8") as file:
        file.write(changed)
    return 0


if __name__ == "__main__":
    sys.exit(main())
