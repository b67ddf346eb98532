"""Sticky assignment when all members subscribe to the same topics: quotas, keep what fits, deal the rest."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from headrace.assignors._claims import Claims
from headrace.assignors._group import AssignmentInput, unmarked
from headrace.assignors._racks import RackTable


@dataclass(slots=True)
class _Quotas:
    """Everybody gets `low` partitions, and `over_max` of the members one more."""

    low: int
    high: int
    over_max: int
    over: int = 0


@dataclass(slots=True)
class EqualResult:
    numbers: list[list[int]]
    # Partitions that somebody else may still hold, with the member that is to get them.
    moving: dict[int, int]


@dataclass(slots=True)
class _Deal:
    group: AssignmentInput
    claims: Claims
    racks: RackTable
    quotas: _Quotas
    numbers: list[list[int]]
    # Members below the low quota, and members at it that may still get one more.
    under: list[int] = field(default_factory=list)
    level: list[int] = field(default_factory=list)
    # Partitions that their owner did not keep.
    given_up: dict[int, int] = field(default_factory=dict)


def assign_equal(group: AssignmentInput, claims: Claims, racks: RackTable) -> EqualResult:
    total, size = group.layout.total, len(group.members)
    low, over_max = divmod(total, size)
    quotas = _Quotas(low, low + (over_max > 0), over_max)
    deal = _Deal(group, claims, racks, quotas, [[] for _ in group.members])
    _keep_owned(deal)
    kept = list(map(len, deal.numbers))
    free = _free_numbers(deal)
    order = {member: rank for rank, member in enumerate(group.members_by_name())}
    deal.under.sort(key=order.__getitem__)
    deal.level.sort(key=order.__getitem__)
    if racks.nearby is not None:
        free.sort(key=racks.nearby.__getitem__)
    if racks.member_racks is not None:
        free = _deal_near(deal, free, racks.member_racks)
    _deal_rest(deal, free)
    return EqualResult(deal.numbers, _moving(deal, kept))


def _keep_owned(deal: _Deal) -> None:
    """Members keep what they had up to their quota, lowest partitions first."""
    layout, claims, quotas = deal.group.layout, deal.claims, deal.quotas
    width = len(layout.topics)
    rank: list[int] = []
    if any(claims.owned):
        # Orders numbers by partition, then topic.
        for topic, count in enumerate(layout.counts):
            rank.extend(range(topic, topic + count * width, width))
    for member, claimed in enumerate(claims.owned):
        owned = _keepable(deal, member, claimed)
        owned.sort(key=rank.__getitem__)
        if len(owned) < quotas.low:
            deal.numbers[member] = owned
            deal.under.append(member)
            continue
        if len(owned) >= quotas.high and quotas.over < quotas.over_max:
            keep = quotas.high
            quotas.over += 1
            if quotas.over == quotas.over_max:
                deal.level.clear()
        else:
            keep = quotas.low
            if quotas.over < quotas.over_max:
                deal.level.append(member)
        deal.numbers[member] = owned[:keep]
        for number in owned[keep:]:
            deal.given_up[number] = member


def _keepable(deal: _Deal, member: int, claimed: Sequence[int]) -> list[int]:
    """A member's claims without those that are gone, disputed or in another rack."""
    claims, racks = deal.claims, deal.racks
    owned = list(claimed)
    if claims.gone_topics:
        total = deal.group.layout.total
        owned = [number for number in owned if number < total]
    if racks.member_racks is not None:
        near = []
        for number in owned:
            if racks.is_far(member, number):
                deal.given_up[number] = member
            else:
                near.append(number)
        owned = near
    if claims.contested:
        owned = [number for number in owned if number not in claims.contested]
    return owned


def _free_numbers(deal: _Deal) -> list[int]:
    marks = bytearray(b"\x01") * deal.group.layout.total
    for numbers in deal.numbers:
        for number in numbers:
            marks[number] = 0
    return unmarked(marks)


def _deal_near(deal: _Deal, free: Sequence[int], member_racks: Sequence[str | None]) -> list[int]:
    """Deal partitions to members in one of their racks, within the quotas; return those for which there was none."""
    quotas, under, level = deal.quotas, deal.under, deal.level
    left: list[int] = []
    turn = 0
    for number in free:
        racks = deal.racks.partition_racks[number]
        position = _next_near(racks, under, turn, member_racks)
        if position is not None:
            member = under[position]
            count = len(deal.numbers[member]) + 1
            if count >= quotas.low:
                del under[position]
                if count < quotas.high and quotas.over < quotas.over_max:
                    level.append(member)
            else:
                position += 1
            turn = position % len(under) if under else 0
        else:
            position = _next_near(racks, level, 0, member_racks)
            if position is None:
                left.append(number)
                continue
            member = level[position]
            if len(deal.numbers[member]) + 1 == quotas.high:
                del level[position]
                quotas.over += 1
                if quotas.over == quotas.over_max:
                    level.clear()
        deal.numbers[member].append(number)
    return left


def _next_near(
    racks: frozenset[str], members: Sequence[int], turn: int, member_racks: Sequence[str | None]
) -> int | None:
    """The first position from `turn` on, around the circle, whose member is in one of the racks."""
    if not racks:
        return None
    for position in range(turn, len(members)):
        if member_racks[members[position]] in racks:
            return position
    for position in range(min(turn, len(members))):
        if member_racks[members[position]] in racks:
            return position
    return None


def _deal_rest(deal: _Deal, free: Sequence[int]) -> None:
    """Deal in a circle to the members under the low quota; each leaves the circle when it has that many. Then one each
    to members at the quota, those that were there before coming first."""
    low, numbers = deal.quotas.low, deal.numbers
    circle = deal.under
    position = 0
    while circle and position < len(free):
        # Nobody leaves the circle for as many rounds as the fullest one still needs, so these are dealt as slices.
        missing = [low - len(numbers[member]) for member in circle]
        rounds = min(missing)
        width = len(circle)
        end = min(len(free), position + rounds * width)
        for offset, member in enumerate(circle):
            numbers[member].extend(free[position + offset : end : width])
        position = end
        deal.level.extend(member for member, count in zip(circle, missing) if count == rounds)
        circle = [member for member, count in zip(circle, missing) if count > rounds]
    rest = free[position:]
    assert len(rest) <= len(deal.level), "quotas leave no partition without a member"
    for member, number in zip(deal.level, rest):
        numbers[member].append(number)


def _moving(deal: _Deal, kept: Sequence[int]) -> dict[int, int]:
    """Newly dealt partitions that another member gave up, or that were disputed."""
    given_up, contested = deal.given_up, deal.claims.contested
    if not given_up and not contested:
        return {}
    moving: dict[int, int] = {}
    for member, numbers in enumerate(deal.numbers):
        for number in numbers[kept[member] :]:
            if given_up.get(number, member) != member or number in contested:
                moving[number] = member
    return moving
