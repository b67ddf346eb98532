"""The package as an archive: complete, and importable from there."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from headrace.spark.packaging import package


def test_the_archive_is_the_same_for_the_same_sources(tmp_path: Path) -> None:
    first, second = package(tmp_path / "a"), package(tmp_path / "b")
    assert first.name == second.name
    assert first.read_bytes() == second.read_bytes()


def test_tasks_can_import_what_they_need_from_the_archive(tmp_path: Path) -> None:
    archive = package(tmp_path)
    code = (
        f"import sys; sys.path.insert(0, {str(archive)!r})\n"
        "import headrace.spark.reading, headrace.spark.writing, headrace.spark.sink, pyspark_headrace\n"
        "from headrace.records import kernels\n"
        "from headrace.records.columns import bytes_column\n"
        "print(headrace.__file__); print(kernels.choose(10_000).murmur2_column(bytes_column([b'k'] * 10_000))[0])"
    )
    shown = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False, timeout=100
    )
    assert shown.returncode == 0, shown.stderr
    assert str(archive) in shown.stdout
