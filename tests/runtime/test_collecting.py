"""The collector is kept away from what stays, and comes to what does not."""

from __future__ import annotations

import asyncio
import gc
import weakref

import pytest

from headrace.runtime.collecting import CHANGED_MIN, freeze, keep_frozen


class Cyclic:
    def __init__(self) -> None:
        self.itself = self


@pytest.mark.slow
def test_what_was_frozen_and_is_of_no_use_any_more_is_collected_with_the_next_one() -> None:
    made = Cyclic()
    freeze()
    assert gc.get_freeze_count() > 0
    seen = weakref.ref(made)
    del made
    gc.collect()
    assert seen() is not None, "a frozen object is not looked at"
    freeze()
    assert seen() is None


def test_it_is_frozen_again_when_much_has_changed_and_rests(monkeypatch: pytest.MonkeyPatch) -> None:
    frozen_at: list[int] = []
    counts = [
        0,
        10,
        CHANGED_MIN + 100,
        CHANGED_MIN + 300,
        CHANGED_MIN + 300,
        CHANGED_MIN + 301,
        CHANGED_MIN + 301,
        0,
        0,
    ]
    left = iter(counts)
    looks = 0

    def count() -> int:
        nonlocal looks
        looks += 1
        return next(left)

    monkeypatch.setattr("headrace.runtime.collecting.freeze", lambda: frozen_at.append(looks))

    async def main() -> None:
        # It ends with the last count, whose generator is exhausted.
        with pytest.raises(RuntimeError):
            await keep_frozen(count, look_s=0.0)

    asyncio.run(main())
    assert frozen_at == [5, 9]
