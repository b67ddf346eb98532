"""What is asked about messages, by the parameters of a page: where to begin, what to look for, where to go on."""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import AsyncIterator, Mapping
from typing import Any

from starlette.requests import Request

from headrace.client.admin import OffsetSpec
from headrace.console.changes import ChangeError
from headrace.console.cluster import Cluster
from headrace.console.expressions import compile_filter
from headrace.console.live import event
from headrace.console.masking import Mask, Masking
from headrace.console.messages import PAGE_MAX, MessageReader, Page, Query
from headrace.console.topics import topic_of
from headrace.errors import HeadraceError
from headrace.topics import TopicPartition

TAIL_EVERY_S = 0.7
TAIL_PAGE = 100

Asked = Mapping[str, str]


class Browser:
    """Looks through the topics of one cluster for one request."""

    def __init__(self, cluster: Cluster, masks: tuple[Mask, ...]) -> None:
        self._cluster = cluster
        self._masks = masks

    def _reader(self, topic: str) -> MessageReader:
        return MessageReader(self._cluster.consumer_settings(), Masking(self._masks, topic), self._cluster.decode)

    async def page(self, asked: Asked) -> dict[str, Any]:
        """A page of messages, and where the next one goes on."""
        topic = asked["topic"]
        query = _query(asked)
        ranges = _left(asked["left"], topic) if "left" in asked else await self._ranges(topic, asked)
        found = await asyncio.to_thread(self._reader(topic).search, ranges, query)
        return _told(found)

    async def one(self, asked: Asked) -> dict[str, Any] | None:
        partition = TopicPartition(asked["topic"], int(asked["partition"]))
        return await asyncio.to_thread(self._reader(partition.topic).one, partition, int(asked["offset"]))

    async def download(self, asked: Asked) -> tuple[str, bytes]:
        """A value as it is, or a page of messages as lines of JSON."""
        topic = asked["topic"]
        name = re.sub(r"[^\w.-]", "_", topic)
        if "offset" in asked:
            partition = TopicPartition(topic, int(asked["partition"]))
            data = await asyncio.to_thread(self._reader(topic).raw, partition, int(asked["offset"]))
            return f"{name}-{partition.partition}-{asked['offset']}", data or b""
        page = await self.page(asked)
        lines = [json.dumps(message, ensure_ascii=False) for message in page["messages"]]
        return f"{name}.jsonl", ("\n".join(lines) + "\n").encode()

    async def _ranges(self, topic: str, asked: Asked) -> dict[TopicPartition, tuple[int, int]]:
        described = await topic_of(self._cluster, topic)
        wanted = {int(one) for one in asked.get("partitions", "").split(",") if one}
        partitions = [
            TopicPartition(topic, info.partition)
            for info in described.partitions
            if info.leader >= 0 and (not wanted or info.partition in wanted)
        ]
        starts, ends = await asyncio.gather(self._cluster.starts(partitions), self._cluster.ends(partitions))
        kind = asked.get("from", "newest")
        if kind == "offset":
            at = int(asked["offset"])
            return {one: (max(starts[one], at), ends[one]) for one in partitions}
        if kind == "time":
            specs = dict.fromkeys(partitions, OffsetSpec.for_timestamp(int(asked["time"])))
            found = await self._cluster.admin.list_offsets(specs)
            begins = {one: info.offset if info.offset >= 0 else ends[one] for one, info in found.ok.items()}
            return {one: (begins.get(one, starts[one]), ends[one]) for one in partitions}
        if kind not in ("newest", "oldest"):
            raise ChangeError(f"messages are shown from newest, oldest, offset or time, not from {kind[:40]!r}")
        return {one: (starts[one], ends[one]) for one in partitions}

    async def tail(self, request: Request) -> AsyncIterator[bytes]:
        """What comes from now on."""
        asked = request.query_params
        topic = asked["topic"]
        query = _query({**asked, "from": "oldest", "limit": str(TAIL_PAGE)})
        reader = self._reader(topic)
        partitions = list(await self._ranges(topic, {**asked, "from": "newest"}))
        positions = await self._cluster.ends(partitions)

        async def events() -> AsyncIterator[bytes]:
            yield event("begun", "{}")
            said = time.monotonic()
            while not await request.is_disconnected():
                try:
                    ends = await self._cluster.ends(partitions)
                    ranges = {
                        one: (positions[one], end) for one, end in ends.items() if end > positions.setdefault(one, end)
                    }
                    if ranges:
                        skipped = _skip(ranges)
                        found = await asyncio.to_thread(reader.search, ranges, query)
                        positions.update({one: end for one, (_, end) in ranges.items()})
                        # What does not fit is passed over: a tail shows what is new, not all of it.
                        left = sum(end - start for start, end in found.left.values())
                        yield event("messages", json.dumps({**_told(found), "skipped": skipped + left}))
                        said = time.monotonic()
                    elif time.monotonic() - said > 15:
                        said = time.monotonic()
                        yield b": still here\n\n"
                except HeadraceError as error:
                    yield event("problem", json.dumps({"error": str(error)}))
                await asyncio.sleep(TAIL_EVERY_S)

        return events()


def _skip(ranges: dict[TopicPartition, tuple[int, int]]) -> int:
    """Leave the newest of much that came, and say how much was left out."""
    skipped = 0
    for one, (start, end) in ranges.items():
        begin = max(start, end - 20 * TAIL_PAGE)
        skipped += begin - start
        ranges[one] = begin, end
    return skipped


def _query(asked: Asked) -> Query:
    text, key, expression = asked.get("text"), asked.get("key"), asked.get("filter")
    return Query(
        newest_first=asked.get("from", "newest") == "newest",
        limit=max(1, min(PAGE_MAX, int(asked.get("limit", "50")))),
        text=text.encode() if text else None,
        key=key.encode() if key else None,
        test=compile_filter(expression) if expression and expression.strip() else None,
        committed_only=asked.get("committed") == "1",
        with_markers=asked.get("markers") == "1",
    )


def _left(text: str, topic: str) -> dict[TopicPartition, tuple[int, int]]:
    """Where a page goes on: `partition:start:end` for each that has something left."""
    ranges = {}
    for part in text.split(","):
        if part:
            partition, start, end = map(int, part.split(":"))
            ranges[TopicPartition(topic, partition)] = start, end
    return ranges


def _told(page: Page) -> dict[str, Any]:
    left = [f"{one.partition}:{start}:{end}" for one, (start, end) in sorted(page.left.items())]
    return {"messages": page.messages, "left": ",".join(left), "scanned": page.scanned, "cut": page.is_cut}
