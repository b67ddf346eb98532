"""The changes of names of a simulated device that a sync of a directory makes durable."""

from __future__ import annotations

import random

import pytest

from headrace.runtime.simulated.storage import DirectoryNode, FileNode, NameJournal, Place, Renaming


def _taken_one_by_one(changes: list[Renaming], directory: DirectoryNode) -> tuple[list[Renaming], list[Renaming]]:
    """From the last to the first: what touches the directory, or a name of one that was taken; and what is left."""
    needed: set[tuple[int, str]] = set()
    taken: list[Renaming] = []
    left: list[Renaming] = []
    for change in reversed(changes):
        touches = any(place is not None and place[0] is directory for place in (change.source, change.target))
        if touches or needed & change.places():
            needed |= change.places()
            taken.append(change)
        else:
            left.append(change)
    return taken[::-1], left[::-1]


@pytest.mark.parametrize("seed", range(200))
def test_a_sync_takes_the_same_changes_as_looking_at_each(seed: int) -> None:
    rng = random.Random(seed)
    directories = [DirectoryNode() for _ in range(4)]

    def place() -> Place | None:
        return None if rng.random() < 0.3 else (rng.choice(directories), rng.choice("abc"))

    journal, known = NameJournal(), list[Renaming]()
    for _ in range(30):
        for _ in range(rng.randrange(6)):
            change = Renaming(FileNode(), place(), place())
            journal.append(change)
            known.append(change)
        directory = rng.choice(directories)
        taken, known = _taken_one_by_one(known, directory)
        assert journal.take(directory) == taken
        assert list(journal) == known
        assert len(journal) == len(known)
