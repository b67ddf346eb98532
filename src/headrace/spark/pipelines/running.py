"""What pipelines share while they run: a session, a source, a gate for batches, progress, a clean stop, a restart.

A pipeline is `with Run(name, OPTIONS, values, …) as run:`, in it a stream of `run.stream(topics)`
that ends in `foreachBatch(run.gate.wrap(write))`, and `run.follow([run.started(writer)])`.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Any

from headrace.config import parse_properties
from headrace.runtime.real import RealClock
from headrace.runtime.signals import Asked, StopRequests, stop_signals
from headrace.spark.pipelines import state as states
from headrace.spark.pipelines.declaring import (
    Option,
    PipelineError,
    PipelineProgress,
    PipelineStoppedError,
    Watch,
    WrongOptionError,
    run_name,
)
from headrace.spark.pipelines.state import Phase, PipelineState
from headrace.spark.planning import SourceOffsets, is_ours

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter

_TIME_ZONE = "spark.sql.session.timeZone"
_UTC = ("UTC", "Etc/UTC", "Z")
_POLL_S = 0.2
_NOTED_EVERY_S = 1.0
_LOOK_S = 0.02
_STARTS_MAX = 6
_INITIALIZING = "Initializing"
_TOO_SLOW = "Python worker failed to connect back"
ROWS_OUT = "rows_out"
"""The name of a metric (`DataFrame.observe`) of the first query that is counted as rows out."""
TOO_LATE = "too_late"
"""The name under which updates that came after their window was closed are counted."""
_SECRET = ("password", "secret", "sasl.jaas")
_CAUSE = re.compile(r"^\s*(?:[\w.]+\.)?(\w*(?:Error|Exception|Failed|Loss|Cluster|Columns|Over|Spark)): (.+)$", re.M)
_CAUSE_IN_JAVA = re.compile(r"^(?:Caused by|): (?:[\w.]+\.)?([\w$]+): (.+)$", re.M)
_CAUSE_CHARS = 600

BatchWriter = Callable[["DataFrame", int], "int | None"]


class Gate:
    """Lets one batch through at a time, and none once the pipeline is to stop: so a stop never cuts a batch in half."""

    def __init__(self) -> None:
        self.rows_out = 0
        self._open = threading.Condition()
        self._inside = 0
        self._closed = False

    def wrap(self, write: BatchWriter) -> Callable[[DataFrame, int], None]:
        """For `foreachBatch`. What `write` returns is counted as rows out."""

        def through(rows: DataFrame, batch_id: int) -> None:
            with self._open:
                if self._closed:
                    raise PipelineStoppedError(f"batch {batch_id} is not begun: the pipeline is being stopped")
                self._inside += 1
            wrote: int | None = None
            try:
                wrote = write(rows, batch_id)
            finally:
                with self._open:
                    self._inside -= 1
                    self.rows_out += wrote or 0
                    self._open.notify_all()

        return through

    def close(self, give_up: threading.Event) -> None:
        """Let nothing in any more, and wait until what is inside is done, or until nobody wants to wait."""
        with self._open:
            self._closed = True
            while self._inside and not give_up.is_set():
                self._open.wait(_POLL_S)


def line_of_spark(error: BaseException) -> str | None:
    """The line that counts of an error of Spark's own, such as one in an expression of the user's; None for others."""
    py4j = sys.modules.get("py4j.protocol")
    if py4j is not None and isinstance(error, py4j.Py4JJavaError):
        return cause_of(str(error))
    errors = sys.modules.get("pyspark.errors")
    if errors is None or not isinstance(error, errors.PySparkException):
        return None
    # It may begin with an empty line, and goes on with plans and with where in Java it was raised.
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)


class PipelineRun:
    """One run of a pipeline. As a context manager it also notes in the state how the run ended."""

    def __init__(
        self,
        pipeline: str,
        declared: Sequence[Option],
        values: Mapping[str, Any],
        *,
        session: SparkSession | None = None,
        watch: Watch | None = None,
    ) -> None:
        self.pipeline = pipeline
        self.name = run_name(pipeline, declared, values)
        self.values = values
        self.servers = str(values.get("servers") or "")
        self.kafka = kafka_config(self.servers, values.get("client_config"))
        self.checkpoint = str(values.get("checkpoint") or states.default_root() / self.name)
        if values.get("checkpoint") and states.is_local(self.checkpoint):
            # A checkpoint of its own is a run of its own: its group must not be another run's.
            self.name = f"{self.name}-{_short(str(states.directory_of(self.checkpoint)))}"
        self.gate = Gate()
        self.is_stopped = False
        self.writes_all = False
        """Whether every row that comes in goes out: then nobody has to count them again."""
        self.observed: dict[str, int] = {}
        """The queries' metrics (`DataFrame.observe`), summed over the micro-batches of this run."""
        self._session: SparkSession | None = session
        self._watch = watch
        self._clock = RealClock()
        self._began = self._clock.monotonic()
        self._noted_at = self._began
        self._is_noted = False
        self.snapshot = PipelineProgress(pipeline)
        self.state = PipelineState(
            self.name,
            pipeline,
            servers=self.servers,
            groups=[self.name],
            topics=[topic for one in declared if one.there for topic in _listed(values.get(one.name))],
            options=_without_secrets(values),
        )

    def __enter__(self) -> PipelineRun:
        states.begin(self.checkpoint, self.state, self._clock.now_ms())
        self._is_noted = True
        self.tell(note="starting Spark" if self._session is None else "")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.state.phase = Phase.STOPPED if self.is_stopped else Phase.DONE
        else:
            said = line_of_spark(error)
            self.state.phase = Phase.FAILED if isinstance(error, Exception) else Phase.STOPPED
            self.state.error = said or str(error)
        self.state.take(self.snapshot, self._clock.now_ms())
        states.write(self.checkpoint, self.state)
        if error is not None and said is not None:
            raise PipelineError(said) from error

    # --- pieces ---------------------------------------------------------------------------------------------------

    @property
    def session(self) -> SparkSession:
        """The session that was given, or one that is made now; its times are UTC."""
        if self._session is None:
            from headrace.spark.starting import session

            self._session = session(f"headrace-{self.name}", master=self.values.get("master"))
            self._session.sparkContext.setLogLevel("ERROR")
        self._session = in_utc(self._session)
        return self._session

    def stream(self, topics: Sequence[str], *, group: str | None = None, **options: Any) -> DataFrame:
        """A stream of topics from their start, with the run's limits; its progress shows as a consumer group."""
        limit = self.values.get("max_per_batch")
        reader = self.session.readStream.format("headrace").option("subscribe", ",".join(topics))
        reader = reader.option("startingOffsets", "earliest").option("kafka.isolation.level", "read_committed")
        for name, value in self.kafka.items():
            reader = reader.option(f"kafka.{name}", value)
        reader = reader.option("kafka.group.id", group or self.name)
        if limit:
            reader = reader.option("maxOffsetsPerTrigger", str(limit))
        for name, value in options.items():
            reader = reader.option(name, str(value))
        return reader.load()

    def started(self, writer: DataStreamWriter, part: str = "query") -> StreamingQuery:
        """Start a query with its own place in the checkpoint, once or for as long as it is not stopped."""
        writer = writer.queryName(f"{self.name}-{part}").option("checkpointLocation", f"{self._place()}/{part}")
        return start_patiently(writer if self.values.get("continuous") else writer.trigger(availableNow=True))

    def _place(self) -> str:
        if not states.is_local(self.checkpoint):
            return self.checkpoint.rstrip("/")
        return str(states.directory_of(self.checkpoint))

    # --- progress -------------------------------------------------------------------------------------------------

    def tell(self, **changes: Any) -> None:
        """Say how far it is, to who watches and (not too often) to the state beside the checkpoint."""
        now = self._clock.monotonic()
        values = {name: getattr(self.snapshot, name) for name in PipelineProgress.__slots__} | changes
        self.snapshot = PipelineProgress(**values | {"elapsed_s": now - self._began})
        if self._watch is not None:
            self._watch(self.snapshot)
        # A run that is not entered (an audit) keeps nothing.
        if self._is_noted and now - self._noted_at >= _NOTED_EVERY_S:
            self._noted_at = now
            self.state.take(self.snapshot, self._clock.now_ms())
            states.write(self.checkpoint, self.state)

    def follow(self, queries: Sequence[StreamingQuery]) -> None:
        """Wait until all queries have ended, telling progress. A signal (Ctrl-C) stops after the batch under way."""
        counts = [_Counter(query) for query in queries]
        with stop_on_signals() as stop:
            while not stop.asked.is_set() and any(query.isActive for query in queries):
                self._tell_of(counts)
                failed = next((query for query in queries if not query.isActive and query.exception()), None)
                if failed is not None:
                    break
                stop.asked.wait(_POLL_S)
            if stop.asked.is_set():
                self.is_stopped = True
                self.tell(note="stopping after this batch")
                self.gate.close(stop.asked_again)
            active = [query for query in queries if query.isActive]
            for query in active:
                query.stop()
        self._tell_of(counts, last=True)
        if not self.is_stopped:
            for query in queries:
                error = query.exception()
                if error is not None:
                    raise PipelineError(f"{self.pipeline} failed: {cause_of(str(error))}")

    def _tell_of(self, counts: Sequence[_Counter], *, last: bool = False) -> None:
        for one in counts:
            one.look(last=last)
        # Several queries may read the same topics: the first is the one whose rows are counted.
        first = counts[0]
        self.observed = {name: number for one in counts for name, number in one.observed.items()}
        rows_out = first.rows if self.writes_all else self.gate.rows_out + first.observed.get(ROWS_OUT, 0)
        progress = {"rows_in": first.rows, "rows_out": rows_out, "batches": first.batches, "lag": first.lag}
        self.tell(rate_per_s=first.rate, note="", **progress)


def in_utc(session: SparkSession) -> SparkSession:
    """The session, or a copy of it if its time zone is another: dates and texts of timestamps would be local ones."""
    if session.conf.get(_TIME_ZONE) in _UTC:
        return session
    from pyspark.sql import SparkSession

    made = SparkSession(session.sparkContext, session._jsparkSession.cloneSession())
    made.conf.set(_TIME_ZONE, "UTC")
    return made


def start_patiently(writer: DataStreamWriter) -> StreamingQuery:
    """Start a query; again if its source's Python process was too slow to start.

    Spark gives that process ten seconds, which cannot be set, and which a busy machine may not keep. Nothing was read
    or written by then.
    """
    pause = threading.Event()
    for _ in range(_STARTS_MAX - 1):
        query = writer.start()
        while query.isActive and str(query.status["message"]).startswith(_INITIALIZING):
            pause.wait(_LOOK_S)
        error = None if query.isActive else query.exception()
        if error is None or _TOO_SLOW not in str(error):
            return query
    return writer.start()


class _Counter:
    """Rows of one query, by Spark's reports of its micro-batches."""

    def __init__(self, query: StreamingQuery) -> None:
        self._query = query
        self._seen = -1
        self.rows = self.batches = 0
        self.rate = 0.0
        self.lag: int | None = None
        self.observed: dict[str, int] = {}

    def look(self, *, last: bool = False) -> None:
        newest = self._query.lastProgress
        if newest is None:
            return
        reports = [newest]
        if last or newest["batchId"] > self._seen + 1:
            reports = self._query.recentProgress
        for report in reports:
            if report["batchId"] > self._seen:
                self._take(json.loads(report.json))

    def _take(self, report: dict[str, Any]) -> None:
        rows = int(report.get("numInputRows") or 0)
        self._seen = report["batchId"]
        if rows:
            self.rows += rows
            self.batches += 1
            self.rate = float(report.get("processedRowsPerSecond") or 0.0)
        for metrics in (report.get("observedMetrics") or {}).values():
            for name, number in metrics.items():
                self.observed[name] = self.observed.get(name, 0) + int(number or 0)
        for operator in report.get("stateOperators") or []:
            dropped = int(operator.get("numRowsDroppedByWatermark") or 0)
            self.observed[TOO_LATE] = self.observed.get(TOO_LATE, 0) + dropped
        self.lag = _lag(report.get("sources") or [])


def _lag(sources: Sequence[Mapping[str, Any]]) -> int | None:
    """How many offsets are between the end of the batch and the end of the topics, as the source saw it."""
    total: int | None = None
    for source in sources:
        end, latest = (_offsets(source.get(name)) for name in ("endOffset", "latestOffset"))
        if end is None or latest is None:
            continue
        behind = sum(max(0, offset - end.offsets.get(one, 0)) for one, offset in latest.offsets.items())
        total = (total or 0) + behind
    return total


def _offsets(given: Any) -> SourceOffsets | None:
    if isinstance(given, str):
        try:
            given = json.loads(given)
        except json.JSONDecodeError:
            return None
    return SourceOffsets.from_json(given) if is_ours(given) else None


# --- stopping ---------------------------------------------------------------------------------------------------------


class _Stop:
    def __init__(self) -> None:
        self.asked = threading.Event()
        self.asked_again = threading.Event()
        self._requests = StopRequests(RealClock().monotonic)

    def __call__(self, number: int, frame: FrameType | None) -> None:
        asked = self._requests.classify()
        if asked is not Asked.ECHO:
            (self.asked if asked is Asked.FIRST else self.asked_again).set()


@contextlib.contextmanager
def stop_on_signals() -> Iterator[_Stop]:
    """SIGINT, SIGTERM and SIGHUP ask to stop, a second one at once. Spark's own handler would cut a batch in half."""
    stop = _Stop()
    if threading.current_thread() is not threading.main_thread():
        yield stop
        return
    before = {number: signal.signal(number, stop) for number in stop_signals()}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def cause_of(text: str) -> str:
    """The sentence that says why, in what Spark says of a query that failed (pages of Java's and Python's stacks)."""
    python = text.split("Traceback (most recent call last)")[-1]
    found = _CAUSE.findall(python)
    if not found or found[-1][0] == "Py4JJavaError":
        # An error of Java's that Python passes on says only where the call was.
        found = _CAUSE_IN_JAVA.findall(text) or found
    kind, sentence = found[-1] if found else ("", text.strip().partition("\n")[0])
    return f"{sentence[:_CAUSE_CHARS]} ({kind})" if kind else sentence[:_CAUSE_CHARS]


# --- configuration ----------------------------------------------------------------------------------------------------


def kafka_config(servers: str, properties: str | Mapping[str, str] | None) -> dict[str, str]:
    """The clients' configuration: a properties file (or what such a file says), and the servers."""
    config: dict[str, str] = {}
    if isinstance(properties, Mapping):
        config = dict(properties)
    elif properties:
        try:
            config = dict(parse_properties(Path(properties).expanduser().read_text("utf-8")))
        except OSError as error:
            raise WrongOptionError(f"--client-config {properties} cannot be read: {error.strerror}") from error
    if servers:
        config["bootstrap.servers"] = servers
    return config


def _without_secrets(values: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: states.HIDDEN if isinstance(value, Mapping) or any(part in name for part in _SECRET) else value
        for name, value in values.items()
        if value is not None
    }


def _listed(value: Any) -> list[str]:
    return [value] if isinstance(value, str) else list(value or ())


def _short(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:6]
