"""The assignor of streams groups, held against what Kafka's own gave."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

from headrace.assignors.server.sticky_tasks import SubtopologySpec, TaskMember, assign_tasks

VECTORS = Path(__file__).parents[1] / "reference" / "vectors" / "streams-sticky.jsonl.gz"


def asked(case: dict[str, Any]) -> tuple[dict[str, TaskMember], list[SubtopologySpec], int]:
    members = {one["memberId"]: TaskMember(one["processId"], one["active"], one["standby"]) for one in case["members"]}
    subtopologies = [SubtopologySpec(one["id"], one["tasks"], one["stateful"]) for one in case["subtopologies"]]
    return members, subtopologies, int(case["assignmentConfigs"].get("num.standby.replicas", 0))


def test_every_assignment_is_kafkas() -> None:
    cases = [json.loads(line) for line in gzip.decompress(VECTORS.read_bytes()).splitlines()]
    for case in cases:
        made = {
            member_id: {
                "active": {one: sorted(found) for one, found in tasks.active.items()},
                "standby": {one: sorted(found) for one, found in tasks.standby.items()},
                "warmup": {},
            }
            for member_id, tasks in assign_tasks(*asked(case)).items()
        }
        assert made == case["assignment"], case["id"]
    assert len(cases) == 1500


def test_nobody_is_given_what_there_is_without_members() -> None:
    assert assign_tasks({}, [SubtopologySpec("0", 3, True)], 1) == {}


def test_standby_copies_are_left_out_where_every_process_has_the_task() -> None:
    members = {"a": TaskMember("p", {}, {}), "b": TaskMember("p", {}, {})}
    made = assign_tasks(members, [SubtopologySpec("0", 2, True)], 2)
    assert not any(one.standby for one in made.values())
    assert sorted(n for one in made.values() for n in one.active["0"]) == [0, 1]
