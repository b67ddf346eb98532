"""`make` in a folder that was moved: what `.venv` has in it names the old place, and is made anew."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from .test_readme import ROOT

pytestmark = pytest.mark.skipif(shutil.which("make") is None, reason="needs make")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder in which all is installed."""
    for name in ("Makefile", "pyproject.toml"):
        shutil.copy(ROOT / name, tmp_path / name)
    programs = tmp_path / ".venv" / "bin"
    programs.mkdir(parents=True)
    (programs / "python").symlink_to("/bin/true")
    made_in(tmp_path, tmp_path)
    for stamp in (".installed", ".docs-installed"):
        (tmp_path / ".venv" / stamp).touch()
    return tmp_path


def made_in(folder: Path, place: Path) -> None:
    (folder / ".venv" / "pyvenv.cfg").write_text(f"home = /usr/bin\ncommand = /usr/bin/python3 -m venv {place}/.venv\n")


def would_do(folder: Path, *goals: str) -> str:
    return subprocess.run(
        ["make", "--dry-run", *goals], cwd=folder, capture_output=True, text=True, check=True, timeout=60
    ).stdout


def test_what_is_installed_stays(folder: Path) -> None:
    assert "venv --clear" not in would_do(folder, "install")
    assert "pip install" not in would_do(folder, "install")


@pytest.mark.parametrize("goal", ["install", "quick", "docs"])
def test_a_folder_that_was_moved_is_installed_anew(folder: Path, goal: str) -> None:
    made_in(folder, folder / "where-it-was")
    done = would_do(folder, goal)
    assert done.index("venv --clear .venv") < done.index("pip install")


def test_the_site_is_served_where_its_search_works(folder: Path) -> None:
    assert "http.server --bind 127.0.0.1 --directory build/site 8000" in would_do(folder, "docs-serve")
