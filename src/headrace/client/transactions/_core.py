"""A transactional producer's state, without I/O: what to ask of coordinators next, and what their answers mean.

`next_step` names the one request that is to go out now, `answered` takes how it went; the user's calls (`init`,
`begin`, `send_offsets`, `commit`, `abort`) give a `TransactionOperation` that is done some steps later. One request is
under way at a time, and each is repeated until its outcome is known, because nothing may be sent on a guess.

Protocol 1 tells the coordinator of partitions and groups before they are written to. Protocol 2 (KIP-890, used where
the cluster has finalized `transaction.version` 2) leaves that to the brokers, and gets a new epoch with every end.
"""

from __future__ import annotations

import logging
import random
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any

from headrace.client.cluster.coordinator import NOT_THE_COORDINATOR, found_coordinator
from headrace.client.errors import (
    AbortableTransactionError,
    FatalTransactionError,
    ProducerFencedError,
    TransactionStateError,
    copy_of,
)
from headrace.client.offsets import OffsetAndMetadata
from headrace.client.transactions._requests import (
    ProducerIdentity,
    RequestKind,
    TransactionRequest,
    add_offsets,
    add_partitions,
    commit_offsets,
    end_transaction,
    find_coordinator,
    init_producer,
    read_codes,
)
from headrace.errors import ErrorCode, HeadraceError, RetriableError, error_for
from headrace.net.backoff import Backoff
from headrace.net.node import Node
from headrace.topics import TopicPartition

if TYPE_CHECKING:
    from headrace.client.consumer.records import ConsumerGroupMetadata
    from headrace.client.producer._sequences import CurrentIdentity

log = logging.getLogger("headrace.client.producer")

VERSION_2 = 2
_FOREVER = float("inf")
_CONCURRENT_RETRY_MS = 20.0
_FENCED = frozenset({ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH})
_ABORTABLE = frozenset(
    {
        ErrorCode.TOPIC_AUTHORIZATION_FAILED,
        ErrorCode.GROUP_AUTHORIZATION_FAILED,
        ErrorCode.UNKNOWN_PRODUCER_ID,
        ErrorCode.INVALID_PRODUCER_ID_MAPPING,
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.ILLEGAL_GENERATION,
        ErrorCode.REBALANCE_IN_PROGRESS,
        ErrorCode.STALE_MEMBER_EPOCH,
        ErrorCode.FENCED_INSTANCE_ID,
        ErrorCode.OFFSET_METADATA_TOO_LARGE,
        ErrorCode.INVALID_COMMIT_OFFSET_SIZE,
        ErrorCode.TRANSACTION_ABORTABLE,
    }
)
_FATAL_FOR_RECORDS = frozenset(
    {
        ErrorCode.PRODUCER_FENCED,
        ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
        ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
        ErrorCode.UNSUPPORTED_VERSION,
        ErrorCode.INVALID_PRODUCER_ID_MAPPING,
    }
)
_UNCERTAIN_WHILE_ENDING = frozenset({RequestKind.ADD_PARTITIONS, RequestKind.ADD_OFFSETS})
"""Asked, and perhaps not heard: an abort has to know whether the coordinator began the transaction."""


class ProducerTransactionState(Enum):
    """Java's states. An error is kept until an abort ends it, or for good."""

    UNINITIALIZED = "uninitialized"
    INITIALIZING = "initializing"
    READY = "ready"
    IN_TRANSACTION = "in a transaction"
    COMMITTING = "committing"
    ABORTING = "aborting"
    ABORTABLE_ERROR = "failed, to be aborted"
    FATAL_ERROR = "failed for good"


class OperationKind(Enum):
    INIT = "init_transactions"
    OFFSETS = "send_offsets_to_transaction"
    COMMIT = "commit_transaction"
    ABORT = "abort_transaction"


@dataclass(slots=True, eq=False)
class TransactionOperation:
    """One call of the user's, on its way. Done, it has an error or none; `is_reported` once the user knows."""

    kind: OperationKind
    is_done: bool = False
    is_reported: bool = False
    error: HeadraceError | None = None
    waiters: list[Callable[[], None]] = field(default_factory=list)

    def finish(self, error: HeadraceError | None = None) -> None:
        if self.is_done:
            return
        self.is_done, self.error = True, error
        waiters, self.waiters = self.waiters, []
        for waiter in waiters:
            waiter()

    def take_outcome(self) -> HeadraceError | None:
        """The outcome, for the user."""
        assert self.is_done
        self.is_reported = True
        return self.error

    @property
    def is_pending(self) -> bool:
        """Whether the user has to ask for the outcome before anything else: it took longer than they waited."""
        return not self.is_reported and self.error is None


@dataclass(slots=True, eq=False)
class _OffsetsJob:
    group: ConsumerGroupMetadata
    left: dict[TopicPartition, OffsetAndMetadata]
    operation: TransactionOperation


class TransactionCore:
    """See the module. `identity` is shared with the producer, which numbers its batches by it."""

    def __init__(
        self, transactional_id: str, timeout_ms: int, identity: CurrentIdentity, backoff: Backoff, rng: random.Random
    ) -> None:
        self.transactional_id = transactional_id
        self.timeout_ms = timeout_ms
        self.identity = identity
        self.state = ProducerTransactionState.UNINITIALIZED
        self.error: HeadraceError | None = None
        self.protocol = 1
        self.partitions: set[TopicPartition] = set()
        """Part of the open transaction, as the coordinator was told (or, in protocol 2, will be by brokers)."""
        self._wanted: dict[TopicPartition, None] = {}
        self._groups: set[str] = set()
        self._jobs: deque[_OffsetsJob] = deque()
        self._started = False
        self._needs_bump = False
        self._bumping = False
        self._commit_is_doubtful = False
        """The coordinator was asked to commit, and did not say that it has not: a refusal says nothing any more."""
        self._operation: TransactionOperation | None = None
        self._coordinator: Node | None = None
        self._group_coordinators: dict[str, Node] = {}
        self._under_way: TransactionRequest | None = None
        self._uncertain: TransactionRequest | None = None
        self._retry_at = 0.0
        self._failures = 0
        self._backoff = backoff
        self._rng = rng

    # --- the user's calls ---------------------------------------------------------------------------------------------

    def init(self) -> TransactionOperation:
        again = self._pending_operation(OperationKind.INIT)
        if again is not None:
            return again
        if self.state is not ProducerTransactionState.UNINITIALIZED:
            self._raise_if_failed()
            raise TransactionStateError("init_transactions() was called before: once per producer is enough")
        self.state = ProducerTransactionState.INITIALIZING
        return self._begin_operation(OperationKind.INIT)

    def begin(self) -> None:
        self._raise_if_failed()
        self._raise_if_pending("begin_transaction")
        if self.state is ProducerTransactionState.UNINITIALIZED:
            raise TransactionStateError("call init_transactions() once before the first begin_transaction()")
        if self.state is not ProducerTransactionState.READY:
            raise TransactionStateError("a transaction is open already: commit or abort it before beginning another")
        self.state = ProducerTransactionState.IN_TRANSACTION

    def send_offsets(
        self, offsets: Mapping[TopicPartition, OffsetAndMetadata], group: ConsumerGroupMetadata
    ) -> TransactionOperation:
        self._need_open("send_offsets_to_transaction")
        operation = TransactionOperation(OperationKind.OFFSETS)
        if not offsets:
            operation.finish()
            return operation
        if self.protocol >= VERSION_2:
            self._started = True
        self._jobs.append(_OffsetsJob(group, dict(offsets), operation))
        return operation

    def commit(self) -> TransactionOperation:
        again = self._pending_operation(OperationKind.COMMIT)
        if again is not None:
            return again
        self._need_open("commit_transaction")
        self.state = ProducerTransactionState.COMMITTING
        return self._begin_operation(OperationKind.COMMIT)

    def abort(self) -> TransactionOperation:
        again = self._pending_operation(OperationKind.ABORT)
        if again is not None:
            return again
        if self.state is ProducerTransactionState.FATAL_ERROR:
            self._raise_if_failed()
        if self.state is not ProducerTransactionState.ABORTABLE_ERROR:
            self._need_open("abort_transaction")
        self.state = ProducerTransactionState.ABORTING
        self._wanted.clear()
        cause = self.error
        while self._jobs:
            self._jobs.popleft().operation.finish(_abortable("the transaction was aborted", cause))
        return self._begin_operation(OperationKind.ABORT)

    def check_send(self) -> None:
        """Raise when a record cannot be sent now."""
        if self.state is not ProducerTransactionState.IN_TRANSACTION:
            self._need_open("send")

    @property
    def accepts_records(self) -> bool:
        """Whether new ones may be sent."""
        return self.state is ProducerTransactionState.IN_TRANSACTION

    @property
    def takes_records(self) -> bool:
        """Whether records that are there may go out: a commit waits for them."""
        return self.state in (ProducerTransactionState.IN_TRANSACTION, ProducerTransactionState.COMMITTING)

    @property
    def operation(self) -> TransactionOperation | None:
        """The last call that began, committed or aborted something, done or not."""
        return self._operation

    @property
    def is_open(self) -> bool:
        """Whether there is a transaction that closing the producer would leave behind."""
        return self.state in (ProducerTransactionState.IN_TRANSACTION, ProducerTransactionState.ABORTABLE_ERROR)

    def why_not(self) -> HeadraceError:
        """The error for records that are not sent any more."""
        if self.error is not None:
            return self.error
        if self.state is ProducerTransactionState.ABORTING:
            return AbortableTransactionError("the record was not sent: its transaction was aborted")
        if self.state is ProducerTransactionState.COMMITTING:
            return TransactionStateError("the record was not sent: it came after commit_transaction() was called")
        return TransactionStateError("the record was not sent: no transaction was open; begin_transaction() first")

    def _pending_operation(self, kind: OperationKind) -> TransactionOperation | None:
        """The operation that nobody has heard the outcome of, when the same is asked again (after a time-out)."""
        operation = self._operation
        if operation is not None and operation.is_pending and operation.kind is kind:
            return operation
        self._raise_if_pending(kind.value)
        return None

    def _begin_operation(self, kind: OperationKind) -> TransactionOperation:
        self._operation = TransactionOperation(kind)
        return self._operation

    def _raise_if_pending(self, what: str) -> None:
        operation = self._operation
        if operation is not None and operation.is_pending:
            raise TransactionStateError(
                f"{operation.kind.value}() was given up before its outcome was known: call it again to wait for it "
                f"before {what}()"
            )

    def _raise_if_failed(self) -> None:
        if self.state in (ProducerTransactionState.FATAL_ERROR, ProducerTransactionState.ABORTABLE_ERROR):
            assert self.error is not None
            raise copy_of(self.error)

    def _need_open(self, what: str) -> None:
        self._raise_if_failed()
        self._raise_if_pending(what)
        if self.state is not ProducerTransactionState.IN_TRANSACTION:
            first = "init_transactions() and " if self.state is ProducerTransactionState.UNINITIALIZED else ""
            raise TransactionStateError(f"{what}() needs an open transaction: call {first}begin_transaction() first")

    # --- records ------------------------------------------------------------------------------------------------------

    def may_produce(self, partition: TopicPartition) -> bool:
        """Whether batches of a partition may go out now; if not yet, it will be added to the transaction."""
        if not self.takes_records or not self.identity.is_known:
            return False
        if partition in self.partitions:
            return True
        if self.protocol >= VERSION_2:
            self.partitions.add(partition)
            self._started = True
            return True
        self._wanted.setdefault(partition)
        return False

    def record_failed(self, error: HeadraceError, *, was_numbered: bool) -> None:
        """Records of this transaction are lost: it cannot be committed. Lost numbers need a new epoch."""
        self._needs_bump = self._needs_bump or was_numbered
        if self.state not in (ProducerTransactionState.IN_TRANSACTION, ProducerTransactionState.COMMITTING):
            return
        code = getattr(error, "code", None)
        if code in _FATAL_FOR_RECORDS:
            self._fail(error)
        else:
            self._spoil(error)

    # --- what to ask next ---------------------------------------------------------------------------------------------

    def next_step(self, now: float, *, records_left: bool) -> TransactionRequest | None:
        """The request to send now, if any. `records_left`: some have no acknowledgement yet, so an end has to wait."""
        if self._under_way is not None or now < self._retry_at:
            return None
        if self._uncertain is not None and self.state is ProducerTransactionState.ABORTING:
            wanted: TransactionRequest | None = self._uncertain
        else:
            wanted = self._goal(records_left)
        if wanted is None:
            return None
        step = self._routed(wanted)
        self._under_way = step
        return step

    def due(self, now: float) -> float:
        """When `next_step` is worth asking again by itself."""
        return self._retry_at if self._under_way is None and now < self._retry_at else _FOREVER

    def _goal(self, records_left: bool) -> TransactionRequest | None:
        state = self.state
        if state is ProducerTransactionState.INITIALIZING:
            return init_producer(self.transactional_id, self.timeout_ms, ProducerIdentity())
        if state in (ProducerTransactionState.IN_TRANSACTION, ProducerTransactionState.COMMITTING):
            if self._wanted:
                return add_partitions(self.transactional_id, self.identity, list(self._wanted))
            if self._jobs:
                return self._offsets_step(self._jobs[0])
        if state not in (ProducerTransactionState.COMMITTING, ProducerTransactionState.ABORTING) or records_left:
            return None
        if self._bumping:
            return init_producer(self.transactional_id, self.timeout_ms, self.identity)
        if not self._started:
            self._ended()
            return self._goal(records_left) if self._bumping else None
        is_commit = state is ProducerTransactionState.COMMITTING
        return end_transaction(self.transactional_id, self.identity, is_commit, self.protocol)

    def _offsets_step(self, job: _OffsetsJob) -> TransactionRequest:
        if self.protocol < VERSION_2 and job.group.group_id not in self._groups:
            return add_offsets(self.transactional_id, self.identity, job.group.group_id)
        return commit_offsets(self.transactional_id, self.identity, job.group, job.left, self.protocol)

    def _routed(self, step: TransactionRequest) -> TransactionRequest:
        """To the coordinator it is for; while that is not known, the question who it is."""
        group_id = step.group_id
        if group_id is None:
            node, key = self._coordinator, self.transactional_id
        else:
            node, key = self._group_coordinators.get(group_id), group_id
        if node is None:
            return find_coordinator(key, is_group=group_id is not None)
        step.node = node
        return step

    # --- answers ------------------------------------------------------------------------------------------------------

    def answered(
        self,
        step: TransactionRequest,
        response: Any,
        error: HeadraceError | None,
        now: float,
        *,
        transaction_version: int = 0,
    ) -> None:
        """How a step went. `transaction_version` is what the cluster of the answering broker has finalized."""
        if step is not self._under_way:
            return
        self._under_way = None
        if self.state is ProducerTransactionState.FATAL_ERROR:
            return
        if error is not None:
            self._unanswered(step, error, now)
            return
        codes = read_codes(step, response)
        if codes:
            self._refused(step, codes, now)
            return
        self._failures = 0
        self._retry_at = 0.0
        if step.kind in _UNCERTAIN_WHILE_ENDING:
            self._uncertain = None
        self._succeeded(step, response, transaction_version)

    def _unanswered(self, step: TransactionRequest, error: HeadraceError, now: float) -> None:
        """No answer: the coordinator may have moved, and may have heard us."""
        if not isinstance(error, RetriableError):
            self._fail(error)
            return
        if step.kind in _UNCERTAIN_WHILE_ENDING:
            self._uncertain = step
        self._doubt(step)
        self._forget_coordinator(step)
        self._retry(step, error, now)

    def _doubt(self, step: TransactionRequest) -> None:
        """This attempt may have been heard all the same."""
        if step.kind is RequestKind.END and step.request.committed:
            self._commit_is_doubtful = True

    def _forget_coordinator(self, step: TransactionRequest) -> None:
        if step.kind is RequestKind.FIND_COORDINATOR:
            return
        if step.group_id is None:
            self._coordinator = None
        else:
            self._group_coordinators.pop(step.group_id, None)

    def _retry(self, step: TransactionRequest, error: HeadraceError, now: float, wait_ms: float | None = None) -> None:
        log.debug("transactional id %s: %s will be tried again: %s", self.transactional_id, step.kind.value, error)
        grown_ms = self._backoff.wait_ms(self._failures, self._rng)
        self._failures += 1
        self._retry_at = now + (grown_ms if wait_ms is None else min(wait_ms, grown_ms)) / 1000

    def _refused(self, step: TransactionRequest, codes: dict[TopicPartition | None, int], now: float) -> None:
        """One code stands for all: the worst one."""
        ordered = sorted(codes.items(), key=lambda item: self._gravity(item[1]), reverse=True)
        where, code = ordered[0]
        what = f"{step.kind.value} of transactional id {self.transactional_id}" + (f" ({where})" if where else "")
        error = error_for(code, f"{what}: {ErrorCode(code).message if code in _KNOWN else f'error {code}'}")
        if isinstance(error, RetriableError):
            self._doubt(step)
            if code in NOT_THE_COORDINATOR:
                self._forget_coordinator(step)
            soon = code == ErrorCode.CONCURRENT_TRANSACTIONS and step.kind is not RequestKind.INIT
            if step.kind is RequestKind.COMMIT_OFFSETS and self._jobs:
                # What was taken need not be sent again.
                job = self._jobs[0]
                job.left = {partition: job.left[partition] for partition in job.left if codes.get(partition)}
            self._retry(step, error, now, _CONCURRENT_RETRY_MS if soon else None)
            return
        if self._uncertain is not None and step.kind in _UNCERTAIN_WHILE_ENDING:
            # This attempt was refused, but an earlier one may have begun the transaction: then it has to be ended.
            self._uncertain, self._started = None, True
        if code in _FENCED or (step.kind is RequestKind.END and self._commit_is_doubtful):
            self._fail(error)
        elif code in _ABORTABLE and step.kind is not RequestKind.INIT and step.kind is not RequestKind.FIND_COORDINATOR:
            if code in (ErrorCode.UNKNOWN_PRODUCER_ID, ErrorCode.INVALID_PRODUCER_ID_MAPPING):
                self._needs_bump = True
                if step.kind is RequestKind.END:
                    # The coordinator has forgotten the transaction together with us; only a fresh start is left.
                    self._started = False
            self._spoil(error)
        elif step.kind is RequestKind.FIND_COORDINATOR and step.group_id is not None:
            self._spoil(error)
        else:
            self._fail(error)

    @staticmethod
    def _gravity(code: int) -> int:
        if code in _FENCED:
            return 3
        if code == ErrorCode.OPERATION_NOT_ATTEMPTED:
            return -1
        if code in _ABORTABLE:
            return 1
        return 0 if code in _KNOWN and ErrorCode(code).retriable else 2

    def _succeeded(self, step: TransactionRequest, response: Any, transaction_version: int) -> None:
        kind = step.kind
        if kind is RequestKind.FIND_COORDINATOR:
            self._found(step, response)
        elif kind is RequestKind.INIT:
            self.identity.producer_id, self.identity.epoch = response.producer_id, response.producer_epoch
            self.protocol = VERSION_2 if transaction_version >= VERSION_2 else 1
            self._needs_bump = self._bumping = False
            log.info(
                "transactional id %s is producer id %d, epoch %d (protocol %d)",
                self.transactional_id,
                self.identity.producer_id,
                self.identity.epoch,
                self.protocol,
            )
            self._ready()
        elif kind is RequestKind.ADD_PARTITIONS:
            self._started = True
            self.partitions.update(step.partitions)
            for partition in step.partitions:
                self._wanted.pop(partition, None)
        elif kind is RequestKind.ADD_OFFSETS:
            self._started = True
            assert step.added_group is not None
            self._groups.add(step.added_group)
        elif kind is RequestKind.COMMIT_OFFSETS:
            if self._jobs:
                self._jobs.popleft().operation.finish()
        else:
            if getattr(response, "producer_id", -1) >= 0 and response.producer_epoch >= 0:
                self.identity.producer_id, self.identity.epoch = response.producer_id, response.producer_epoch
                self._needs_bump = False
            self._ended()

    def _found(self, step: TransactionRequest, response: Any) -> None:
        node = found_coordinator(response)
        assert isinstance(node, Node)
        if step.group_id is None:
            self._coordinator = node
        else:
            self._group_coordinators[step.group_id] = node

    def _ended(self) -> None:
        """The transaction is over. Numbers that were lost in it are made up for by a new epoch."""
        self._started = self._commit_is_doubtful = False
        if self._needs_bump and self.state is ProducerTransactionState.ABORTING:
            self._bumping = True
            return
        self._ready()

    def _ready(self) -> None:
        self.state = ProducerTransactionState.READY
        self.error = None
        self.partitions.clear()
        self._wanted.clear()
        self._groups.clear()
        self._uncertain = None
        if self._operation is not None:
            self._operation.finish()

    # --- errors -------------------------------------------------------------------------------------------------------

    def _spoil(self, cause: HeadraceError) -> None:
        """The transaction can only be aborted."""
        if self.state is ProducerTransactionState.ABORTING:
            # The abort goes on; what failed on the way does not matter any more.
            return
        self.error = _abortable("the transaction cannot be committed", cause)
        self.state = ProducerTransactionState.ABORTABLE_ERROR
        log.info("transactional id %s: %s", self.transactional_id, self.error)
        self._fail_operations(self.error)

    def _fail(self, cause: HeadraceError) -> None:
        code = getattr(cause, "code", None)
        if code in _FENCED:
            self.error = ProducerFencedError(
                f"the producer with transactional id {self.transactional_id!r} was fenced: another producer with this "
                f"id has called init_transactions(), or the transaction was open for longer than transaction.timeout."
                f"ms={self.timeout_ms} and was aborted. Close this producer; if it should be the one, make a new one"
            )
        else:
            self.error = FatalTransactionError(
                f"the producer with transactional id {self.transactional_id!r} cannot go on: {cause} Close it and make "
                "a new one; what it left open is aborted when the new one calls init_transactions()"
            )
        self.error.__cause__ = cause
        self.state = ProducerTransactionState.FATAL_ERROR
        log.warning("%s", self.error)
        self._fail_operations(self.error)

    def close(self, error: HeadraceError) -> None:
        """The producer is closed: who still waits for something is told so."""
        self._fail_operations(error)

    def _fail_operations(self, error: HeadraceError) -> None:
        while self._jobs:
            self._jobs.popleft().operation.finish(error)
        if self._operation is not None:
            self._operation.finish(error)


_KNOWN = frozenset(int(code) for code in ErrorCode)


def _abortable(what: str, cause: HeadraceError | None) -> AbortableTransactionError:
    said = what if cause is None else f"{what}: {str(cause).rstrip('.')}"
    error = AbortableTransactionError(f"{said}. Call abort_transaction(), then begin another one")
    error.__cause__ = cause
    return error
