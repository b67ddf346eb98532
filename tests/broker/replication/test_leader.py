"""What a leader says of its followers is what follows from all that it was told, counted out anew after each step."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest

from headrace.broker.replication.leader import LeaderState, Proposal, Sent, Term
from headrace.error_codes import ErrorCode

OWN, SECOND, THIRD = 1, 2, 3
LAG_MS = 1_000.0
_REFUSALS = (ErrorCode.INELIGIBLE_REPLICA, ErrorCode.OPERATION_NOT_ATTEMPTED)
_OVERTAKEN = (ErrorCode.FENCED_LEADER_EPOCH, ErrorCode.INVALID_UPDATE_VERSION, ErrorCode.NEW_LEADER_ELECTED)
_PASSING = (ErrorCode.NOT_CONTROLLER, ErrorCode.REQUEST_TIMED_OUT)


@dataclass(slots=True)
class Told:
    """All that a leader was told of one follower: its fetches, with the time and our end; and the times at which we
    appended while it had everything."""

    since_ms: float
    fetches: list[tuple[float, int, int, int]] = field(default_factory=list)
    had_all_ms: list[float] = field(default_factory=list)

    @property
    def end(self) -> int:
        return self.fetches[-1][1] if self.fetches else -1

    @property
    def epoch(self) -> int:
        return self.fetches[-1][3] if self.fetches else -1

    def caught_up_ms(self) -> float:
        """When it last had all that was there: at a fetch of our end, or at the one before, where it has reached by
        now what was our end then."""
        latest = self.since_ms
        for at, (now_ms, offset, leader_end, _) in enumerate(self.fetches):
            if offset >= leader_end:
                latest = max(latest, now_ms)
            elif at and offset >= self.fetches[at - 1][2]:
                latest = max(latest, self.fetches[at - 1][0])
        return max([latest, *self.had_all_ms])


class Played:
    """A leader, and beside it what follows from the history."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.now_ms = 10_000.0
        self.end = self.rng.choice((0, 3))
        self.began = self.end
        self.watermark = self.rng.randint(0, self.end)
        self.active: dict[int, int | None] = {OWN: 7, SECOND: 7, THIRD: 7}
        isr = self.rng.choice(((OWN, SECOND, THIRD), (OWN, SECOND), (OWN,)))
        self.term = Term(OWN, 4, 10, (OWN, SECOND, THIRD), isr)
        self.min_isr = self.rng.choice((1, 2, 2, 3))
        self.told = {node: Told(self.now_ms if node in isr else float("-inf")) for node in (SECOND, THIRD)}
        #: Of the present partition epoch: what is asked for, and whom earlier copies may still let in.
        self.asked: Proposal | None = None
        self.maybe: dict[int, int] = {}
        self.is_overtaken = False
        self.state = LeaderState(
            OWN,
            self.term,
            lambda node: self.active[node],
            end_offset=self.end,
            high_watermark=self.watermark,
            now_ms=self.now_ms,
            lag_time_max_ms=LAG_MS,
            min_isr=self.min_isr,
        )
        self._expect_watermark()

    # --- what follows

    def maximal(self) -> set[int]:
        return {*self.term.isr, *self.maybe, *(self.asked.isr if self.asked is not None else ())}

    def is_eligible(self, node: int) -> bool:
        return self.active[node] is not None and self.told[node].epoch in (-1, self.active[node])

    def is_caught_up(self, node: int) -> bool:
        told = self.told[node]
        return told.end >= self.end or self.now_ms - told.caught_up_ms() <= LAG_MS

    def _expect_watermark(self) -> None:
        if len(self.term.isr) < self.min_isr:
            return
        waited_for = [node for node in (SECOND, THIRD) if node in self.maximal()]
        waited_for += [node for node in (SECOND, THIRD) if self.is_eligible(node) and self.is_caught_up(node)]
        self.watermark = max(self.watermark, min([self.end, *(self.told[node].end for node in waited_for)]))

    def compare(self) -> None:
        self.state.tick(self.now_ms)
        self._expect_watermark()
        assert self.state.high_watermark == self.watermark
        assert self.state.maximal_isr == self.maximal()
        assert self.state.is_under_min_isr == (len(self.term.isr) < self.min_isr)
        assert self.state.is_settled == (self.watermark >= self.began)
        assert (self.state.term, self.state.pending) == (self.term, self.asked)

    # --- what happens

    def step(self) -> None:
        steps = {
            self.append: 8,
            self.fetch: 20,
            self.time_passes: 6,
            self.brokers_change: 3,
            self.let_in: 6,
            self.let_go: 5,
            self.settle: 2,
            self.answer: 10,
            self.metadata: 2,
        }
        self.rng.choices(list(steps), list(steps.values()))[0]()
        self.compare()

    def append(self) -> None:
        before, self.end = self.end, self.end + self.rng.choice((1, 1, 4))
        for node, told in self.told.items():
            if node in self.maximal() and told.end >= before:
                told.had_all_ms.append(self.now_ms)
        self.state.appended(self.end, self.now_ms)

    def fetch(self) -> None:
        node = self.rng.choice((SECOND, THIRD))
        told = self.told[node]
        offset = self.rng.choice((self.end, self.end, self.rng.randint(max(told.end, 0), max(told.end, self.end))))
        if self.rng.random() < 0.05:
            offset = self.rng.randint(0, self.end)  # it lost its disk, or was cut
        leader_end = self.end
        epoch = self.active[node] or told.epoch
        if not self.state.check_fetch(node, epoch):
            assert epoch < told.epoch
            return
        told.fetches.append((self.now_ms, offset, leader_end, epoch))
        self.state.fetched(node, epoch, offset, 0, leader_end, self.now_ms)

    def time_passes(self) -> None:
        self.now_ms += self.rng.choice((10.0, 400.0, 700.0, 1_500.0))

    def brokers_change(self) -> None:
        """One is fenced, comes back, or is registered anew."""
        node = self.rng.choice((SECOND, THIRD))
        known = self.active[node] or max(7, self.told[node].epoch)
        self.active[node] = self.rng.choice((None, known, known + 1))
        for maybe, epoch in list(self.maybe.items()):
            active = self.active[maybe]
            if maybe == node and active is not None and epoch not in (-1, active):
                del self.maybe[maybe]
        self.state.brokers_changed([node], self.now_ms)

    def let_in(self) -> None:
        node = self.rng.choice((SECOND, THIRD))
        may = self.asked is None and not self.is_overtaken and node not in self.term.isr
        may = may and self.told[node].end >= max(self.watermark, self.began) and self.is_eligible(node)
        self._asks(self.state.expansion(node), (*self.term.isr, node) if may else None)

    def let_go(self) -> None:
        left = tuple(node for node in self.term.isr if node == OWN or self.is_caught_up(node))
        may = self.asked is None and not self.is_overtaken and left != self.term.isr
        self._asks(self.state.shrinkage(self.now_ms), left if may else None)

    def settle(self) -> None:
        may = self.asked is None and not self.is_overtaken and self.maybe
        self._asks(self.state.settlement(), self.term.isr if may else None)

    def _asks(self, proposal: Proposal | None, isr: tuple[int, ...] | None) -> None:
        if isr is None:
            assert proposal is None
            return
        epochs = tuple(7 if node == OWN else self.told[node].epoch for node in isr)
        assert proposal == Proposal(self.term.leader_epoch, self.term.partition_epoch, isr, epochs)
        self.asked = proposal

    def answer(self) -> None:
        asked = self.asked
        if asked is None:
            return
        outcome = self.rng.random()
        if outcome < 0.3:
            assert self.state.unanswered(asked) is Sent.AGAIN
            named = zip(asked.isr, asked.broker_epochs)
            self.maybe |= {node: epoch for node, epoch in named if node not in self.term.isr}
        elif outcome < 0.5:
            assert self.state.refused(asked, self.rng.choice(_REFUSALS), self.now_ms) is Sent.REFUSED
            self.asked = None
            for node, epoch in list(self.maybe.items()):
                active = self.active[node]
                if active is not None and epoch not in (-1, active):
                    del self.maybe[node]
        elif outcome < 0.6:
            assert self.state.refused(asked, self.rng.choice(_OVERTAKEN), self.now_ms) is Sent.WAIT_FOR_METADATA
            self.is_overtaken = True
        elif outcome < 0.7:
            assert self.state.refused(asked, self.rng.choice(_PASSING), self.now_ms) is Sent.AGAIN
        else:
            self._becomes(asked.isr)
            self.state.accepted(asked, self.term, self.now_ms)

    def metadata(self) -> None:
        """The controller has changed something by itself, or what we asked for is heard of so."""
        isr = self.rng.choice((self.term.isr, (OWN,), (OWN, SECOND), (OWN, THIRD), (OWN, SECOND, THIRD)))
        if set(isr) <= self.maximal():
            self._becomes(isr)
            self.state.changed(self.term, self.now_ms)

    def _becomes(self, isr: tuple[int, ...]) -> None:
        self.term = Term(OWN, 4, self.term.partition_epoch + 1, self.term.replicas, isr)
        self.asked, self.maybe, self.is_overtaken = None, {}, False


@pytest.mark.parametrize("block", range(4))
def test_a_leader_says_what_follows_from_what_it_was_told(block: int) -> None:
    for seed in range(block * 50, block * 50 + 50):
        played = Played(seed)
        for number in range(60):
            try:
                played.step()
            except Exception as error:
                error.add_note(f"seed {seed}, step {number}")
                raise


def test_a_follower_that_is_always_a_fetch_behind_stays_in_sync_and_one_that_stops_leaves_in_time() -> None:
    term = Term(OWN, 1, 1, (OWN, SECOND), (OWN, SECOND))
    state = LeaderState(OWN, term, lambda node: 7, end_offset=0, high_watermark=0, now_ms=0.0, lag_time_max_ms=LAG_MS)
    end = 0
    for number in range(1, 11):
        now_ms = number * 900.0
        before, end = end, end + 5
        state.appended(end, now_ms)
        state.fetched(SECOND, 7, before, 0, end, now_ms)
        assert state.shrinkage(now_ms) is None
    # At the last fetch it had what there was at the one before that: since then it is behind.
    state.appended(end + 5, now_ms)
    assert state.shrinkage(now_ms - 900.0 + LAG_MS) is None
    proposal = state.shrinkage(now_ms - 900.0 + LAG_MS + 1)
    assert proposal is not None
    assert proposal.isr == (OWN,)
