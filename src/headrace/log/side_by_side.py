"""What is done to many logs at once, on several threads: most of it is syncs, which a disk does side by side."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

from headrace.errors import HeadraceError, KafkaStorageError
from headrace.log.log import Log
from headrace.runtime import DiskError, WorkerPool
from headrace.topics import TopicPartition

AT_ONCE: Final = 8


async def spread(
    submit: Callable[..., asyncio.Future[Any]], work: Callable[[Sequence[Log]], object], logs: Sequence[Log]
) -> None:
    """Let threads do some of the logs each."""
    size = max(1, -(-len(logs) // AT_ONCE))
    await asyncio.gather(*(submit(work, logs[at : at + size]) for at in range(0, len(logs), size)))


async def sync_ids(logs: Iterable[Log], pool: WorkerPool) -> dict[TopicPartition, HeadraceError]:
    """Make durable whose logs they are; for which of them that failed, and why.

    On threads that nobody else waits for, such as whoever reads: thousands of logs take seconds.
    """
    failed: dict[TopicPartition, HeadraceError] = {}

    def sync(some: Sequence[Log]) -> None:
        for log in some:
            try:
                log.sync_id()
            except (DiskError, KafkaStorageError) as error:
                failed[log.partition] = error

    await spread(pool.submit, sync, [log for log in logs if not log.files.id_synced])
    return failed
