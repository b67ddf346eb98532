"""A model of the exactly-once sink: its own code, from `ExactlyOnceSink.write` down to the bytes of batches and
markers, without Spark and against a cluster in memory, under a seed.

    python -m tests.spark.model [SEEDS] [--from SEED] [--bug NAME]

Every answer may be lost, late, repeated or wrong. Drivers and tasks are killed at any request; drivers are started
again from their checkpoint, beside a predecessor that is not dead, or from an older copy of the checkpoint; lists of
topics grow; queries have several sinks, or by mistake two under one name; some begin with what an earlier version
wrote. Then an independent look at the logs must find every row once, and the group's offsets at the end of the source.
`--bug` puts an old mistake back, which has to be found.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import logging
import re
import sys
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any
from unittest import mock

from tests.spark.model_world import (
    GROUP,
    LIVES_MAX,
    ROWS,
    SOURCE,
    TOPICS,
    WORLD,
    Checkpoint,
    Life,
    ModelClient,
    ModelCluster,
    Rows,
    World,
    model_batch,
    model_job,
    plain_watermark,
)

from headrace.client.consumer._ranges import RangeCore
from headrace.spark import foreach_batch, history, steps, transaction, writing
from headrace.spark.columns import Shape
from headrace.spark.foreach_batch import ExactlyOnceSink, SameSinkTwiceError
from headrace.spark.history import SinkIdentity
from headrace.spark.markers import Marker
from headrace.spark.once import MarkerFinding, WriteFailedError, WrongHistoryError, run_batch
from headrace.spark.steps import BatchSteps, Link, Work
from headrace.topics import TopicPartition

# --- programs ---------------------------------------------------------------------------------------------------------


def sink_of(world: World, name: str) -> ExactlyOnceSink:
    topic: Any = "a" if world.topics == ["a"] else list(world.topics)
    return ExactlyOnceSink(
        topic,
        # Batches of a few rows, so that a task sends more than one.
        {"bootstrap.servers": "model:1", "batch.size": "100"},
        group_id=f"{GROUP}-{name}",
        progress_topic="progress",
        transaction_timeout_s=60,
        attempts=3,
        include_timestamp=False,
        query_id=None,
        sink=name,
    )


class EarlierSteps(BatchSteps):
    """As the version before wrote: a marker that has a number only."""

    def look(self) -> MarkerFinding:
        found = self._transaction.last_marker()
        return MarkerFinding.NOTHING if found is None or found.batch < self._work.marker.batch else MarkerFinding.BEFORE


def write_as_earlier(world: World, life: Life, rows: Rows, number: int) -> None:
    name = SinkIdentity(life.checkpoint.query).earlier_id(rows.topics)
    link = Link({"bootstrap.servers": "model:1", "batch.size": "100"}, name, "progress", 60_000)
    topic = "a" if rows.topics == ["a"] else None
    shape = Shape(("value", "key") if world.has_keys else ("value",), topic)
    work: Any = Work(rows, shape, rows.topics, Marker(number))  # type: ignore[arg-type]  # rows of the model
    run_batch(EarlierSteps(link, work), number, attempts_max=3, timeout_ms=60_000, monotonic=time.monotonic)


def drive(names: list[str], *, as_earlier: bool = False) -> Callable[[Life], None]:
    """A driver with sinks of these names, which share the rows; until the source is at its end, or it dies."""

    def body(life: Life) -> None:
        world, checkpoint = life.world, life.checkpoint
        topics = list(world.topics)
        sinks = [sink_of(world, name) for name in names]
        while True:
            last = max(checkpoint.offsets, default=-1)
            if last in checkpoint.commits or last < 0:
                begin = checkpoint.end_of(last)
                if begin >= ROWS:
                    return
                if world.is_quiet:
                    world.source_end = ROWS
                elif begin >= world.source_end or world.rng.random() < 0.2:
                    world.source_end = min(ROWS, world.source_end + world.rng.randrange(1, 8))
                last += 1
                checkpoint.plan(last, min(world.source_end, begin + world.rng.randrange(1, 12)))
            world.maybe_kill()
            values = list(range(checkpoint.end_of(last - 1), checkpoint.offsets[last]))
            for at, sink in enumerate(sinks):
                mine = Rows(life, [value for value in values if value % len(sinks) == at], topics)
                if as_earlier:
                    write_as_earlier(world, life, mine, last)
                else:
                    sink.write(mine, last)  # type: ignore[arg-type]  # rows of the model
            world.maybe_kill()
            checkpoint.commit(last)
            life.batches += 1

    return body


@dataclass
class Tally:
    """What happened in a seed."""

    lives: int = 0
    refused: int = 0
    twice: int = 0
    zombies: int = 0
    restored: int = 0
    wrong: str = ""


class Play:
    """The operator: starts drivers, and starts them again."""

    def __init__(self, seed: int) -> None:
        self.world = World(seed)
        rng = self.world.rng
        self.tally = Tally()
        self.current = Checkpoint(str(uuid.UUID(int=rng.getrandbits(128))))
        self.backups: list[Checkpoint] = []
        self.lines = [self.current]
        """Every checkpoint that a driver was started with: the newest is among them."""
        self.unfinished: BaseException | None = None
        self.earlier: list[Life] = []
        """Drivers of the earlier version."""
        self.names = rng.choice([["main"], ["main"], ["main", "odds"], ["main", "main"]])
        self.as_earlier = self.had_earlier = rng.random() < 0.2 and self.names == ["main"]

    def run(self) -> Tally:
        WORLD.append(self.world)
        try:
            while self.tally.lives < LIVES_MAX and not self._one_life():
                pass
            self._finish()
            self.tally.wrong = self._audit()
        finally:
            for life in self.world.lives:
                self._bury(life)
            WORLD.pop()
        return self.tally

    def _one_life(self) -> bool:
        """Start a driver, and see what becomes of it; whether the source was read to its end."""
        world, rng = self.world, self.world.rng
        checkpoint = self.current
        # Earlier versions could not tell: what is done to them is not held against this one.
        is_known = not self.had_earlier or self._is_marked()
        if self.backups and is_known and rng.random() < 0.25:
            checkpoint = rng.choice(self.backups).copy()
            self.lines.append(checkpoint)
            self.tally.restored += 1
        if rng.random() < 0.3:
            self.backups.append(self.current.copy())
        if world.topics == ["a"] and not self.as_earlier and rng.random() < 0.25:
            world.topics = ["a", "b"]
        if self.had_earlier and not self.as_earlier:
            self._end_earlier()
        life = Life(world, checkpoint, self.tally.lives, drive(self.names, as_earlier=self.as_earlier))
        self.earlier += [life] if self.as_earlier else []
        self.as_earlier = self.as_earlier and rng.random() < 0.5
        self.tally.lives += 1
        life.is_alone = not world.lives
        world.lives.append(life)
        while not life.is_done:
            running = [one for one in world.lives if not one.is_done]
            # A predecessor that is not dead wakes up now and then.
            chosen = life if rng.random() < 0.7 else rng.choice(running)
            chosen.resume()
            if not life.is_done and rng.random() < (0.3 if len(running) == 1 else 0.02):
                # Taken for dead, which it is not.
                self.tally.zombies += 1
                break
        world.lives = [one for one in world.lives if not one.is_done]
        return self._judged(life)

    def _is_marked(self) -> bool:
        """Whether a marker of this version is committed: one of an earlier version only knows a number."""
        log = self.world.broker.logs.get(TopicPartition("progress", 0))
        return log is not None and any(Marker.from_bytes(value).query for value in log.committed_values())

    def _end_earlier(self) -> None:
        """Who changes to this version has stopped the earlier one: its transactions have another name."""
        for life in self.earlier:
            self._bury(life)
        self.world.lives = [one for one in self.world.lives if not one.is_done]
        self.earlier.clear()

    def _judged(self, life: Life) -> bool:
        outcome = life.outcome
        if isinstance(outcome, AssertionError):
            raise outcome
        if isinstance(outcome, WrongHistoryError):
            self.tally.refused += 1
            if len(self.names) == 1 and self.world.rng.random() < 0.5:
                self._begin_anew(life, str(outcome))
            else:
                # The newest checkpoint is the one that is not refused.
                self.current = self.world.rng.choice(self.lines)
            return False
        if isinstance(outcome, SameSinkTwiceError):
            # As the error says: the first stays as it is, and the second gets a name.
            self.tally.twice += 1
            self.names = ["main", "odds"]
        if life.batches or life.outcome is None:
            self.current = life.checkpoint
        return life.is_done and outcome is None

    def _begin_anew(self, refused: Life, text: str) -> None:
        """A new checkpoint, which begins where the error says that the output ends."""
        for life in self.world.lives:
            self._bury(life)
        self.world.lives = []
        found = re.search(r"startingOffsets=(\{.*?\}\})", text)
        if not refused.is_alone:
            # Another may have written since: as the error says, it is asked once more.
            self.current = refused.checkpoint
        elif found is not None:
            start = json.loads(found[1])["in"]["0"]
            self.current = Checkpoint(str(uuid.UUID(int=self.world.rng.getrandbits(128))), start)
            self.backups.clear()
            self.lines = [self.current]

    def _bury(self, life: Life) -> None:
        if not life.is_done:
            life.is_doomed = True
            life.resume()

    def _finish(self) -> None:
        """All that is late arrives; then a driver that nothing happens to."""
        world = self.world
        for life in world.lives:
            self._bury(life)
        world.lives = []
        world.is_quiet = True
        for request in world.late:
            world.broker.handle(request, plain_watermark)
        while world.ghosts:
            world.run_ghost()
        for line in [self.current, *reversed(self.lines), *reversed(self.lines)]:
            life = Life(world, line, self.tally.lives, drive(self.names))
            world.lives = [life]
            self.tally.lives += 1
            while not life.is_done:
                life.resume()
            self.unfinished = life.outcome
            if life.outcome is None:
                break
            if isinstance(life.outcome, SameSinkTwiceError):
                self.names = ["main", "odds"]
        for name in world.broker.transactions:
            # What nobody ends any more, such as that of a list of topics which an earlier version went by.
            world.broker.expire(name)
        world.broker.settle()

    def _audit(self) -> str:
        found = Counter(
            int(value)
            for one, log in self.world.broker.logs.items()
            if one.topic in TOPICS
            for value in log.committed_values()
        )
        expected = Counter(range(ROWS))
        if self.unfinished is not None:
            return f"the last driver did not get through: {self.unfinished}"
        lost, doubled = sorted((expected - found).elements()), sorted((found - expected).elements())
        if lost or doubled:
            return f"lost {lost}, doubled {doubled}"
        if self.had_earlier:
            # That version's model commits no offsets, and may have been the last to write.
            return ""
        groups = self.world.broker.groups
        behind = {name: groups.get(f"{GROUP}-{name}", {}).get(SOURCE, 0) for name in set(self.names)}
        return "" if set(behind.values()) == {ROWS} else f"the groups are at {behind}, not at {ROWS}"


# --- old mistakes -----------------------------------------------------------------------------------------------------


def _by_number(found: Marker | None, ours: Marker) -> MarkerFinding:
    return MarkerFinding.NOTHING if found is None or found.batch < ours.batch else MarkerFinding.BEFORE


def _lost_at_once(self: Any, state: Any, asked: Any) -> None:
    state.seek(self.ends[state.partition])


@contextlib.contextmanager
def _no_check(identity: Any, batch: Any) -> Iterator[None]:
    yield


def _topics_in_id() -> Any:
    return property(lambda self: f"{self.query}/{self.sink}/{WORLD[-1].topics}")


def _unfenced(plain: Any) -> Any:
    def fence(self: Any) -> Any:
        if not hasattr(self.__class__, "_kept"):
            self.__class__._kept = {}
        key = (id(WORLD[-1]), self.transactional_id)
        if key not in self._kept or WORLD[-1].is_quiet:
            self._kept[key] = plain(self)
        return self._kept[key]

    return fence


BUGS: dict[str, Callable[[], list[Any]]] = {
    "a marker that knows only a number": lambda: [mock.patch.object(steps, "judge", _by_number)],
    "an identity by the topics": lambda: [mock.patch.object(SinkIdentity, "transactional_id", _topics_in_id())],
    "a second call that is skipped": lambda: [mock.patch.object(foreach_batch, "once_a_batch", _no_check)],
    "a watermark that lags taken for the end": lambda: [
        mock.patch.object(RangeCore, "_at_end", _lost_at_once),
    ],
    "nothing fenced": lambda: [
        mock.patch.object(transaction.SinkTransaction, "fence", _unfenced(transaction.SinkTransaction.fence))
    ],
    "an earlier version forgotten": lambda: [
        mock.patch.object(foreach_batch, "name_of", lambda identity, *_, **__: identity.transactional_id)
    ],
}


@contextlib.contextmanager
def in_place(bug: str | None = None) -> Iterator[None]:
    """The sink over the model, with an old mistake if one is named."""
    assert history.judge is steps.judge
    with contextlib.ExitStack() as stack:
        for owner, name, double in (
            (steps, "make_client", ModelClient),
            (steps, "Cluster", ModelCluster),
            (steps, "run_job", model_job),
            (steps, "job_ids", lambda session: frozenset()),
            (steps, "first_cause", lambda session, before: None),
            (steps, "_job_errors", lambda: (WriteFailedError,)),
            (writing, "shared_client", lambda kafka, topics: ModelClient()),
            (writing, "forget", lambda client: None),
            (foreach_batch, "running_batch", model_batch),
        ):
            stack.enter_context(mock.patch.object(owner, name, double))
        for patch in BUGS[bug]() if bug else ():
            stack.enter_context(patch)
        yield


def play(seed: int) -> Tally:
    """One seed; `Tally.wrong` says what is wrong in the end."""
    return Play(seed).run()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("seeds", type=int, nargs="?", default=1000)
    parser.add_argument("--from", dest="first", type=int, default=0)
    parser.add_argument("--bug", choices=sorted(BUGS))
    given = parser.parse_args()
    sums: Counter[str] = Counter()
    wrong = 0
    logging.getLogger("headrace.spark").setLevel(logging.CRITICAL)
    started = time.monotonic()
    with in_place(given.bug):
        for seed in range(given.first, given.first + given.seeds):
            tally = play(seed)
            for name in ("lives", "refused", "twice", "zombies", "restored"):
                sums[name] += getattr(tally, name)
            if tally.wrong:
                wrong += 1
                print(f"seed {seed}: {tally.wrong}", flush=True)
    said = ", ".join(f"{number:,} {name}" for name, number in sums.items())
    print(f"{given.seeds:,} seeds in {time.monotonic() - started:.0f} s: {wrong} wrong; {said}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
