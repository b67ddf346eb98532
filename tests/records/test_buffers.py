"""Memory that is used again is never used by two at once."""

from __future__ import annotations

import threading

from headrace.records import buffers
from headrace.records.buffers import POOLED_FROM_BYTES, UNUSED_S, BufferPool, zeros

SIZE = 4 * POOLED_FROM_BYTES


def test_a_buffer_comes_back_when_nobody_looks_at_it() -> None:
    pool = BufferPool(64 * SIZE, 8)
    view = pool.take(SIZE)
    owner = view.obj
    part = view[10:20]
    view.release()
    other = pool.take(SIZE)
    assert other.obj is not owner  # a part is still looked at
    part.release()
    again = pool.take(SIZE - 1)
    assert again.obj is owner
    assert len(again) == SIZE - 1


def test_what_was_used_last_is_used_next_and_the_rest_grows_old() -> None:
    pool = BufferPool(64 * SIZE, 8)
    first, second, third = (pool.take(SIZE) for _ in range(3))
    last = second.obj
    first.release()
    second.release()
    for _ in range(3):
        assert pool.take(SIZE).obj is last
    third.release()
    pool.trim(1000.0)
    pool.take(SIZE).release()
    pool.trim(1000.0 + UNUSED_S)
    pool.take(SIZE).release()
    pool.trim(1000.0 + 2 * UNUSED_S)
    assert SIZE <= pool.held_bytes < 2 * SIZE


def test_a_pool_keeps_no_more_than_it_may() -> None:
    pool = BufferPool(10 * SIZE, 3)
    views = [pool.take(SIZE) for _ in range(20)]
    assert pool.held_bytes <= 10 * SIZE
    assert len({id(view.obj) for view in views}) == 20
    large = pool.take(50 * SIZE)
    assert len(large) == 50 * SIZE
    assert pool.held_bytes <= 10 * SIZE


def test_a_large_buffer_is_kept_for_those_who_need_it() -> None:
    pool = BufferPool(64 * SIZE, 8)
    large = pool.take(8 * SIZE).obj
    assert pool.take(SIZE).obj is not large
    assert pool.take(7 * SIZE).obj is large


def test_small_buffers_are_not_kept() -> None:
    pool = BufferPool(10 * SIZE, 3)
    assert len(pool.take(0)) == 0
    assert len(pool.take(POOLED_FROM_BYTES - 1)) == POOLED_FROM_BYTES - 1
    assert pool.held_bytes == 0


def test_what_nobody_takes_is_given_back() -> None:
    pool = BufferPool(64 * SIZE, 8)
    used, held, unused = pool.take(SIZE).obj, pool.take(SIZE * 9), pool.take(SIZE * 40)
    unused.release()
    now = 1000.0
    for _ in range(3):
        assert pool.take(SIZE).obj is used
        pool.trim(now)
        pool.trim(now + UNUSED_S / 2)
        now += UNUSED_S
    assert SIZE * 10 < pool.held_bytes < SIZE * 20
    held.release()
    pool.trim(now)
    pool.trim(now + UNUSED_S)
    pool.trim(now + 2 * UNUSED_S)
    assert pool.held_bytes == 0


def test_a_pool_can_be_made_smaller() -> None:
    pool = BufferPool(64 * SIZE, 8)
    for views in range(1, 5):
        assert len([pool.take(SIZE) for _ in range(views)]) == views
    pool.shrink(3 * SIZE)
    assert 0 < pool.held_bytes <= 3 * SIZE


def test_threads_never_share_memory() -> None:
    pool = BufferPool(8 * SIZE, 4)
    wrong: list[int] = []

    def work(number: int) -> None:
        mark = bytes([number]) * SIZE
        for _ in range(100):
            view = pool.take(SIZE)
            view[:] = mark
            # As bytes: two views are compared item by item.
            if view.tobytes() != mark:
                wrong.append(number)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(1, 5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_zeros_are_shared_and_cannot_be_written_to() -> None:
    for size in (0, 1, 100, 5000, 100):
        view = zeros(size)
        assert view.readonly
        assert view.tobytes() == bytes(size)
    assert zeros(70).obj is zeros(5000).obj
    kept = len(buffers._zeros)
    assert len(zeros(9 * 1024 * 1024)) == 9 * 1024 * 1024
    assert len(buffers._zeros) == kept
