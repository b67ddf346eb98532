"""One client process of the workload: `python -m tests.checker.clients ROLE ADDRESS DIRECTORY NAME INCARNATION SEED`.

It works until it is killed, or until its standard input is closed; then it ends in an orderly way. Whatever happens to
it is in its history before it goes on.
"""

from __future__ import annotations

import contextlib
import logging
import random
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import confluent_kafka

from headrace import (
    AbortableTransactionError,
    Admin,
    Consumer,
    FatalTransactionError,
    Producer,
    TransactionTimeoutError,
    exactly_once,
)
from headrace.client.consumer.records import ConsumerRecords
from headrace.errors import HeadraceError

from .analysis import Moved
from .history import Kind, Outcome, Recorder
from .renumbered import LOG_SUFFIX

SOURCE, TARGET = "checker-in", "checker-out"
PARTITIONS = 4
MOVERS_GROUP, READERS_GROUP, MIXERS_GROUP = "checker-movers", "checker-readers", "checker-mixers"
TRANSACTION_TIMEOUT_MS = 6_000
SESSION_TIMEOUT_MS = 3_000
STEP = 4
"""Values are multiples of this: those in between are what movers make of them."""
VALUES_PER_INCARNATION = 10_000_000
_ABORT_SHARE, _ROWS_MAX = 0.25, 6
_COMMIT_TRIES = 20
_OUTSTANDING_MAX = 100
_TELLING = {"debug": "eos", "log_level": 7}


class Session:
    """What every role has: where the broker is, its history, randomness, and whether it is to end."""

    def __init__(self, address: str, directory: Path, name: str, incarnation: int, seed: int) -> None:
        self.address, self.name, self.incarnation = address, name, incarnation
        self.rng = random.Random(seed)
        self.recorder = Recorder(directory / f"{name}.{incarnation}.jsonl", f"{name}.{incarnation}")
        self.stopping = threading.Event()
        self.on_stop: Callable[[], None] = lambda: None
        self._next = 0
        threading.Thread(target=self._wait_for_the_end, daemon=True).start()

    def _wait_for_the_end(self) -> None:
        sys.stdin.read()
        self.stopping.set()
        self.on_stop()

    def values(self, count: int) -> list[int]:
        """Integers that nobody else sends."""
        slot = int(self.name.rpartition("-")[2])
        base = (slot * 1000 + self.incarnation) * VALUES_PER_INCARNATION
        first, self._next = self._next, self._next + count
        return [(base + at) * STEP for at in range(first, first + count)]

    def rest(self, seconds_max: float = 0.03) -> None:
        self.stopping.wait(self.rng.uniform(0.0, seconds_max))

    def failed(self, error: object) -> None:
        """Note that the application was told of an error."""
        self.recorder.began(Kind.ERROR, error=repr(error))

    @contextlib.contextmanager
    def enduring(self, *errors: type[BaseException]) -> Iterator[None]:
        """Note these errors, and go on."""
        try:
            yield
        except errors as error:
            self.failed(error)


# --- writers ----------------------------------------------------------------------------------------------------------


def plan(session: Session) -> list[tuple[int, int]]:
    """Partitions and values of the next writes."""
    return [(session.rng.randrange(PARTITIONS), value) for value in session.values(session.rng.randint(1, _ROWS_MAX))]


def told(writes: list[tuple[int, int]], offsets: Sequence[int | None] | None = None) -> list[list[Any]]:
    """-1 where an offset is not known: librdkafka has none of a batch that it takes for written without an answer."""
    found = offsets or [None] * len(writes)
    return [
        [SOURCE, partition, value, -1 if offset is None else offset]
        for (partition, value), offset in zip(writes, found)
    ]


def transactional_config(session: Session) -> dict[str, Any]:
    return {
        "bootstrap.servers": session.address,
        "transactional.id": session.name,
        "transaction.timeout.ms": TRANSACTION_TIMEOUT_MS,
        "linger.ms": 0,
    }


def sender(session: Session) -> None:
    """An idempotent producer without transactions."""
    with Producer({"bootstrap.servers": session.address, "linger.ms": 0, "delivery.timeout.ms": 60_000}) as producer:
        while not session.stopping.is_set():
            writes = plan(session)
            number = session.recorder.began(Kind.SEND, writes=told(writes))
            deliveries = _send(producer, writes)
            try:
                offsets = [delivery.result(90).offset for delivery in deliveries]
            except (HeadraceError, TimeoutError) as error:
                session.recorder.ended(number, Outcome.INFO)
                session.failed(error)
            else:
                session.recorder.ended(number, Outcome.OK, writes=told(writes, offsets))
            session.rest()


def stream(session: Session) -> None:
    """An idempotent producer that sends on while acknowledgements are under way."""
    under_way: deque[tuple[int, tuple[int, int], Any]] = deque()

    def settle(left: int) -> None:
        while under_way and (len(under_way) > left or under_way[0][2].done()):
            number, write, delivery = under_way.popleft()
            try:
                offset = delivery.result().offset
            except HeadraceError as error:
                session.recorder.ended(number, Outcome.INFO)
                session.failed(error)
            else:
                session.recorder.ended(number, Outcome.OK, writes=told([write], [offset]))

    with Producer({"bootstrap.servers": session.address, "linger.ms": 0}) as producer:
        while not session.stopping.is_set():
            for write in plan(session):
                number = session.recorder.began(Kind.SEND, writes=told([write]))
                under_way.append((number, write, _send(producer, [write])[0]))
            settle(_OUTSTANDING_MAX)
            session.rest(0.1)
        settle(0)


def foreign_stream(session: Session) -> None:
    """The same with librdkafka."""
    under_way = 0

    def delivered(number: int, write: tuple[int, int], error: Any, message: Any) -> None:
        nonlocal under_way
        under_way -= 1
        if error is None:
            session.recorder.ended(number, Outcome.OK, writes=told([write], [message.offset()]))
        else:
            session.recorder.ended(number, Outcome.INFO)
            session.failed(error)

    config = {"bootstrap.servers": session.address, "enable.idempotence": True, "linger.ms": 0}
    producer = confluent_kafka.Producer(config | _TELLING, logger=_logger(session))
    while not session.stopping.is_set():
        for write in plan(session):
            number = session.recorder.began(Kind.SEND, writes=told([write]))
            under_way += 1
            partition, value = write
            producer.produce(SOURCE, b"%d" % value, partition=partition, on_delivery=partial(delivered, number, write))
        producer.poll(0)
        while under_way > _OUTSTANDING_MAX:
            producer.poll(0.1)
        session.rest(0.1)
    producer.flush()


def writer(session: Session) -> None:
    """Transactions of our own producer, some of them aborted. A fenced one is made anew."""
    config = transactional_config(session) | {"max.block.ms": 10_000}
    while not session.stopping.is_set():
        with (
            Producer(config) as producer,
            session.enduring(FatalTransactionError, TransactionTimeoutError, TimeoutError),
        ):
            producer.init_transactions(60)
            while not session.stopping.is_set():
                _write(session, producer)
                session.rest()


def _write(session: Session, producer: Producer) -> None:
    writes = plan(session)

    def send(number: int) -> list[Any]:
        deliveries = _send(producer, writes)
        if session.rng.random() < 0.3:
            producer.flush(60)
        return deliveries

    _transact(session, producer, writes, send, {})


def _send(producer: Producer, writes: list[tuple[int, int]]) -> list[Any]:
    return [producer.send(SOURCE, b"%d" % value, partition=partition) for partition, value in writes]


def _transact(
    session: Session,
    producer: Producer,
    writes: list[tuple[int, int]],
    send: Callable[[int], list[Any]],
    details: dict[str, Any],
) -> None:
    """A transaction around `send`, which is given its number: committed or not, and recorded with its outcome."""
    is_commit = session.rng.random() > _ABORT_SHARE
    number = session.recorder.began(Kind.TRANSACTION, writes=told(writes), **details)
    try:
        producer.begin_transaction()
        deliveries = send(number)
        if not is_commit:
            producer.abort_transaction(60)
            session.recorder.ended(number, Outcome.FAIL)
            return
        session.recorder.note(number, "committing")
        _commit(producer)
    except AbortableTransactionError as error:
        session.failed(error)
        # Nothing was committed; the abort may still find that we were fenced.
        producer.abort_transaction(60)
        session.recorder.ended(number, Outcome.FAIL)
    else:
        offsets = [delivery.result(0).offset for delivery in deliveries]
        session.recorder.ended(number, Outcome.OK, writes=told(writes, offsets))


def _commit(producer: Producer) -> None:
    for attempt in range(_COMMIT_TRIES):
        try:
            producer.commit_transaction()
        except TransactionTimeoutError:
            if attempt == _COMMIT_TRIES - 1:
                raise
        else:
            return


def foreign_writer(session: Session) -> None:
    """The same with librdkafka, which speaks the older protocol."""
    config = transactional_config(session) | {"message.timeout.ms": TRANSACTION_TIMEOUT_MS} | _TELLING
    logger = _logger(session)
    while not session.stopping.is_set():
        producer = confluent_kafka.Producer(config, logger=logger)
        with session.enduring(confluent_kafka.KafkaException):
            producer.init_transactions(60)
            while not session.stopping.is_set():
                _write_foreign(session, producer)
                session.rest()


def _logger(session: Session) -> logging.Logger:
    """Into a file beside the history: why a new epoch was begun is nowhere else."""
    logger = logging.getLogger("librdkafka")
    handler = logging.FileHandler(session.recorder.path.with_suffix(LOG_SUFFIX))
    handler.setFormatter(logging.Formatter("%(asctime)s %(message)s"))
    logger.addHandler(handler)
    logger.setLevel(logging.DEBUG)
    logger.propagate = False
    return logger


def _write_foreign(session: Session, producer: Any) -> None:
    writes = plan(session)
    is_commit = session.rng.random() > _ABORT_SHARE
    number = session.recorder.began(Kind.TRANSACTION, writes=told(writes))
    offsets: dict[int, int] = {}

    def delivered(value: int) -> Callable[[Any, Any], None]:
        def note(error: Any, message: Any) -> None:
            offsets[value] = -1 if error is not None else message.offset()

        return note

    try:
        producer.begin_transaction()
        for partition, value in writes:
            producer.produce(SOURCE, b"%d" % value, partition=partition, on_delivery=delivered(value))
        if is_commit:
            session.recorder.note(number, "committing")
            producer.commit_transaction(60)
        else:
            producer.abort_transaction(60)
    except confluent_kafka.KafkaException as error:
        if not error.args[0].txn_requires_abort():
            raise
        session.failed(error)
        producer.abort_transaction(60)
        is_commit = False
    found = [offsets.get(value, -1) for _, value in writes]
    session.recorder.ended(number, Outcome.OK if is_commit else Outcome.FAIL, writes=told(writes, found))


# --- readers ----------------------------------------------------------------------------------------------------------


def consumer_config(session: Session, group: str | None = None) -> dict[str, Any]:
    config: dict[str, Any] = {
        "bootstrap.servers": session.address,
        "isolation.level": "read_committed",
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
    }
    if group is not None:
        config |= {"group.id": group, "session.timeout.ms": SESSION_TIMEOUT_MS, "heartbeat.interval.ms": 300}
    return config


def _reads(records: ConsumerRecords) -> list[list[Any]]:
    return [[record.topic, record.partition, record.offset, int(record.value)] for record in records]


def _poll(session: Session, consumer: Consumer, number_of_session: int, *, assigned: bool) -> bool:
    number = session.recorder.began(Kind.POLL, session=number_of_session, assigned=assigned)
    try:
        records = consumer.poll(0.2, session.rng.randint(1, 500))
    except HeadraceError as error:
        session.recorder.ended(number, Outcome.INFO)
        session.failed(error)
        return False
    session.recorder.ended(number, Outcome.OK, reads=_reads(records))
    return bool(records)


def assigned_reader(session: Session) -> None:
    """Reads all partitions, from the beginning or the end, and starts over now and then."""
    places = [(topic, partition) for topic in (SOURCE, TARGET) for partition in range(PARTITIONS)]
    with Consumer(consumer_config(session)) as consumer:
        number = 0
        while not session.stopping.is_set():
            number += 1
            consumer.assign(places)
            if session.rng.random() < 0.3:
                consumer.seek_to_beginning()
            else:
                consumer.seek_to_end()
            for _ in range(session.rng.randint(50, 400)):
                if session.stopping.is_set():
                    break
                _poll(session, consumer, number, assigned=True)


def subscribed_reader(session: Session) -> None:
    """A member of a group that commits some of what it reads. A rebalance begins another session."""
    sessions = [0]

    class Listener:
        def on_partitions_assigned(self, partitions: Any) -> None:
            sessions[0] += 1

        def on_partitions_revoked(self, partitions: Any) -> None:
            sessions[0] += 1

        def on_partitions_lost(self, partitions: Any) -> None:
            sessions[0] += 1

    with Consumer(consumer_config(session, READERS_GROUP)) as consumer:
        consumer.subscribe([SOURCE, TARGET], Listener())
        while not session.stopping.is_set():
            before = sessions[0]
            number = session.recorder.began(Kind.POLL, session=before)
            try:
                records = consumer.poll(0.2, 500)
                # What a poll returns was read after any rebalance in it.
                session.recorder.ended(number, Outcome.OK, reads=_reads(records), session=sessions[0])
                if session.rng.random() < 0.3:
                    consumer.commit_sync(timeout=5)
            except HeadraceError as error:
                session.failed(error)
                sessions[0] += 1


# --- mixers -----------------------------------------------------------------------------------------------------------


def mixer(session: Session) -> None:
    """Transactions that send, poll what others (and other mixers) committed, and send again."""
    config = transactional_config(session) | {"max.block.ms": 10_000}
    number = 0
    while not session.stopping.is_set():
        number += 1
        is_assigned = session.rng.random() < 0.5
        with (
            session.enduring(HeadraceError),
            Producer(config) as producer,
            Consumer(consumer_config(session, None if is_assigned else MIXERS_GROUP)) as consumer,
        ):
            producer.init_transactions(60)
            if is_assigned:
                consumer.assign([(SOURCE, partition) for partition in range(PARTITIONS)])
                consumer.seek_to_end()
            else:
                consumer.subscribe([SOURCE])
            for _ in range(session.rng.randint(50, 300)):
                if session.stopping.is_set():
                    break
                _mix(session, producer, consumer, number, assigned=is_assigned)
                session.rest()


def _mix(session: Session, producer: Producer, consumer: Consumer, number_of_session: int, *, assigned: bool) -> None:
    writes = plan(session)
    half = session.rng.randrange(len(writes) + 1)

    def send(number: int) -> list[Any]:
        deliveries = _send(producer, writes[:half])
        records = consumer.poll(0.1, session.rng.randint(1, 200))
        # Rebalances begin sessions too, so a member of a group is held to no order here.
        session.recorder.note(number, "read", reads=_reads(records), session=number_of_session if assigned else -number)
        deliveries += _send(producer, writes[half:])
        if records and not assigned:
            producer.send_offsets_to_transaction(records.next_offsets(), consumer.group_metadata())
        return deliveries

    _transact(session, producer, writes, send, {"session": number_of_session, "assigned": assigned})


# --- movers -----------------------------------------------------------------------------------------------------------


def mover(session: Session) -> None:
    """Consume, transform, produce: two results for each value, in two partitions, with the offsets."""
    while not session.stopping.is_set():
        config = consumer_config(session, MOVERS_GROUP) | {"partition.assignment.strategy": "cooperative-sticky"}
        with (
            session.enduring(HeadraceError),
            Consumer(config) as consumer,
            Producer(transactional_config(session)) as producer,
        ):
            consumer.subscribe([SOURCE])
            batches = exactly_once(consumer, producer, max_records=session.rng.randint(5, 200), poll_timeout=0.2)
            session.on_stop = batches.stop
            batches.run(partial(_move, session, producer))


def _move(session: Session, producer: Producer, records: ConsumerRecords) -> None:
    writes: list[list[Any]] = []
    for record in records:
        for at, output in enumerate(Moved.outputs(int(record.value))):
            partition = (record.partition + at) % PARTITIONS
            writes.append([TARGET, partition, output, -1])
    # Whether it was committed is seen by the logs and the group's offsets; each attempt's own outcome stays open.
    session.recorder.began(Kind.MOVE, writes=writes, reads=_reads(records))
    for _, partition, output, _ in writes:
        producer.send(TARGET, b"%d" % output, partition=partition)


# --- an observer ------------------------------------------------------------------------------------------------------


def observer(session: Session) -> None:
    """Looks at what the groups have committed, again and again."""
    groups = (MOVERS_GROUP, READERS_GROUP)
    with Admin({"bootstrap.servers": session.address}) as admin:
        while not session.stopping.is_set():
            number = session.recorder.began(Kind.OFFSETS)
            try:
                found = admin.list_group_offsets(groups)
                seen = [
                    (group, place.topic, place.partition, one.offset)
                    for group in groups
                    for place, one in found[group].items()
                ]
            except HeadraceError as error:
                session.recorder.ended(number, Outcome.INFO)
                session.failed(error)
            else:
                session.recorder.ended(number, Outcome.OK, committed=seen)
            session.rest(0.3)


ROLES: dict[str, Callable[[Session], None]] = {
    "sender": sender,
    "stream": stream,
    "foreign-stream": foreign_stream,
    "observer": observer,
    "writer": writer,
    "foreign-writer": foreign_writer,
    "assigned-reader": assigned_reader,
    "subscribed-reader": subscribed_reader,
    "mixer": mixer,
    "mover": mover,
}

if __name__ == "__main__":
    role, address, directory, name, incarnation, seed = sys.argv[1:]
    ROLES[role](Session(address, Path(directory), name, int(incarnation), int(seed)))
