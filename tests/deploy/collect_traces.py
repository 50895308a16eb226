#!/usr/bin/env python3
"""collect_traces.py FOLDER: a collector of OpenTelemetry until it is killed. Writes its port to FOLDER/port, and to FOLDER/services the names of the
services that have sent spans, one a line."""
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "e2e"))
from collector import Collector  # noqa: E402 (its folder is named above)


def write(path, text):
    """Whole or not at all: somebody waits for it."""
    part = path.with_suffix(".part")
    part.write_text(text)
    part.rename(path)


def main():
    folder = Path(sys.argv[1])
    collector = Collector(host="0.0.0.0")
    write(folder / "services", "")
    write(folder / "port", str(collector.port))
    while True:
        write(folder / "services", "".join(f"fastdecode-{name}\n" for name in sorted({span.service for span in list(collector.spans)})))
        time.sleep(0.2)


if __name__ == "__main__":
    main()
