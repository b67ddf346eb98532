"""The store of a cluster of one: a metadata log on this broker's own disk. Nobody else is there to be elected."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

from headrace.cluster.image import Image
from headrace.cluster.records import MetadataRecord
from headrace.cluster.store import Reading, Seat, StoreMember
from headrace.cluster.store.metadata_log import MetadataLog
from headrace.log.partition_metadata import encode_id
from headrace.runtime import Runtime


class LocalStore:
    """Implements `Store` on a `MetadataLog`."""

    def __init__(self, runtime: Runtime, log: MetadataLog) -> None:
        self._runtime = runtime
        self._log = log
        self._since = runtime.clock.monotonic()
        self._members: dict[int, StoreMember] = {}
        self._seat: Seat | None = None
        self._changed = asyncio.Event()
        self._is_closed = False

    async def open(self, cluster_id: str | None) -> str:
        """The log is among this broker's own data, so it is of the same cluster."""
        return cluster_id or encode_id(self._runtime.uuid())

    async def new_number(self, above: int) -> int:
        """There is no other broker to tell apart from."""
        return above + 1

    async def close(self) -> None:
        if not self._is_closed:
            self._is_closed = True
            await self._runtime.offload(self._log.close)

    async def register(self, member: StoreMember) -> None:
        self._members = {member.node_id: member}
        self._tell()

    async def members(self, known: Mapping[int, StoreMember] | None = None) -> dict[int, StoreMember]:
        while known is not None and self._members == known:
            await self._changed.wait()
        return dict(self._members)

    async def lost(self) -> None:
        await asyncio.get_running_loop().create_future()

    @property
    def connected_since(self) -> float | None:
        return self._since

    @property
    def reached_s(self) -> float:
        return self._runtime.clock.monotonic() - self._since

    @property
    def sure_until(self) -> float:
        return float("inf")

    @property
    def was_away(self) -> bool:
        return False

    async def elect(self, member: StoreMember) -> int | None:
        epoch = await self._runtime.offload(self._log.elect, member.node_id)
        self._seat = Seat(epoch, member)
        self._tell()
        return epoch

    async def seat(self, *other_than: Seat | None) -> Seat | None:
        while other_than and self._seat == other_than[0]:
            await self._changed.wait()
        return self._seat

    async def leave_seat(self) -> None:
        """Nobody else could have it."""

    async def append_if_epoch(self, epoch: int, records: Sequence[MetadataRecord]) -> int:
        try:
            return await self._runtime.offload(self._log.append_if_epoch, epoch, records)
        finally:
            self._tell()

    async def read_from(self, offset: int, *, latest: bool = False) -> Reading:
        return await self._runtime.offload(self._log.read, offset)

    async def grown_beyond(self, offset: int) -> None:
        while self._log.end_offset <= offset:
            await self._changed.wait()

    @property
    def snapshot_due(self) -> bool:
        return self._log.snapshot_due

    async def take_snapshot(self, image: Image, epoch: int) -> None:
        await self._runtime.offload(self._log.take_snapshot, image)

    def _tell(self) -> None:
        """Whoever waits looks again."""
        self._changed.set()
        self._changed = asyncio.Event()
