"""Memory that is used again is never used by two at once."""

from __future__ import annotations

import threading

from headrace.records.buffers import POOLED_FROM_BYTES, BufferPool, ScratchPool

SIZE = 4 * POOLED_FROM_BYTES


def test_a_buffer_comes_back_when_nobody_looks_at_it() -> None:
    pool = BufferPool(64 * SIZE, 8)
    view = pool.take(SIZE)
    owner = view.obj
    part = view[10:20]
    view.release()
    assert pool.take(SIZE).obj is not owner  # a part is still looked at
    part.release()
    again = pool.take(SIZE - 1)
    assert again.obj is owner
    assert len(again) == SIZE - 1


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


def test_joined_bytes_stay_while_they_are_looked_at() -> None:
    pool = ScratchPool(10 * SIZE, 4)
    first = pool.join([b"abc", b"", b"de"], 5)
    second = pool.join([b"xyz"], 3)
    assert bytes(first) == b"abcde"
    assert bytes(second) == b"xyz"
    first.release()
    third = pool.join([b"1", b"2"], 2)
    assert (bytes(third), bytes(second)) == (b"12", b"xyz")
    assert bytes(pool.join([b"z" * (20 * SIZE)], 20 * SIZE)) == b"z" * (20 * SIZE)


def test_threads_never_share_memory() -> None:
    pool, scratch = BufferPool(8 * SIZE, 4), ScratchPool(8 * SIZE, 2)
    wrong: list[int] = []

    def work(number: int) -> None:
        mark = bytes([number]) * SIZE
        for _ in range(100):
            view = pool.take(SIZE)
            view[:] = mark
            joined = scratch.join([mark[:100], mark[100:]], SIZE)
            # As bytes: two views are compared item by item.
            if view.tobytes() != mark or joined.tobytes() != mark:
                wrong.append(number)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(1, 5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
