#!/usr/bin/env python3
"""Turns the files of the web pages into one C file of arrays.

  embed.py OUT.c FILE...

Each gets its content type by the end of its name and an entity tag by what is in it (pages.h).
"""
import hashlib
import os
import sys

TYPES = {".html": "text/html; charset=utf-8", ".css": "text/css; charset=utf-8", ".js": "text/javascript; charset=utf-8",
         ".svg": "image/svg+xml"}


def array(index, data):
    lines = (",".join(str(byte) for byte in data[at:at + 32]) for at in range(0, len(data), 32))
    return f"static const unsigned char data_{index}[] = {{\n" + ",\n".join(lines) + "};\n"


def main(out, paths):
    arrays, rows = [], []
    for index, path in enumerate(paths):
        with open(path, "rb") as file:
            data = file.read()
        name = os.path.basename(path)
        etag = hashlib.sha256(data).hexdigest()[:16]
        arrays.append(array(index, data))
        rows.append(f'    {{"{name}", "{TYPES[os.path.splitext(name)[1]]}", "\\"{etag}\\"", data_{index}, sizeof data_{index}}},\n')
    with open(out + ".new", "w", encoding="ascii") as file:
        file.write('#include "services/gateway/serve/pages.h"\n\n' + "".join(arrays) +
                   "\nconst struct page_file page_files[] = {\n" + "".join(rows) + "    {0},\n};\n")
    os.replace(out + ".new", out)


main(sys.argv[1], sys.argv[2:])
