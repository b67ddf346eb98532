"""Fetch the accessibility checker that the console's tests use (axe-core, MPL-2.0) from the npm registry, again.

    python -m tests.console.renew_axe [VERSION]

Only tests use it: nothing of it is in the package.
"""

from __future__ import annotations

import gzip
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

PLACE = Path(__file__).parent.parent / "reference" / "axe"


def renew(version: str) -> None:
    npm = shutil.which("npm")
    if npm is None:
        raise SystemExit("npm is not found: it is what fetches axe-core")
    with tempfile.TemporaryDirectory() as directory:
        subprocess.run([npm, "pack", "--silent", f"axe-core@{version}"], cwd=directory, check=True)
        (package,) = Path(directory).glob("axe-core-*.tgz")
        PLACE.mkdir(parents=True, exist_ok=True)
        with tarfile.open(package) as archive:
            script, terms = (archive.extractfile(f"package/{name}") for name in ("axe.min.js", "LICENSE"))
            assert script is not None
            assert terms is not None
            (PLACE / "axe.min.js.gz").write_bytes(gzip.compress(script.read(), mtime=0))
            (PLACE / "LICENSE").write_bytes(terms.read())
        (PLACE / "VERSION").write_text(package.stem.removeprefix("axe-core-") + "\n")


if __name__ == "__main__":
    renew(sys.argv[1] if len(sys.argv) > 1 else "4")
