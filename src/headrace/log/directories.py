"""The log directories of a broker: whose they are, which partitions are where, and what happens when a disk fails."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
from collections.abc import Callable, Iterable, Sequence

from headrace.errors import KafkaStorageError, LogDirNotFoundError, UnknownTopicOrPartitionError
from headrace.log import checkpoints, identity, partition_metadata, side_by_side
from headrace.log.config import LogConfig
from headrace.log.directory import OFFSETS, Directory, LogCut, OffsetOf
from headrace.log.directory_info import DirectoryInfo, LogInfo
from headrace.log.directory_names import DirectoryKind, temporary_name
from headrace.log.foreign import CLEAN_SHUTDOWN, check_place
from headrace.log.invariants import BrokenInvariantError
from headrace.log.log import Log
from headrace.log.meta_properties import DirectoryMismatchError, MetaProperties
from headrace.log.moving import Move
from headrace.log.opening import ConfigOf, FateOf, FoundLog, Name, Opening, open_all, scan
from headrace.log.producer_state import DEFAULT_EXPIRATION_MS
from headrace.log.segment import Caches
from headrace.runtime import Disk, DiskError, Runtime
from headrace.topics import TopicPartition

logger = logging.getLogger("headrace.log")


class LogDirectories:
    """All logs of one broker. Blocking; changes (create, delete, move) come from one thread at a time."""

    def __init__(
        self,
        runtime: Runtime,
        directories: list[Directory],
        apart: list[Directory],
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
        self._apart = apart
        self.node_id = node_id
        self.cluster_id = cluster_id
        self.caches = caches
        self._producer_expiration_ms = producer_expiration_ms
        self.on_offline = on_offline
        #: Told of a log that is out of service while its directory is not.
        self.on_log_offline: Callable[[Log, str], None] | None = None
        self._moves: dict[TopicPartition, Move] = {}
        #: How many cuts were made or given up: what the checkpoints say of their logs is to be written down again.
        self.cuts_ended = 0

    # ---- opening -------------------------------------------------------------------------------------------------

    @classmethod
    def open(
        cls,
        runtime: Runtime,
        paths: Sequence[str],
        *,
        node_id: int | None = None,
        cluster_id: str | None = None,
        metadata_path: str | None = None,
        open_files_max: int = 1024,
        producer_expiration_ms: int = DEFAULT_EXPIRATION_MS,
        on_offline: Callable[[str, str], None] | None = None,
    ) -> LogDirectories:
        """Lock the directories and check that they belong to this node; an empty one is given its identity.

        Without `node_id` and `cluster_id` those on disk are used, or new ones made. A directory whose disk fails is
        offline; that all of them are is an error. `metadata_path` is where the metadata log is: a directory apart that
        holds no logs, if it is none of the others, but is this node's all the same.
        """
        if not paths:
            raise ValueError("a broker needs at least one log directory")
        directories = [Directory(path) for path in dict.fromkeys(map(os.path.abspath, paths))]
        apart = []
        if metadata_path is not None and os.path.abspath(metadata_path) not in {d.path for d in directories}:
            apart.append(Directory(os.path.abspath(metadata_path)))
        known: dict[str, MetaProperties | None] = {}
        try:
            for directory in (*directories, *apart):
                known[directory.path] = identity.take(runtime.disk, directory)
            identity.check_usable(directories, apart)
            node_id, cluster_id = identity.agree(runtime, (*directories, *apart), known, node_id, cluster_id)
            for directory in (*directories, *apart):
                identity.identify(runtime, directory, known[directory.path], node_id, cluster_id)
            identity.check_usable(directories, apart)
        except BaseException:
            identity.unlock((*directories, *apart))
            raise
        caches = Caches(runtime.disk, open_files_max=open_files_max)
        return cls(runtime, directories, apart, node_id, cluster_id, caches, producer_expiration_ms, on_offline)

    def scan(self) -> list[FoundLog]:
        """The partitions on disk, before any is opened: what a data directory of Apache Kafka brings along."""
        return [found for directory in self._online() for found in scan(self._disk, directory)]

    def open_logs(
        self, config_of: ConfigOf, fate_of: FateOf = open_all, *, bring_back: bool = False
    ) -> dict[TopicPartition, Log]:
        """Open the partitions found, as far as that is their fate; those of a directory that fails are left out.

        With `bring_back` also those that were set aside, if that is their fate and no other is in their place: only
        where no log directory is missing.
        """
        opening = self._opening(config_of, fate_of)
        for directory in self._online():
            self._open_chunk(opening, directory, self._begin_opening(opening, directory))
        return self._settle(opening, bring_back)

    async def open_logs_in_parallel(
        self, config_of: ConfigOf, fate_of: FateOf = open_all, *, bring_back: bool = False
    ) -> dict[TopicPartition, Log]:
        """The same, spread over the runtime's disk threads."""
        opening = self._opening(config_of, fate_of)
        futures = []
        try:
            for directory in self._online():
                names = await self._runtime.offload(self._begin_opening, opening, directory)
                size = max(1, -(-len(names) // side_by_side.AT_ONCE))
                for at in range(0, len(names), size):
                    futures.append(self._runtime.offload(self._open_chunk, opening, directory, names[at : at + size]))
        finally:
            # All of it, also where the start is given up: the directories are unlocked next, and no thread may go on.
            outcomes = await asyncio.gather(*futures, return_exceptions=True)
        for outcome in outcomes:
            if outcome is not None:
                raise outcome
        return await self._runtime.offload(self._settle, opening, bring_back)

    def _opening(self, config_of: ConfigOf, fate_of: FateOf) -> Opening:
        return Opening(
            self._runtime, self.caches, self._producer_expiration_ms, config_of, fate_of, on_failure=self._log_failed
        )

    def _begin_opening(self, opening: Opening, directory: Directory) -> list[Name]:
        try:
            return opening.begin(directory)
        except DiskError as error:
            self._failed_at_start(directory, error)
            return []

    def _open_chunk(self, opening: Opening, directory: Directory, names: list[Name]) -> None:
        try:
            opening.open_chunk(directory, names)
        except DiskError as error:
            self._failed_at_start(directory, error)

    def _settle(self, opening: Opening, bring_back: bool) -> dict[TopicPartition, Log]:
        opening.settle(self._directories, self._failed_at_start, bring_back=bring_back)
        for directory in self._directories:
            if directory.offline is not None:
                # Opened on one thread while another found the disk failing: not to be served.
                for log in directory.logs.values():
                    log.fail(DiskError("use", log.directory, None, detail=directory.offline))
        return {partition: log for directory in self._online() for partition, log in directory.logs.items()}

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

    @property
    def unopened(self) -> dict[TopicPartition, str]:
        """Partitions whose log is too damaged to be served, with the reason."""
        return {
            partition: unopened.reason
            for directory in self._directories
            for partition, unopened in directory.unopened.items()
        }

    def directory_ids(self) -> dict[str, str]:
        """The id of each online directory, by path."""
        return {directory.path: directory.directory_id for directory in self._online()}

    @property
    def stopped_in_epoch(self) -> int:
        """The broker epoch in which all directories were stopped cleanly; -1 when one of them was not."""
        epochs = {directory.stopped_in_epoch for directory in self._directories}
        return epochs.pop() if len(epochs) == 1 else -1

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
                LogInfo(partition, log.size_bytes, max(log.high_watermark - log.end_offset, 0), False)
                for partition, log in directory.logs.items()
            ]
            for partition, future in directory.futures.items():
                current = self.get(partition)
                lag = (current.end_offset if current is not None else 0) - future.end_offset
                replicas.append(LogInfo(partition, future.size_bytes, lag, True))
            try:
                total, free = self._disk.total_bytes(directory.path), self._disk.free_bytes(directory.path)
                described.append(DirectoryInfo(directory.path, None, total, free, replicas))
            except DiskError as error:
                self._go_offline(directory, error)
                described.append(DirectoryInfo(directory.path, str(error), -1, -1, []))
        return described

    @property
    def offline_count(self) -> int:
        """Directories whose disk failed."""
        return len(self._directories) - len(self._online())

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
        """Make a partition's log, in the directory with the fewest (or in `path`); one that is there is returned, and
        given its topic's id if it has none."""
        existing = self.get(partition)
        if existing is not None:
            if topic_id is not None and existing.topic_id not in (None, topic_id):
                raise DirectoryMismatchError(
                    f"{existing.directory} holds an older topic of the same name: delete it first"
                )
            if topic_id is not None and existing.topic_id is None:
                self.identify(existing, topic_id)
            return existing
        reason = self.unopened.get(partition)
        if reason is not None:
            raise KafkaStorageError(f"{partition} is there, but cannot be opened: {reason}")
        directory = self._named(path) if path is not None else self._emptiest()
        # Also where an older one was deleted, which for want of descriptors may not be durable.
        for place in (d for d in self._online() if d is directory or partition in d.stale):
            try:
                place.free(self._runtime, partition)
            except DiskError as error:
                self._go_offline(place, error)
                if place is directory or error.is_shortage:
                    raise
        try:
            log = self._make(directory, str(partition), partition, config, topic_id)
        except DiskError:
            with contextlib.suppress(DiskError):
                directory.delete(self._runtime, {partition: self._runtime.clock.now_ms()})  # what there is of it
            raise
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

    def identify(self, log: Log, topic_id: bytes) -> None:
        """Write down whose a log is that does not say so itself: made before there were ids, or before a crash."""
        directory = self._of(log.partition)
        try:
            log.files.id_synced = False
            log.topic_id = partition_metadata.ensure(self._disk, log.directory, topic_id)
            log.sync_id()
        except DiskError as error:
            self._go_offline(directory, error)
            raise

    def delete(self, *partitions: TopicPartition) -> None:
        """Take partitions out of use: their directories get other names now and are removed by `clean_up` later.

        A directory whose disk fails goes offline; the others' partitions are deleted all the same.
        """
        for partition in partitions:
            self.cancel_move(partition)
        for directory in self._directories:
            here = [p for p in partitions if p in directory.logs or p in directory.unopened]
            try:
                self._delete_from(directory, here)
            except DiskError as error:
                self._go_offline(directory, error)

    def _delete_from(self, directory: Directory, partitions: list[TopicPartition]) -> None:
        due_ms = {}
        for partition in partitions:
            directory.unopened.pop(partition, None)
            log = directory.logs.pop(partition, None)
            if log is not None:
                log.abandon()
            due_ms[partition] = self._runtime.clock.now_ms() if log is None else self._due_ms(log)
        if due_ms and directory.offline is None:
            directory.delete(self._runtime, due_ms)

    def _due_ms(self, log: Log) -> int:
        """When the files of a log that is deleted now are to be removed."""
        return self._runtime.clock.now_ms() + log.config.file_delete_delay_ms

    def set_aside(self, partition: TopicPartition, why: str) -> None:
        """At start, take a log out of use and keep its files under another name."""
        directory = self._of(partition)
        log = directory.logs.pop(partition)
        log.abandon()
        try:
            directory.set_aside(self._runtime, log.directory, partition, why)
        except DiskError as error:
            self._failed_at_start(directory, error)

    def start_move(self, partition: TopicPartition, path: str) -> Move:
        """Begin to copy a log into another directory (AlterReplicaLogDirs); step it until it is done."""
        target = self._named(path)
        source = self._of(partition)
        self.cancel_move(partition)
        if source is target:
            raise ValueError(f"{partition} is in {path} already")
        check_place(self._disk, target.home(partition))
        log = source.logs[partition]
        name = temporary_name(partition, self._runtime.uuid(), DirectoryKind.FUTURE)
        try:
            future = self._make(target, name, partition, log.config, log.topic_id)
        except DiskError:
            target.doomed.append((self._runtime.clock.now_ms(), os.path.join(target.path, name)))
            raise
        target.futures[partition] = future
        move = self._moves[partition] = Move(log, future)
        return move

    def finish_move(self, partition: TopicPartition) -> Log:
        """Put a copy that caught up in the original's place; no append may be under way. The log to use from now on."""
        move = self._moves[partition]
        move.check_caught_up()
        source, target = self._of(partition), self._named(os.path.dirname(move.future.directory))
        future = move.future
        home = target.home(partition)
        try:
            # The copy gets its name before the original loses its own: a crash between leaves both, not neither.
            future.sync()
            target.free(self._runtime, partition)
            self._note_start(target, future)
            self._disk.rename(future.directory, home)
            try:
                self._disk.sync_dir(target.path)
            except DiskError:
                # It may pass: then the copy is given up, and must not be found in the original's place.
                with contextlib.suppress(DiskError):
                    target.delete(self._runtime, {partition: self._due_ms(future)})
                raise
        except DiskError as error:
            self._go_offline(target, error)
            raise
        future.moved_to(home)
        del self._moves[partition], target.futures[partition]
        target.logs[partition] = future
        target.stale.discard(partition)
        source.logs.pop(partition)
        move.current.abandon()
        try:
            source.delete(self._runtime, {partition: self._due_ms(move.current)})
        except DiskError as error:
            self._go_offline(source, error)
            logger.error("%s has moved to %s, but the original is still there: %s", partition, target.path, error)
        return future

    def _note_start(self, target: Directory, future: Log) -> None:
        """Before a copy is put in place: records that were deleted must stay so in it."""
        start = OFFSETS[checkpoints.LOG_START](future)
        if start is not None:
            # Until the copy is in place the entry is nobody's.
            target.stale.add(future.partition)
            target.write_checkpoint(self._disk, checkpoints.LOG_START, {future.partition: start})

    def cancel_move(self, partition: TopicPartition) -> None:
        move = self._moves.pop(partition, None)
        if move is None:
            return
        target = next(d for d in self._directories if partition in d.futures)
        future = target.futures.pop(partition)
        future.abandon()
        # Under the name that it has: whatever is called so is removed by the next start as well.
        target.doomed.append((self._due_ms(future), future.directory))

    @property
    def moves(self) -> dict[TopicPartition, Move]:
        return dict(self._moves)

    # ---- upkeep --------------------------------------------------------------------------------------------------

    def clean_up(self, now_ms: int, at_most: int | None = None) -> int:
        """Remove directories of deleted partitions whose delay is over, so many of each log directory; how many."""
        count = 0
        for directory in self._online():
            try:
                count += directory.clean_up(self._runtime, now_ms, at_most)
            except DiskError as error:
                self._go_offline(directory, error)
        return count

    def checkpoint(self, *names: str) -> None:
        """Write down how far each log is durable, where it starts, and what of it is committed; or only some of that.

        Call it from time to time: it bounds what a crash makes us check. For want of descriptors some of it may not be
        written down: that DiskError is raised when all else is.
        """
        shortage: DiskError | None = None
        for name in names or OFFSETS:
            for directory in self._online():
                try:
                    directory.write_checkpoint(self._disk, name)
                except DiskError as error:
                    self._go_offline(directory, error)
                    if error.is_shortage:
                        shortage = error
        if shortage is not None:
            raise shortage

    def write_cleaned(self, path: str, offset_of: OffsetOf) -> None:
        """Write down up to where each log of a directory was compacted."""
        for directory in self._online():
            if directory.path == path:
                directory.write_checkpoint(self._disk, checkpoints.CLEANER, offset_of=offset_of)

    def begin_cut(self, cut: LogCut) -> bool:
        """Before a log's end is cut off: from now on nothing behind the cut counts; whether that has to be written down
        first (`write_cut`). In any case `end_cut` follows.

        What is written in its place is not durable, and after a crash it would be taken for damage to what was; or for
        deleted, or committed, as what was there before.
        """
        for directory in self._directories:  # a move may put the log into another before it is cut
            directory.cuts.append(cut)
        return any(directory.contradicts(cut) for directory in self._directories)

    def write_cut(self, cut: LogCut) -> None:
        """Write down that nothing behind a cut counts; DiskError: it is not, and the log must not be cut."""
        for directory in self._online():
            try:
                directory.write_cut(self._runtime, cut)
            except DiskError as error:
                self._go_offline(directory, error)
                if cut.partition in directory.logs or error.is_shortage:
                    raise

    def end_cut(self, cut: LogCut) -> None:
        """The log was cut, or will not be: it says itself how far it is durable."""
        for directory in self._directories:
            directory.cuts.remove(cut)
        self.cuts_ended += 1

    async def close_logs_in_parallel(self) -> None:
        """Close the logs on the runtime's disk threads, where their syncs run side by side; then call `close`."""
        logs = [log for directory in self._online() for log in directory.logs.values()]
        await side_by_side.spread(self._runtime.offload, self._close_logs, logs)

    def close(self, clean: bool = True, *, broker_epoch: int = -1) -> None:
        """Close every log, then (when `clean`) say so on disk; let go of the locks."""
        all_closed = []
        for directory in self._directories:
            closed = clean and directory.offline is None and self._close_logs(directory.logs.values())
            if closed and not directory.unopened:
                # A log that could not be opened has no part in this: it must be checked again, not be trusted.
                all_closed.append(directory)
            for log in (*directory.futures.values(), *(() if closed else directory.logs.values())):
                log.abandon()
        if clean:
            try:
                self.checkpoint()
            except DiskError as error:
                all_closed.clear()
                logger.error("the log directories will be checked at the next start: %s", error)
            for directory in all_closed:
                if directory.offline is None:
                    self._mark_clean(directory, broker_epoch)
        identity.unlock((*self._directories, *self._apart))

    def _close_logs(self, logs: Iterable[Log]) -> bool:
        """Whether all of them are on disk as they are: not so one that is out of service, which is only let go of."""
        all_closed = True
        try:
            for log in logs:
                # The directory that they are all in is synced with the checkpoints, before it is called clean.
                log.close(with_parent=False)
                all_closed = all_closed and log.failure is None
        except (DiskError, KafkaStorageError) as error:
            logger.error("closing a log failed; its directory will be checked at the next start: %s", error)
            return False
        return all_closed

    def _mark_clean(self, directory: Directory, broker_epoch: int) -> None:
        text = json.dumps({"version": 0, "brokerEpoch": broker_epoch}, separators=(",", ":"))
        try:
            self._disk.replace_file(os.path.join(directory.path, CLEAN_SHUTDOWN), text.encode())
        except DiskError as error:
            self._go_offline(directory, error)

    # ---- failing -------------------------------------------------------------------------------------------------

    def _log_failed(self, log: Log, error: DiskError) -> None:
        if not isinstance(error, BrokenInvariantError) and not error.is_shortage:
            self._path_failed(log.directory, error)
            return
        if error.is_shortage:
            logger.error("%s is offline until a restart, being half changed: %s", log.partition, error)
        if self.on_log_offline is not None and self.get(log.partition) is log:  # and not the copy of a move
            self.on_log_offline(log, str(error))

    def _path_failed(self, path: str, error: DiskError) -> None:
        for directory in self._online():
            if os.path.dirname(path) == directory.path:
                self._go_offline(directory, error)

    def _failed_at_start(self, directory: Directory, error: DiskError) -> None:
        """For want of descriptors, the logs cannot be told from none at all: better not to start."""
        if error.is_shortage:
            raise error
        self._go_offline(directory, error)

    def _go_offline(self, directory: Directory, error: DiskError) -> None:
        """A directory whose disk failed serves nothing until a restart: what is on it can no longer be trusted."""
        if directory.offline is not None or isinstance(error, BrokenInvariantError):
            return  # the latter took its one log out of service, and says nothing about the disk
        if error.is_shortage:
            logger.warning("log directory %s cannot be changed for now: %s", directory.path, error)
            return
        directory.offline = str(error)
        logger.error("log directory %s is offline: %s", directory.path, error)
        for log in (*directory.logs.values(), *directory.futures.values()):
            log.fail(error)
        if self.on_offline is not None:
            self.on_offline(directory.path, str(error))
