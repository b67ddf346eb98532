"""`make bench`: every benchmark of the repository, one after the other; or those that are named.

python -m bench [broker scale produce consume assignors codec records …]
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

from headrace.testing import BrokerProcess

# Those that measure clients, and need a broker's address.
NEED_A_BROKER = ("produce", "consume")
HELPERS = ("peers", "secured", "three", "family", "floor", "__main__", "__init__")


def names() -> list[str]:
    found = [path.stem for path in Path(__file__).parent.glob("*.py") if path.stem not in HELPERS]
    return sorted(found, key=lambda name: (name != "broker", name))


def run(name: str) -> int:
    print(f"\n== {name} " + "=" * (100 - len(name)), flush=True)
    command = [sys.executable, "-m", f"bench.{name}"]
    if name not in NEED_A_BROKER:
        return subprocess.run(command, check=False).returncode
    with tempfile.TemporaryDirectory(prefix="bench-") as directory, BrokerProcess(Path(directory) / "data") as broker:
        return subprocess.run([*command, broker.address], check=False).returncode


def main() -> int:
    wanted = sys.argv[1:] or names()
    unknown = set(wanted) - set(names())
    if unknown:
        print(f"no such benchmark: {', '.join(sorted(unknown))}; there are {', '.join(names())}")
        return 2
    failed = [name for name in wanted if run(name) != 0]
    if failed:
        print(f"\nfailed: {', '.join(failed)}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
