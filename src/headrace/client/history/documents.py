"""Timelines and plans as JSON has them: what the command line prints and the console is told."""

from __future__ import annotations

from typing import Any

from headrace.client.history.timeline import GroupTimeline, Rebalance
from headrace.client.history.what_if import AssignmentPlan


def timeline_document(made: GroupTimeline, last: int) -> dict[str, Any]:
    """A timeline as JSON has it."""
    return {
        "group": made.group,
        "begins_ms": made.begins_ms,
        "older_left_out": made.is_cut,
        "causes_are_exact": made.is_exact,
        "rebalances": [_document(one) for one in made.rebalances[-last:]],
        "flapping": [
            {
                "client": one.client,
                "times": one.times,
                "within_ms": one.within_ms,
                "cause": one.kind.value,
                "advice": one.advice,
            }
            for one in made.flapping
        ],
    }


def _document(one: Rebalance) -> dict[str, Any]:
    return {
        "generation": one.generation,
        "at_ms": one.at_ms,
        "causes": [
            {"kind": cause.kind.value, "text": cause.text, "client": cause.client, "exact": cause.is_exact}
            for cause in one.causes
        ],
        "members": one.members,
        "members_before": one.members_before,
        "took_ms": one.took_ms,
        "moves": [
            {
                "topic": move.partition.topic,
                "partition": move.partition.partition,
                "from": move.before,
                "to": move.after,
            }
            for move in one.moves
        ],
        "idle_ms": {str(partition): idle for partition, idle in sorted(one.idle_ms.items())},
        "generations_not_seen": one.skipped,
    }


def plan_document(plan: AssignmentPlan, clients: dict[str, str]) -> dict[str, Any]:
    """A plan as JSON has it."""
    fewest, most = plan.balance
    return {
        "strategy": plan.strategy,
        "balance": {"fewest": fewest, "most": most},
        "members": [
            {
                "member": member,
                "client": clients.get(member, member),
                "new": member in plan.new_members,
                "partitions": [str(one) for one in own],
                "lag": plan.lag[member],
            }
            for member, own in plan.assigned.items()
        ],
        "moves": [{"partition": str(one), "from": before, "to": after} for one, before, after in plan.moves],
        "unassigned": [str(one) for one in plan.unassigned],
    }
