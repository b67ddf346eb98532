"""The share consumer without I/O: what is asked of whom, which records are there, and what is said of them.

A driver calls `tick` whenever something may have changed, and asks for what there is. Records are fetched only while
somebody waits for them: each is locked from then on, and its lock runs out.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Any

from headrace.client.cluster.core import ClientCore
from headrace.client.consumer.errors import IllegalStateError, RecordDeserializationError
from headrace.client.consumer.records import ConsumerRecord, Deserializers
from headrace.client.share._membership import ShareMembership
from headrace.client.share._sessions import (
    FINAL_EPOCH,
    BrokerSession,
    PartitionKey,
    Said,
    acknowledge_topics,
    fetch_topics,
    forgotten_topics,
)
from headrace.client.share.config import ShareSettings
from headrace.client.share.records import AcknowledgeType, AcquiredRange, ShareRecord, acquired_records
from headrace.errors import (
    ErrorCode,
    GroupAuthorizationFailedError,
    HeadraceError,
    RetriableError,
    TopicAuthorizationFailedError,
    UnsupportedVersionError,
    error_for,
)
from headrace.net.connection import Call
from headrace.protocol.messages.share_acknowledge import ShareAcknowledgeRequest, ShareAcknowledgeResponse
from headrace.protocol.messages.share_fetch import PartitionData, ShareFetchRequest, ShareFetchResponse
from headrace.records import CorruptBatchError, MalformedRecordError
from headrace.topics import TopicPartition

log = logging.getLogger("headrace.client.share")

_RETRY_S = 0.1
_LEADER_ERRORS = (
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.FENCED_LEADER_EPOCH,
    ErrorCode.UNKNOWN_TOPIC_ID,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ErrorCode.KAFKA_STORAGE_ERROR,
)
_SESSION_ERRORS = (ErrorCode.SHARE_SESSION_NOT_FOUND, ErrorCode.INVALID_SHARE_SESSION_EPOCH)
_FATAL = (GroupAuthorizationFailedError, TopicAuthorizationFailedError, UnsupportedVersionError)

#: What became of what was said, by partition; None: it counts.
CommitResults = dict[TopicPartition, HeadraceError | None]


@dataclass(slots=True)
class _Arrived:
    """Records of one partition that wait to be handed out."""

    session: BrokerSession
    key: PartitionKey
    records: list[ShareRecord[Any, Any]]


@dataclass(slots=True)
class _HandedOut:
    """Where records are from that the application has."""

    session: BrokerSession
    key: PartitionKey


@dataclass(slots=True)
class ShareCore:
    client: ClientCore
    settings: ShareSettings
    deserializers: Deserializers
    notify: Callable[[], None]
    membership: ShareMembership = field(init=False)
    #: How long a lock lasts, as the brokers say.
    lock_timeout_ms: int | None = None
    on_commit: Callable[[dict[TopicPartition, set[int]], HeadraceError | None], None] | None = None
    _sessions: dict[int, BrokerSession] = field(default_factory=dict)
    _arrived: deque[_Arrived] = field(default_factory=deque)
    _handed_out: dict[tuple[str, int, int], _HandedOut] = field(default_factory=dict)
    _results: CommitResults = field(default_factory=dict)
    _is_wanted: bool = False
    _is_committing: bool = False
    _error: HeadraceError | None = None

    def __post_init__(self) -> None:
        settings = self.settings
        self.membership = ShareMembership(
            self.client, settings.group_id, settings.rack, settings.retry_backoff, self.notify
        )

    # --- what the application does ------------------------------------------------------------------------------------

    def subscribe(self, topics: Collection[str]) -> None:
        self.membership.subscribe(topics)

    def begin_poll(self, *, keeps: bool = False) -> None:
        """Somebody waits for records; those that were handed out before are finished, or have to be, unless `keeps`."""
        if self.settings.is_explicit:
            if self._handed_out and not keeps:
                topic, partition, offset = next(iter(self._handed_out))
                raise IllegalStateError(
                    f"{len(self._handed_out)} records of the last poll were not acknowledged, the first of them "
                    f"{topic}-{partition} at {offset}: with share.acknowledgement.mode=explicit say of each what "
                    "became of it, by acknowledge(), before the next poll, or poll(keep=True)"
                )
        else:
            self.accept_all()
        self._is_wanted = True

    def accept_all(self) -> None:
        """What was handed out was handled."""
        for where, record in self._handed_out.items():
            record.session.say(record.key, where[2], AcknowledgeType.ACCEPT)
        self._handed_out.clear()

    def acknowledge(self, where: tuple[str, int, int], kind: AcknowledgeType) -> None:
        if where not in self._handed_out:
            topic, partition, offset = where
            raise IllegalStateError(
                f"{topic}-{partition} at {offset} is not this consumer's to acknowledge: it was not handed out by the "
                "last poll, or was acknowledged already"
            )
        self._say(where, kind)

    def _say(self, where: tuple[str, int, int], kind: AcknowledgeType) -> None:
        record = self._handed_out[where] if kind is AcknowledgeType.RENEW else self._handed_out.pop(where)
        record.session.say(record.key, where[2], kind)

    def take(self) -> list[ShareRecord[Any, Any]]:
        """The records that are there, so many as a poll gives, handed out from now on. An error comes before them."""
        if not self._arrived:
            error = self._error or self.membership.fatal
            self._error = None
            if error is not None:
                raise error
            return []
        found: list[ShareRecord[Any, Any]] = []
        while self._arrived and len(found) < self.settings.records_max:
            arrived = self._arrived.popleft()
            records = arrived.records
            if not self.deserializers.is_plain:
                records, rest = self._deserialized(records)
                if rest:
                    self._arrived.appendleft(_Arrived(arrived.session, arrived.key, rest))
                    if not records and not found:
                        self._reject_first()
                    if not records:
                        break
            handed_out = _HandedOut(arrived.session, arrived.key)
            self._handed_out.update({record[:3]: handed_out for record in records})
            found += records
        self._is_wanted = False
        return found

    def _deserialized(
        self, records: list[ShareRecord[Any, Any]]
    ) -> tuple[list[ShareRecord[Any, Any]], list[ShareRecord[Any, Any]]]:
        """The records up to the first that cannot be read, and the others from that one on."""
        made: list[ShareRecord[Any, Any]] = []
        for at, record in enumerate(records):
            one, failure = self.deserializers.convert([_as_consumer_record(record)])
            if failure is not None:
                self._error = failure
                return made, records[at:]
            made.append(record._replace(key=one[0].key, value=one[0].value))
        return made, []

    def _reject_first(self) -> None:
        """The first record that waits cannot be read by anybody: it is rejected, and its error is raised."""
        arrived = self._arrived[0]
        record = arrived.records.pop(0)
        if not arrived.records:
            self._arrived.popleft()
        arrived.session.say(arrived.key, record.offset, AcknowledgeType.REJECT)
        error, self._error = self._error, None
        assert isinstance(error, RecordDeserializationError)
        raise error

    # --- commits ------------------------------------------------------------------------------------------------------

    def begin_commit(self) -> None:
        """Say at once what is to be said, instead of with the next fetches."""
        if not self.settings.is_explicit:
            self.accept_all()
        self._is_committing = True

    @property
    def is_said(self) -> bool:
        """Whether nothing is to be said any more, and all was answered."""
        return not any(session.unsent or session.sent for session in self._sessions.values())

    def results(self) -> CommitResults:
        """What became of all that was said since the last time."""
        results, self._results = self._results, {}
        self._is_committing = False
        return results

    # --- the end ------------------------------------------------------------------------------------------------------

    def begin_close(self) -> list[Call]:
        """Say what is to be said, end the sessions, and leave. What was handed out and not finished is given back."""
        if not self.settings.is_explicit:
            self.accept_all()
        self._handed_out.clear()
        self._arrived.clear()
        self._is_wanted = False
        calls = []
        for session in self._sessions.values():
            if session.is_open and session.call is None:
                said = session.take_unsent()
                request = ShareAcknowledgeRequest(
                    group_id=self.settings.group_id,
                    member_id=self.membership.member_id,
                    share_session_epoch=FINAL_EPOCH,
                    topics=acknowledge_topics(said),
                )
                session.call = self.client.submit(session.node_id, request, self._acknowledged(session))
                calls.append(session.call)
        leaving = self.membership.leave()
        return [*calls, *([] if leaving is None else [leaving])]

    @property
    def is_quiet(self) -> bool:
        """Whether no request to a broker is under way."""
        return all(session.call is None for session in self._sessions.values())

    # --- what is due --------------------------------------------------------------------------------------------------

    def tick(self, now: float) -> float:
        """Send what is to be sent; in how many seconds there may be something again."""
        due_s = self.membership.tick(now)
        for session in list(self._sessions.values()):
            if session.call is None and session.unsent and (self._is_committing or session.has_renewals):
                self._acknowledge(session)
        if self._is_wanted and not self._arrived:
            due_s = min(due_s, self._fetch(now))
        return due_s

    def _fetch(self, now: float) -> float:
        by_leader: dict[int, set[PartitionKey]] = {}
        view = self.client.view
        for topic_id, partition in self.membership.assigned:
            name = view.topic_names.get(topic_id)
            leader = None if name is None else view.leader_of(name, partition)
            if leader is None:
                self.client.refresh_metadata()
            else:
                by_leader.setdefault(leader.id, set()).add((topic_id, partition))
        wait_s = 60.0
        for node_id in by_leader:
            if node_id not in self._sessions:
                self._sessions[node_id] = BrokerSession(node_id)
        for session in self._sessions.values():
            wanted = frozenset(by_leader.get(session.node_id, ()))
            if session.call is not None or not (wanted or session.partitions or session.unsent):
                continue
            if now < session.retry_at:
                wait_s = min(wait_s, session.retry_at - now)
                continue
            if wanted:
                self._fetch_from(session, wanted)
            elif session.unsent:
                self._acknowledge(session)
        return wait_s

    def _fetch_from(self, session: BrokerSession, wanted: frozenset[PartitionKey]) -> None:
        settings = self.settings
        if not session.is_open and session.unsent:
            # The session is gone in which these were acquired: who opens one may say nothing yet.
            session.sent, session.unsent = session.unsent, {}
            self._tell(session, error_for(ErrorCode.SHARE_SESSION_NOT_FOUND))
        said = session.take_unsent(renewals=False)
        request = ShareFetchRequest(
            group_id=settings.group_id,
            member_id=self.membership.member_id,
            share_session_epoch=session.epoch,
            max_wait_ms=settings.fetch_max_wait_ms,
            min_bytes=settings.fetch_min_bytes,
            max_bytes=settings.fetch_max_bytes,
            max_records=settings.records_max,
            batch_size=settings.records_max,
            share_acquire_mode=int(settings.is_exact),
            topics=fetch_topics(wanted - session.partitions, said),
            forgotten_topics_data=forgotten_topics(session.partitions - wanted),
        )
        session.call = self.client.submit(session.node_id, request, lambda call: self._fetched(session, wanted, call))

    def _acknowledge(self, session: BrokerSession) -> None:
        has_renewals = session.has_renewals
        said = session.take_unsent()
        if not session.is_open:
            self._tell(session, error_for(ErrorCode.SHARE_SESSION_NOT_FOUND))
            return
        request = ShareAcknowledgeRequest(
            group_id=self.settings.group_id,
            member_id=self.membership.member_id,
            share_session_epoch=session.epoch,
            is_renew_ack=has_renewals,
            topics=acknowledge_topics(said),
        )
        session.call = self.client.submit(session.node_id, request, self._acknowledged(session))

    # --- what was answered --------------------------------------------------------------------------------------------

    def _fetched(self, session: BrokerSession, wanted: frozenset[PartitionKey], call: Call) -> None:
        session.call = None
        response: ShareFetchResponse = call.response
        error = call.error
        if error is None and response.error_code:
            error = error_for(response.error_code, response.error_message)
        if error is not None:
            self._failed(session, error)
            self.notify()
            return
        session.began(wanted)
        if response.acquisition_lock_timeout_ms > 0:
            self.lock_timeout_ms = response.acquisition_lock_timeout_ms
        errors: dict[PartitionKey, HeadraceError] = {}
        for topic in response.responses:
            for data in topic.partitions:
                key = (topic.topic_id, data.partition_index)
                if data.acknowledge_error_code:
                    errors[key] = error_for(data.acknowledge_error_code, data.acknowledge_error_message)
                self._take_partition(session, key, data)
        self._tell(session, None, errors)
        self.notify()

    def _take_partition(self, session: BrokerSession, key: PartitionKey, data: PartitionData) -> None:
        name = self.client.view.topic_names.get(key[0])
        if data.error_code:
            error = error_for(data.error_code, data.error_message)
            if data.error_code in _LEADER_ERRORS:
                self.client.refresh_metadata()
                session.retry_at = self.client.clock.monotonic() + _RETRY_S
            elif isinstance(error, _FATAL):
                self._error = error
            else:
                log.info("share group %s: %s-%d: %s", self.settings.group_id, name, key[1], error)
                session.retry_at = self.client.clock.monotonic() + _RETRY_S
            return
        if not data.acquired_records:
            return
        ranges = [AcquiredRange(one.first_offset, one.last_offset, one.delivery_count) for one in data.acquired_records]
        if name is None:
            return  # a topic that is gone meanwhile: what was locked of it is nobody's
        try:
            records, gaps = acquired_records(
                TopicPartition(name, key[1]), data.records, ranges, check_crcs=self.settings.check_crcs
            )
        except (CorruptBatchError, MalformedRecordError) as failure:
            # Whoever has better luck may get them.
            for one in ranges:
                for offset in range(one.first, one.last + 1):
                    session.say(key, offset, AcknowledgeType.RELEASE)
            self._error = HeadraceError(f"{name}-{key[1]}: what the broker sent cannot be read: {failure}")
            return
        for offset in gaps:
            session.say(key, offset, AcknowledgeType.GAP)
        if records:
            self._arrived.append(_Arrived(session, key, records))

    def _acknowledged(self, session: BrokerSession) -> Callable[[Call], None]:
        def done(call: Call) -> None:
            session.call = None
            response: ShareAcknowledgeResponse = call.response
            error = call.error
            if error is None and response.error_code:
                error = error_for(response.error_code, response.error_message)
            if error is not None:
                self._failed(session, error)
            else:
                if call.request.share_session_epoch == FINAL_EPOCH:
                    session.lost()
                else:
                    session.began(session.partitions)
                self._tell(
                    session,
                    None,
                    {
                        (topic.topic_id, data.partition_index): error_for(data.error_code, data.error_message)
                        for topic in response.responses
                        for data in topic.partitions
                        if data.error_code
                    },
                )
            self.notify()

        return done

    def _failed(self, session: BrokerSession, error: HeadraceError) -> None:
        """A whole request failed: nobody knows of what was said, and the next fetch opens another session."""
        session.lost()
        self._tell(session, error)
        code = getattr(error, "code", None)
        if code in _SESSION_ERRORS:
            return
        session.retry_at = self.client.clock.monotonic() + _RETRY_S
        self.client.refresh_metadata()
        if not isinstance(error, RetriableError) and code not in _LEADER_ERRORS:
            self._error = error

    def _tell(
        self,
        session: BrokerSession,
        error: HeadraceError | None,
        errors: dict[PartitionKey, HeadraceError] | None = None,
    ) -> None:
        """What was sent was answered, or never will be."""
        sent: Said = session.sent
        session.sent = {}
        for key, offsets in sent.items():
            name = self.client.view.topic_names.get(key[0])
            if name is None:
                continue
            partition = TopicPartition(name, key[1])
            found = error or (errors or {}).get(key)
            if self._results.get(partition) is None:
                self._results[partition] = found
            if self.on_commit is not None:
                self.on_commit({partition: set(offsets)}, found)
            elif found is not None:
                log.warning(
                    "what was said of %d records of %s does not count, and they are delivered again: %s",
                    len(offsets),
                    partition,
                    found,
                )


def _as_consumer_record(record: ShareRecord[Any, Any]) -> Any:
    return ConsumerRecord(*record[:9])
