"""Brokers without a session with the store: the controller fences them, and others lead what they led."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
from typing import Final

from headrace.broker.metadata.service import MetadataService
from headrace.cluster.controller import Controller
from headrace.cluster.decision import Decision
from headrace.cluster.image import Image
from headrace.cluster.store import Store, StoreMember, StoreUnavailableError
from headrace.errors import BrokerIdNotRegisteredError, KafkaStorageError, RequestTimedOutError
from headrace.runtime import Clock

log = logging.getLogger("headrace.broker.metadata.absent_brokers")

_RETRY_S: Final = 0.1
_REFUSED_RETRY_S: Final = 2.0


class AbsentBrokers:
    """Who is alive as the controller sees it, and who is missing for how long."""

    def __init__(
        self,
        clock: Clock,
        store: Store,
        metadata: MetadataService,
        *,
        grace_s: float,
        grace_after_outage_s: float,
    ) -> None:
        self._clock = clock
        self._store = store
        self._metadata = metadata
        self._controller = metadata.controller
        # Nothing says that the store was away when this broker has only just started: a moment is left to those who
        # start with it.
        self._grace_s = grace_s
        # After the store was away all sessions may be over at once: those who live have the time to come back.
        self._grace_after_outage_s = grace_after_outage_s
        #: Who has a session, by number.
        self.living: dict[int, StoreMember] = {}
        # Whose session is missed, and how long the store had been reached when that was noticed.
        self._missed: dict[tuple[int, bytes], float] = {}

    def forget(self) -> None:
        """Who was alive when this broker was the controller before says nothing of now."""
        self.living, self._missed = {}, {}

    def is_alive(self, node_id: int, incarnation: bytes) -> bool:
        """Whether that life of a broker has a session."""
        member = self.living.get(node_id)
        return member is not None and member.incarnation == incarnation

    def fence(self, deciding: dict[int, asyncio.Future[None]]) -> float | None:
        """Begin to fence brokers without a session; how long to wait before those whose time has not come yet.

        `deciding` has what is being decided already, by broker, and gets what begins here.
        """
        reached_s = self._store.reached_s
        self._missed = {
            (broker.node_id, broker.incarnation_id): self._missed.get(
                (broker.node_id, broker.incarnation_id), reached_s
            )
            for broker in self._metadata.active.image.brokers.values()
            if not broker.fenced and not self.is_alive(broker.node_id, broker.incarnation_id)
        }
        since = self._store.connected_since
        unbroken_s = 0.0 if since is None else self._clock.monotonic() - since
        grace_s = self._grace_after_outage_s if self._store.was_away else self._grace_s
        wait_s: float | None = None
        for (node_id, incarnation), missed_at in self._missed.items():
            if node_id in deciding:
                continue
            # Also where the connection breaks again and again: each of them has had that time, all in all.
            left_s = grace_s - max(unbroken_s, reached_s - missed_at)
            if left_s <= 0:
                deciding[node_id] = asyncio.ensure_future(self._fence_if_absent(node_id, incarnation))
            else:
                left_s = _RETRY_S if since is None else left_s + 0.001
                wait_s = left_s if wait_s is None else min(wait_s, left_s)
        return wait_s

    async def _fence_if_absent(self, node_id: int, incarnation: bytes) -> None:
        with contextlib.suppress(StoreUnavailableError):
            # The connection may be new, and what was read before it old.
            living = (await self._store.members()).get(node_id)
            if living is None or living.incarnation != incarnation:
                await self._fence_one(node_id)
                return
        await asyncio.sleep(_RETRY_S)  # then it is looked at again

    async def _fence_one(self, node_id: int) -> None:
        log.warning("broker %d is gone: it is fenced, and others lead what it led", node_id)
        fence = functools.partial(_fence, self._controller, node_id)
        try:
            while not await self._metadata.change(fence, followed=False):
                log.info("broker %d: what it led has other leaders now", node_id)
        except (RequestTimedOutError, BrokerIdNotRegisteredError):
            await asyncio.sleep(_RETRY_S)  # then it is tried again
        except KafkaStorageError:
            await asyncio.sleep(_REFUSED_RETRY_S)  # the store does not take it, as was said


def _fence(controller: Controller, node_id: int, image: Image) -> Decision[bool]:
    return controller.fence_broker(image, node_id)
