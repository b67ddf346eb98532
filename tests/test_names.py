"""Names stand for one thing each, and modules have one job: what a reader of several rooms would stumble over."""

from __future__ import annotations

import ast
from collections import defaultdict
from pathlib import Path

import pytest

SOURCE = Path(__file__).parent.parent / "src" / "headrace"
# Kafka names the parts of its messages; what we make of one may have its name.
MESSAGES = "protocol"
# Two coordinators are built alike over what they have in common.
COORDINATORS = {"coordination", "groups", "transactions"}
# Both ends of one thing, in rooms that may not import each other; and what is the same word for the same.
SHARED = {
    "ClusterView": "what a broker and what a client has heard of its cluster",
    "PatternType": "of the controller, and of Admin",
    "Cluster": "one that a test starts, and one that Spark's driver is connected to",
    "ConfigEntry": "of the controller, and of Admin",
    "ConfigSource": "of the controller, and of Admin",
    "Member": "of a group, at its coordinator and in a parallel consumer",
    "ResourceType": "of the controller, and of Admin",
}
# About 600 is the aim; what mends a defect need not be the change that splits a module.
LINES_MAX = 640


@pytest.mark.slow
def test_no_two_rooms_have_a_class_of_one_name() -> None:
    rooms: dict[str, set[str]] = defaultdict(set)
    for path in SOURCE.rglob("*.py"):
        room = path.relative_to(SOURCE).parts[0]
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                rooms[node.name].add("coordinators" if room in COORDINATORS else room)
    twice = {name: sorted(found - {MESSAGES}) for name, found in rooms.items() if len(found - {MESSAGES}) > 1}
    assert {name: found for name, found in twice.items() if name not in SHARED} == {}
    assert SHARED.keys() <= twice.keys(), "what is not shared any more need not be listed"


def test_no_module_is_longer_than_a_reader_can_keep_in_mind() -> None:
    lengths = {path.relative_to(SOURCE).as_posix(): path.read_text().count("\n") for path in SOURCE.rglob("*.py")}
    assert {name: length for name, length in lengths.items() if length > LINES_MAX} == {}
