"""What the blocking share consumer and that of asyncio have in common: configuration, and what needs no waiting."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from headrace.client.configs import ConnectionConfig, merge
from headrace.client.consumer.errors import ConcurrentAccessError, ConsumerForkedError, IllegalStateError
from headrace.client.consumer.records import Deserializers
from headrace.client.serializers import make_deserializer
from headrace.client.share._core import ShareCore
from headrace.client.share.config import read_share_config, share_settings
from headrace.client.share.records import AcknowledgeType, ShareRecord
from headrace.errors import HeadraceError
from headrace.topics import TopicPartition

_numbers = itertools.count(1)

_OnCommit = Callable[[dict[TopicPartition, set[int]], HeadraceError | None], None]


class ShareSetup:
    """A share consumer's configuration, read; and the objects that it names."""

    def __init__(self, config: Mapping[str, Any] | None, keywords: Mapping[str, Any]) -> None:
        given = merge(config, keywords)
        self.values = read_share_config(given)
        if not self.values["client.id"]:
            self.values["client.id"] = f"share-consumer-{self.values['group.id']}-{next(_numbers)}"
        self.settings = share_settings(self.values)
        self.connection = ConnectionConfig.of(self.values)
        whole = {**given, **self.values}
        self.deserializers = Deserializers(
            make_deserializer(self.values["key.deserializer"], whole, is_key=True),
            make_deserializer(self.values["value.deserializer"], whole, is_key=False),
        )


class ShareConsumerBase:
    """For one thread, or one task, at a time."""

    _identify: Callable[[], object]
    _kind: str

    def __init__(self, config: Mapping[str, Any] | None, keywords: Mapping[str, Any]) -> None:
        self._setup = ShareSetup(config, keywords)
        self._core: ShareCore | None = None
        self._user: object | None = None
        self._closed = False
        self._wakeup_asked = False
        self._on_commit: _OnCommit | None = None
        self._pid = os.getpid()

    # --- what needs no waiting ----------------------------------------------------------------------------------------

    def subscribe(self, topics: Collection[str]) -> None:
        """Read these topics, and no others, as a member of the group."""
        if isinstance(topics, str):
            raise TypeError(f"subscribe() takes a list of topics: subscribe([{topics!r}])")
        with self._exclusive() as core:
            core.subscribe(topics)

    def unsubscribe(self) -> None:
        """Read nothing any more. Records that were handed out are still this consumer's."""
        self.subscribe([])

    def subscription(self) -> set[str]:
        return set() if self._core is None else set(self._core.membership.topics)

    def acknowledge(self, record: ShareRecord[Any, Any], kind: AcknowledgeType = AcknowledgeType.ACCEPT) -> None:
        """Say what became of a record of the last poll. It is sent with the next poll or commit.

        With `share.acknowledgement.mode=explicit` every record is to be acknowledged before the next poll; otherwise
        those that are not are accepted by it.
        """
        self.acknowledge_offset(record.topic, record.partition, record.offset, kind)

    def acknowledge_offset(
        self, topic: str, partition: int, offset: int, kind: AcknowledgeType = AcknowledgeType.ACCEPT
    ) -> None:
        """The same, by the record's place."""
        with self._exclusive() as core:
            core.acknowledge((topic, partition, offset), AcknowledgeType(kind))

    def set_acknowledgement_commit_callback(
        self, callback: Callable[[dict[TopicPartition, set[int]], HeadraceError | None], None] | None
    ) -> None:
        """Have a function called with every answer to what was said of records, from within poll, commit and close.

        It is given offsets by partition, and None, or the error for which they are delivered again.
        """
        self._on_commit = callback
        if self._core is not None:
            self._core.on_commit = callback

    @property
    def acquisition_lock_timeout_ms(self) -> int | None:
        """How long a record is this consumer's, unless it is renewed; None before the first answer of a broker."""
        return None if self._core is None else self._core.lock_timeout_ms

    @property
    def member_id(self) -> str | None:
        """Who this is in the group; None before it was first used."""
        return None if self._core is None else self._core.membership.member_id

    # --- one at a time ------------------------------------------------------------------------------------------------

    def _connected(self) -> ShareCore:
        raise NotImplementedError

    @contextmanager
    def _exclusive(self) -> Iterator[ShareCore]:
        self._check_usable()
        me = self._identify()
        if self._user is not None and self._user != me:
            raise ConcurrentAccessError(
                f"a second {self._kind} used this share consumer while another was inside it: give each its own"
            )
        before, self._user = self._user, me
        try:
            yield self._connected()
        finally:
            self._user = before

    def _check_usable(self) -> None:
        if self._pid != os.getpid():
            raise ConsumerForkedError(
                f"this share consumer was made in process {self._pid}, before the fork: make a new one in this process"
            )
        if self._closed:
            raise IllegalStateError("this share consumer is closed")
