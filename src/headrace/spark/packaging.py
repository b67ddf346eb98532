"""This package as one archive, for executors on other machines: `--py-files`, or `SparkContext.addPyFile`."""

from __future__ import annotations

import hashlib
import os
import tempfile
import zipfile
from pathlib import Path

import headrace

_TOP_LEVEL = ("headrace", "pyspark_headrace")
_EPOCH = (1980, 1, 1, 0, 0, 0)


def package(directory: str | os.PathLike[str] | None = None) -> Path:
    """Make the archive (in `directory`, or a temporary one) and say where it is. Same sources, same bytes and name.

    It holds pure Python. numpy, numba, pyarrow, crc32c, lz4, zstandard and cramjam have compiled parts, which an
    archive cannot carry: install `headrace[fast]` (or ship an environment with `--archives`) on the executors.
    """
    root = Path(headrace.__file__).parent.parent
    sources = sorted(path for name in _TOP_LEVEL for path in (root / name).rglob("*.py"))
    digest = hashlib.sha256()
    for path in sources:
        digest.update(str(path.relative_to(root)).encode() + b"\0")
        digest.update(path.read_bytes())
    where = Path(tempfile.mkdtemp(prefix="headrace-package-") if directory is None else directory)
    where.mkdir(parents=True, exist_ok=True)
    archive = where / f"headrace-{headrace.__version__}-{digest.hexdigest()[:12]}.zip"
    aside = archive.with_suffix(".making")
    with zipfile.ZipFile(aside, "w", zipfile.ZIP_DEFLATED) as made:
        for path in sources:
            # A fixed date: the same sources give the same archive.
            made.writestr(zipfile.ZipInfo(str(path.relative_to(root)), _EPOCH), path.read_bytes())
    os.replace(aside, archive)
    return archive
