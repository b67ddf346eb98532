"""Who had what before: members' claims on partitions, and what is left of them when two claim the same one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from headrace.assignors._group import AssignmentInput, Numbering
from headrace.assignors._sticky_user_data import NO_GENERATION
from headrace.assignors.base import Subscription


def field_generation(subscription: Subscription) -> int | None:
    """The generation in the subscription's own field; a negative one counts as absent."""
    generation = subscription.generation_id
    return None if generation is None or generation < 0 else generation


@dataclass(slots=True)
class Claims:
    """Claims per member, in the group's order.

    `claimed` is what members said, `owned` what they may keep of it. `contested` partitions were claimed by two members
    of the same generation. Numbers beyond the layout stand for partitions that are gone.
    """

    claimed: list[Sequence[int]]
    generations: list[int | None]
    owned: list[Sequence[int]]
    contested: set[int]
    gone_topics: list[str]


def settle_claims(
    group: AssignmentInput, claimed: list[Sequence[int]], generations: list[int | None], numbering: Numbering
) -> Claims:
    """Decide every claim. Nearly always no partition is claimed twice, and that is cheap to see."""
    owned, contested = claimed, set[int]()
    if numbering.gone_topics or not _all_distinct(claimed, group.layout.total):
        owned, contested = _settle_one_by_one(group, claimed, generations)
    return Claims(claimed, generations, owned, contested, numbering.gone_topics)


def _all_distinct(claimed: Sequence[Sequence[int]], total: int) -> bool:
    marks = bytearray(b"\x01") * total
    for numbers in claimed:
        for number in numbers:
            marks[number] = 0
    return total - marks.count(1) == sum(map(len, claimed))


def _settle_one_by_one(
    group: AssignmentInput, claimed: Sequence[Sequence[int]], generations: Sequence[int | None]
) -> tuple[list[Sequence[int]], set[int]]:
    """Weigh claims in visiting order, as Java does.

    The later claimant's generation is the one its assignor data tells, the earlier one's is the subscription's field:
    for members that send only one of them this prefers the one visited last, in Java and so here.
    """
    contested: set[int] = set()
    claimant: dict[int, int] = {}
    owned: list[dict[int, None]] = [{} for _ in claimed]
    known = [field_generation(subscription) for subscription in group.subscriptions]
    weights = [NO_GENERATION if generation is None else generation for generation in known]
    for member, numbers in enumerate(claimed):
        own = generations[member]
        weight = NO_GENERATION if own is None else own
        for number in numbers:
            other = claimant.get(number)
            if other is None:
                owned[member][number] = None
            elif weight == weights[other]:
                contested.add(number)
                owned[other].pop(number, None)
            elif weight > weights[other]:
                owned[other].pop(number, None)
                owned[member][number] = None
            else:
                continue
            claimant[number] = member
    return [list(numbers) for numbers in owned], contested


def java_takes_as_equal(group: AssignmentInput) -> tuple[bool, bool]:
    """Whether Java would see equal subscriptions, and whether that is beyond doubt.

    Java compares sizes and contents against the first member that has any topic: it overlooks members without topics
    that it visits before that one, and members that list one topic twice instead of two.
    """
    wanted: set[str] = set()
    verdicts: dict[int, bool] = {}
    equal = True
    for shape in group.shape_of:
        topics = group.shapes[shape]
        if not wanted:
            wanted.update(topics)
        elif shape not in verdicts:
            verdicts[shape] = len(topics) == len(wanted) and wanted.issuperset(topics)
            equal = equal and verdicts[shape]
    certain = all(wanted == set(topics) for topics in group.shapes)
    return equal, certain
