"""A log whose loop and disk threads are interleaved, and that this finds what it is meant to find."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.log import interleaved

import headrace.log
from headrace.broker.partitions import partition as partition_module
from headrace.log import Log
from headrace.log.log_files import LogFiles
from headrace.log.ownership import NotTheOwnerError
from headrace.log.producer_state import LogProducers
from headrace.log.reading import Slice
from headrace.log.segment import OFFSET_INDEX, TIME_INDEX, Segment
from headrace.log.view import View
from headrace.runtime.simulated import run_simulation


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, 40, 10))
def test_what_was_acknowledged_stays_and_nobody_reads_what_is_not_for_him(first: int) -> None:
    for seed in range(first, first + 10):
        interleaved.run_seed(seed)


@pytest.mark.slow
def test_an_interleaved_seed_takes_the_same_course_again() -> None:
    how = interleaved.how_of(3)
    first, second = (run_simulation(interleaved.story, 3, **how) for _ in range(2))
    assert first.trace_hash == second.trace_hash
    assert first.value > 100


def test_threads_are_exchanged_wherever_a_log_is_changed() -> None:
    """Code that is moved to another module must not leave the interleaving by it."""
    sources = {f"headrace/log/{path.name}": path for path in Path(headrace.log.__file__).parent.glob("*.py")}
    assert set(interleaved.TRACED) <= sources.keys()
    # What is the writer's is marked so; what publishes a view is what others then see.
    changing = {name for name, path in sources.items() if re.search(r"@by_writer|self\.view = ", path.read_text())}
    assert changing
    assert changing - set(interleaved.TRACED) == set()


# ---- old faults, put back: each is found within so many seeds


def _sync_counts_what_came_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    def sync(self: Segment) -> None:
        self.file.sync()
        if not self.active:
            self.synced = True

    monkeypatch.setattr(Segment, "sync", sync)


def _sync_fails_at_a_removed_segment(monkeypatch: pytest.MonkeyPatch) -> None:
    def sync(self: Segment) -> None:
        has_ended = not self.active
        self.file.sync()
        self.synced = has_ended

    monkeypatch.setattr(Segment, "sync", sync)


def _readers_use_the_size_of_now(monkeypatch: pytest.MonkeyPatch) -> None:
    from headrace.log import reading

    def locate(view: View, *args: Any, **options: Any) -> Slice:
        return plain(view._replace(size=view.segments[-1].size), *args, **options)

    plain = reading.locate
    monkeypatch.setattr(reading, "locate", locate)


def _aborted_are_looked_up_in_the_log_of_now(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = Log.aborted_transactions

    def aborted_transactions(self: Log, start: int, slice_: Slice, *, nowait: bool = False) -> Any:
        base_offset = slice_.view.bases[slice_.place]
        view = self.view
        return plain(self, start, slice_._replace(view=view, place=view.place_of(base_offset)), nowait=nowait)

    monkeypatch.setattr(Log, "aborted_transactions", aborted_transactions)


def _an_index_is_made_again_in_place(monkeypatch: pytest.MonkeyPatch) -> None:
    def load(self: Segment) -> Any:
        try:
            return plain(self)
        finally:
            if self.indexes_missing:
                size, self.size = self.size, 0
                for position, header in self.headers(0, size):
                    self.size = position + header.size
                self.size = size

    plain = Segment._load_indexes
    monkeypatch.setattr(Segment, "_load_indexes", load)


def _readers_write_index_files(monkeypatch: pytest.MonkeyPatch) -> None:
    def load(self: Segment) -> Any:
        offset_path, time_path = self.path(OFFSET_INDEX), self.path(TIME_INDEX)
        (offsets, times), reason = plain(self)
        if reason is not None:
            self._caches.disk.replace_file(offset_path, offsets.to_bytes())
            self._caches.disk.replace_file(time_path, times.to_bytes())
        return (offsets, times), reason

    plain = Segment._load_indexes
    monkeypatch.setattr(Segment, "_load_indexes", load)


def _late_batches_need_no_proof(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(partition_module, "UNVERIFIED", None)


def _the_watermark_changes_the_view(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if the loop published too: what the writer published meanwhile is lost."""
    plain = Log.update_high_watermark

    def update_high_watermark(self: Log, offset: int) -> bool:
        view = self.view
        moved = plain(self, offset)
        self.producers.committed_up_to(self.high_watermark)
        self.view = view._replace(ended=self.producers.ended)
        return moved

    monkeypatch.setattr(Log, "update_high_watermark", update_high_watermark)


def _the_loop_begins_epochs(monkeypatch: pytest.MonkeyPatch) -> None:
    def begin(self: Any) -> None:
        self.log.begin_epoch(self.leadership.leader_epoch)
        self._take_effect()

    monkeypatch.setattr(partition_module.Partition, "_change_role", begin)


def _markers_count_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first unstable offset is noted before the view has the batch that makes it so."""
    monkeypatch.setattr(LogProducers, "undecided", property(lambda self: 2**63 - 1))


def _names_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = LogFiles.sync

    def sync(self: LogFiles, view: View, recovery_point: int) -> None:
        self.directory_changed = False
        plain(self, view, recovery_point)

    monkeypatch.setattr(LogFiles, "sync", sync)


Fault = Callable[[pytest.MonkeyPatch], None]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "seeds"),
    [
        pytest.param(_sync_counts_what_came_meanwhile, 100, marks=pytest.mark.long),
        pytest.param(_sync_fails_at_a_removed_segment, 400, marks=pytest.mark.long),
        pytest.param(_readers_use_the_size_of_now, 150, marks=pytest.mark.long),
        (_aborted_are_looked_up_in_the_log_of_now, 100),
        (_an_index_is_made_again_in_place, 60),
        (_readers_write_index_files, 60),
        (_late_batches_need_no_proof, 20),
        (_the_watermark_changes_the_view, 150),
        (_the_loop_begins_epochs, 5),
        (_markers_count_at_once, 20),
        pytest.param(_names_are_forgotten, 300, marks=pytest.mark.long),
    ],
    ids=lambda value: getattr(value, "__name__", str(value)).strip("_"),
)
def test_old_faults_are_found(fault: Fault, seeds: int, monkeypatch: pytest.MonkeyPatch) -> None:
    fault(monkeypatch)
    for seed in range(seeds):
        try:
            interleaved.run_seed(seed)
        except (Exception, NotTheOwnerError) as found:  # noqa: BLE001 - whichever promise is the first to break
            print(f"seed {seed}: {found!r}")
            return
    pytest.fail(f"not found in {seeds} seeds")
