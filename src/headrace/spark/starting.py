"""A SparkSession that is ready for Kafka: with a Java, this Python, the data source, and the package on executors."""

from __future__ import annotations

import importlib.util
import logging
import os
import re
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace.spark.extras import explained
from headrace.spark.first_line import install
from headrace.spark.java import Java, find_java
from headrace.spark.packaging import package

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger("headrace.spark")

LOCAL_MASTER = "local[*,4]"
"""All cores, and four tries for a task as in a cluster: plain `local[*]` gives up at the first failure."""

_LAUNCHER = Path(__file__).with_name("worker_python.sh")

_DEFAULTS = {
    # A console is for those who want one; a port that is taken makes noise.
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.session.timeZone": "UTC",
    # A record batch as large as a fetch: fewer, larger steps between the JVM and Python.
    "spark.sql.execution.arrow.maxRecordsPerBatch": "65536",
    # But no larger than Java's allocator keeps for reuse: Spark's 64 MB take fresh memory from the system every time,
    # which costs rows of 1 KB a third of their speed.
    "spark.sql.execution.arrow.maxBytesPerBatch": "4m",
    # A busy machine takes longer than Spark's 15 s to start a Python worker.
    "spark.python.authenticate.socketTimeout": "60s",
    # What the exactly-once sink needs (see foreach_batch.check_spark): Spark tries tasks again, but not whole stages.
    "spark.stage.maxConsecutiveAttempts": "1",
    "spark.stage.maxAttempts": "1",
}

_JAVA_VARIABLES = ("SPARK_SUBMIT_OPTS", "JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS", "_JAVA_OPTIONS")
_COLLECTOR = re.compile(r"-XX:\+Use\w+GC\b")


def session(
    app_name: str = "headrace",
    *,
    master: str | None = None,
    config: Mapping[str, Any] | None = None,
    ship: bool | None = None,
) -> SparkSession:
    """A SparkSession with `format("headrace")`; the running one if there is one.

    `master`: where Spark runs, in Spark's words (`local[4,4]`, `spark://host:7077`, `yarn`, `k8s://…`); default: here.
    `config`: more of Spark's configuration. `ship`: send this package to the executors (default: unless they are
    local); what it depends on (numpy, numba, pyarrow, crc32c, lz4, zstandard, cramjam) has to be there already.
    What was chosen is logged (`headrace.spark`, level INFO).
    """
    try:
        # What tasks and batches need; better missed here than in the middle of a query.
        import numpy  # noqa: F401
        import pyarrow  # noqa: F401
        from pyspark.sql import SparkSession

        from headrace.spark.source import HeadraceSource
    except ModuleNotFoundError as error:
        raise explained(error) from error
    install()
    active = SparkSession.getActiveSession()
    if active is None:
        java = find_java()
        builder = SparkSession.builder.appName(app_name)
        given = dict(config or {})
        chosen = master or given.get("spark.master") or os.environ.get("MASTER") or LOCAL_MASTER
        _prepare_environment(java, worker_python(chosen))
        given.pop("spark.master", None)
        given = {**_DEFAULTS, **_local_defaults(chosen, given), **given}
        active = builder.master(chosen).config(map=given).getOrCreate()
        log.info("Spark %s on %s with %s", active.version, chosen, java)
    elif config:
        for name, value in config.items():
            active.conf.set(name, value)
    context = active.sparkContext
    if ship if ship is not None else not str(context.master).startswith("local"):
        archive = package()
        context.addPyFile(str(archive))
        log.info("sent %s to the executors", archive)
    if importlib.util.find_spec("pyspark_headrace") is None:
        # Spark finds the installed package by itself; a copy without it has to be told of.
        active.dataSource.register(HeadraceSource)
    return active


def _local_defaults(master: str, given: Mapping[str, Any]) -> dict[str, str]:
    """What fits one machine.

    Spark shuffles into 200 partitions, each with files of its own in a query with state: far too many. (A query that
    has a checkpoint keeps the number it began with.) And Java's own choice of a collector is for short pauses, with
    threads that run beside the tasks: the one for throughput makes queries a tenth to a quarter faster on two cores.
    """
    found = re.fullmatch(r"local(?:\[(\d+|\*)(?:,.*)?\])?", master)
    if found is None:
        return {}
    threads = os.cpu_count() or 1 if found[1] == "*" else int(found[1] or 1)
    defaults = {"spark.sql.shuffle.partitions": str(threads)}
    if not _collector_is_chosen(given):
        defaults["spark.driver.defaultJavaOptions"] = "-XX:+UseParallelGC"
    return defaults


def _collector_is_chosen(given: Mapping[str, Any]) -> bool:
    """Whether somebody names a collector for Java, which does not start with two."""
    import pyspark

    said = [str(given.get("spark.driver.extraJavaOptions", ""))]
    said += [os.environ.get(name, "") for name in _JAVA_VARIABLES]
    home = os.environ.get("SPARK_HOME") or os.path.dirname(pyspark.__file__)
    directory = os.environ.get("SPARK_CONF_DIR") or os.path.join(home, "conf")
    with suppress(OSError):
        said.append(Path(directory, "spark-defaults.conf").read_text(errors="replace"))
    return any(_COLLECTOR.search(text) for text in said)


def worker_python(master: str) -> str:
    """What Spark is to run as the Python of its workers: this one.

    On this machine by way of a script that starts Spark's processes sooner (see `daemon`); not where the package lies
    in an archive, or its files lost their permissions on the way here.
    """
    if master.startswith("local") and os.access(_LAUNCHER, os.X_OK):
        return str(_LAUNCHER)
    return sys.executable


def _prepare_environment(java: Java, python: str) -> None:
    """What Spark's launcher and workers read from the environment. What is set already stays."""
    if java.home is not None:
        os.environ["JAVA_HOME"] = java.home
    # Otherwise workers run whatever `python3` is on the PATH, which need not be this one. Data sources run with the
    # driver's. (An earlier session may have set them to the script, which is for this machine only.)
    for name in ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON"):
        if os.environ.get(name) in (None, str(_LAUNCHER)):
            os.environ[name] = python
    os.environ["HEADRACE_SPARK_PYTHON"] = sys.executable
    os.environ.setdefault("SPARK_AUTH_SOCKET_TIMEOUT", "60")
    # A machine whose name does not resolve would otherwise have no address to give to its workers.
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
