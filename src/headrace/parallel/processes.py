"""Handlers that need a processor: each worker is a thread that leads a process of its own, one run at a time.

A process that hangs is killed, one that dies is replaced; the record it was at has failed, nothing else.
"""

from __future__ import annotations

import logging
import multiprocessing
import pickle
import signal
import threading
from multiprocessing.connection import Connection
from typing import Any

from headrace.parallel.errors import HandlerFailedError, ParallelError, Reject, RetryLater, WorkerDiedError
from headrace.parallel.handling import Handling
from headrace.parallel.member import Member
from headrace.parallel.retries import text_of, type_name_of
from headrace.parallel.work import Entry, Run, WorkChunk

log = logging.getLogger("headrace.parallel")

Dumped = tuple[bytes, bytes]
"""An exception pickled (nothing where that cannot be read again), and one in its place that always can be."""
_END_S = 2.0
_STARTS_MAX = 3


class Processes:
    """So many processes. They are spawned, not forked: connections and threads of this one do not come along."""

    def __init__(self, member: Member, handling: Handling, count: int) -> None:
        self._member = member
        self._handling = handling
        self._count = count
        self._leaders: list[_Leader] = []

    def start(self) -> None:
        try:
            pickle.dumps(self._handling)
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            raise ParallelError(
                f"the handler cannot be sent to other processes ({error}): define it at the top of a module, and give "
                "deserializers by name, as classes or as functions of a module"
            ) from error
        for number in range(self._count):
            leader = _Leader(self._member, self._handling, f"headrace-{self._member.group}-{number}")
            self._leaders.append(leader)
            leader.thread.start()

    def replace(self, chunk: WorkChunk) -> None:
        leader: _Leader = chunk.worker
        leader.kill(chunk)

    def stop(self, seconds: float) -> None:
        deadline = self._member.clock.monotonic() + seconds
        for leader in self._leaders:
            leader.thread.join(max(0.0, deadline - self._member.clock.monotonic()))
            if leader.thread.is_alive():
                leader.kill()
                leader.thread.join(_END_S)


class _Leader:
    """The thread that leads one process."""

    def __init__(self, member: Member, handling: Handling, name: str) -> None:
        self._member = member
        self._handling = handling
        self._process: Any = None
        self._connection: Connection | None = None
        self._chunk: WorkChunk | None = None
        self._lock = threading.Lock()
        """Around `_chunk`: a process is killed for what it hangs in, never for what it was given after that."""
        self._is_killed = False
        self.thread = threading.Thread(target=self._work, name=name, daemon=True)

    def kill(self, chunk: WorkChunk | None = None) -> None:
        """Kill the process: if it is still at that chunk, or anyway."""
        with self._lock:
            process = self._process
            if chunk is None:
                self._is_killed = True
            if process is not None and (chunk is None or chunk is self._chunk):
                process.kill()

    def _work(self) -> None:
        member = self._member
        chunk: WorkChunk | None = None
        try:
            while True:
                if self._connection is None:
                    # A process takes a second to begin: no record is to wait for that, nor to be blamed for it.
                    if chunk is not None:
                        member.hand_in(chunk)
                        chunk = None
                    if not self._start_process():
                        return
                chunk = member.exchange(chunk, self)
                if chunk is None:
                    # Either the end, or the last chunk was given up: then this leader goes on with a new process.
                    if member.is_closed:
                        return
                    continue
                with self._lock:
                    self._chunk = chunk
                self._do_chunk(chunk)
                with self._lock:
                    self._chunk = None
        except BaseException as error:  # noqa: BLE001 - a defect of ours: no worker must end unheard of
            member.broke(error)
        finally:
            self._end_process()

    def _do_chunk(self, chunk: WorkChunk) -> None:
        """All of it, as long as there is a process; what is not begun then is others' to do."""
        while self._connection is not None and (run := chunk.next_run()) is not None:
            self._do(self._connection, chunk, run)
            if chunk.abandoned:
                # It came back just when it was given up, or was killed for it: the next one has a process of its own.
                self._end_process()
                return
            chunk.finished.append(run)

    def _start_process(self) -> bool:
        """Have a process that is ready to handle records. False: it was to end meanwhile."""
        context = multiprocessing.get_context("spawn")
        for _ in range(_STARTS_MAX):
            ours, theirs = context.Pipe()
            process = context.Process(target=serve, args=(theirs, self._handling), name=self.thread.name, daemon=True)
            process.start()
            theirs.close()
            with self._lock:
                self._process, self._connection = process, ours
                if self._is_killed:
                    process.kill()
            try:
                ours.recv()
            except (EOFError, OSError):
                code = self._end_process()
                if self._is_killed or self._member.is_closed:
                    return False
                log.error("a worker process ended before it was ready (exit code %s)", code)
            else:
                return True
        # No record was begun, so none is to blame.
        raise ParallelError(
            f"worker processes end before they are ready, last with exit code {code}: what they wrote to standard "
            "error says why; most often the module of the handler cannot be imported there"
        )

    def _do(self, connection: Connection, chunk: WorkChunk, run: Run) -> None:
        """Have the process do a run; answers come record by record. What is behind a record that the process died at is
        not done here: it goes back in line."""
        try:
            connection.send([tuple(entry.record) for entry in run.entries])
            while True:
                answer = connection.recv()
                if answer is None or chunk.abandoned:
                    return
                index, failures = answer
                for number, error in failures:
                    run.failed(run.entries[number], _loaded(error))
                run.done = index
        except (EOFError, OSError):
            code = self._end_process()
            if chunk.abandoned:
                return
            failed: list[Entry] = run.entries[run.done :] if self._handling.is_batch else run.entries[run.done :][:1]
            for entry in failed:
                run.failed(entry, WorkerDiedError(f"the worker process ended (exit code {code}) at this record"))
            run.done += len(failed)

    def _end_process(self) -> int | None:
        with self._lock:
            process, connection = self._process, self._connection
            self._process = self._connection = None
        if connection is not None:
            connection.close()
        if process is None:
            return None
        process.join(_END_S)
        if process.is_alive():
            process.kill()
            process.join()
        code: int | None = process.exitcode
        process.close()
        return code


# --- in the process ---------------------------------------------------------------------------------------------------


def serve(connection: Connection, handling: Handling) -> None:
    """What a worker process does until its leader hangs up."""
    # Ctrl-C reaches the whole group of processes; the leader decides when this one ends.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    from headrace.client.consumer.records import ConsumerRecord

    handling.prepare()
    try:
        connection.send(None)
    except OSError:
        return
    while True:
        try:
            rows = connection.recv()
        except (EOFError, OSError):
            return
        entries = [_Row(ConsumerRecord(*row)) for row in rows]
        try:
            _do_run(connection, handling, entries)
            connection.send(None)
        except (BrokenPipeError, OSError):
            return


class _Row:
    """Stands for an entry, in the process."""

    __slots__ = ("record",)

    def __init__(self, record: Any) -> None:
        self.record = record


def _do_run(connection: Connection, handling: Handling, rows: list[_Row]) -> None:
    if handling.is_batch:
        failures = _in_one(handling, rows)
        connection.send((len(rows), failures))
        return
    for index, row in enumerate(rows):
        failures = _in_one(handling, [row])
        connection.send((index + 1, [(index, error) for _, error in failures]))
        if failures and handling.stops_at_failure:
            return


def _in_one(handling: Handling, rows: list[_Row]) -> list[tuple[int, Dumped]]:
    """One call of the handler; which rows failed, and why."""
    run: Any = Run(rows, None, None)  # type: ignore[arg-type]  # rows stand for entries: only their records are looked at
    chunk = WorkChunk(None, 0.0)  # type: ignore[arg-type]  # nobody takes anything out of this one
    (handling.do_batch if handling.is_batch else handling.do_records)(chunk, run)
    return [(rows.index(row), _dumped(error)) for row, error in run.failures or ()]


def _dumped(error: BaseException) -> Dumped:
    """An exception that can be read again on the other side, whatever it is."""
    try:
        data = pickle.dumps(error)
        pickle.loads(data)
    except Exception:  # noqa: BLE001 - a class may do anything when it is pickled; what it says will have to do
        data = b""
    return data, pickle.dumps(_described(error))


def _described(error: BaseException) -> BaseException:
    """The same of classes that both sides have. What the handler asked for stays what it asked for."""
    name, text = type_name_of(error), text_of(error)
    if isinstance(error, Reject):
        return Reject(f"{name}: {text}")
    if isinstance(error, RetryLater):
        return RetryLater(error.delay_s, f"{name}: {text}")
    return HandlerFailedError(name, text)


def _loaded(dumped: Dumped) -> BaseException:
    data, described = dumped
    loaded: BaseException
    if data:
        try:
            loaded = pickle.loads(data)
        except Exception as error:  # noqa: BLE001 - as above: the class may be in the worker process only
            log.debug("an exception of a worker process cannot be read here: %r", error)
        else:
            return loaded
    loaded = pickle.loads(described)
    return loaded
