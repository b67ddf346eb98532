"""One Kafka as the console sees it: connections, what was asked lately, and who samples offsets.

Whatever many viewers look at is asked of the cluster once: answers are shared for a few seconds, and one task samples
where partitions end and groups are. Nothing is asked for which nobody looks at, but that sample, every ten seconds.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import Any, Generic, TypeVar

from headrace.client.admin import (
    AsyncAdmin,
    ClusterDescription,
    Config,
    ConfigResource,
    GroupListing,
    LogDirDescription,
    OffsetAndMetadata,
    OffsetSpec,
    ResourceType,
    TopicDescription,
)
from headrace.client.admin.drivers import ADMIN_CONFIGS
from headrace.client.consumer.config import CONSUMER_CONFIGS
from headrace.client.other_names import in_kafkas_words
from headrace.config import ConfigError
from headrace.console.decoding import decoder_of
from headrace.console.lags import Lags
from headrace.console.masking import Masking
from headrace.console.messages import MessageReader
from headrace.console.pages import MetricsPage, read_page
from headrace.console.settings import ClusterSettings
from headrace.errors import HeadraceError
from headrace.topics import TopicPartition

log = logging.getLogger("headrace.console")

T = TypeVar("T")

TIMEOUT_MS = 10_000
METADATA_S = 3.0
DIRECTORIES_S = 15.0
GROUPS_S = 2.0
PAGES_S = 2.0
#: How often is sampled while somebody looks, and while nobody does; and for how long a look counts.
SAMPLE_S, IDLE_SAMPLE_S, LOOKED_S = 2.0, 10.0, 20.0
#: Beyond these nobody's offsets are sampled but those that are looked at: a sample is to stay cheap for the brokers.
SAMPLED_PARTITIONS_MAX = 5_000
SAMPLED_GROUPS_MAX = 1_000
#: Of how many topics min.insync.replicas is asked for, and for how long it is good.
LEAST_IN_SYNC_MAX, LEAST_IN_SYNC_S = 200, 60.0
#: Of how many records the time is read with each sample.
LOOKED_UP_MAX = 4


class Recent(Generic[T]):
    """An answer that is good for some seconds, asked for once however many want it."""

    def __init__(self, ask: Callable[[], Awaitable[T]], for_s: float) -> None:
        self._ask = ask
        self._for_s = for_s
        self._asked_at = float("-inf")
        self._value: T | None = None
        self._asking: asyncio.Task[T] | None = None

    async def get(self) -> T:
        if self._value is not None and time.monotonic() - self._asked_at < self._for_s:
            return self._value
        if self._asking is None:
            self._asking = asyncio.ensure_future(self._look())
            self._asking.add_done_callback(self._done)
        # Who leaves does not end it for the others.
        return await asyncio.shield(self._asking)

    async def _look(self) -> T:
        self._value = await self._ask()
        self._asked_at = time.monotonic()
        return self._value

    def _done(self, task: asyncio.Task[T]) -> None:
        self._asking = None
        if not task.cancelled():
            task.exception()  # whoever waits has it

    def forget(self) -> None:
        self._asked_at = float("-inf")


class Cluster:
    """What is asked of one cluster."""

    def __init__(self, settings: ClusterSettings) -> None:
        self.settings = settings
        self.name = settings.name
        self.lags = Lags()
        self.decode = decoder_of(settings.registry)
        self.committed: dict[str, dict[TopicPartition, OffsetAndMetadata]] = {}
        self.is_sampled = True
        """Whether all is sampled: a very large cluster is only where it is looked at."""
        self.error: str | None = None
        """Why the last sample failed."""
        self._admin: AsyncAdmin | None = None
        self._sampling: asyncio.Task[None] | None = None
        self._looked_at = float("-inf")
        self._sampled = asyncio.Event()
        self._looked_groups: dict[str, float] = {}
        self._least: dict[str, tuple[float, int]] = {}
        self.topics: Recent[dict[str, TopicDescription]] = Recent(self._topics, METADATA_S)
        self.description: Recent[ClusterDescription] = Recent(self._describe, METADATA_S)
        self.directories: Recent[dict[int, dict[str, LogDirDescription]]] = Recent(self._directories, DIRECTORIES_S)
        self.groups: Recent[list[GroupListing]] = Recent(self._groups, GROUPS_S)
        self.pages: Recent[list[MetricsPage]] = Recent(self._pages, PAGES_S)

    @property
    def admin(self) -> AsyncAdmin:
        if self._admin is None:
            words = in_kafkas_words({"client.id": "headrace-console", **self.settings.client}, ADMIN_CONFIGS)
            known = {name: value for name, value in words.items() if name in ADMIN_CONFIGS}
            self._admin = AsyncAdmin({**known, "default.api.timeout.ms": TIMEOUT_MS})
        return self._admin

    def consumer_settings(self) -> dict[str, Any]:
        """What reads messages, in Kafka's words."""
        words = in_kafkas_words({"client.id": "headrace-console", **self.settings.client}, CONSUMER_CONFIGS)
        return {
            name: value for name, value in words.items() if name in CONSUMER_CONFIGS and not name.startswith("group.")
        }

    def begin(self) -> None:
        self._sampling = asyncio.get_running_loop().create_task(self._sample_for_ever())

    async def close(self) -> None:
        if self._sampling is not None:
            self._sampling.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._sampling
        if self._admin is not None:
            await self._admin.close()

    # --- what is asked

    async def _describe(self) -> ClusterDescription:
        return await self.admin.describe_cluster(include_fenced_brokers=True)

    async def _topics(self) -> dict[str, TopicDescription]:
        names = await self.admin.list_topics(list_internal=True)
        found = await self.admin.describe_topics(names)
        return dict(found.ok)

    async def least_in_sync(self, topics: Mapping[str, TopicDescription]) -> dict[str, int]:
        """min.insync.replicas of the topics that it matters for now: those with a replica out of sync."""
        names = [
            name
            for name, topic in topics.items()
            if any(0 < len(info.isr) < len(info.replicas) for info in topic.partitions)
        ][:LEAST_IN_SYNC_MAX]
        now_s = time.monotonic()
        self._least = {name: found for name, found in self._least.items() if now_s - found[0] < LEAST_IN_SYNC_S}
        wanted = [ConfigResource(ResourceType.TOPIC, name) for name in names if name not in self._least]
        if wanted:
            found: Mapping[ConfigResource, Config] = {}
            with contextlib.suppress(HeadraceError):  # not allowed: it is not known, and asked again in a minute
                found = (await self.admin.describe_configs(wanted, keys=["min.insync.replicas"])).ok
            for resource in wanted:
                entry = found[resource].get("min.insync.replicas") if resource in found else None
                least = 0 if entry is None or entry.value is None else int(entry.value)
                self._least[resource.name] = now_s, least
        return {name: least for name, (_, least) in self._least.items()}

    async def _directories(self) -> dict[int, dict[str, LogDirDescription]]:
        found = await self.admin.describe_log_dirs()
        return dict(found.ok)

    async def _pages(self) -> list[MetricsPage]:
        return list(await asyncio.gather(*(asyncio.to_thread(read_page, url) for url in self.settings.metrics)))

    async def _groups(self) -> list[GroupListing]:
        return list(await self.admin.list_groups())

    def forget(self) -> None:
        """Something was changed: what is shown next is asked for anew."""
        for recent in (self.topics, self.description, self.directories, self.groups):
            recent.forget()

    # --- sampling

    def look(self, group: str | None = None) -> None:
        """Somebody looks, perhaps at a group."""
        is_new = time.monotonic() - self._looked_at > LOOKED_S
        self._looked_at = time.monotonic()
        if group is not None:
            is_new = is_new or group not in self._looked_groups
            self._looked_groups[group] = self._looked_at
        if is_new and self._sampling is not None:
            self._sampled.set()

    async def _sample_for_ever(self) -> None:
        while True:
            began = time.monotonic()
            try:
                await self.sample()
                self.error = None
            except (HeadraceError, TimeoutError, OSError) as error:
                self.error = str(error)
            except Exception as error:
                # A defect of ours: the pages are served on, with what is known.
                log.exception("offsets of %s could not be sampled, by a defect: please report it", self.name)
                self.error = repr(error)
            is_looked_at = time.monotonic() - self._looked_at < LOOKED_S
            took = time.monotonic() - began
            # A cluster that takes long to answer is asked the less often.
            every = max(SAMPLE_S if is_looked_at else IDLE_SAMPLE_S, took * 10)
            self._sampled.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(max(0.1, every - took)):
                    await self._sampled.wait()

    async def sample(self) -> None:
        """Look where groups and partitions are."""
        listed = await self.groups.get()
        now = time.monotonic()
        names = [group.group_id for group in listed]
        self._looked_groups = {name: at for name, at in self._looked_groups.items() if now - at < LOOKED_S}
        if len(names) > SAMPLED_GROUPS_MAX:
            names = [name for name in names if name in self._looked_groups]
        self.committed = await self.group_offsets(names)
        topics = await self.topics.get()
        wanted = {one for found in self.committed.values() for one in found if one.topic in topics}
        all_of_them = [
            TopicPartition(topic.name, info.partition)
            for topic in topics.values()
            if not topic.is_internal
            for info in topic.partitions
        ]
        self.is_sampled = len(all_of_them) <= SAMPLED_PARTITIONS_MAX and len(listed) <= SAMPLED_GROUPS_MAX
        if self.is_sampled:
            wanted.update(all_of_them)
        elif len(wanted) > SAMPLED_PARTITIONS_MAX:
            wanted = set(sorted(wanted)[:SAMPLED_PARTITIONS_MAX])
        led = {
            TopicPartition(topic.name, info.partition)
            for topic in topics.values()
            for info in topic.partitions
            if info.leader >= 0
        }
        ends = await self.ends(sorted(wanted & led))
        now_s = time.time()
        self.lags.add_ends(now_s, ends)
        await self._look_up_times(now_s)
        for group, found in self.committed.items():
            self.lags.add_group(now_s, group, {one: where.offset for one, where in found.items()})
        self.lags.forget(wanted, set(self.committed))

    async def group_offsets(self, names: Sequence[str]) -> dict[str, dict[TopicPartition, OffsetAndMetadata]]:
        """Where groups are: what they have committed; of share groups, before which records all are finished."""
        kinds = {one.group_id: one.type for one in await self.groups.get()}
        shares = [name for name in names if kinds.get(name) == "share"]
        others = [name for name in names if kinds.get(name) != "share"]
        found = {name: dict(offsets) for name, offsets in (await self.admin.list_group_offsets(others)).ok.items()}
        if shares:
            started = await self.admin.list_share_group_offsets(shares)
            for name, starts in started.ok.items():
                found[name] = {
                    one: OffsetAndMetadata(start.start_offset)
                    for one, start in starts.items()
                    if start.start_offset is not None
                }
        return found

    async def _look_up_times(self, now_s: float) -> None:
        """How long the next record of a group waits that came before the console looked: a few of them each time."""
        wanted = {(one, where.offset) for found in self.committed.values() for one, where in found.items()}
        self.lags.keep_written(wanted)
        asked: list[tuple[TopicPartition, int]] = []
        for found in self.committed.values():
            asked += self.lags.unknown({one: where.offset for one, where in found.items()}, now_s)[:1]
        for partition, offset in asked[:LOOKED_UP_MAX]:
            at_s = await self.written_at(partition, offset)
            if at_s is not None:
                self.lags.written[partition, offset] = at_s

    async def written_at(self, partition: TopicPartition, offset: int) -> float | None:
        """When a record was written, by its own time; None where it cannot be read."""
        reader = MessageReader(self.consumer_settings(), Masking((), partition.topic))
        try:
            timestamp = await asyncio.to_thread(reader.timestamp, partition, offset)
        except (HeadraceError, ConfigError):
            return None
        return None if timestamp is None or timestamp < 0 else timestamp / 1000

    async def ends(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
        if not partitions:
            return {}
        found = await self.admin.list_offsets(dict.fromkeys(partitions, OffsetSpec.latest()))
        return {one: info.offset for one, info in found.ok.items()}

    async def starts(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
        if not partitions:
            return {}
        found = await self.admin.list_offsets(dict.fromkeys(partitions, OffsetSpec.earliest()))
        return {one: info.offset for one, info in found.ok.items()}


@contextlib.asynccontextmanager
async def opened(clusters: Mapping[str, Cluster]) -> AsyncIterator[None]:
    """The clusters of a console, as long as it is served."""
    for cluster in clusters.values():
        cluster.begin()
    try:
        yield
    finally:
        for cluster in clusters.values():
            await cluster.close()
