"""A directory with files of the user's own is named by mistake: nothing of it is changed, and the mistake is said."""

from __future__ import annotations

from pathlib import Path

import pytest

from .hands import Hands
from .test_readme import three_ports

pytestmark = pytest.mark.slow


@pytest.fixture
def hands(tmp_path: Path) -> Hands:
    return Hands(tmp_path)


@pytest.fixture
def work(tmp_path: Path) -> Path:
    """A directory with a program, in a directory that is named as a partition's would be."""
    work = tmp_path / "work"
    (work / "app-1").mkdir(parents=True)
    (work / "app-1" / "main.py").write_text("print()\n")
    return work


def is_untouched(work: Path) -> bool:
    return [path.name for path in (work / "app-1").iterdir()] == ["main.py"]


def test_it_is_refused(hands: Hands, work: Path) -> None:
    refused = hands.type("start", "--dir", str(work), "--listen", "127.0.0.1:0")
    assert refused.code == 2
    assert refused.out == ""
    assert f"{work} is not empty, and has no data of a broker in it, but app-1" in refused.err
    assert "--adopt" in refused.err
    assert [path.name for path in work.iterdir()] == ["app-1"]


@pytest.mark.parametrize("name", ["log.dirs", "log.dir"])
def test_in_a_file_of_settings_too(name: str, hands: Hands, work: Path) -> None:
    (hands.directory / "server.properties").write_text(f"{name}={work}\nlisteners=PLAINTEXT://127.0.0.1:0\n")
    refused = hands.type("start", "--config", "server.properties")
    assert (refused.code, "is not empty" in refused.err) == (2, True)
    assert [path.name for path in work.iterdir()] == ["app-1"]


def test_adopted_it_is_left_alone(hands: Hands, work: Path) -> None:
    with hands.broker("--dir", str(work), "--adopt") as address:
        assert "app" not in hands.type("topic", "list", "-b", address).out
        made = hands.type("topic", "create", "app", "-p", "2", "-b", address)
        assert made.code == 1
        assert f"{work / 'app-1'} is not a log, and is left alone" in made.err
        assert hands.type("topic", "delete", "app", "--yes", "-b", address).out == "app deleted\n"
    assert is_untouched(work)
    assert hands.log.count("left alone, for there is no log in it: app-1") == 1
    with hands.broker("--dir", str(work)) as address:  # it is a broker's now
        assert hands.type("topic", "list", "-b", address).out == ""
    assert is_untouched(work)


def test_a_cluster_is_not_made_there_and_takes_only_its_own_along(hands: Hands, work: Path) -> None:
    refused = hands.type("cluster", "start", "--dir", str(work))
    assert (refused.code, "is not empty (app-1)" in refused.err) == (2, True)
    (work / "notes").write_text("mine\n")
    started = hands.type("cluster", "start", "-n", "2", "--dir", str(work), "--adopt", "--port", str(three_ports()))
    assert started.code == 0, started.err
    stopped = hands.type("cluster", "stop", "--remove", "--yes", "--dir", str(work))
    assert stopped.code == 0, stopped.err
    assert "stays, with what is not the cluster's: app-1, notes" in stopped.err
    assert sorted(path.name for path in work.iterdir()) == ["app-1", "notes"]
