"""The fixtures of pytest: they cost nothing until they are used, and the examples of the page run as they are."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from headrace.testing.pytest_plugin import KafkaForTest, _headrace_broker, kafka, kafka_settings  # noqa: F401 - fixtures

PAGE = Path(__file__).parents[2] / "docs" / "testing.md"
TESTS = [text for text in re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.S) if re.search(r"def test_", text)]


def test_the_plugin_imports_next_to_nothing() -> None:
    program = (
        "import sys, headrace.testing.pytest_plugin; "
        "print(sorted(name for name in sys.modules if name.startswith('headrace')))"
    )
    loaded = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert loaded.strip() == str(
        ["headrace", "headrace._version", "headrace.testing", "headrace.testing.pytest_plugin"]
    )


def test_every_public_name_of_the_package_is_there() -> None:
    import headrace.testing

    assert all(getattr(headrace.testing, name) is not None for name in headrace.testing.__all__)


def test_topics_are_of_this_test_alone(kafka: KafkaForTest) -> None:  # noqa: F811
    one, other = kafka.topic("orders", partitions=2), kafka.topic("orders", cleanup_policy="compact")
    assert one != other
    assert len(kafka.admin.describe_topics([one]).all()[one].partitions) == 2
    kafka.producer().send(one, b"1").result()
    assert [record.value for record in kafka.consumer(one).poll(10)] == [b"1"]


def test_what_a_test_made_ends_with_it(kafka: KafkaForTest) -> None:  # noqa: F811
    given = KafkaForTest(kafka.address, kafka.admin, "another[test]")
    topic, producer = given.topic(), given.producer()
    given.close()
    assert topic not in kafka.admin.list_topics()
    with pytest.raises(Exception, match="closed"):
        producer.send(topic, b"1")


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_tests_of_the_page(tmp_path: Path) -> None:
    for number, text in enumerate(TESTS):
        (tmp_path / f"test_{number}.py").write_text(text)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]  # the plugin is found by its entry point
    # A group of its own: its brokers end with it, also when it takes too long.
    with subprocess.Popen([*command, str(tmp_path)], stdout=subprocess.PIPE, text=True, start_new_session=True) as run:
        try:
            told, _ = run.communicate(timeout=580)
        except subprocess.TimeoutExpired:
            os.killpg(run.pid, signal.SIGKILL)
            raise
    assert run.returncode == 0, told
    passed = re.search(r"(\d+) passed", told)
    assert passed is not None
    assert int(passed[1]) >= len(TESTS), "one may be played with several seeds"
