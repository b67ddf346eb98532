"""The log directories of a broker: whose they are, which partitions are where, and what happens when a disk fails."""

from __future__ import annotations

import json
import logging
import os
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import Enum

from headrace.errors import KafkaStorageError, LogDirNotFoundError, UnknownTopicOrPartitionError
from headrace.log import checkpoints, identity, partition_metadata
from headrace.log.checkpoints import DamagedCheckpoint
from headrace.log.config import LogConfig
from headrace.log.identity import Directory
from headrace.log.log import Log
from headrace.log.meta_properties import DirectoryMismatch, MetaProperties
from headrace.log.moving import Move
from headrace.log.producer_state import DEFAULT_EXPIRATION_MS
from headrace.log.segment import Caches
from headrace.runtime import Disk, DiskError, FileMissing, Runtime
from headrace.topics import TopicPartition

logger = logging.getLogger("headrace.log")

ConfigOf = Callable[[str], LogConfig]

CLEAN_SHUTDOWN = ".kafka_cleanshutdown"
_NAME = re.compile(r"(?P<topic>.+)-(?P<partition>\d+)(\.(?P<id>[^.]+)-(?P<state>delete|future|stray))?")
_NAME_MAX = 255
_RESERVED_TOPICS = frozenset({"__cluster_metadata"})
_CHUNKS_PER_DIRECTORY = 8


class State(Enum):
    """What a partition's directory is, by its name."""

    PRESENT = ""
    DELETE = "delete"
    FUTURE = "future"
    STRAY = "stray"


@dataclass(slots=True, frozen=True)
class Found:
    """A partition's directory on disk."""

    partition: TopicPartition
    topic_id: bytes | None
    path: str


@dataclass(slots=True, frozen=True)
class ReplicaInfo:
    """What DescribeLogDirs says of one log."""

    partition: TopicPartition
    size_bytes: int
    offset_lag: int
    is_future: bool


@dataclass(slots=True, frozen=True)
class DirectoryInfo:
    """What DescribeLogDirs says of one directory; `offline` has the reason when it is."""

    path: str
    offline: str | None
    total_bytes: int
    usable_bytes: int
    replicas: list[ReplicaInfo]


def parse_name(name: str) -> tuple[TopicPartition, State] | None:
    """The partition that a directory's name stands for; None when it is no partition's."""
    match = _NAME.fullmatch(name)
    if match is None:
        return None
    return TopicPartition(match["topic"], int(match["partition"])), State(match["state"] or "")


def temporary_name(partition: TopicPartition, unique: bytes, state: State) -> str:
    """`<topic>-<partition>.<unique>-<state>`; a long topic is cut so that it stays a legal file name."""
    suffix = f"-{partition.partition}.{unique.hex()}-{state.value}"
    return partition.topic[: _NAME_MAX - len(suffix)] + suffix


class LogDirectories:
    """All logs of one broker. Blocking; changes (create, delete, move) come from one thread at a time."""

    def __init__(
        self,
        runtime: Runtime,
        directories: list[Directory],
        node_id: int,
        cluster_id: str,
        caches: Caches,
        producer_expiration_ms: int,
        on_offline: Callable[[str, str], None] | None,
    ) -> None:
        """Use `LogDirectories.open`."""
        self._runtime = runtime
        self._disk: Disk = runtime.disk
        self._directories = directories
        self.node_id = node_id
        self.cluster_id = cluster_id
        self.caches = caches
        self._producer_expiration_ms = producer_expiration_ms
        self.on_offline = on_offline
        self._moves: dict[TopicPartition, Move] = {}
        self._doomed: list[tuple[int, str]] = []
        #: Partitions whose log is too damaged to be served, with the reason.
        self.unopened: dict[TopicPartition, str] = {}

    # ---- opening -------------------------------------------------------------------------------------------------

    @classmethod
    def open(
        cls,
        runtime: Runtime,
        paths: Sequence[str],
        *,
        node_id: int | None = None,
        cluster_id: str | None = None,
        open_files_max: int = 1024,
        producer_expiration_ms: int = DEFAULT_EXPIRATION_MS,
        on_offline: Callable[[str, str], None] | None = None,
    ) -> LogDirectories:
        """Lock the directories and check that they belong to this node; an empty one is given its identity.

        Without `node_id` and `cluster_id` those on disk are used, or new ones made. A directory whose disk fails is
        offline; that all of them are is an error.
        """
        if not paths:
            raise ValueError("a broker needs at least one log directory")
        directories = [Directory(os.path.abspath(path)) for path in dict.fromkeys(paths)]
        known: dict[str, MetaProperties | None] = {}
        try:
            for directory in directories:
                known[directory.path] = identity.take(runtime.disk, directory)
            present = {path: properties for path, properties in known.items() if properties is not None}
            node_id, cluster_id = identity.agree(runtime, present, node_id, cluster_id)
            if all(directory.offline is not None for directory in directories):
                raise KafkaStorageError(
                    "no log directory can be used: " + "; ".join(d.offline or "" for d in directories)
                )
            for directory in directories:
                identity.identify(runtime, directory, known[directory.path], node_id, cluster_id)
        except BaseException:
            identity.unlock(directories)
            raise
        caches = Caches(runtime.disk, open_files_max=open_files_max)
        return cls(runtime, directories, node_id, cluster_id, caches, producer_expiration_ms, on_offline)

    def scan(self) -> list[Found]:
        """The partitions on disk, before any is opened: what a data directory of Apache Kafka brings along."""
        return [found for directory in self._online() for found in self._scan(directory)]

    def _scan(self, directory: Directory) -> list[Found]:
        found = []
        for name, partition, state in _partition_names(self._disk, directory.path):
            if state is State.PRESENT:
                path = os.path.join(directory.path, name)
                try:
                    topic_id = partition_metadata.read(self._disk, path)
                except DamagedCheckpoint as error:
                    logger.warning("%s: %s is damaged (%s)", partition, partition_metadata.FILE_NAME, error)
                    topic_id = None
                found.append(Found(partition, topic_id, path))
        return found

    def open_logs(self, config_of: ConfigOf) -> dict[TopicPartition, Log]:
        """Open every partition found; those of a directory that fails meanwhile are left out."""
        for directory in self._online():
            self._open_chunk(directory, config_of, self._begin_opening(directory))
        self._settle_twins()
        return self.logs

    async def open_logs_in_parallel(self, config_of: ConfigOf) -> dict[TopicPartition, Log]:
        """The same, spread over the runtime's disk threads."""
        futures = []
        for directory in self._online():
            names = await self._runtime.offload(self._begin_opening, directory)
            size = max(1, -(-len(names) // _CHUNKS_PER_DIRECTORY))
            for at in range(0, len(names), size):
                futures.append(self._runtime.offload(self._open_chunk, directory, config_of, names[at : at + size]))
        for future in futures:
            await future
        await self._runtime.offload(self._settle_twins)
        return self.logs

    def _begin_opening(self, directory: Directory) -> list[tuple[str, TopicPartition, State]]:
        try:
            marker = os.path.join(directory.path, CLEAN_SHUTDOWN)
            directory.clean = self._disk.exists(marker)
            if directory.clean:
                # From here on a crash is a crash, also one while opening.
                self._disk.remove(marker)
                self._disk.sync_dir(directory.path)
            return list(_partition_names(self._disk, directory.path))
        except DiskError as error:
            self._check_disk_failed(error)
            self._go_offline(directory, error)
            return []

    def _open_chunk(
        self, directory: Directory, config_of: ConfigOf, names: list[tuple[str, TopicPartition, State]]
    ) -> None:
        recovery_points = self._checkpoint(directory, checkpoints.RECOVERY_POINT)
        starts = self._checkpoint(directory, checkpoints.LOG_START)
        high_watermarks = self._checkpoint(directory, checkpoints.HIGH_WATERMARK)
        for name, partition, state in names:
            if directory.offline is not None:
                return
            path = os.path.join(directory.path, name)
            if state is State.DELETE or state is State.FUTURE:
                # A deletion is finished. A move is begun anew by whoever asked for it: its source is complete.
                self._doomed.append((0, path))
                continue
            if state is State.STRAY:
                continue
            try:
                log = Log.open(
                    self._runtime,
                    path,
                    partition,
                    config_of(partition.topic),
                    recovery_point=recovery_points.get(partition, 0),
                    start_offset=starts.get(partition, 0),
                    clean=directory.clean,
                    producer_expiration_ms=self._producer_expiration_ms,
                    caches=self.caches,
                    on_failure=self._log_failed,
                )
            except DiskError as error:
                self._check_disk_failed(error)
                self._go_offline(directory, error)
                return
            except KafkaStorageError as error:
                logger.error("%s is left offline: %s", partition, error)
                self.unopened[partition] = str(error)
                continue
            log.update_high_watermark(high_watermarks.get(partition, log.start_offset))
            if log.recovery.eventful or not directory.clean:
                level = logging.WARNING if log.recovery.eventful else logging.DEBUG
                logger.log(level, "%s", log.recovery.summary(partition))
            directory.logs[partition] = log

    def _settle_twins(self) -> None:
        """A crash at the end of a move leaves a partition in two directories: the longer log stays, none is deleted."""
        places: dict[TopicPartition, list[Directory]] = {}
        for directory in self._online():
            for partition in directory.logs:
                places.setdefault(partition, []).append(directory)
        for partition, (first, *others) in places.items():
            for other in others:
                one, two = first.logs[partition], other.logs[partition]
                if one.topic_id is None or one.topic_id != two.topic_id:
                    raise DirectoryMismatch(
                        f"{partition} is in {first.path} and in {other.path}; move the older one away and start again"
                    )
                loser = first if one.end_offset < two.end_offset else other
                self._set_aside(loser, loser.logs.pop(partition))
                first = other if loser is first else first

    def _set_aside(self, directory: Directory, log: Log) -> None:
        name = temporary_name(log.partition, self._runtime.uuid(), State.STRAY)
        logger.warning(
            "%s is in two directories; the copy in %s is set aside as %s", log.partition, directory.path, name
        )
        log.abandon()
        try:
            self._disk.rename(log.directory, os.path.join(directory.path, name))
            self._disk.sync_dir(directory.path)
        except DiskError as error:
            self._go_offline(directory, error)

    def _checkpoint(self, directory: Directory, name: str) -> dict[TopicPartition, int]:
        path = os.path.join(directory.path, name)
        try:
            return checkpoints.read_offsets(self._disk, path)
        except DamagedCheckpoint as error:
            logger.warning("%s is damaged (%s): its offsets are found out from the logs", path, error)
            return {}
        except DiskError as error:
            self._check_disk_failed(error)
            self._go_offline(directory, error)
            return {}

    # ---- looking -------------------------------------------------------------------------------------------------

    @property
    def paths(self) -> list[str]:
        return [directory.path for directory in self._directories]

    @property
    def online_paths(self) -> list[str]:
        return [directory.path for directory in self._online()]

    @property
    def logs(self) -> dict[TopicPartition, Log]:
        return {partition: log for directory in self._directories for partition, log in directory.logs.items()}

    def directory_ids(self) -> dict[str, str]:
        """The id of each online directory, by path."""
        return {directory.path: directory.directory_id for directory in self._online()}

    def directory_of(self, log: Log) -> str:
        """The log directory that a log is in."""
        return os.path.dirname(log.directory)

    def get(self, partition: TopicPartition) -> Log | None:
        for directory in self._directories:
            log = directory.logs.get(partition)
            if log is not None:
                return log
        return None

    def describe(self) -> list[DirectoryInfo]:
        """Sizes and space of every directory, for DescribeLogDirs."""
        described = []
        for directory in self._directories:
            if directory.offline is not None:
                described.append(DirectoryInfo(directory.path, directory.offline, -1, -1, []))
                continue
            replicas = [
                ReplicaInfo(partition, log.size_bytes, max(log.high_watermark - log.end_offset, 0), False)
                for partition, log in directory.logs.items()
            ]
            for partition, future in directory.futures.items():
                current = self.get(partition)
                lag = (current.end_offset if current is not None else 0) - future.end_offset
                replicas.append(ReplicaInfo(partition, future.size_bytes, lag, True))
            try:
                total, free = self._disk.total_bytes(directory.path), self._disk.free_bytes(directory.path)
            except DiskError as error:
                self._go_offline(directory, error)
                described.append(DirectoryInfo(directory.path, str(error), -1, -1, []))
                continue
            described.append(DirectoryInfo(directory.path, None, total, free, replicas))
        return described

    def _online(self) -> list[Directory]:
        return [directory for directory in self._directories if directory.offline is None]

    def _of(self, partition: TopicPartition) -> Directory:
        for directory in self._directories:
            if partition in directory.logs:
                return directory
        raise UnknownTopicOrPartitionError(f"there is no log of {partition} on this broker")

    # ---- creating, deleting, moving ------------------------------------------------------------------------------

    def create(
        self, partition: TopicPartition, config: LogConfig, topic_id: bytes | None, *, path: str | None = None
    ) -> Log:
        """Make a partition's log, in the directory with the fewest (or in `path`); one that is there is returned."""
        existing = self.get(partition)
        if existing is not None:
            if topic_id is not None and existing.topic_id not in (None, topic_id):
                raise DirectoryMismatch(f"{existing.directory} holds an older topic of the same name: delete it first")
            return existing
        directory = self._named(path) if path is not None else self._emptiest()
        log = self._make(directory, str(partition), partition, config, topic_id)
        directory.logs[partition] = log
        return log

    def _make(
        self, directory: Directory, name: str, partition: TopicPartition, config: LogConfig, topic_id: bytes | None
    ) -> Log:
        try:
            return Log.open(
                self._runtime,
                os.path.join(directory.path, name),
                partition,
                config,
                topic_id=topic_id,
                producer_expiration_ms=self._producer_expiration_ms,
                caches=self.caches,
                on_failure=self._log_failed,
            )
        except DiskError as error:
            self._go_offline(directory, error)
            raise

    def _emptiest(self) -> Directory:
        online = self._online()
        if not online:
            raise KafkaStorageError("every log directory is offline")
        return min(online, key=lambda directory: directory.count)

    def _named(self, path: str) -> Directory:
        for directory in self._directories:
            if directory.path == os.path.abspath(path):
                if directory.offline is not None:
                    raise KafkaStorageError(f"{path} is offline: {directory.offline}")
                return directory
        raise LogDirNotFoundError(f"{path} is not a log directory of this broker; those are {', '.join(self.paths)}")

    def delete(self, partition: TopicPartition) -> None:
        """Take a partition out of use: its directory gets another name now and is removed by `clean_up` later."""
        directory = self._of(partition)
        self.cancel_move(partition)
        log = directory.logs.pop(partition)
        log.abandon()
        if directory.offline is None:
            self._doom(directory, log)

    def _doom(self, directory: Directory, log: Log) -> None:
        """Rename a log's directory to `…-delete`, to be removed after file.delete.delay.ms."""
        name = temporary_name(log.partition, self._runtime.uuid(), State.DELETE)
        target = os.path.join(directory.path, name)
        try:
            self._disk.rename(log.directory, target)
            self._disk.sync_dir(directory.path)
        except DiskError as error:
            self._go_offline(directory, error)
            if not error.is_shortage:
                raise
        self._doomed.append((self._runtime.clock.now_ms() + log.config.file_delete_delay_ms, target))

    def start_move(self, partition: TopicPartition, path: str) -> Move:
        """Begin to copy a log into another directory (AlterReplicaLogDirs); step it until it is done."""
        target = self._named(path)
        source = self._of(partition)
        self.cancel_move(partition)
        if source is target:
            raise ValueError(f"{partition} is in {path} already")
        log = source.logs[partition]
        name = temporary_name(partition, self._runtime.uuid(), State.FUTURE)
        future = self._make(target, name, partition, log.config, log.topic_id)
        target.futures[partition] = future
        move = self._moves[partition] = Move(log, future)
        return move

    def finish_move(self, partition: TopicPartition) -> Log:
        """Put a copy that caught up in the original's place; no append may be under way. The log to use from now on."""
        move = self._moves[partition]
        move.check_caught_up()
        source, target = self._of(partition), self._named(os.path.dirname(move.future.directory))
        future = move.future
        home = os.path.join(target.path, str(partition))
        try:
            # The copy gets its name before the original loses its own: a crash between leaves both, not neither.
            future.sync()
            self._disk.rename(future.directory, home)
            self._disk.sync_dir(target.path)
        except DiskError as error:
            self._go_offline(target, error)
            raise
        future.moved_to(home)
        del self._moves[partition], target.futures[partition]
        target.logs[partition] = future
        source.logs.pop(partition)
        move.current.abandon()
        try:
            self._doom(source, move.current)
        except DiskError as error:
            logger.error("%s has moved to %s, but the original is still there: %s", partition, target.path, error)
        return future

    def cancel_move(self, partition: TopicPartition) -> None:
        move = self._moves.pop(partition, None)
        if move is None:
            return
        target = next(d for d in self._directories if partition in d.futures)
        future = target.futures.pop(partition)
        future.abandon()
        if target.offline is None:
            self._doom(target, future)

    @property
    def moves(self) -> dict[TopicPartition, Move]:
        return dict(self._moves)

    # ---- upkeep --------------------------------------------------------------------------------------------------

    def clean_up(self, now_ms: int) -> int:
        """Remove directories of deleted partitions whose delay is over; how many."""
        due = [path for due_ms, path in self._doomed if due_ms <= now_ms]
        self._doomed = [entry for entry in self._doomed if entry[0] > now_ms]
        for path in due:
            try:
                self._disk.rmtree(path)
            except FileMissing:
                continue
            except DiskError as error:
                self._path_failed(path, error)
                if error.is_shortage:
                    self._doomed.append((now_ms, path))
        return len(due)

    def checkpoint_recovery_points(self) -> None:
        """Write down how far each log is durable. Call it from time to time: it bounds what a crash makes us check."""
        self._write(checkpoints.RECOVERY_POINT, lambda log: log.recovery_point)

    def checkpoint_high_watermarks(self) -> None:
        self._write(checkpoints.HIGH_WATERMARK, lambda log: log.high_watermark)

    def checkpoint_start_offsets(self) -> None:
        """Write down starts that no segment's name tells."""
        self._write(
            checkpoints.LOG_START,
            lambda log: log.start_offset if log.start_offset > log.segments[0].base_offset else None,
        )

    def checkpoint(self) -> None:
        """All three."""
        self.checkpoint_recovery_points()
        self.checkpoint_start_offsets()
        self.checkpoint_high_watermarks()

    def _write(self, name: str, offset_of: Callable[[Log], int | None]) -> None:
        for directory in self._online():
            offsets = {partition: offset_of(log) for partition, log in directory.logs.items()}
            known = {partition: offset for partition, offset in offsets.items() if offset is not None}
            try:
                checkpoints.write_offsets(self._disk, os.path.join(directory.path, name), known)
            except DiskError as error:
                self._go_offline(directory, error)

    async def close_logs_in_parallel(self) -> None:
        """Close the logs on the runtime's disk threads, where their syncs run side by side; then call `close`."""
        futures = []
        for directory in self._online():
            logs = list(directory.logs.values())
            size = max(1, -(-len(logs) // _CHUNKS_PER_DIRECTORY))
            for at in range(0, len(logs), size):
                futures.append(self._runtime.offload(self._close_logs, logs[at : at + size]))
        for future in futures:
            await future

    def close(self, clean: bool = True, *, broker_epoch: int = -1) -> None:
        """Close every log, then (when `clean`) say so on disk; let go of the locks."""
        for directory in self._directories:
            closed = clean and directory.offline is None and self._close_logs(directory.logs.values())
            for log in (*directory.futures.values(), *(() if closed else directory.logs.values())):
                log.abandon()
        if clean:
            self.checkpoint()
            for directory in self._online():
                self._mark_clean(directory, broker_epoch)
        identity.unlock(self._directories)

    def _close_logs(self, logs: Iterable[Log]) -> bool:
        try:
            for log in logs:
                log.close()
        except (DiskError, KafkaStorageError) as error:
            logger.error("closing a log failed; its directory will be checked at the next start: %s", error)
            return False
        return True

    def _mark_clean(self, directory: Directory, broker_epoch: int) -> None:
        text = json.dumps({"version": 0, "brokerEpoch": broker_epoch}, separators=(",", ":"))
        try:
            self._disk.replace_file(os.path.join(directory.path, CLEAN_SHUTDOWN), text.encode())
        except DiskError as error:
            self._go_offline(directory, error)

    # ---- failing -------------------------------------------------------------------------------------------------

    def _log_failed(self, log: Log, error: DiskError) -> None:
        self._path_failed(log.directory, error)

    def _path_failed(self, path: str, error: DiskError) -> None:
        for directory in self._online():
            if os.path.dirname(path) == directory.path:
                self._go_offline(directory, error)

    @staticmethod
    def _check_disk_failed(error: DiskError) -> None:
        """At start, for want of descriptors, the logs cannot be told from none at all: better not to start."""
        if error.is_shortage:
            raise error

    def _go_offline(self, directory: Directory, error: DiskError) -> None:
        """A directory whose disk failed serves nothing until a restart: what is on it can no longer be trusted."""
        if directory.offline is not None:
            return
        if error.is_shortage:
            logger.warning("log directory %s cannot be changed for now: %s", directory.path, error)
            return
        directory.offline = str(error)
        logger.error("log directory %s is offline: %s", directory.path, error)
        for log in (*directory.logs.values(), *directory.futures.values()):
            log.fail(error)
        if self.on_offline is not None:
            self.on_offline(directory.path, str(error))


def _partition_names(disk: Disk, path: str) -> Iterable[tuple[str, TopicPartition, State]]:
    for name in disk.listdir(path):
        parsed = parse_name(name)
        if parsed is None or parsed[0].topic in _RESERVED_TOPICS or not disk.is_dir(os.path.join(path, name)):
            continue
        yield name, parsed[0], parsed[1]
