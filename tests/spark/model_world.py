"""The world of the model of the exactly-once sink: drivers that live and die, requests that go astray, and doubles of
what the sink's own code stands on (clients, the cluster, Spark's rows and jobs)."""

from __future__ import annotations

import json
import random
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
from tests.spark.model_broker import Log, ModelBroker

from headrace.client.errors import ProducerFencedError
from headrace.errors import ErrorCode, HeadraceError, RequestTimedOutError
from headrace.net.backoff import Backoff
from headrace.net.connection import Call
from headrace.protocol.messages.fetch import FetchRequest, FetchTopic
from headrace.protocol.messages.list_offsets import ListOffsetsRequest
from headrace.protocol.schema import ZERO_UUID
from headrace.spark import writing
from headrace.spark.batches import MicroBatch
from headrace.spark.cluster import TopicFacts
from headrace.spark.history import Logged
from headrace.spark.lanes import route
from headrace.spark.once import WriteFailedError
from headrace.spark.parcels import pack
from headrace.topics import TopicPartition

CLUSTER, SOURCE, GROUP = "MODEL", TopicPartition("in", 0), "group"
ROWS, LIVES_MAX, STEPS_MAX = 40, 14, 20_000
TOPICS = {"a": 2, "b": 1}
SAFE = [("spark.stage.maxConsecutiveAttempts", "1"), ("spark.stage.maxAttempts", "1")]


class Killed(BaseException):
    """The driver's process is gone."""


class TaskDiedError(Exception):
    """A task's process is gone."""


class ConflictError(Exception):
    """Two drivers wrote the same entry of one checkpoint: Spark stops the second."""


@dataclass
class Checkpoint:
    """What Spark keeps: a query's id, the ends of its batches as logged before each, and which were done."""

    query: str
    start: int = 0
    offsets: dict[int, int] = field(default_factory=dict)
    commits: set[int] = field(default_factory=set)

    def copy(self) -> Checkpoint:
        return Checkpoint(self.query, self.start, dict(self.offsets), set(self.commits))

    def plan(self, number: int, end: int) -> None:
        if number in self.offsets:
            raise ConflictError(f"batch {number} is logged already")
        self.offsets[number] = end

    def commit(self, number: int) -> None:
        if number in self.commits:
            raise ConflictError(f"batch {number} is noted as done already")
        self.commits.add(number)

    def end_of(self, number: int) -> int:
        return self.offsets.get(number, self.start)

    def logged(self, number: int) -> Logged:
        offsets = {"in": {"0": self.offsets[number]}, "@headrace": {"cluster": CLUSTER}}
        return Logged(0, (json.dumps(offsets),))


class Life:
    """One start of a driver, in a thread of its own that runs only when it is its turn."""

    def __init__(self, world: World, checkpoint: Checkpoint, number: int, body: Callable[[Life], None]) -> None:
        self.world, self.checkpoint, self.run = world, checkpoint, f"run-{number}"
        self.turn = threading.Semaphore(0)
        self.is_done, self.is_doomed, self.in_task = False, False, False
        self.is_alone = True
        self.outcome: BaseException | None = None
        self.batches = 0
        self._body = body
        self._thread = threading.Thread(target=self._live, daemon=True)
        self._thread.start()

    def _live(self) -> None:
        self.turn.acquire()
        self.world.current = self
        try:
            if not self.is_doomed:
                self._body(self)
        except (Killed, ConflictError, HeadraceError, AssertionError) as error:
            self.outcome = error
        finally:
            self.is_done = True
            self.world.main.release()

    def resume(self) -> None:
        """From the scheduler: run until it gives way, or ends."""
        self.turn.release()
        self.world.main.acquire()

    def give_way(self) -> None:
        self.world.main.release()
        self.turn.acquire()
        self.world.current = self
        if self.is_doomed:
            raise Killed


class World:
    """Everything of one seed."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.broker = ModelBroker(lambda: not self.is_quiet and self.rng.random() < 0.2)
        for topic, partitions in TOPICS.items():
            self.broker.create(topic, partitions)
        self.now = 0.0
        self.main = threading.Semaphore(0)
        self.current: Life | None = None
        self.lives: list[Life] = []
        self.is_quiet = False
        self.is_ghost = False
        self.late: list[Any] = []
        self.ghosts: list[Callable[[], None]] = []
        self.source_end = self.rng.randrange(5, ROWS)
        self.rate = self.rng.choice([0.0, 0.02, 0.08, 0.2])
        self.kill_rate = self.rng.choice([0.0, 0.01, 0.04])
        self.has_keys = self.rng.random() < 0.5
        self.topics: list[str] = ["a"]
        self.steps = 0

    # --- requests -----------------------------------------------------------------------------------------------------

    def exchange(self, request: Any) -> Any:
        """What becomes of a request: an answer, or an error."""
        self.now += 0.001
        if self.is_quiet or self.is_ghost:
            return _answered(self.broker.handle(request, plain_watermark))
        life = self.current
        assert life is not None
        self._elsewhere(life)
        self._maybe_die(life)
        rng = self.rng
        if rng.random() >= self.rate:
            answer = _answered(self._handled(request))
        else:
            answer = self._troubled(request)
        self._maybe_die(life)
        return answer

    def _troubled(self, request: Any) -> Any:
        kind = self.rng.choice(("lost", "unanswered", "unanswered", "late", "repeated", "wrong"))
        self.now += self.rng.choice((0.1, 5.0, 29.0))
        if kind == "lost":
            return _failed("no answer: the request was lost")
        if kind == "unanswered":
            self._handled(request)
            return _failed("no answer: it was lost")
        if kind == "late":
            self.late.append(request)
            return _failed("no answer: the request is under way")
        if kind == "repeated":
            self._handled(request)
            return _answered(self._handled(request))
        return _answered(_wrong(request, self.rng))

    def _handled(self, request: Any) -> Any:
        return self.broker.handle(request, self._watermark)

    def _watermark(self, log: Log, wanted: Any) -> int:
        """A leader that was elected just now may lag behind what was readable before."""
        return self.rng.randint(0, log.end) if self.rng.random() < self.rate else log.end

    def _elsewhere(self, life: Life) -> None:
        """What else happens in the meantime."""
        self.steps += 1
        assert self.steps < STEPS_MAX, "no end"
        rng = self.rng
        if self.late and rng.random() < 0.1:
            self._handled(self.late.pop(rng.randrange(len(self.late))))
        if self.ghosts and rng.random() < 0.1:
            self.run_ghost()
        if rng.random() < 0.1:
            self.broker.settle()
        if rng.random() < self.rate / 50 and self.broker.transactions:
            self.broker.expire(rng.choice(sorted(self.broker.transactions)))
        if rng.random() < (0.15 if len(self.lives) > 1 else 0.02):
            life.give_way()

    def run_ghost(self) -> None:
        """A task that its driver has given up goes on."""
        before, self.is_ghost = self.is_ghost, True
        try:
            self.ghosts.pop(self.rng.randrange(len(self.ghosts)))()
        except HeadraceError:
            pass
        finally:
            self.is_ghost = before

    def _maybe_die(self, life: Life) -> None:
        if life.in_task and self.rng.random() < self.kill_rate:
            raise TaskDiedError("a task was killed")
        self.maybe_kill()

    def maybe_kill(self) -> None:
        if not self.is_quiet and self.rng.random() < self.kill_rate:
            raise Killed


def _answered(response: Any) -> Any:
    return SimpleNamespace(error=None, response=response)


def _failed(text: str) -> Any:
    return SimpleNamespace(error=RequestTimedOutError(text), response=None)


def plain_watermark(log: Log, wanted: Any) -> int:
    return log.end


def _wrong(request: Any, rng: random.Random) -> Any:
    name = type(request).__name__.removesuffix("Request")
    code = int(rng.choice((ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)))
    if name in ("Fetch", "OffsetForLeaderEpoch", "ListOffsets", "Produce"):
        code = int(ErrorCode.NOT_LEADER_OR_FOLLOWER)
    part = SimpleNamespace(
        partition_index=0,
        error_code=code,
        partition_error_code=code,
        error_message=None,
        records=None,
        offset=-1,
        end_offset=-1,
    )
    topic = SimpleNamespace(name="", partitions=[part], partition_responses=[part], results_by_partition=[part])
    return SimpleNamespace(
        error_code=code if name != "Fetch" else 0,
        error_message=None,
        coordinators=[],
        responses=[topic],
        topics=[topic],
        results_by_topic_v3_and_below=[topic],
    )


# --- what the sink stands on ------------------------------------------------------------------------------------------

WORLD: list[World] = []
"""The world of the seed in hand."""


class ModelClient:
    """`BlockingClient`, as far as it is used."""

    def __init__(self, *_: Any) -> None:
        self.world = world = WORLD[-1]
        leader = SimpleNamespace(id=1)
        known: Any = _Topics(world)
        view = SimpleNamespace(
            leader_of=lambda name, index: leader if TopicPartition(name, index) in world.broker.logs else None,
            topics=known,
            nodes={1: leader},
            version=1,
        )
        self._unread: list[Any] = []
        self.core = SimpleNamespace(
            clock=SimpleNamespace(monotonic=lambda: world.now),
            view=view,
            config=SimpleNamespace(request_timeout_ms=30_000, retry_backoff=Backoff(50, 50)),
            rng=random.Random(0),
            refresh_metadata=lambda: None,
            add_topic=lambda name: None,
            learn_node=lambda node: None,
            is_reachable=lambda node: True,
            connection=lambda node: None,
            metadata_error=None,
            submit=self._submit,
        )

    def submit(self, node: Any, request: Any, on_done: Any = None, version_max: int | None = None) -> Any:
        return self.world.exchange(request)

    def request(self, node: Any, request: Any, version_max: int | None = None) -> Any:
        call = self.world.exchange(request)
        if call.error is not None:
            raise call.error
        return call.response

    def wait(self, call: Any, timeout_ms: float) -> None:
        return None

    def _submit(self, node: Any, request: Any, on_done: Any = None, **_: Any) -> Any:
        """What a core does: the answer is heard of by who polls next."""
        call = Call(request, node, self.world.now, 30_000, on_done)
        told = self.world.exchange(request)
        if told.error is None and type(request) in (FetchRequest, ListOffsetsRequest):
            _complete(told.response, request.topics[0])
        self._unread.append((call, told))
        return call

    def poll(self, timeout: float) -> None:
        unread, self._unread = self._unread, []
        for call, told in unread:
            call.finish(told.response, told.error)
        if not unread and timeout > 0:
            self.world.now += timeout

    poll_for_news = poll

    def poll_until(self, is_done: Callable[[], bool], until: float) -> None:
        self.world.now = max(self.world.now, until)

    def ensure_metadata(self, until: float) -> None:
        return None

    def close(self) -> None:
        return None


def _complete(response: Any, asked: Any) -> None:
    """What a range reader looks at beside an error that a broker of the model answered at random."""
    wanted = asked.partitions[0]
    topic = (response.responses if isinstance(asked, FetchTopic) else response.topics)[0]
    topic.topic = topic.name = asked.topic if isinstance(asked, FetchTopic) else asked.name
    topic.topic_id = ZERO_UUID
    data = topic.partitions[0]
    data.partition_index = wanted.partition if isinstance(asked, FetchTopic) else wanted.partition_index
    if not hasattr(data, "current_leader"):
        data.current_leader = SimpleNamespace(leader_id=-1)
    response.session_id, response.node_endpoints = 0, []


class _Topics(dict[str, Any]):
    def __init__(self, world: World) -> None:
        super().__init__()
        self.world = world

    def __missing__(self, name: str) -> Any:
        led = SimpleNamespace(leader=1, leader_epoch=0, offline_replicas=())
        parts = {one.partition: led for one in self.world.broker.logs if one.topic == name}
        return SimpleNamespace(topic_id=ZERO_UUID, partitions=parts, partition=parts.get, error_code=0)

    def get(self, name: str, default: Any = None) -> Any:
        return self[name]


class ModelCluster:
    """`Cluster`, as far as it is used."""

    id = CLUSTER

    def __init__(self, *_: Any) -> None:
        self.world = WORLD[-1]
        self.admin = self

    def create_topics(self, wanted: list[Any]) -> Any:
        for one in wanted:
            self.world.broker.create(one.name, one.num_partitions)
        return SimpleNamespace(errors={})

    def described(self, names: Any) -> dict[str, TopicFacts]:
        return {name: TopicFacts(self.world.broker.partitions(name), f"id-{name}") for name in names}

    def topic_ids(self, names: Any) -> dict[str, str]:
        return {name: one.id for name, one in self.described(names).items()}

    def earliest(self, partitions: Any) -> dict[TopicPartition, int]:
        return dict.fromkeys(partitions, 0)

    def latest(self, partitions: Any, *, read_committed: bool) -> dict[TopicPartition, int]:
        logs = self.world.broker.logs
        return {one: logs[one].stable if read_committed else logs[one].end for one in partitions}

    def close(self) -> None:
        return None


class Rows:
    """A micro-batch: numbers, and the topic of each."""

    def __init__(self, life: Life, values: list[int], topics: list[str]) -> None:
        self.life, self.values, self.topics = life, values, topics
        context = SimpleNamespace(getConf=lambda: SimpleNamespace(getAll=lambda: SAFE), defaultParallelism=2)
        self.sparkSession = SimpleNamespace(sparkContext=context, life=life)

    @property
    def schema(self) -> Any:
        names = ["value", "topic"] + (["key"] if self.life.world.has_keys else [])
        kind = {"value": "binary", "key": "binary", "topic": "string"}
        fields = [SimpleNamespace(name=n, dataType=SimpleNamespace(simpleString=lambda n=n: kind[n])) for n in names]
        return SimpleNamespace(fields=fields)


def model_job(rows: Rows, job: Any) -> int:
    """`run_job`: the same tasks, one after the other, in any order; some die, and some go on when nobody waits."""
    world, life = rows.life.world, rows.life
    rng = world.rng
    tasks = list(_tasks(rows, job, rng))
    rng.shuffle(tasks)
    total = 0
    for at, task in enumerate(tasks):
        life.in_task = True
        try:
            total += task()
        except ProducerFencedError:
            raise
        except (TaskDiedError, HeadraceError) as error:
            world.ghosts += [one for one in tasks[at + 1 :] if rng.random() < 0.5]
            raise WriteFailedError(f"a task failed: {error}") from error
        finally:
            life.in_task = False
    return total


def _tasks(rows: Rows, job: Any, rng: random.Random) -> Iterator[Callable[[], int]]:
    values = rng.sample(rows.values, len(rows.values))
    columns: dict[str, Any] = {"value": pa.array([b"%d" % value for value in values], pa.binary())}
    if "key" in job.shape.columns:
        columns["key"] = pa.array([b"%d" % (value % 5) for value in values], pa.binary())
    if job.shape.topic is None:
        columns["topic"] = pa.array([rows.topics[value % len(rows.topics)] for value in values], pa.string())
    batch = pa.RecordBatch.from_pydict(columns)
    if job.owners is None:
        lanes = route(batch, job.lanes, job.shape.topic, job.turn)
        for lane in range(len(job.lanes)):
            mine = batch.filter(pa.array(lanes == lane))
            parts = [pack(one, [lane] * one.num_rows) for one in (mine.slice(0, 3), mine.slice(3)) if one.num_rows]
            yield lambda lane=lane, parts=parts: writing.write_task(iter(parts), job, lane)
        return
    for task in range(job.owners):
        mine = batch.take(pa.array(list(range(task, batch.num_rows, job.owners)), pa.int64()))
        parts = [mine.slice(0, 3), mine.slice(3)]
        yield lambda task=task, parts=parts: writing.write_task(iter(parts), job, task)


def model_batch(session: Any, number: int) -> MicroBatch:
    life: Life = session.life
    begin = life.checkpoint.logged(number - 1) if number - 1 in life.checkpoint.offsets else None
    return MicroBatch(life.checkpoint.query, life.run, number, None, begin, life.checkpoint.logged(number))
