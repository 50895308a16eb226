#!/usr/bin/env python3
"""Turns openapi.json into a C file of one array (openapi.h), without the white space, once it is known to be JSON.

  embed.py openapi.json OUT.c
"""
import json
import os
import sys

LINE = 32


def main(path, out):
    with open(path, encoding="utf-8") as file:
        data = json.dumps(json.load(file), ensure_ascii=False, separators=(",", ":")).encode()
    lines = (",".join(str(byte) for byte in data[at:at + LINE]) for at in range(0, len(data), LINE))
    with open(out + ".new", "w", encoding="ascii") as file:
        file.write('#include "services/gateway/serve/openapi.h"\n\nconst unsigned char openapi_file[] = {\n' + ",\n".join(lines) +
                   "};\nconst size_t openapi_file_bytes = sizeof openapi_file;\n")
    os.replace(out + ".new", out)


main(sys.argv[1], sys.argv[2])
