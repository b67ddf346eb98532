"""Faults put into the consumer one by one: within how many seeds does the model find each?

    python -m tests.client.consumer_mutations 300 [--only NAME]

A model that cannot fail proves nothing. Many of these were in the consumer once.
"""

from __future__ import annotations

import argparse
import contextlib
import logging
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any
from unittest.mock import patch

from headrace.client.consumer._base import ConsumerBase, IterationProgress
from headrace.client.consumer._chunks import FetchedChunk
from headrace.client.consumer._classic_heartbeats import ClassicHeartbeats
from headrace.client.consumer._classic_membership import ClassicMembership
from headrace.client.consumer._commits import OffsetCommits
from headrace.client.consumer._consumer_heartbeats import ConsumerProtocolHeartbeats
from headrace.client.consumer._consumer_membership import ConsumerMembership
from headrace.client.consumer._fetching import Fetcher
from headrace.client.consumer._positions import Positions
from headrace.client.consumer._subscription import Subscriptions, TopicPartitionState
from headrace.client.consumer.config import OffsetResetStrategy
from headrace.client.consumer.records import Deserializers, OffsetAndMetadata

from .consumer_model import run

# --- fetching ---------------------------------------------------------------------------------------------------------


def fetch_again_what_is_buffered() -> Any:
    return patch.object(TopicPartitionState, "fetch_offset", property(lambda self: self.position or 0))


def keep_where_to_fetch_beside_what_was_fetched() -> Any:
    """A signal between the two leaves one of them behind."""
    kept: dict[TopicPartitionState, int] = {}
    seek = TopicPartitionState.seek

    def sought(self: TopicPartitionState, offset: int, *rest: Any) -> None:
        kept[self] = offset
        seek(self, offset, *rest)

    def append(self: TopicPartitionState, chunk: FetchedChunk) -> None:
        if not self.chunks or chunk.position >= self.chunks[-1].next_offset:
            self.chunks.append(chunk)
        kept[self] = self.chunks[-1].next_offset

    def drop_fetched(self: TopicPartitionState) -> None:
        kept[self] = self.position or 0
        self.chunks.clear()

    return _all_of(
        patch.object(TopicPartitionState, "fetch_offset", property(lambda self: kept.get(self, 0))),
        patch.object(TopicPartitionState, "seek", sought),
        patch.object(TopicPartitionState, "append", append),
        patch.object(TopicPartitionState, "drop_fetched", drop_fetched),
    )


def take_answers_to_questions_that_nobody_asks() -> Any:
    return _with_wanted(lambda state, asked: replace(asked, fetch_offset=state.fetch_offset))


def take_answers_of_an_old_leader() -> Any:
    return _with_wanted(lambda state, asked: replace(asked, leader_epoch=state.current_epoch))


def _with_wanted(change: Callable[[TopicPartitionState, Any], Any]) -> Any:
    take = Fetcher._take

    def taken(self: Fetcher, node_id: int, session: Any, states: Any, wanted: Any, *rest: Any) -> None:
        changed = {name: change(states[name], asked) for name, asked in wanted.items()}
        take(self, node_id, session, states, changed, *rest)

    return patch.object(Fetcher, "_take", taken)


def keep_what_an_old_leader_gave() -> Any:
    return patch.object(TopicPartitionState, "drop_fetched", lambda self: None)


def hold_nothing_against_a_new_leader() -> Any:
    return patch.object(Fetcher, "_can_validate", lambda self, node_id: False)


def take_a_topic_of_the_same_name_for_the_same() -> Any:
    return patch.object(TopicPartitionState, "is_in_another", lambda self, topic_id: False)


def keep_what_was_fetched_before_a_seek() -> Any:
    seek = TopicPartitionState.seek

    def sought(self: TopicPartitionState, *arguments: Any) -> None:
        chunks = list(self.chunks)
        seek(self, *arguments)
        self.chunks.extend(chunks)

    return patch.object(TopicPartitionState, "seek", sought)


# --- handing out ------------------------------------------------------------------------------------------------------


def forget_what_an_interrupted_poll_took() -> Any:
    def take_back(self: Fetcher) -> None:
        self.marks = None

    return patch.object(Fetcher, "take_back", take_back)


def give_the_turn_on_in_two_steps() -> Any:
    def move_to_end(self: Subscriptions, state: TopicPartitionState) -> None:
        if self._assigned.pop(state.partition, None) is not None:
            self._assigned[state.partition] = state

    return patch.object(Subscriptions, "move_to_end", move_to_end)


def forget_how_far_an_iteration_came() -> Any:
    return patch.object(ConsumerBase, "_settle", lambda self: self._core and self._core.fetcher.take_back())


def count_what_an_iteration_has_not_given() -> Any:
    return patch.object(IterationProgress, "rows", property(lambda self: self.taken + 1))


def hand_out_what_is_paused() -> Any:
    def is_fetchable(self: TopicPartitionState) -> bool:
        return self.has_position and not (self.validating or self.in_callback or self.is_revoked)

    return patch.object(TopicPartitionState, "is_fetchable", property(is_fetchable))


def pass_over_what_cannot_be_deserialized() -> Any:
    convert = Deserializers.convert

    def passed(self: Deserializers, records: Any) -> Any:
        made: list[Any] = []
        for record in records:
            made += convert(self, [record])[0]
        return made, None

    return patch.object(Deserializers, "convert", passed)


# --- where to begin, and commits --------------------------------------------------------------------------------------


def begin_at_the_end() -> Any:
    return patch.object(OffsetResetStrategy, "resolve", lambda self, now_ms: -1)


def pass_over_the_committed_offset() -> Any:
    begin = Positions._begin

    def begun(self: Positions, states: Any) -> Any:
        commits, self._commits = self._commits, None
        yield from begin(self, states)
        self._commits = commits

    return patch.object(Positions, "_begin", begun)


def commit_what_was_fetched() -> Any:
    return _committing(lambda state: state.fetch_offset)


def commit_less_than_was_handed_out() -> Any:
    return _committing(lambda state: max(0, (state.position or 0) - 1))


def _committing(offset: Callable[[TopicPartitionState], int]) -> Any:
    def consumed(self: OffsetCommits) -> Any:
        return {
            state.partition: OffsetAndMetadata(offset(state))
            for state in self._subscriptions.states()
            if state.has_position
        }

    return patch.object(OffsetCommits, "consumed", consumed)


def call_back_again_after_an_error() -> Any:
    call_back = OffsetCommits._call_back

    def called(self: OffsetCommits, one: Any) -> None:
        try:
            call_back(self, one)
        finally:
            one.is_told = False

    return patch.object(OffsetCommits, "_call_back", called)


def call_back_only_when_it_went_well() -> Any:
    call_back = OffsetCommits._call_back

    def called(self: OffsetCommits, one: Any) -> None:
        if one.error is None and one.call is not None and one.call.error is not None:
            return
        call_back(self, one)

    return patch.object(OffsetCommits, "_call_back", called)


def take_a_refused_commit_for_done() -> Any:
    judge = OffsetCommits._judge

    def judged(self: OffsetCommits, call: Any, identity: Any) -> Any:
        found = judge(self, call, identity)
        return found if call.error is not None else None

    return patch.object(OffsetCommits, "_judge", judged)


# --- the group --------------------------------------------------------------------------------------------------------


def stay_when_the_group_forgot_this_member() -> Any:
    return patch.object(ClassicMembership, "_lose", lambda self, why, *, keep_member_id: None)


def pass_over_what_heartbeats_say() -> Any:
    return patch.object(ClassicHeartbeats, "news", None)


def close_without_leaving() -> Any:
    def leave(self: ClassicMembership, reason: str, *, leave_group: bool | None) -> Any:
        yield from ()

    return patch.object(ClassicMembership, "leave_for_good", leave)


def have_partitions_one_by_one() -> Any:
    """An assignment that is interrupted leaves partitions out."""

    def assign(self: Subscriptions, partitions: Any, *, in_callback: bool = False) -> Any:
        before, self._assigned = self._assigned, type(self._assigned)()
        added = []
        for partition in partitions:
            state = before.get(partition)
            if state is None:
                state = TopicPartitionState(partition)
                state.in_callback = in_callback
                added.append(partition)
            state.is_revoked = False
            self._assigned[partition] = state
        self.version += 1
        return added

    return patch.object(Subscriptions, "assign", assign)


def tell_the_listener_of_nothing_new() -> Any:
    tell = ClassicMembership._tell

    def told(self: ClassicMembership, what: str, partitions: Any) -> Any:
        return (yield from tell(self, what, [] if what == "assigned" else partitions))

    return patch.object(ClassicMembership, "_tell", told)


# --- the consumer protocol --------------------------------------------------------------------------------------------


def say_that_all_was_given_up_before_it_was() -> Any:
    """The coordinator gives away what is still read: seen by the listener's being called too late, or not at all."""
    reconcile = ConsumerMembership._reconcile

    def reconciled(self: ConsumerMembership) -> Any:
        target = self._beats.target
        self._beats.owns(target.partitions, self._core.clock.monotonic())
        self._done_target = target
        return (yield from reconcile(self))

    return patch.object(ConsumerMembership, "_reconcile", reconciled)


def keep_what_the_coordinator_takes() -> Any:
    assign = Subscriptions.assign

    def assigned(self: Subscriptions, partitions: Any, *, in_callback: bool = False) -> Any:
        kept = self.assigned() if in_callback else []
        return assign(self, [*kept, *(one for one in partitions if one not in kept)], in_callback=in_callback)

    return patch.object(Subscriptions, "assign", assigned)


def never_say_what_was_given_up() -> Any:
    return patch.object(ConsumerProtocolHeartbeats, "owns", lambda self, partitions, now: None)


def leave_out_what_an_unanswered_heartbeat_said() -> Any:
    answered = ConsumerProtocolHeartbeats.answered

    def taken(self: ConsumerProtocolHeartbeats, identity: Any, response: Any, *rest: Any) -> bool:
        news = answered(self, identity, response, *rest)
        self._answered_fields = self._sent_fields
        return news

    return patch.object(ConsumerProtocolHeartbeats, "answered", taken)


def stay_at_the_first_epoch() -> Any:
    def identity(self: ConsumerProtocolHeartbeats) -> Any:
        epoch = min(self._last_identity.generation_id, 1)
        return replace(self._last_identity, generation_id=epoch)

    return patch.object(ConsumerProtocolHeartbeats, "identity", property(identity))


def stay_when_the_coordinator_forgot_this_member() -> Any:
    return patch.object(ConsumerMembership, "_lose", lambda self, why, *, keep_member_id: None)


def close_without_leaving_the_coordinators_group() -> Any:
    def leave(self: ConsumerMembership, reason: str, *, leave_group: bool | None) -> Any:
        yield from ()

    return patch.object(ConsumerMembership, "leave_for_good", leave)


def pass_over_new_targets() -> Any:
    return patch.object(ConsumerMembership, "_has_work", lambda self, now: not self._beats.is_running)


@contextlib.contextmanager
def _all_of(*patches: Any) -> Iterator[None]:
    with contextlib.ExitStack() as stack:
        for one in patches:
            stack.enter_context(one)
        yield


MUTATIONS: dict[Callable[[], Any], int] = {
    fetch_again_what_is_buffered: 60,
    take_answers_to_questions_that_nobody_asks: 100,
    hold_nothing_against_a_new_leader: 20,
    take_a_topic_of_the_same_name_for_the_same: 150,
    keep_what_was_fetched_before_a_seek: 60,
    forget_what_an_interrupted_poll_took: 100,
    forget_how_far_an_iteration_came: 60,
    count_what_an_iteration_has_not_given: 60,
    hand_out_what_is_paused: 20,
    pass_over_what_cannot_be_deserialized: 60,
    begin_at_the_end: 20,
    pass_over_the_committed_offset: 60,
    commit_what_was_fetched: 20,
    commit_less_than_was_handed_out: 20,
    call_back_again_after_an_error: 60,
    call_back_only_when_it_went_well: 60,
    take_a_refused_commit_for_done: 60,
    stay_when_the_group_forgot_this_member: 20,
    pass_over_what_heartbeats_say: 60,
    close_without_leaving: 20,
    tell_the_listener_of_nothing_new: 20,
}
"""Each with the number of seeds that find it."""

OF_CONSUMER_PROTOCOL: dict[Callable[[], Any], int] = {
    keep_what_the_coordinator_takes: 20,
    never_say_what_was_given_up: 20,
    leave_out_what_an_unanswered_heartbeat_said: 100,
    stay_at_the_first_epoch: 20,
    stay_when_the_coordinator_forgot_this_member: 20,
    close_without_leaving_the_coordinators_group: 20,
    pass_over_new_targets: 20,
    say_that_all_was_given_up_before_it_was: 200,
}
"""The same, of a member of a group of the consumer protocol."""

RARE: tuple[Callable[[], Any], ...] = (
    keep_where_to_fetch_beside_what_was_fetched,
    keep_what_an_old_leader_gave,
    take_answers_of_an_old_leader,
    give_the_turn_on_in_two_steps,
    have_partitions_one_by_one,
)
"""Not found by 80 seeds: a signal has to come at one place of one call (`consumer/test_interrupted.py` has those), or a
log to be cut back while records behind the cut wait to be handed out, or are on their way."""


def found_within(mutation: Callable[[], Any], seeds: int) -> int | None:
    """How many seeds it takes; None when that many are not enough."""
    protocol = "consumer" if mutation in OF_CONSUMER_PROTOCOL else "classic"
    with mutation(), silenced():
        for seed in range(seeds):
            if run(seed, lines=0, protocol=protocol) is not None:
                return seed + 1
    return None


@contextlib.contextmanager
def silenced() -> Iterator[None]:
    """As the model is run: what is logged has places of its own where a signal may come."""
    hook, interval = sys.unraisablehook, sys.getswitchinterval()
    sys.unraisablehook = lambda _: None
    sys.setswitchinterval(1e-5)
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(logging.NOTSET)
        sys.setswitchinterval(interval)
        sys.unraisablehook = hook


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("seeds", type=int, nargs="?", help="instead of what is stated for each")
    parser.add_argument("--only", help="the name of one")
    chosen = parser.parse_args()
    missed = 0
    for mutation, stated in (MUTATIONS | OF_CONSUMER_PROTOCOL | dict.fromkeys(RARE, 2000)).items():
        if chosen.only not in (None, mutation.__name__):
            continue
        seeds = chosen.seeds or stated
        found = found_within(mutation, seeds)
        missed += found is None
        how = f"found within {found} seeds" if found else f"NOT found within {seeds} seeds"
        print(f"{mutation.__name__}: {how}", flush=True)
    sys.exit(1 if missed else 0)


if __name__ == "__main__":
    main()
