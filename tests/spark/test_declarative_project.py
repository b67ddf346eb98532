"""The project of Spark Declarative Pipelines runs as it says, and goes on where it was."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from tests.spark.pipelines.reading import everything
from tests.spark.topics import fill, make_topic

from headrace.testing import BrokerProcess

PROJECT = Path(__file__).parents[2] / "examples" / "spark_pipelines"
RUN_S = 400


def _command() -> str:
    for module in ("pyspark.pipelines", "grpc", "grpc_status", "yaml"):
        pytest.importorskip(module, reason=f"{module} is not installed: pip install 'pyspark[pipelines]'")
    command = Path(sys.executable).parent / "spark-pipelines"
    if not command.exists():
        pytest.skip("this pyspark has no spark-pipelines")
    return str(command)


def _run(command: str, project: Path, servers: str) -> None:
    from headrace.spark.java import find_java

    home = find_java().home
    environment = {
        **os.environ,
        **({"JAVA_HOME": home} if home else {}),
        "HEADRACE_BOOTSTRAP": servers,
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
    }
    environment.pop("SPARK_REMOTE", None)
    settings = {
        "spark.sql.catalogImplementation": "hive",
        "spark.ui.enabled": "false",
        "spark.sql.shuffle.partitions": "2",
        # A busy machine takes longer than 15 s to start a Python worker.
        "spark.python.authenticate.socketTimeout": "120s",
    }
    arguments = [part for name, value in settings.items() for part in ("--conf", f"{name}={value}")]
    # A session of its own: the command starts a JVM, which starts Python, and all of them have to end.
    process = subprocess.Popen(
        [command, "--remote", "local[2]", "run", *arguments],
        cwd=project,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        said, _ = process.communicate(timeout=RUN_S)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    assert process.returncode == 0, said[-6000:]


@pytest.mark.slow
@pytest.mark.timeout(2 * RUN_S)
def test_the_project_reads_a_topic_and_writes_one_and_resumes(tmp_path: Path) -> None:
    command = _command()
    project = tmp_path / "project"
    shutil.copytree(PROJECT, project)
    spec = project / "spark-pipeline.yml"
    text = spec.read_text()
    assert "file:///tmp/headrace-clicks-storage" in text
    spec.write_text(text.replace("file:///tmp/headrace-clicks-storage", f"file://{tmp_path}/storage"))
    clicks = [json.dumps({"user": f"u{n % 5}", "page": f"/{n % 3}", "at": "2026-01-01T00:00:00Z"}) for n in range(60)]
    with BrokerProcess(tmp_path / "broker") as kafka:
        for name in ("clicks", "clean-clicks"):
            make_topic(kafka.address, name, partitions=2)
        fill(kafka.address, "clicks", [one.encode() for one in clicks[:40]] + [b"not JSON"])
        _run(command, project, kafka.address)
        found = Counter(json.loads(one.value)["user"] for one in everything(kafka.address, "clean-clicks"))
        assert found == Counter(f"u{n % 5}" for n in range(40))
        fill(kafka.address, "clicks", [one.encode() for one in clicks[40:]])
        _run(command, project, kafka.address)
        found = Counter(json.loads(one.value)["user"] for one in everything(kafka.address, "clean-clicks"))
        assert found == Counter(f"u{n % 5}" for n in range(60))
