"""Open the logs of a broker's directories at its start: which of those on disk are its own, and which of two is."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

from headrace.errors import KafkaStorageError
from headrace.log import checkpoints, partition_metadata
from headrace.log.checkpoints import DamagedCheckpointError
from headrace.log.config import LogConfig
from headrace.log.directory import OFFSETS, Directory, Unopened
from headrace.log.directory_names import DirectoryKind, partition_names
from headrace.log.foreign import CLEAN_SHUTDOWN, holds_a_log, is_foreign, is_log_file
from headrace.log.log import Log
from headrace.log.meta_properties import DirectoryMismatchError
from headrace.log.segment import LOG, Caches
from headrace.runtime import Disk, DiskError, Runtime
from headrace.topics import TopicPartition
from headrace.words import some

logger = logging.getLogger("headrace.log")

ConfigOf = Callable[[str], LogConfig]
Name = tuple[str, TopicPartition, DirectoryKind]


class LogFate(Enum):
    """What is to become of a log on disk."""

    OPENED = 0
    DELETED = 1
    """Its topic was deleted, and what was begun then is finished now."""
    SET_ASIDE = 2
    """Nobody knows its topic. It is kept under another name, for the metadata may be what is wrong."""


FateOf = Callable[[TopicPartition, bytes | None], LogFate]
"""The fate of a log with that name and the id of that topic, which is None when the directory does not tell it."""


def open_all(partition: TopicPartition, topic_id: bytes | None) -> LogFate:
    """Where there is no metadata to ask."""
    return LogFate.OPENED


@dataclass(slots=True, frozen=True)
class FoundLog:
    """A partition's directory on disk."""

    partition: TopicPartition
    topic_id: bytes | None
    path: str


def scan(disk: Disk, directory: Directory, state: DirectoryKind = DirectoryKind.PRESENT) -> list[FoundLog]:
    """The partitions' directories that are there, by their names."""
    found = []
    for name, partition, named_state in partition_names(disk, directory.path):
        path = os.path.join(directory.path, name)
        if named_state is state and holds_a_log(disk, path):
            found.append(FoundLog(partition, topic_id_of(disk, partition, path), path))
    return found


def topic_id_of(disk: Disk, partition: TopicPartition, path: str) -> bytes | None:
    try:
        return partition_metadata.read(disk, path)
    except DamagedCheckpointError as error:
        logger.warning("%s: %s is damaged (%s)", partition, partition_metadata.FILE_NAME, error)
        return None


def _epoch_in(disk: Disk, marker: str) -> int:
    """The broker epoch in the mark of a clean stop; those of older versions have none."""
    try:
        epoch = json.loads(disk.read_file(marker)).get("brokerEpoch", -1)
    except (ValueError, AttributeError):
        return -1
    return epoch if isinstance(epoch, int) else -1


class Opening:
    """One start. `begin` each directory, `open_chunk` its names (on any thread), then `settle` once."""

    def __init__(
        self,
        runtime: Runtime,
        caches: Caches,
        expiration_ms: int,
        config_of: ConfigOf,
        fate_of: FateOf,
        on_failure: Callable[[Log, DiskError], None],
    ) -> None:
        self._runtime = runtime
        self._disk = runtime.disk
        self._caches = caches
        self._expiration_ms = expiration_ms
        self._config_of = config_of
        self._fate_of = fate_of
        self._on_failure = on_failure
        # A topic's is the same for all of its partitions, and takes longer to make out than a log to open.
        self._configs: dict[str, LogConfig] = {}
        # What the checkpoints of each directory say, by its path; read once, however many threads open its logs.
        self._known: dict[str, dict[str, dict[TopicPartition, int]]] = {}

    def begin(self, directory: Directory) -> list[Name]:
        marker = os.path.join(directory.path, CLEAN_SHUTDOWN)
        directory.clean = self._disk.exists(marker)
        if directory.clean:
            directory.stopped_in_epoch = _epoch_in(self._disk, marker)
            # From here on a crash is a crash, also one while opening.
            self._disk.remove(marker)
            self._disk.sync_dir(directory.path)
        names = list(partition_names(self._disk, directory.path))
        self._known[directory.path] = {
            name: directory.read_checkpoint(self._disk, name) for name in (*OFFSETS, checkpoints.CLEANER)
        }
        return names

    def open_chunk(self, directory: Directory, names: list[Name]) -> None:
        """Open some of the logs of a directory. A DiskError is the directory's end."""
        for name, partition, state in names:
            if directory.offline is not None:
                return
            path = os.path.join(directory.path, name)
            if state is DirectoryKind.PRESENT:
                self._take(directory, path, partition)
            elif state is not DirectoryKind.STRAY and not self._leaves_alone(directory, path, is_empty_ours=True):
                # A deletion is finished. A move is begun anew by whoever asked for it: its source is complete.
                directory.doomed.append((0, path))

    def _take(self, directory: Directory, path: str, partition: TopicPartition) -> None:
        topic_id = topic_id_of(self._disk, partition, path)
        fate = self._fate_of(partition, topic_id)
        # With the id of a topic in it, it is a log; so no time is spent on looking.
        if topic_id is None and self._leaves_alone(directory, path, is_empty_ours=fate is LogFate.OPENED):
            return
        if fate is LogFate.SET_ASIDE and topic_id is None and self._is_empty(path):
            # Made by a process that ended at once; it never was anything, so there is nothing to keep.
            fate = LogFate.DELETED
        if fate is LogFate.SET_ASIDE:
            shown = "unknown" if topic_id is None else partition_metadata.encode_id(topic_id)
            directory.set_aside(
                self._runtime,
                path,
                partition,
                f"belongs to no topic of this cluster's metadata (its topic id is {shown})",
            )
        elif fate is LogFate.DELETED:
            logger.info("%s: its topic was deleted; its files are removed", partition)
            directory.doomed.append((0, directory.rename(self._runtime, path, partition, DirectoryKind.DELETE)))
            self._disk.sync_dir(directory.path)
        else:
            known = self._known[directory.path]
            offsets = {name: entries[partition] for name, entries in known.items() if partition in entries}
            self._open(directory, path, partition, topic_id, offsets, clean=directory.clean)

    def _leaves_alone(self, directory: Directory, path: str, *, is_empty_ours: bool) -> bool:
        """Whether a directory only has the name of a log: no file in it is Kafka's. A crash may leave an empty one."""
        names = self._disk.listdir(path)
        if any(map(is_log_file, names)) or (is_empty_ours and not names):
            return False
        directory.foreign.append(os.path.basename(path))
        return True

    def _is_empty(self, path: str) -> bool:
        return not any(
            self._disk.size(os.path.join(path, name)) for name in self._disk.listdir(path) if name.endswith(LOG)
        )

    def _config(self, topic: str) -> LogConfig:
        config = self._configs.get(topic)
        if config is None:
            config = self._configs[topic] = self._config_of(topic)
        return config

    def _open(
        self,
        directory: Directory,
        path: str,
        partition: TopicPartition,
        topic_id: bytes | None,
        offsets: dict[str, int],
        *,
        clean: bool,
    ) -> None:
        try:
            log = Log.open(
                self._runtime,
                path,
                partition,
                self._config(partition.topic),
                topic_id=topic_id,
                id_is_read=True,
                recovery_point=offsets.get(checkpoints.RECOVERY_POINT, 0),
                cleaned_to=offsets.get(checkpoints.CLEANER, 0),
                start_offset=offsets.get(checkpoints.LOG_START, 0),
                clean=clean,
                producer_expiration_ms=self._expiration_ms,
                caches=self._caches,
                on_failure=self._on_failure,
            )
        except KafkaStorageError as error:
            logger.error("%s is left offline: %s", partition, error)
            directory.unopened[partition] = Unopened(path, str(error), offsets)
            return
        log.update_high_watermark(offsets.get(checkpoints.HIGH_WATERMARK, log.start_offset))
        if log.recovery.eventful or not clean:
            level = logging.WARNING if log.recovery.eventful else logging.DEBUG
            logger.log(level, "%s", log.recovery.summary(partition))
        directory.logs[partition] = log

    # ---- when all are open ---------------------------------------------------------------------------------------

    def settle(
        self,
        directories: list[Directory],
        go_offline: Callable[[Directory, DiskError], None],
        *,
        bring_back: bool,
    ) -> None:
        """One log per partition stays, those come back whose metadata did, and the checkpoints' other names are noted.

        `go_offline` is told of a directory whose disk fails meanwhile. With `bring_back` the directories are all there
        are: what is in none of them is nowhere, so what was set aside cannot be the older of two.
        """
        for directory in directories:
            if directory.foreign:
                logger.warning(
                    "%s: left alone, for there is no log in it: %s", directory.path, some(sorted(directory.foreign))
                )
        _each(directories, self._note_stale, go_offline)
        self._settle_twins([directory for directory in directories if directory.offline is None], go_offline)
        if bring_back and all(directory.offline is None for directory in directories):
            _each(directories, lambda directory: self._bring_back(directory, directories), go_offline)

    def _note_stale(self, directory: Directory) -> None:
        directory.find_stale(self._known[directory.path])

    def _settle_twins(self, directories: list[Directory], go_offline: Callable[[Directory, DiskError], None]) -> None:
        """A crash at the end of a move, or a directory that was away, leaves a partition in two: one is set aside."""
        places: dict[TopicPartition, list[Directory]] = {}
        for directory in directories:
            for partition in directory.logs:
                places.setdefault(partition, []).append(directory)
        for partition, (first, *others) in places.items():
            for other in others:
                ids = {d.logs[partition].topic_id for d in (first, other)} - {None}
                if len(ids) > 1:
                    raise DirectoryMismatchError(
                        f"{partition} is in {first.path} and in {other.path}, of two topics of the same name; "
                        "move the older one away and start again"
                    )
                loser = min(other, first, key=lambda directory: _standing(directory.logs[partition]))
                first = other if loser is first else first
                log = loser.logs.pop(partition)
                log.abandon()
                try:
                    loser.set_aside(self._runtime, log.directory, partition, f"is a copy of what is in {first.path}")
                except DiskError as error:
                    go_offline(loser, error)

    def _bring_back(self, directory: Directory, directories: list[Directory]) -> None:
        """Open again what was set aside while its metadata was missing, unless there is a log in its place."""
        for found in scan(self._disk, directory, DirectoryKind.STRAY):
            partition = found.partition
            is_here = any(partition in d.logs or partition in d.unopened for d in directories)
            if is_here or found.topic_id is None or self._fate_of(partition, found.topic_id) is not LogFate.OPENED:
                continue
            if is_foreign(self._disk, directory.home(partition)):
                continue
            directory.free(self._runtime, partition)
            self._disk.rename(found.path, directory.home(partition))
            self._disk.sync_dir(directory.path)
            logger.warning("%s was set aside as %s, and is in use again", partition, os.path.basename(found.path))
            self._open(directory, directory.home(partition), partition, found.topic_id, {}, clean=False)


def _standing(log: Log) -> tuple[bool, int, int, int]:
    """Which of two copies is kept: the one that is known to be of the topic, then the newer, then the longer.

    One that was away may have more at its end than was ever committed; what was written since has a later epoch. Just
    opened, a log knows those epochs only in which something was written.
    """
    return (log.topic_id is not None, log.leader_epoch, log.end_offset, log.start_offset)


def _each(
    directories: list[Directory],
    work: Callable[[Directory], None],
    go_offline: Callable[[Directory, DiskError], None],
) -> None:
    for directory in directories:
        if directory.offline is None:
            try:
                work(directory)
            except DiskError as error:
                go_offline(directory, error)
