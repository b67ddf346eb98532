"""Spark's Python processes, started sooner: the installed pyspark, what workers need loaded before they are forked."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headrace.spark import daemon, starting
from headrace.spark.java import Java

LAUNCHER = Path(daemon.__file__).with_name("worker_python.sh")
NAMES = ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON")


# --- where modules come from ------------------------------------------------------------------------------------------


def test_the_installed_pyspark_goes_before_its_archive(tmp_path: Path) -> None:
    archive = tmp_path / "site" / "pyspark" / "python" / "lib" / "pyspark.zip"
    (tmp_path / "site" / "pyspark").mkdir(parents=True)
    (tmp_path / "site" / "pyspark" / "__init__.py").touch()
    site, other = str(tmp_path / "site"), str(tmp_path / "pyspark.zip")
    assert daemon.prefer_installed([str(archive), other, site]) == [other, site, str(archive)]


def test_an_archive_without_its_package_stays_where_it_is(tmp_path: Path) -> None:
    archive = str(tmp_path / "site" / "pyspark" / "python" / "lib" / "pyspark.zip")
    (tmp_path / "site").mkdir()
    # No package beside it.
    assert daemon.prefer_installed([archive, str(tmp_path / "site")]) == [archive, str(tmp_path / "site")]
    (tmp_path / "site" / "pyspark").mkdir()
    (tmp_path / "site" / "pyspark" / "__init__.py").touch()
    # A package that Python does not look at: another Spark's.
    assert daemon.prefer_installed([archive, str(tmp_path)]) == [archive, str(tmp_path)]


def test_a_worker_does_not_repeat_the_random_numbers_of_another() -> None:
    numpy = pytest.importorskip("numpy", reason="numpy is not installed")
    numpy.random.seed(7)
    again = numpy.random.random()
    numpy.random.seed(7)
    daemon.reseed()
    assert numpy.random.random() != again


# --- which Python Spark is given --------------------------------------------------------------------------------------


def test_only_workers_of_this_machine_are_started_by_the_script(tmp_path: Path, monkeypatch: Any) -> None:
    assert starting.worker_python("local[2,4]") == str(LAUNCHER)
    assert starting.worker_python("spark://host:7077") == sys.executable
    without = tmp_path / "worker_python.sh"
    without.write_text("")
    monkeypatch.setattr(starting, "_LAUNCHER", without)
    assert starting.worker_python("local[2,4]") == sys.executable, "its permissions were lost on the way here"


def test_a_python_that_the_user_chose_stays(monkeypatch: Any) -> None:
    java = Java(None, 17, "here")
    for name in NAMES:
        monkeypatch.setenv(name, "/somewhere/python")
    starting._prepare_environment(java, str(LAUNCHER))
    assert [os.environ[name] for name in NAMES] == ["/somewhere/python"] * 2
    for name in NAMES:
        monkeypatch.setenv(name, str(LAUNCHER))
    starting._prepare_environment(java, sys.executable)
    assert [os.environ[name] for name in NAMES] == [sys.executable] * 2, "a session elsewhere after one here"


def test_the_script_runs_anything_else_as_it_is() -> None:
    given = ["-c", "import sys; print(sys.executable, sys.argv[1:])", "-m", "pyspark.daemon", "a b"]
    done = subprocess.run(
        [LAUNCHER, *given], env=_environment(), capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout == f"{sys.executable} ['-m', 'pyspark.daemon', 'a b']\n"


def test_a_daemon_of_the_users_own_is_run_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "own_daemon.py").write_text("import sys; print(sys.argv[0], sys.argv[1:])")
    done = subprocess.run(
        [LAUNCHER, "-m", "own_daemon", "pyspark.worker"],
        env=_environment(PYTHONPATH=str(tmp_path)),
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert done.stdout == f"{tmp_path / 'own_daemon.py'} ['pyspark.worker']\n", "spark.python.daemon.module"


# --- the process that workers are forked from -------------------------------------------------------------------------


def _environment(**more: str) -> dict[str, str]:
    return {**os.environ, "HEADRACE_SPARK_PYTHON": sys.executable, "OMP_NUM_THREADS": "1", **more}


def _started(**more: str) -> tuple[str, str]:
    """The command line of a daemon that is ready to fork, and what it said; Spark learns its port, and then ends it."""
    process = subprocess.Popen(
        [LAUNCHER, "-m", "pyspark.daemon", "pyspark.worker"],
        env=_environment(**more),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    with process:
        assert process.stdout is not None
        port = int.from_bytes(process.stdout.read(4), "big")
        command = Path(f"/proc/{process.pid}/cmdline").read_bytes().decode().replace("\0", " ")
        _, said = process.communicate(timeout=60)
    assert 0 < port < 65536
    return command, said.decode()


@pytest.fixture
def modules(tmp_path: Path) -> Iterator[Path]:
    """A directory that Python looks for modules in first."""
    pytest.importorskip("pyspark", reason="pyspark is not installed")
    pytest.importorskip("numba", reason="numba is not installed")
    return tmp_path


@pytest.mark.slow
def test_a_daemon_that_loads_everything_stays(modules: Path) -> None:
    command, said = _started(PYTHONPATH=str(modules))
    assert "daemon.py pyspark.daemon pyspark.worker" in command
    assert said == ""


@pytest.mark.slow
def test_what_cannot_be_loaded_is_left_to_the_workers(modules: Path) -> None:
    (modules / "pandas.py").write_text("raise OSError('a broken file')")
    command, said = _started(PYTHONPATH=str(modules))
    assert "-m pyspark.daemon pyspark.worker" in command, "Spark's own"
    assert "workers load everything themselves (OSError: a broken file)" in said


@pytest.mark.slow
def test_nothing_is_forked_while_a_thread_runs(modules: Path) -> None:
    lines = ["import threading", "threading.Thread(target=threading.Event().wait, daemon=True).start()"]
    (modules / "pandas.py").write_text("\n".join(lines))
    command, said = _started(PYTHONPATH=str(modules))
    assert "-m pyspark.daemon pyspark.worker" in command
    assert "(a thread was started)" in said


# --- in Spark ---------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_worker_begins_with_everything_loaded(spark: Any) -> None:
    pytest.importorskip("numba", reason="numba is not installed")

    # In here: Spark's workers cannot import tests.
    def look(batches: Iterator[Any]) -> Iterator[Any]:
        import gc

        import pyarrow as pa
        import pyspark

        from headrace.records import kernels

        for _ in batches:
            pass
        seen = {"pyspark": pyspark.__file__, "kernels": kernels._fast is not None, "frozen": gc.get_freeze_count()}
        yield pa.RecordBatch.from_pylist([seen])

    schema = "pyspark STRING, kernels BOOLEAN, frozen LONG"
    for row in spark.range(0, 4, 1, 2).mapInArrow(look, schema).collect():
        assert ".zip" not in row.pyspark
        assert row.kernels
        assert row.frozen > 10_000, "what was loaded before is of no concern to collections"
