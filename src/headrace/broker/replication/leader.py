"""What a leader knows of its followers, and what follows: the high watermark and who is in sync.

Time and offsets are passed in. Three sets matter. The *committed* in-sync replicas are those that the controller has
said. A change that was asked for but not answered may be in effect already, so the watermark waits for the *maximal*
set: the committed one and every replica that an unanswered request would add (KIP-497). A request that was not answered
at all may still be carried out while the partition epoch is the one it was made for: those it would add stay in the
maximal set until the epoch moves, or until they can no longer be added.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Final, Protocol

from headrace.error_codes import ErrorCode

if TYPE_CHECKING:
    from headrace.log import Log

UNKNOWN: Final = -1

#: The broker epoch of a broker that may be in sync; None for one that is fenced, stopping or not registered.
BrokerEpochs = Callable[[int], int | None]


class OtherBrokers(Protocol):
    """What a leader asks of others (a part of `Surroundings`)."""

    @property
    def lag_time_max_ms(self) -> float: ...
    def now_ms(self) -> float: ...
    def broker_epoch(self, node_id: int) -> int | None: ...


@dataclass(frozen=True, slots=True)
class Term:
    """What the controller has said about a partition, as far as replication needs it."""

    leader_id: int
    leader_epoch: int
    partition_epoch: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Proposal:
    """Other in-sync replicas, each with the broker epoch that it was seen with; to be sent to the controller."""

    leader_epoch: int
    partition_epoch: int
    isr: tuple[int, ...]
    broker_epochs: tuple[int, ...]


class Sent(Enum):
    """What becomes of a proposal that was answered, or could not be."""

    DONE = "done"
    REFUSED = "refused"
    WAIT_FOR_METADATA = "wait for metadata"
    AGAIN = "again"


class FollowerProgress:
    """One follower, as seen in its fetches."""

    __slots__ = ("broker_epoch", "broker_id", "caught_up_ms", "end_offset", "fetched_ms", "leader_end", "start_offset")

    def __init__(self, broker_id: int, caught_up_ms: float) -> None:
        self.broker_id = broker_id
        self.end_offset = self.start_offset = UNKNOWN
        self.broker_epoch = UNKNOWN
        #: When it last had everything that was there; and the time and our end of its last fetch.
        self.caught_up_ms = caught_up_ms
        self.fetched_ms = float("-inf")
        self.leader_end = UNKNOWN

    def __repr__(self) -> str:
        return f"Progress({self.broker_id}, end {self.end_offset}, epoch {self.broker_epoch})"

    def is_caught_up(self, leader_end: int, now_ms: float, lag_time_max_ms: float) -> bool:
        # It may have more than the leader has on its disk.
        return self.end_offset >= leader_end or now_ms - self.caught_up_ms <= lag_time_max_ms


# What an answer means. Errors that are not here may pass: the same is asked again.
_REFUSALS = (ErrorCode.INELIGIBLE_REPLICA, ErrorCode.OPERATION_NOT_ATTEMPTED)
_OVERTAKEN = (
    ErrorCode.FENCED_LEADER_EPOCH,
    ErrorCode.INVALID_UPDATE_VERSION,
    ErrorCode.INVALID_REQUEST,
    ErrorCode.NEW_LEADER_ELECTED,
    ErrorCode.UNKNOWN_TOPIC_ID,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
)


class LeaderState:
    """One leader epoch of one partition, from its begin to its end."""

    __slots__ = (
        "_broker_epochs",
        "_limiting",
        "_own_id",
        "_uncertain",
        "end_offset",
        "epoch_start_offset",
        "high_watermark",
        "holds_below_min_isr",
        "is_overtaken",
        "lag_time_max_ms",
        "min_isr",
        "pending",
        "progress",
        "term",
        "was_refused",
    )

    @classmethod
    def begin(cls, own_id: int, term: Term, log: Log, others: OtherBrokers) -> LeaderState:
        """Of an epoch that is in effect: the log is as the former ones left it."""
        epochs = log.epochs
        began = epochs.entries[-1].start_offset if epochs.latest == term.leader_epoch else log.end_offset
        return cls(
            own_id,
            term,
            others.broker_epoch,
            # What was committed stays so, also where `flush.messages` asks for more by now than it did then.
            end_offset=max(log.durable_end, log.high_watermark),
            high_watermark=log.high_watermark,
            now_ms=others.now_ms(),
            lag_time_max_ms=others.lag_time_max_ms,
            min_isr=log.config.min_insync_replicas,
            epoch_start_offset=began,
        )

    def __init__(
        self,
        own_id: int,
        term: Term,
        broker_epochs: BrokerEpochs,
        *,
        end_offset: int,
        high_watermark: int,
        now_ms: float,
        lag_time_max_ms: float,
        min_isr: int = 1,
        holds_below_min_isr: bool = True,
        epoch_start_offset: int | None = None,
    ) -> None:
        """The epoch starts where the log ends, or at `epoch_start_offset` when it began earlier.

        `holds_below_min_isr`: with fewer replicas in sync than `min.insync.replicas` nothing more is committed, so that
        whatever was is on that many (KIP-966).
        """
        self._own_id = own_id
        self._broker_epochs = broker_epochs
        self.lag_time_max_ms = lag_time_max_ms
        self.min_isr = min_isr
        self.holds_below_min_isr = holds_below_min_isr
        self.end_offset = end_offset
        self.epoch_start_offset = end_offset if epoch_start_offset is None else epoch_start_offset
        self.high_watermark = min(high_watermark, end_offset)
        self.term = term
        self.pending: Proposal | None = None
        #: The controller knows something newer: nothing is proposed before the metadata says what.
        self.is_overtaken = False
        #: Whom a proposal would add of which nobody knows whether it was carried out, or will be; and the broker
        #: epochs that it named.
        self._uncertain: dict[int, int] = {}
        #: The controller's last answer was a refusal.
        self.was_refused = False
        self.progress = {
            node_id: FollowerProgress(node_id, now_ms if node_id in term.isr else float("-inf"))
            for node_id in term.replicas
            if node_id != own_id
        }
        self._limiting: list[FollowerProgress] = []
        self._find_limiting()
        self._advance(now_ms)

    # --- in-sync replicas as they are

    @property
    def maximal_isr(self) -> frozenset[int]:
        """Every replica that is in sync, or may be before we hear of it."""
        members = frozenset(self.term.isr).union(self._uncertain)
        return members if self.pending is None else members | frozenset(self.pending.isr)

    @property
    def is_under_min_isr(self) -> bool:
        return len(self.term.isr) < self.needed

    @property
    def needed(self) -> int:
        """How many replicas have to be in sync; a minimum above the number that exists counts as that number."""
        return min(self.min_isr, len(self.term.replicas))

    @property
    def is_settled(self) -> bool:
        """Whether everything that was there when this epoch began is known to be committed (KIP-207)."""
        return self.high_watermark >= self.epoch_start_offset

    def _find_limiting(self) -> None:
        members = self.maximal_isr
        self._limiting = [one for one in self.progress.values() if one.broker_id in members]

    # --- what happens

    def appended(self, end_offset: int, now_ms: float) -> bool:
        """Our own log is as durable as its topic wants up to here. Whether the watermark has moved."""
        before = self.end_offset
        if end_offset > before:
            self.end_offset = end_offset
            for one in self._limiting:
                if one.end_offset >= before:
                    # It had everything until now, also when nothing came for so long that it had nothing to fetch.
                    one.caught_up_ms = now_ms
        # Where it was not our own end that held the watermark back, it moves with a follower's fetch.
        return before <= self.high_watermark and self._advance(now_ms)

    def check_fetch(self, broker_id: int, broker_epoch: int) -> bool:
        """Whether a fetch is that of a replica, and not one from its former life."""
        known = self.progress.get(broker_id)
        return known is not None and (broker_epoch == UNKNOWN or broker_epoch >= known.broker_epoch)

    def fetched(
        self, broker_id: int, broker_epoch: int, offset: int, start_offset: int, leader_end: int, now_ms: float
    ) -> bool:
        """A follower has everything below `offset`, as its log is known not to diverge. Whether the watermark moved.

        `leader_end` is where our log ended when the fetch was read.
        """
        one = self.progress[broker_id]
        if offset >= leader_end:
            one.caught_up_ms = max(one.caught_up_ms, now_ms)
        elif one.leader_end != UNKNOWN and offset >= one.leader_end:
            # It has what was there at its last fetch, so it was caught up then.
            one.caught_up_ms = max(one.caught_up_ms, one.fetched_ms)
        before, one.end_offset = one.end_offset, offset
        one.start_offset = start_offset
        one.broker_epoch = broker_epoch
        one.fetched_ms, one.leader_end = now_ms, leader_end
        # Only a replica that has held the watermark back can let it go on.
        return before <= self.high_watermark < offset and self._advance(now_ms)

    def _advance(self, now_ms: float) -> bool:
        if self.holds_below_min_isr and self.is_under_min_isr:
            return False
        offset = self.end_offset
        for one in self._limiting:
            if one.end_offset < offset:
                offset = one.end_offset
        if offset <= self.high_watermark:
            return False
        if len(self._limiting) < len(self.progress):
            # Those about to join are waited for as well, or with a busy leader they would never be at the watermark.
            for one in self.progress.values():
                if one.end_offset < offset and self._is_about_to_join(one, now_ms):
                    offset = one.end_offset
        if offset <= self.high_watermark:
            return False
        self.high_watermark = offset
        return True

    def _is_about_to_join(self, one: FollowerProgress, now_ms: float) -> bool:
        return self._is_eligible(one) and one.is_caught_up(self.end_offset, now_ms, self.lag_time_max_ms)

    def _is_eligible(self, one: FollowerProgress) -> bool:
        active = self._broker_epochs(one.broker_id)
        return active is not None and one.broker_epoch in (UNKNOWN, active)

    # --- changes of the in-sync replicas

    def expansion(self, broker_id: int) -> Proposal | None:
        """A proposal that takes a follower in, when it has come far enough."""
        if self.pending is not None or self.is_overtaken or broker_id in self.term.isr:
            return None
        one = self.progress[broker_id]
        if one.end_offset < max(self.high_watermark, self.epoch_start_offset) or not self._is_eligible(one):
            return None
        return self._propose([*self.term.isr, broker_id])

    def any_expansion(self, now_ms: float) -> Proposal | None:
        """As `expansion`, for whoever has nothing to fetch, and so would not be looked at otherwise."""
        for one in self.progress.values():
            if one.broker_id not in self.term.isr and one.is_caught_up(self.end_offset, now_ms, self.lag_time_max_ms):
                proposal = self.expansion(one.broker_id)
                if proposal is not None:
                    return proposal
        return None

    def shrinkage(self, now_ms: float) -> Proposal | None:
        """A proposal without the followers that have fallen behind; to be asked for now and then."""
        if self.pending is not None or self.is_overtaken:
            return None
        left = [
            node_id
            for node_id in self.term.isr
            if node_id == self._own_id
            or node_id not in self.progress
            or self.progress[node_id].is_caught_up(self.end_offset, now_ms, self.lag_time_max_ms)
        ]
        return None if len(left) == len(self.term.isr) else self._propose(left)

    def settlement(self) -> Proposal | None:
        """A proposal of what is in effect, when it is not known who else may come in.

        What was proposed before, and is still on its way, can no longer be carried out in the partition epoch that it
        begins: only then those whom that would add need not be waited for.
        """
        if self.pending is not None or self.is_overtaken or not self._uncertain:
            return None
        self.was_refused = False
        return self._propose(self.term.isr)

    def _propose(self, isr: Sequence[int]) -> Proposal:
        self.pending = Proposal(
            self.term.leader_epoch,
            self.term.partition_epoch,
            tuple(isr),
            tuple(self._epoch_to_tell(node_id) for node_id in isr),
        )
        self._find_limiting()
        return self.pending

    def _epoch_to_tell(self, node_id: int) -> int:
        """The epoch that a member was seen with: a member that was restarted since is refused by the controller."""
        if node_id == self._own_id:
            known = self._broker_epochs(node_id)
            return UNKNOWN if known is None else known
        return self.progress[node_id].broker_epoch

    def unanswered(self, proposal: Proposal) -> Sent:
        """Nobody knows whether a proposal was carried out: until then, those it would add are waited for."""
        if proposal is not self.pending:
            return Sent.DONE
        named = zip(proposal.isr, proposal.broker_epochs)
        self._uncertain |= {node_id: epoch for node_id, epoch in named if node_id not in self.term.isr}
        return Sent.AGAIN

    def refused(self, proposal: Proposal, error: ErrorCode, now_ms: float) -> Sent:
        """The controller did not carry a proposal out, or the answer does not say whether."""
        if proposal is not self.pending:
            return Sent.DONE
        if error in _REFUSALS:
            self.pending = None
            self.was_refused = True
            self._forget_uncertain()
            self._find_limiting()
            self._advance(now_ms)
            return Sent.REFUSED
        if error in _OVERTAKEN:
            # Those it would add are waited for: an earlier copy of it may have been carried out.
            self.is_overtaken = True
            return Sent.WAIT_FOR_METADATA
        return Sent.AGAIN

    def _forget_uncertain(self) -> None:
        """Those who were registered anew cannot be added any more by what named their former life.

        That they are fenced does not say so: they may come back in the same epoch, before a proposal arrives.
        """
        for node_id, epoch in list(self._uncertain.items()):
            active = self._broker_epochs(node_id)
            if active is not None and epoch not in (UNKNOWN, active):
                del self._uncertain[node_id]

    def accepted(self, proposal: Proposal, term: Term, now_ms: float) -> bool:
        """The controller has carried a proposal out, and this is how the partition is then. Whether the mark moved."""
        if proposal is not self.pending or term.leader_epoch != self.term.leader_epoch:
            return False
        if term.partition_epoch > self.term.partition_epoch:
            return self.changed(term, now_ms)
        # It was so already.
        self.pending = None
        self._find_limiting()
        return self._advance(now_ms)

    def changed(self, term: Term, now_ms: float) -> bool:
        """Take over what the controller says of the same leader epoch. Whether the watermark has moved."""
        if term.partition_epoch <= self.term.partition_epoch:
            return False
        # What was proposed for an earlier partition epoch can no longer be carried out.
        self._uncertain.clear()
        self.pending = None
        self.is_overtaken = False
        self._take_over(term, now_ms)
        self._find_limiting()
        return self._advance(now_ms)

    def _take_over(self, term: Term, now_ms: float) -> None:
        for node_id in list(self.progress):
            if node_id not in term.replicas:
                del self.progress[node_id]
        for node_id in term.replicas:
            if node_id != self._own_id and node_id not in self.progress:
                self.progress[node_id] = FollowerProgress(node_id, now_ms if node_id in term.isr else float("-inf"))
        self.term = term

    def brokers_changed(self, changed: Iterable[int], now_ms: float) -> bool:
        """Brokers were fenced, came back or were registered anew. Whether the watermark has moved."""
        if self._uncertain and not self._uncertain.keys().isdisjoint(changed):
            self._forget_uncertain()
            self._find_limiting()
        return self._advance(now_ms)

    def tick(self, now_ms: float) -> bool:
        """Time has passed, so somebody may no longer be waited for. Whether the watermark has moved."""
        return self._advance(now_ms)
