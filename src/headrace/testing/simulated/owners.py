"""Faults in which it is hard to know who is who: a number with two machines, a machine that does not know how long it
was away, an event loop or a disk that hangs while the session with the store lives on.

Each is drawn from a stream of its own (`plans.with_owners`), so that all else of a seed is as it was without them.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Final

from headrace.client.admin.types import ConfigResource, FeatureUpdate, ResourceType, UpgradeType
from headrace.errors import HeadraceError
from headrace.runtime.simulated import WorkModel
from headrace.testing.simulated.faults import Trouble
from headrace.testing.simulated.history import BrokenError
from headrace.testing.simulated.metadata_prefix import stored_image
from headrace.testing.simulated.timeline import CLUSTER, STORE

if TYPE_CHECKING:
    from headrace.testing.simulated.troubles import Troubles

NUMBER_TAKEN: Final = "number taken"
_HANGS: Final = WorkModel(400.0, 400.0, 1.0)
_QUICK: Final = WorkModel()
#: The threads whose disk hangs: those that write and sync, those that do all else, or all of them.
_POOLS: Final = (("writer-", "sync-"), ("headrace-",), ("writer-", "sync-", "headrace-"))
_FLAPS_S: Final = (0.1, 0.3, 1.5)
_LOOK_S: Final = 0.05
_EXPIRES_S: Final = 20.0
_ENDS_S: Final = 60.0
_OPERATOR: Final = "operator"
_OPERATOR_S: Final = 10.0
_ELIGIBLE: Final = "eligible.leader.replicas.version"
_MIN_ISR: Final = "min.insync.replicas"


async def loop_hangs(troubles: Troubles, trouble: Trouble) -> None:
    """The broker's event loop hangs, while threads of its process go on."""
    broker = troubles.take(trouble)
    if broker is not None:
        with troubles.timeline.span(broker.name, "its event loop hangs"):
            broker.hang_loop()
            await asyncio.sleep(trouble.for_s)
            broker.host.resume()
        troubles.taken.discard(broker.node_id)


async def disk_hangs(troubles: Troubles, trouble: Trouble) -> None:
    """Calls of the disk do not return for a while; whoever runs the broker ends it then.

    In a process that is ended so, nothing is lost that was written: as with `kill`.
    """
    broker = troubles.take(trouble) if troubles.may_end() else None
    if broker is None:
        return
    troubles.unclean.add(broker.node_id)
    pools = _POOLS[int(trouble.level * len(_POOLS))]
    with troubles.timeline.span(broker.name, f"its disk hangs, for threads {', '.join(pools)}"):
        for pool in pools:
            broker.host.use_disk(_HANGS, of=pool)
        await asyncio.sleep(trouble.for_s)
    broker.kill()
    broker.host.use_disk(_QUICK)
    await troubles.bring_back(broker)


async def suspended(troubles: Troubles, trouble: Trouble) -> None:
    """The machine stands still, and its monotonic clock with it; it may not even know for how long."""
    broker = troubles.take(trouble)
    if broker is not None:
        with troubles.timeline.span(broker.name, "suspended"):
            broker.host.suspend()
            await asyncio.sleep(trouble.for_s)
            broker.host.resume(is_counted=trouble.level < 0.5)
        troubles.taken.discard(broker.node_id)


async def store_flaps(troubles: Troubles, trouble: Trouble) -> None:
    """All connections to the store break, again and again; sessions live on."""
    store, loop = troubles.cluster.store, asyncio.get_running_loop()
    every_s = _FLAPS_S[int(trouble.level * len(_FLAPS_S))] * troubles.plan.pace
    until = loop.time() + trouble.for_s
    with troubles.timeline.span(STORE, "connections break again and again"):
        while loop.time() < until:
            for session in store.sessions:
                session.break_off()
            await asyncio.sleep(every_s)


async def store_refuses(troubles: Troubles, trouble: Trouble) -> None:
    """Changes are refused: a quota is used up."""
    faults = troubles.cluster.store.faults
    with troubles.timeline.span(STORE, "refuses changes"):
        faults.refusal = 1.0 if trouble.level < 0.5 else trouble.level
        await asyncio.sleep(trouble.for_s)
        faults.refusal = 0.0


async def number_taken(troubles: Troubles, trouble: Trouble) -> None:
    """A new machine, with an empty disk, is given the number of one that is taken for dead and lives on.

    What the old one had must be elsewhere, as with a disk that is lost. It must end when it hears of the other.
    """
    old = troubles.take_to_empty(trouble)
    if old is None:
        return
    cluster, loop = troubles.cluster, asyncio.get_running_loop()
    how = "cut off from the store" if trouble.level < 0.5 else "paused" if trouble.level < 0.75 else "suspended"
    with troubles.timeline.span(old.name, f"{how}, and its number is given to another machine"):
        if trouble.level < 0.5:
            old.reaches_store = False
        elif trouble.level < 0.75:
            old.host.pause()
        else:
            old.host.suspend()
        until = loop.time() + _EXPIRES_S
        while old.has_session and loop.time() < until:
            await asyncio.sleep(_LOOK_S)
        # Another fault may have let it reach the store again.
        is_taken_for_dead = not old.has_session
        if is_taken_for_dead:
            await troubles.bring_back(cluster.replace(old.node_id))
            await asyncio.sleep(trouble.for_s)
    old.reaches_store = True
    old.host.resume()
    if not is_taken_for_dead:
        troubles.taken.discard(old.node_id)
        return
    until = loop.time() + _ENDS_S
    while old.broker is not None:
        if loop.time() > until:
            raise BrokenError(f"{old.name} lives on for {_ENDS_S:g} s, though another machine has its number")
        await asyncio.sleep(_LOOK_S)


async def levels_changed(troubles: Troubles, trouble: Trouble) -> None:
    """An operator lets eligible replicas count or not; and sets a minimum of the cluster anew, to what it was."""
    number = 1 if trouble.level < 0.5 else 0
    topics = stored_image(troubles.cluster.store).topics.values()
    if any(state.eligible for topic in topics for state in topic.partitions):
        return  # a disk that is lost meanwhile may be the last that has what those had
    kind = UpgradeType.UPGRADE if number else UpgradeType.SAFE_DOWNGRADE
    troubles.timeline.add(CLUSTER, "fault", f"{_ELIGIBLE} is to be {number}")
    troubles.timeline.saw("fault: levels changed")
    host = troubles.cluster.client_host(_OPERATOR)
    with contextlib.suppress(HeadraceError, TimeoutError):
        async with troubles.cluster.admin(host=host) as admin:
            operator = admin.within(_OPERATOR_S)
            (await operator.update_features({_ELIGIBLE: FeatureUpdate(number, kind)})).all()
            everyone = ConfigResource(ResourceType.BROKER, "")
            (await operator.incremental_alter_configs({everyone: {_MIN_ISR: str(troubles.plan.min_isr)}})).all()


OWNERS: Final[dict[str, Callable[[Troubles, Trouble], Awaitable[None]]]] = {
    "loop hangs": loop_hangs,
    "disk hangs": disk_hangs,
    "suspended": suspended,
    "store flaps": store_flaps,
    "store refuses": store_refuses,
    NUMBER_TAKEN: number_taken,
    "levels changed": levels_changed,
}
