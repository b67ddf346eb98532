"""The partitions whose replicas are on this broker: made, changed and removed as the metadata says.

What touches the disk (making directories, deleting them) runs on disk threads; the table itself is only changed on the
loop.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TypeVar, TypeVarTuple

from headrace.broker.partitions.leadership import NO_LEADER, Leadership
from headrace.broker.partitions.partition import Partition
from headrace.broker.replication.surroundings import ALONE, Surroundings
from headrace.cluster.changes import Changes
from headrace.cluster.image import Image, PartitionImage, TopicImage
from headrace.cluster.records import MetadataRecord, PartitionRecord
from headrace.errors import HeadraceError, KafkaStorageError, UnknownTopicOrPartitionError
from headrace.log import Log, LogConfig, LogDirectories, Move, side_by_side
from headrace.log.partition_metadata import decode_id
from headrace.runtime import DirectoryWriter, DiskError, Runtime
from headrace.topics import TopicPartition

log = logging.getLogger("headrace.broker.partitions.replicas")

MOVES_AT_ONCE = 2

ConfigOf = Callable[[str], LogConfig]
T = TypeVar("T")
Ts = TypeVarTuple("Ts")


@dataclass(frozen=True, slots=True)
class _Offline:
    """A partition whose log could not be opened or made."""

    reason: str
    #: For want of descriptors: it is tried again.
    is_waiting: bool = False
    #: Its directory was here at an earlier start, and is not now.
    is_missing: bool = False


class Replicas:
    """All partitions here, by topic and number."""

    def __init__(self, runtime: Runtime, node_id: int, directories: LogDirectories, config_of: ConfigOf) -> None:
        self._runtime = runtime
        self._node_id = node_id
        self.directories = directories
        self.config_of = config_of
        self.surroundings: Surroundings = ALONE
        self.partitions: dict[tuple[str, int], Partition] = {}
        self._offline: dict[tuple[str, int], _Offline] = {}
        self._writers: dict[str, DirectoryWriter] = {}
        #: Whether what the metadata says of this broker's number is about this process (`metadata/identity.py`).
        self.holds_number: Callable[[], bool] = _always
        #: Why this broker leads nothing for now, whatever the metadata says.
        self.suspended: str | None = None
        #: Called when logs could not be made, so that the controller hears of it.
        self.on_lost: Callable[[], None] = _ignore
        self._is_open = False  # until `open_all`, which looks at every partition there is
        self._moving: dict[TopicPartition, asyncio.Task[None]] = {}
        #: Those of them that have yet to begin, as others are copied.
        self._unbegun: set[TopicPartition] = set()
        self._move_lock = asyncio.Lock()
        # A copy is read and written at the disk's full speed: a few at a time leave the disk threads to the clients.
        self._moves_at_once = asyncio.Semaphore(MOVES_AT_ONCE)
        # Directories are changed by one thread at a time.
        self._changes = runtime.workers.pool("log-directories", 1)
        self._id_syncs = runtime.workers.pool("log-ids", side_by_side.AT_ONCE)

    def get(self, topic: str, index: int) -> Partition:
        """The partition, or the error that a client gets when it is not here."""
        found = self.partitions.get((topic, index))
        if found is not None:
            return found
        offline = self._offline.get((topic, index))
        if offline is not None:
            raise KafkaStorageError(f"{topic}-{index} is offline: {offline.reason}")
        raise UnknownTopicOrPartitionError(f"there is no partition {topic}-{index} on this broker")

    @property
    def offline_count(self) -> int:
        """Replicas here that cannot be served."""
        return len(self._offline) + sum(partition.is_offline for partition in self.partitions.values())

    def writer(self, directory: str) -> DirectoryWriter:
        writer = self._writers.get(directory)
        if writer is None:
            writer = self._writers[directory] = DirectoryWriter(self._runtime, directory)
        return writer

    def change_directories(self, change: Callable[[*Ts], T], *args: *Ts) -> asyncio.Future[T]:
        """Run a change of the log directories (create, delete, checkpoint), one after the other."""
        return self._changes.submit(change, *args)

    async def close(self) -> None:
        moving = list(self._moving.values())
        for task in moving:
            task.cancel()
        await asyncio.gather(*moving, return_exceptions=True)
        await self._changes.close()
        await self._id_syncs.close()
        for writer in self._writers.values():
            await writer.close()

    # --- following the metadata

    async def open_all(self, image: Image, logs: dict[TopicPartition, Log], missing_ids: list[str]) -> None:
        """At start: serve the logs that were found, make those that are missing, set aside what is no topic's.

        `missing_ids` are directories that were here at an earlier start.
        """
        self._is_open = True
        wanted = []
        lost = self._where_logs_may_be(missing_ids)
        unopened = self.directories.unopened
        # Those of topics that were deleted since they were opened are gone, also where a topic has their name again.
        logs = {key: found for key, found in logs.items() if self.directories.get(key) is found}
        for topic in image.topics.values():
            for index, state in enumerate(topic.partitions):
                if self._node_id not in state.replicas:
                    continue
                key = TopicPartition(topic.name, index)
                found = logs.get(key)
                if found is not None and found.topic_id in (None, topic.topic_id):
                    del logs[key]
                    # The topic may have been configured anew since the log was opened, which nobody followed here.
                    found.config = self.config_of(topic.name)
                    wanted.append((topic, index, state))
                elif key in unopened:
                    self._offline[key] = _Offline(unopened[key])
                elif lost and not (missing_ids and self._is_elsewhere(state)):
                    # Made anew it would be empty, and there twice when the directory comes back.
                    self._offline[key] = _Offline(f"its log may be in {lost}", is_missing=bool(missing_ids))
                else:
                    wanted.append((topic, index, state))
        for key in logs:
            await self.change_directories(self.directories.set_aside, key, "belongs to no topic of this broker")
        await self._make(wanted)
        await self._make_durable()

    def _may_be_made(self, key: TopicPartition, state: PartitionImage) -> bool:
        """Whether a log that is not in use is made when its partition changes.

        One whose directory is offline is there all the same. One whose directory is gone is filled again, as at a
        start, once another broker has the partition.
        """
        offline = self._offline.get(key)
        return offline is None or (offline.is_missing and self._is_elsewhere(state))

    def _is_elsewhere(self, state: PartitionImage) -> bool:
        """Whether another broker has everything that was committed, so that a lost replica can be filled again."""
        return bool(set(state.isr or state.eligible) - {self._node_id})

    def _where_logs_may_be(self, missing_ids: list[str]) -> str:
        """The directories that cannot be looked into; empty when there is none."""
        offline = [path for path in self.directories.paths if path not in self.directories.online_paths]
        if offline:
            return f"{', '.join(offline)}, which is offline"
        if missing_ids:
            return (
                f"the log directory with the id {', '.join(missing_ids)}, which was here before and is not now: "
                "mount it, put it back into log.dirs, or delete the topic"
            )
        return ""

    async def _make_durable(self) -> None:
        """Sync what a crash left in logs whose topics promise that what is seen is on the disk (`flush.messages`)."""
        by_writer: dict[DirectoryWriter, list[Partition]] = {}
        for partition in self.partitions.values():
            if 0 < partition.log.unsynced >= partition.log.config.flush_messages:
                by_writer.setdefault(partition.writer, []).append(partition)
        for writer, partitions in by_writer.items():
            try:
                await writer.sync([partition.log for partition in partitions])
                for partition in partitions:
                    partition.note_durable()
            except HeadraceError as error:
                # Of the disk; or of a log that went offline with its directory, when another's sync there had failed.
                log.error("logs of %s could not be synced: %s", writer.directory, error)

    async def follow(self, changes: Changes) -> None:
        """Make logs, leaders and configs agree with the image that has changed so."""
        # First, as a topic of the same name may be among those that are made; and all of them at once, as the image has
        # those already: nothing is served under a name, or an id, that is another topic's by now.
        await self._drop(changes.deleted)
        names = {topic for topic, _ in self.partitions} if changes.brokers_configured else changes.configured
        configs = {name: self.config_of(name) for name in names}
        # What asks for more in-sync replicas counts before what is said of them here, and what asks for fewer after it:
        # nothing is committed by fewer than the controller counts on, nor by a leader that is none any more.
        self._reconfigure(configs, only_stricter=True)
        new: list[tuple[TopicImage, int, PartitionImage]] = []
        left: list[TopicPartition] = []
        for topic, index, is_new in changes.partitions:
            state = topic.partitions[index]
            known = self.partitions.get((topic.name, index))
            if self._node_id not in state.replicas:
                if known is not None or (topic.name, index) in self._offline:
                    left.append(TopicPartition(topic.name, index))
            elif known is not None:
                known.lead(self._leadership(state))
            elif self._is_open and (is_new or self._may_be_made(TopicPartition(topic.name, index), state)):
                new.append((topic, index, state))
        await self._drop_partitions(left, "its replica was moved to other brokers")
        await self._make(new)
        self._reconfigure(configs)

    def unmade(self, image: Image, records: Iterable[MetadataRecord]) -> dict[tuple[str, int], str]:
        """The partitions of these records whose logs could not be made here, with the reason."""
        found = {}
        for record in records:
            if isinstance(record, PartitionRecord) and self._offline:
                topic = image.topics_by_id.get(record.topic_id)
                key = ("" if topic is None else topic.name, record.partition_id)
                if key in self._offline:
                    found[key] = self._offline[key].reason
        return found

    @property
    def is_waiting(self) -> bool:
        """Whether there are logs that will be made when there are descriptors for them."""
        return any(offline.is_waiting for offline in self._offline.values())

    async def make_waiting(self, image: Image) -> None:
        """Try again what could not be made for want of descriptors."""
        waiting = [key for key, offline in self._offline.items() if offline.is_waiting]
        topics = [(image.topics.get(name), index) for name, index in waiting]
        await self._make([(topic, index, topic.partitions[index]) for topic, index in topics if topic is not None])

    def _reconfigure(self, configs: dict[str, LogConfig], *, only_stricter: bool = False) -> None:
        if not configs:
            return
        for (topic, _), partition in self.partitions.items():
            config = configs.get(topic)
            if config is None:
                continue
            if not only_stricter or config.min_insync_replicas > partition.log.config.min_insync_replicas:
                partition.reconfigure(config)

    async def _make(self, wanted: list[tuple[TopicImage, int, PartitionImage]]) -> None:
        """Put partitions in service, with the logs that are there or new ones."""
        if not wanted:
            return
        made = await self.change_directories(self._make_logs, wanted)
        unsynced = await side_by_side.sync_ids((one for one in made if isinstance(one, Log)), self._id_syncs)
        lost_before = set(self.offline)
        for (topic, index, state), outcome in zip(wanted, made):
            error = unsynced.get(TopicPartition(topic.name, index))
            if error is not None:
                outcome = _offline_by(error)
            if isinstance(outcome, _Offline):
                if (topic.name, index) not in self._offline:  # said once, however often it is tried
                    log.error("%s-%d could not be made: %s", topic.name, index, outcome.reason)
                self._offline[topic.name, index] = outcome
            else:
                self._offline.pop((topic.name, index), None)
                self._add(topic.name, index, outcome, state)
        if set(self.offline) != lost_before:
            self.on_lost()

    def _make_logs(self, wanted: list[tuple[TopicImage, int, PartitionImage]]) -> list[Log | _Offline]:
        made: list[Log | _Offline] = []
        configs: dict[str, LogConfig] = {}
        for topic, index, _ in wanted:
            config = configs.get(topic.name)
            if config is None:
                config = configs[topic.name] = self.config_of(topic.name)
            try:
                made.append(self.directories.create(TopicPartition(topic.name, index), config, topic.topic_id))
            except HeadraceError as error:
                made.append(_offline_by(error))
        return made

    def _add(self, topic: str, index: int, partition_log: Log, state: PartitionImage) -> None:
        directory = self.directories.directory_of(partition_log)
        key = TopicPartition(topic, index)
        partition = self.partitions[topic, index] = Partition(
            self._node_id, key, partition_log, self.writer(directory), self._leadership(state), self.surroundings
        )
        if self.suspended is not None:
            partition.suspend(self.suspended)
        self._look_at_log(partition)

    def _leadership(self, state: PartitionImage) -> Leadership:
        found = leadership(state)
        if found.leader_id == self._node_id and not self.holds_number():
            # Another life of this number leads in that epoch, or did.
            found.leader_id = NO_LEADER
        return found

    def _look_at_log(self, partition: Partition) -> bool:
        """Whether the log that a partition was just given is in service: if its disk failed meanwhile, nobody knew
        then that it was this partition's."""
        failure = partition.log.failure
        if failure is not None:
            self.log_failed(partition.log, str(failure))
        return failure is None

    def suspend(self, reason: str) -> None:
        """Lead nothing until `resume`: others may take this broker for dead."""
        self.suspended = reason
        for partition in self.partitions.values():
            partition.suspend(reason)

    def resume(self) -> None:
        self.suspended = None
        for partition in self.partitions.values():
            partition.resume()

    async def _drop(self, topics: list[TopicImage]) -> None:
        """Take the partitions of topics out of use, also those that are offline."""
        keys = [TopicPartition(topic.name, index) for topic in topics for index in range(len(topic.partitions))]
        await self._drop_partitions(keys, "the topic was deleted")

    async def _drop_partitions(self, keys: list[TopicPartition], reason: str) -> None:
        if not keys:
            return
        dropped = []
        for key in keys:
            self._offline.pop(key, None)
            partition = self.partitions.pop(key, None)
            if partition is not None:
                partition.go_offline(reason)
                dropped.append(partition)
        for partition in dropped:
            await partition.turns.idle()
        await self.change_directories(self.directories.delete, *keys)

    # --- moving between directories

    async def move(self, topic: str, index: int, path: str) -> None:
        """Begin to move a log to another directory; the rest happens in the background. Gives up an earlier move."""
        async with self._move_lock:
            partition = self.get(topic, index)
            try:
                await self.change_directories(self.directories.cancel_move, partition.key)
                earlier = self._moving.get(partition.key)
                if earlier is not None:
                    if partition.key in self._unbegun:
                        earlier.cancel()  # else it would end when it has its turn
                    await asyncio.wait([earlier])
                    partition = self.get(topic, index)  # meanwhile it may have become another topic's
                if self.directories.directory_of(partition.log) == os.path.abspath(path):
                    return
                move = await self.change_directories(self.directories.start_move, partition.key, path)
            except DiskError as error:
                raise KafkaStorageError(f"{partition.key} cannot be moved to {path}: {error}") from error
            task = asyncio.get_running_loop().create_task(self._finish_move(partition, move))
            self._moving[partition.key] = task
            self._unbegun.add(partition.key)
            task.add_done_callback(lambda _: self._move_ended(partition.key))

    def _move_ended(self, key: TopicPartition) -> None:
        del self._moving[key]
        self._unbegun.discard(key)

    async def _finish_move(self, partition: Partition, move: Move) -> None:
        async def exchange() -> None:
            # Only what was appended since the last step is left to copy.
            moved = await self.change_directories(self._swap, partition.key, move)
            # In one step of the loop, so that no change of them comes between: what was set of the original counts.
            moved.config = partition.log.config
            # What followers have fetched meanwhile is committed, and perhaps acknowledged.
            moved.update_high_watermark(partition.high_watermark)
            moved.producers.take_verifications(partition.log.producers)
            if partition.is_leader:
                moved.begin_epoch(partition.leader_epoch)
            partition.put(moved, self.writer(self.directories.directory_of(moved)))
            if not self._look_at_log(partition):
                self.on_lost()

        try:
            async with self._moves_at_once:
                self._unbegun.discard(partition.key)
                while not move.caught_up:
                    await self._runtime.offload(move.step)
            await partition.turns.exchange(exchange)
            log.info("%s has moved to %s", partition.key, partition.log.directory)
        except HeadraceError as error:
            if self.directories.moves.get(partition.key) is move:
                log.error("%s could not be moved: %s", partition.key, error)
                await self.change_directories(self.directories.cancel_move, partition.key)
            else:
                log.info("%s: a move was given up, for another one or because its topic is gone", partition.key)

    def _swap(self, key: TopicPartition, move: Move) -> Log:
        if self.directories.moves.get(key) is not move:
            raise KafkaStorageError(f"{key}: the move was given up")
        while move.step():
            pass
        return self.directories.finish_move(key)

    @property
    def offline(self) -> list[tuple[str, int]]:
        """The partitions whose logs are in directories that cannot be used."""
        return [key for key, offline in self._offline.items() if not offline.is_waiting]

    def directory_id(self, topic: str, index: int) -> bytes | None:
        """The id of the directory that a replica's log is in; None when it is not here."""
        partition = self.partitions.get((topic, index))
        if partition is None:
            return None
        text = self.directories.directory_ids().get(self.directories.directory_of(partition.log))
        return None if text is None else decode_id(text)

    def directory_failed(self, directory: str, reason: str) -> None:
        """The disk below a log directory failed: its partitions are offline, the others go on."""
        for (topic, index), partition in list(self.partitions.items()):
            # One that has just moved away is about to be given its other log, and looked at then.
            is_there = self.directories.directory_of(partition.log) == directory
            if is_there and self.directories.get(partition.key) in (None, partition.log):
                partition.go_offline(reason)
                self._offline[topic, index] = _Offline(reason)

    def log_failed(self, failed: Log, reason: str) -> None:
        """A log is out of service, and its directory is not: its partition is offline, the others go on."""
        partition = self.partitions.get(failed.partition)
        if partition is not None and partition.log is failed:
            partition.go_offline(reason)
            self._offline[failed.partition] = _Offline(reason)


def _offline_by(error: HeadraceError) -> _Offline:
    return _Offline(str(error), is_waiting=isinstance(error, DiskError) and error.is_shortage)


def _always() -> bool:
    """A broker that nobody can have replaced."""
    return True


def _ignore() -> None:
    """A broker without others to lead in its place."""


def leadership(state: PartitionImage) -> Leadership:
    return Leadership(state.leader, state.leader_epoch, list(state.replicas), list(state.isr), state.partition_epoch)
