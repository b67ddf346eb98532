"""Tasks are ended to their end, but by whoever can wait for that."""

from __future__ import annotations

import asyncio

from tests.waiting import becomes

from headrace.runtime.letting_go import let_go


def test_they_have_ended_when_it_returns_and_who_is_closed_does_not_wait() -> None:
    ended: list[str] = []
    begun = asyncio.Event()

    async def work(name: str) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            ended.append(name)

    async def wait_for(name: str) -> None:
        task = asyncio.ensure_future(work(name))
        await asyncio.sleep(0)
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            await let_go(task)
            ended.append(f"waited for {name}")

    async def main() -> None:
        waiting = asyncio.ensure_future(wait_for("a task"))
        await begun.wait()
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        assert ended == ["a task", "waited for a task"]
        ended.clear()
        closed = wait_for("another")
        closed.send(None)
        await asyncio.sleep(0)  # its task begins
        closed.send(None)
        closed.close()  # a RuntimeError if it tried to wait
        assert ended == ["waited for another"]
        await becomes(lambda: len(ended) == 2)
        assert ended == ["waited for another", "another"]

    asyncio.run(main())
