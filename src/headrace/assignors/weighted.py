"""By weight: a member that says it is three times as strong gets three times as many partitions."""

from __future__ import annotations

import heapq
import json
import logging
import math
from collections.abc import Collection, Mapping

from headrace.assignors._group import read_group
from headrace.assignors.base import AssignableTopics, AssignorBase, AssignorError, GroupAssignment, Subscription

_LOG = logging.getLogger(__name__)

_WEIGHT_DEFAULT = 1.0
_WEIGHT_MAX = 1e9


class WeightedAssignor(AssignorBase):
    """Partitions in order of topic, each to the subscriber that is least full for its weight.

    Every member tells its weight in its user data, a small JSON object (`{"weight": 3}`). A member that tells none, or
    something unreadable, counts as weight 1: one odd member must not stop the group. A weight of 0 means a stand-by
    that gets partitions only of topics nobody else subscribes to.
    """

    name = "weighted"

    def __init__(self, weight: float = _WEIGHT_DEFAULT) -> None:
        if not _is_weight(weight):
            raise AssignorError(f"weight is {weight!r}: it must be a number from 0 to {_WEIGHT_MAX:.0f}")
        self.weight = weight

    def subscription_user_data(self, topics: Collection[str]) -> bytes | None:
        return json.dumps({"weight": self.weight}).encode("utf-8")

    def assign(self, cluster: AssignableTopics, subscriptions: Mapping[str, Subscription]) -> GroupAssignment:
        group = read_group(cluster, subscriptions)
        ranks = group.members_by_name()
        weights = [_told_weight(group.members[member], group.subscriptions[member]) for member in ranks]
        numbers: list[list[int]] = [[] for _ in ranks]

        def fullness(rank: int) -> tuple[bool, float, int]:
            """How full a member would be with one more; stand-bys come last."""
            size = len(numbers[rank]) + 1
            return (not weights[rank], size / (weights[rank] or 1.0), rank)

        shapes = list(map(frozenset, group.topic_shapes()))
        heaps: dict[frozenset[int], list[tuple[bool, float, int]]] = {}
        for topic, wanted in enumerate(shapes):
            if wanted not in heaps:
                readers = [rank for rank, member in enumerate(ranks) if group.shape_of[member] in wanted]
                heaps[wanted] = list(map(fullness, readers))
                heapq.heapify(heaps[wanted])
            heap = heaps[wanted]
            start = group.layout.starts[topic]
            for number in range(start, start + group.layout.counts[topic]):
                # Members only fill up, so an outdated entry is merely too low, and is renewed when it surfaces.
                while heap[0] != fullness(heap[0][2]):
                    heapq.heapreplace(heap, fullness(heap[0][2]))
                numbers[heap[0][2]].append(number)
        result: list[list[int]] = [[] for _ in ranks]
        for rank, member in enumerate(ranks):
            result[member] = numbers[rank]
        return group.result(result)


def _is_weight(value: object) -> bool:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return False
    return math.isfinite(value) and 0 <= value <= _WEIGHT_MAX


def _told_weight(member: str, subscription: Subscription) -> float:
    if not subscription.user_data:
        return _WEIGHT_DEFAULT
    try:
        told = json.loads(subscription.user_data)
    except (ValueError, RecursionError):
        told = None
    weight = told.get("weight") if isinstance(told, dict) else None
    if _is_weight(weight):
        assert isinstance(weight, (int, float))
        return weight
    _LOG.warning("member %s of the group told no readable weight in its user data; it counts as 1", member)
    return _WEIGHT_DEFAULT
