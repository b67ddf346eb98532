"""What a user of Spark is told first: the line that counts, which extra is missing, which topic."""

from __future__ import annotations

import subprocess
import sys

import pytest

from headrace import Admin, NewTopic
from headrace.errors import NetworkError, UnknownTopicOrPartitionError
from headrace.spark.first_line import install, line_that_counts
from headrace.testing import broker

OF_SPARK = """[STREAM_FAILED] Query [id = 1, runId = 2] terminated with exception: raised by the Python Proxy.
Return Message: Traceback (most recent call last):
  File "/py4j/java_gateway.py", line 1, in call
headrace.errors.NetworkError: broker 1 is gone

The above exception was the direct cause of the following exception:

Traceback (most recent call last):
  File "/headrace/spark/once.py", line 1, in write
headrace.spark.once.TakenOverError: another query took over

	at org.apache.spark.sql.execution.streaming.StreamExecution.run(StreamExecution.scala:1)
"""


def test_the_line_that_counts_is_the_last_error_of_ours() -> None:
    line = line_that_counts(OF_SPARK)
    assert line == "another query took over (TakenOverError)"
    assert line_that_counts(f"{line}\n\n{OF_SPARK}") is None, "it is put there once"
    assert line_that_counts("java.lang.IllegalStateException: nothing of ours") is None


def test_a_mistake_that_we_find_by_an_error_of_pythons_own_counts_too() -> None:
    text = """[PYTHON_DATA_SOURCE_ERROR] Failed to initialize the data source writer: Traceback (most recent call last):
  File "/site-packages/headrace/spark/sink.py", line 55, in __init__
    raise ValueError("a topic cannot be overwritten: use mode('append')")
ValueError: a topic cannot be overwritten: use mode('append')
 SQLSTATE: 38000"""
    assert line_that_counts(text) == "a topic cannot be overwritten: use mode('append') (ValueError)"
    assert line_that_counts(text.replace("headrace/spark", "users_own")) is None


def test_what_a_worker_raised_begins_with_it_too(monkeypatch: pytest.MonkeyPatch) -> None:
    captured = pytest.importorskip("pyspark.errors.exceptions.captured")
    monkeypatch.setattr(captured, "convert_exception", lambda error: error)
    monkeypatch.setattr(captured.PythonException, "__str__", captured.PythonException.__str__)
    install()
    said = {"msg": "An exception was thrown from the Python worker", "traceback": OF_SPARK}
    monkeypatch.setattr(captured.PythonException, "getMessageParameters", lambda self: said)
    error = captured.PythonException.__new__(captured.PythonException)
    assert str(error).splitlines()[0] == "another query took over (TakenOverError)"


def test_an_exactly_once_sink_asks_for_its_topics_when_it_is_made() -> None:
    pytest.importorskip("pyarrow")
    from headrace.spark import exactly_once

    with (
        broker() as kafka,
        Admin(bootstrap_servers=kafka.address) as admin,
    ):
        with pytest.raises(UnknownTopicOrPartitionError, match="no topic copy; make it with: headrace topic create"):
            exactly_once("copy", kafka.address)
        admin.create_topics([NewTopic("copied")]).all()
        with pytest.raises(UnknownTopicOrPartitionError, match=r"there is no topic copies; did you mean copied\?"):
            exactly_once("copies", kafka.address)


@pytest.mark.parametrize("where", ["127.0.0.1:1", "127.0.0.1:1,no.such.host.invalid:9092"])
def test_a_wrong_address_is_said_soon(where: str) -> None:
    """And not after a minute, as to a query that runs already."""
    pytest.importorskip("pyarrow")
    from headrace.spark import exactly_once
    from headrace.spark.cluster import Cluster

    with pytest.raises(NetworkError, match=r"at 127.0.0.1:1 \(Connection refused\).*Check kafka.bootstrap.servers"):
        exactly_once("copy", where)
    with broker() as kafka:
        Cluster({"bootstrap.servers": f"127.0.0.1:1,{kafka.address}"}).check_reachable()


@pytest.mark.parametrize("missing", ["pyspark", "pyarrow"])
def test_a_missing_extra_is_named(missing: str) -> None:
    program = f"""
import sys
sys.modules[{missing!r}] = None
import headrace.spark as hs
try:
    hs.session()
except ImportError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == f"this needs Spark, and {missing} is not installed: pip install 'headrace[spark]'\n"


def test_the_demo_without_spark_names_the_extra(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from headrace import demo
    from headrace.demo import short

    monkeypatch.setitem(sys.modules, "pyspark", None)
    monkeypatch.setattr(short.ShortDemo, "run", lambda self: None)
    demo.command(spark=True)
    assert "pip install 'headrace[spark]'" in " ".join(capsys.readouterr().out.split())
