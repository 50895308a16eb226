#!/usr/bin/env python3
"""The official JSON Schema test suite (https://github.com/json-schema-org/JSON-Schema-Test-Suite), as the source package of `jsonschema` has it.

  schema_suite.py     fetches it with pip into the Python environment that runs this, unless it is there; prints where it is
"""
import glob
import importlib.metadata
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile


def folder():
    """Where its draft2020-12 lies."""
    place = os.path.join(sys.prefix, "share", "json-schema-test-suite")
    if not os.path.isdir(place):
        fetch(place)
    return os.path.join(place, "tests", "draft2020-12")


def fetch(place):
    package = "jsonschema==" + importlib.metadata.version("jsonschema")
    with tempfile.TemporaryDirectory(dir=sys.prefix) as there:
        subprocess.run([sys.executable, "-m", "pip", "download", "-q", "--disable-pip-version-check", "--no-deps", "--no-binary", ":all:", "-d", there,
                        package], check=True)
        with tarfile.open(glob.glob(there + "/*.tar.gz")[0]) as archive:
            archive.extractall(there, filter="data")
        os.makedirs(os.path.dirname(place), exist_ok=True)
        shutil.move(glob.glob(there + "/*/json")[0], place)


if __name__ == "__main__":
    print(folder())
