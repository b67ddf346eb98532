"""The quick tests on other Pythons: `python -m tests.pythons [3.12 3.13 …] [--debian SUITE]`, or `make test-pythons`.

With `--archive FILE` (a wheel, a source archive; `make release`) it is not the checkout that is installed but that
file: first alone, where a record has to go in and out, then with what the tests need.

An interpreter is looked for on the PATH (`python3.13`), among pyenv's, and with `uv python find`. With `--debian` it is
that of a release of Debian's, unpacked into `build/pythons` with debootstrap and used by chroot (as root; nothing else
of this machine is touched). Each has an environment of its own in `build/pythons`, made anew when `pyproject.toml`
changes. What cannot be had is said; what fails makes the exit code 1, and so does it when nothing was found at all.
`PYTEST_ADDOPTS="tests/records -n 0"` runs less.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tomllib
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parents[1]
PLACE = ROOT / "build" / "pythons"
QUICK = (
    *("-m", "pytest", "-q", "-n", "3", "--dist", "loadfile", "--ignore=tests/spark"),
    *("-m", "not slow and not long", "-p", "no:cacheprovider"),
)
# What has to work with the package alone, without any extra: a broker, a producer, a consumer.
_ALONE = """
import headrace.testing
from headrace import Consumer, Producer

with headrace.testing.broker() as kafka:
    with Producer(bootstrap_servers=kafka.address) as producer:
        producer.send("events", b"value").result()
    with Consumer(bootstrap_servers=kafka.address, group_id="g", auto_offset_reset="earliest") as consumer:
        consumer.subscribe(["events"])
        records = [record for record in consumer.poll(30.0)]
assert [record.value for record in records] == [b"value"], records
"""
_DEBIAN_PACKAGES = "python3,python3-venv,python3-dev,ca-certificates,git,procps"
# An index or a proxy that pip is told of by the environment or its own file has to be known inside too, and so has
# whoever this machine trusts.
_HOME = Path.home()
_PIP_FILES = (
    *("/etc/pip.conf", f"{_HOME}/.config/pip/pip.conf", f"{_HOME}/.pip/pip.conf"),
    *("/etc/resolv.conf", "/etc/ssl/certs/ca-certificates.crt"),
)


@dataclass(frozen=True)
class Python:
    """An interpreter, and how a command is run beside it: as it is, or inside of an unpacked Debian."""

    version: str
    executable: str
    environment: str
    project: str = str(ROOT)
    inside: tuple[str, ...] = field(default=())

    def run(self, *command: str) -> int:
        """A command in the project, as this Python sees it."""
        line = 'cd "$0" && exec "$@"'
        return subprocess.run([*self.inside, "sh", "-c", line, self.project, *command], env=_environment()).returncode

    def prepare_from(self, archive: Path) -> bool:
        """Whether the archive can be installed, works without anything else, and with what the tests need."""
        python = f"{self.environment}/bin/python"
        shutil.rmtree(self.environment, ignore_errors=True)
        return (
            self.run(self.executable, "-m", "venv", self.environment) == 0
            and self.run(python, "-m", "pip", "install", "--quiet", str(archive)) == 0
            and self.run(f"{self.environment}/bin/headrace", "--version") == 0
            and self.run(python, "-I", "-c", _ALONE) == 0
            and self.run(python, "-m", "pip", "install", "--quiet", f"{archive}[dev]") == 0
        )

    def prepare(self) -> bool:
        """Whether there is an environment with the project and all that its tests need."""
        python = f"{self.environment}/bin/python"
        if self.run("test", f"{self.environment}/.installed", "-nt", "pyproject.toml") == 0:
            return True
        return (
            self.run(self.executable, "-m", "venv", self.environment) == 0
            and self.run(python, "-m", "pip", "install", "--quiet", "--editable", ".[dev]") == 0
            and self.run("touch", f"{self.environment}/.installed") == 0
        )

    def test(self) -> int:
        return self.run(f"{self.environment}/bin/python", *QUICK)


def _environment() -> dict[str, str]:
    """Without what would import this Python's packages into another, or keep it from compiling its own."""
    return {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}


def said_versions() -> list[str]:
    """The versions that the classifiers name, and the one after the newest of them."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    found = [re.fullmatch(r"Programming Language :: Python :: 3\.(\d+)", line) for line in project["classifiers"]]
    minors = sorted(int(one[1]) for one in found if one is not None)
    return [f"3.{minor}" for minor in (*minors, minors[-1] + 1)]


def version_of(*python: str) -> str | None:
    """`3.13`, if it runs: a shim of pyenv's may be there for a version that is not chosen."""
    code = "import sys; print('%d.%d' % sys.version_info[:2])"
    try:
        done = subprocess.run([*python, "-c", code], capture_output=True, text=True, env=_environment())
    except OSError:
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def candidates(version: str) -> list[str]:
    """Where an interpreter of a version may be."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    found = [shutil.which(f"python{version}") or ""]
    found += map(str, sorted(pyenv.glob(f"{version}*/bin/python"), reverse=True))
    if shutil.which("uv"):
        done = subprocess.run(["uv", "python", "find", version], capture_output=True, text=True)
        found.append(done.stdout.strip())
    return [one for one in found if one]


def find(version: str, kind: str = "") -> Python | None:
    """An interpreter; `kind` keeps environments of different archives apart."""
    for executable in candidates(version):
        if version_of(executable) == version:
            return Python(version, executable, str(PLACE / (version + kind)))
    return None


def debian(suite: str) -> Python:
    """The Python of a release of Debian's, with a copy of what is committed here and what is changed."""
    root = PLACE / f"debian-{suite}"
    if not (root / "usr" / "bin" / "python3").exists():
        PLACE.mkdir(parents=True, exist_ok=True)
        command = ["debootstrap", "--variant=minbase", f"--include={_DEBIAN_PACKAGES}", suite, str(root)]
        subprocess.run(command, check=True)
    for name in _PIP_FILES:
        if Path(name).exists():
            (root / name.lstrip("/")).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(name, root / name.lstrip("/"))
    files = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT, capture_output=True, text=True, check=True,
    ).stdout.split("\0")  # fmt: skip
    project = root / "project"
    for name in filter(None, files):
        if (ROOT / name).is_file():
            (project / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, project / name)
    inside = ("chroot", str(root))
    version = version_of(*inside, "python3")
    assert version is not None, f"the Python in {root} does not run"
    return Python(version, "python3", "/environment", "/project", inside)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.pythons", description=__doc__.partition("\n")[0])
    parser.add_argument("versions", nargs="*", help="3.12, 3.13 …; else those of the classifiers, and the next")
    parser.add_argument("--debian", metavar="SUITE", action="append", default=[], help="the Python of this release too")
    parser.add_argument(
        "--archive", metavar="FILE", type=Path, action="append", default=[], help="install this instead"
    )
    options = parser.parse_args()
    outcomes: dict[str, str] = {}
    versions = options.versions or said_versions()
    archives: list[Path | None] = [path.resolve() for path in options.archive] or [None]
    found = 0
    for archive in archives:
        pythons = {version: find(version, f"-{archive.name}" if archive else "") for version in versions}
        chosen = [one for one in pythons.values() if one is not None]
        for python in [*chosen, *(debian(suite) for suite in options.debian if archive is None)]:
            name = f"{python.version}, {archive.name}" if archive else python.version
            print(f"--- Python {name} ({' '.join((*python.inside, python.executable))})", flush=True)
            found += 1
            if not (python.prepare_from(archive) if archive else python.prepare()):
                outcomes[name] = "cannot be installed on"
            else:
                outcomes[name] = "passed" if python.test() == 0 else "FAILED"
        outcomes |= {
            version: "not found" for version, one in pythons.items() if one is None and version not in outcomes
        }
    print("\n".join(f"Python {version}: {outcome}" for version, outcome in outcomes.items()))
    return 0 if found and all(outcome in ("passed", "not found") for outcome in outcomes.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
