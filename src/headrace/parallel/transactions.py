"""The transactional producer of one member: diverted records and the offsets that pass them, as one transaction each.

What it is asked to do may take longer than its caller can wait (a coordinator that moves, a broker that restarts), so a
transaction is a list of steps, of which each is tried again until its outcome is known. Nothing else begins before.
"""

from __future__ import annotations

import contextlib
import logging
from collections import deque
from collections.abc import Callable, Mapping
from enum import Enum
from typing import Any

from headrace.client.consumer.records import ConsumerGroupMetadata
from headrace.client.errors import FatalTransactionError, TransactionTimeoutError
from headrace.client.offsets import OffsetAndMetadata
from headrace.client.producer.blocking import Producer
from headrace.errors import HeadraceError
from headrace.parallel.letters import Message
from headrace.runtime import Clock
from headrace.topics import TopicPartition

log = logging.getLogger("headrace.parallel")

_CLOSE_S = 2.0
_START_S = 60.0

Step = Callable[[float], None]


class TransactionOutcome(Enum):
    """How a transaction ended."""

    COMMITTED = "committed"
    ABORTED = "aborted"
    UNKNOWN = "not known yet"
    ASK_GROUP = "known only to the group: its committed offsets tell"


class Transactions:
    """One transaction after another. For the poller's thread."""

    def __init__(
        self,
        config: Mapping[str, Any],
        clock: Clock,
        make_producer: Callable[[Mapping[str, Any]], Producer] | None = None,
    ) -> None:
        self._config = dict(config)
        self._clock = clock
        self._make_producer = make_producer
        self._producer: Producer | None = None
        self._steps: deque[Step] = deque()
        self._is_ending = False
        """Whether the broker may have been told to commit already."""
        self._is_lost = False
        self.error: HeadraceError | None = None
        """Why the last transaction was aborted."""

    def start(self) -> None:
        """Before the group is joined: whoever had this name before is fenced, and what it left open is ended, so that
        nobody has to wait for that to time out."""
        self._init(_START_S)

    def begin(
        self,
        messages: list[Message],
        offsets: Mapping[TopicPartition, OffsetAndMetadata],
        group: ConsumerGroupMetadata,
    ) -> None:
        """What the next transaction is made of. Nothing is sent before `settle`.

        `group` is who we are in the group now: should that have changed when the offsets are sent, they are refused.
        """
        assert not self._steps, "a transaction is under way"
        self.error = None
        self._is_ending = False
        if self._producer is None:
            self._steps.append(self._init)
        self._steps.append(lambda timeout: self._write(messages))
        if offsets:
            self._steps.append(lambda timeout: self._open().send_offsets_to_transaction(offsets, group, timeout))
        self._steps.append(self._commit)

    def settle(self, seconds: float) -> TransactionOutcome:
        """Go on with the transaction for so long."""
        deadline = self._clock.monotonic() + seconds
        while self._steps:
            left = max(0.001, deadline - self._clock.monotonic())
            try:
                self._steps[0](left)
            except TransactionTimeoutError as error:
                log.warning("a transaction's outcome is not known yet: %s", error)
                return TransactionOutcome.UNKNOWN
            except HeadraceError as error:
                if self._is_lost:
                    # The next producer, which is to end what the last one left, did not come about: again, later.
                    log.warning("how a transaction ended is not known yet: %s", error)
                    self.close(0)
                    return TransactionOutcome.UNKNOWN
                self._failed(error)
            else:
                self._steps.popleft()
        if self._is_lost:
            self._is_lost = False
            return TransactionOutcome.ASK_GROUP
        return TransactionOutcome.COMMITTED if self.error is None else TransactionOutcome.ABORTED

    def _open(self) -> Producer:
        assert self._producer is not None
        return self._producer

    def _init(self, timeout: float) -> None:
        if self._producer is None:
            self._producer = (self._make_producer or Producer)(self._config)
        # Fences whoever had this id before, and ends what it left open.
        self._producer.init_transactions(timeout)

    def _write(self, messages: list[Message]) -> None:
        producer = self._open()
        producer.begin_transaction()
        for topic, value, key, headers in messages:
            producer.send(topic, value, key, headers=headers)

    def _commit(self, timeout: float) -> None:
        self._is_ending = True
        self._open().commit_transaction(timeout)

    def _failed(self, error: HeadraceError) -> None:
        if isinstance(error, FatalTransactionError):
            self._start_over(error)
        else:
            # Also a record that no topic takes (too large, a topic that went): not the producer's trouble.
            self._abort(error)

    def _abort(self, error: HeadraceError) -> None:
        if self.error is not None:
            # Aborting failed too: only a new producer can end it.
            self._start_over(error)
            return
        self.error = _cause(error)
        self._steps = deque([lambda timeout: self._open().abort_transaction(timeout)])

    def _start_over(self, error: HeadraceError) -> None:
        """This producer is of no use any more; the next one ends what it left open, well or not."""
        self._is_lost = self._is_ending and self.error is None
        self.error = self.error or _cause(error)
        log.warning("a transactional producer is replaced: %s", error)
        self.close(0)
        self._steps = deque([self._init]) if self._is_lost else deque()

    def close(self, seconds: float = _CLOSE_S) -> None:
        """Abort what is open, and end."""
        producer, self._producer = self._producer, None
        if producer is not None:
            with contextlib.suppress(HeadraceError):
                producer.close(seconds)


def _cause(error: HeadraceError) -> HeadraceError:
    """What started it, rather than that it means the end of a transaction."""
    return error.__cause__ if isinstance(error.__cause__, HeadraceError) else error
