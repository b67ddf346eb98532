"""What operators do to a running cluster that they do not know well, and single errors of a disk.

Each is drawn from a stream of its own (`plans.with_operators`), so that all else of a seed is as it was without them.
"""

from __future__ import annotations

import asyncio
import errno
import random
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Final

from headrace.client.admin import AsyncAdmin
from headrace.client.admin.types import ConfigResource, FeatureUpdate, ResourceType, UpgradeType
from headrace.cluster.features import GROUP_VERSION, TRANSACTION_VERSION
from headrace.cluster.topic_names import CONSUMER_OFFSETS, TRANSACTION_STATE
from headrace.errors import HeadraceError
from headrace.runtime.simulated import DiskFault
from headrace.testing.simulated.faults import DATA, Trouble
from headrace.testing.simulated.history import BrokenError
from headrace.testing.simulated.timeline import CLUSTER

if TYPE_CHECKING:
    from headrace.testing.simulated.cluster import SimulatedBroker
    from headrace.testing.simulated.troubles import Troubles

_OPERATOR: Final = "operator"
_OPERATOR_S: Final = 10.0
_LOOK_S: Final = 0.05
_EXPIRES_S: Final = 20.0
#: So many calls of the disk at most go well before the one that fails; and of those that open something.
_SKIPPED_MAX: Final = 150
_OPENED_MAX: Final = 3
#: What may fail for want of descriptors, which says nothing about the disk.
_OPENING: Final = ("open", "open_dir", "listdir")
_SHORTAGES: Final = (errno.EMFILE, errno.ENFILE)
#: Without memory a change may be half done: then its log waits for a restart.
_ERRORS: Final = (errno.EIO, errno.EIO, errno.ENOMEM)
#: Nothing else is promised of records with one of these than before.
_OF_BROKERS: Final[tuple[Mapping[str, str], ...]] = (
    {"compression.type": "zstd"},
    {"log.index.interval.bytes": "0"},
    {"log.flush.interval.messages": "1"},
    {"num.replica.fetchers": "3"},
    {"num.io.threads": "2"},
    {"log.cleaner.threads": "2"},
    {"background.threads": "3"},
)
_FEATURES: Final = ((TRANSACTION_VERSION, 2), (TRANSACTION_VERSION, 2), (GROUP_VERSION, 1))
#: A leader of its own mind: it waits for more than others know of. Refused where eligible replicas count.
_OF_ONE: Final[Mapping[str, str]] = {"min.insync.replicas": "3"}


async def _asks(troubles: Troubles, ask: Callable[[AsyncAdmin], Awaitable[object]]) -> bool:
    """Whether it was done: what an operator asks for may be refused, or never answered."""
    host = troubles.cluster.client_host(_OPERATOR)
    try:
        async with troubles.cluster.admin(host=host) as admin:
            await ask(admin.within(_OPERATOR_S))
    except (HeadraceError, TimeoutError):
        return False
    return True


async def _configure(operator: AsyncAdmin, resource: ConfigResource, change: Mapping[str, str | None]) -> None:
    (await operator.incremental_alter_configs({resource: change})).all()


async def _add_partition(operator: AsyncAdmin, topic: str, count: int) -> None:
    (await operator.create_partitions({topic: count})).all()


async def unregistered(troubles: Troubles, trouble: Trouble) -> None:
    """A broker is unregistered: one that is down, and comes back after all; or one that lives, by mistake."""
    is_down = trouble.level < 0.6 and troubles.may_end()
    broker = troubles.take(trouble)
    if broker is None:
        return
    what = "killed and unregistered" if is_down else "unregistered while it lives"
    with troubles.timeline.span(broker.name, what):
        if is_down:
            troubles.unclean.add(broker.node_id)
            broker.kill()
            await _until_dead(broker)
        if await _asks(troubles, lambda operator: operator.unregister_broker(broker.node_id)):
            troubles.timeline.saw(f"a broker is {what}")
        await asyncio.sleep(trouble.for_s)
    if is_down:
        await troubles.bring_back(broker)
    else:
        troubles.taken.discard(broker.node_id)


async def _until_dead(broker: SimulatedBroker) -> None:
    """Wait until the store takes it for dead; but not for ever."""
    loop = asyncio.get_running_loop()
    until = loop.time() + _EXPIRES_S
    while broker.has_session and loop.time() < until:
        await asyncio.sleep(_LOOK_S)


async def disk_error_once(troubles: Troubles, trouble: Trouble) -> None:
    """One call of the disk fails, whichever it is, and the next one does not.

    After an error of the disk its directory stays offline until the broker is started again. After a shortage of
    descriptors nothing does: all is to be well again by itself.
    """
    rng = random.Random(f"which call {trouble.at_s} {trouble.level}")
    is_shortage = rng.random() < 0.5
    call = rng.choice(_OPENING) if is_shortage else "*"
    skipped = rng.randrange(_OPENED_MAX if is_shortage else _SKIPPED_MAX)
    broker = troubles.take(trouble) if is_shortage or troubles.may_end() else None
    if broker is None:
        return
    number = rng.choice(_SHORTAGES if is_shortage else _ERRORS)
    what = "any call" if call == "*" else call
    with troubles.timeline.span(broker.name, f"disk fails once: {what} after {skipped}, {errno.errorcode[number]}"):
        fault = broker.host.disk.inject(DiskFault(call, number, under=DATA, skip=skipped))
        await asyncio.sleep(trouble.for_s)
        if fault.times == 0:
            troubles.timeline.saw(f"one call of a disk fails: {errno.errorcode[number]}")
        fault.times = 0
    if not is_shortage:
        troubles.unclean.add(broker.node_id)
        broker.kill()
        await troubles.bring_back(broker)
    troubles.taken.discard(broker.node_id)


async def brokers_configured(troubles: Troubles, trouble: Trouble) -> None:
    """A setting of one broker, or of all, is changed while they run, and put back."""
    changes = (*_OF_BROKERS, _OF_ONE)
    change = changes[int(trouble.level * len(changes))]
    of_all = change is not _OF_ONE and trouble.level * len(changes) % 1 < 0.5
    node_id = troubles.node(trouble)
    resource = ConfigResource(ResourceType.BROKER, "" if of_all else str(node_id))
    whose = "all brokers" if of_all else f"broker {node_id}"
    troubles.timeline.saw(f"fault: brokers configured {', '.join(change)}")
    with troubles.timeline.span(CLUSTER, f"{whose} configured: {dict(change)}"):
        if await _asks(troubles, lambda operator: _configure(operator, resource, change)):
            troubles.timeline.saw(f"{'all brokers' if of_all else 'a broker'} configured")
        await asyncio.sleep(trouble.for_s)
    # Without an answer it is not known whether it is there still; nothing may wait for it at the end.
    loop = asyncio.get_running_loop()
    until = loop.time() + _EXPIRES_S
    undone: dict[str, str | None] = dict.fromkeys(change)
    while loop.time() < until and not await _asks(troubles, lambda operator: _configure(operator, resource, undone)):
        await asyncio.sleep(_LOOK_S)


async def coordinators_grow(troubles: Troubles, trouble: Trouble) -> None:
    """Partitions are to be added to what coordinators keep things in: that is refused, whoever is asked."""
    name = CONSUMER_OFFSETS if trouble.level < 0.5 else TRANSACTION_STATE
    image = troubles.cluster.newest_image
    topic = None if image is None else image.topics.get(name)
    if topic is None:
        return
    count = len(topic.partitions)
    troubles.timeline.add(CLUSTER, "fault", f"{name} is to have {count + 1} partitions")
    troubles.timeline.saw("fault: partitions added to what coordinators keep things in")
    if await _asks(troubles, lambda operator: _add_partition(operator, name, count + 1)):
        raise BrokenError(f"{name} was given {count + 1} partitions: groups have two coordinators")


async def features_changed(troubles: Troubles, trouble: Trouble) -> None:
    """The level of a feature goes up or down, while clients go by what their connections were told of it."""
    image = troubles.cluster.newest_image
    if image is None:
        return
    name, high = _FEATURES[int(trouble.level * len(_FEATURES))]
    now = image.features.get(name, 0)
    level = random.Random(f"which level {trouble.at_s} {trouble.level}").choice(
        [other for other in range(high + 1) if other != now]
    )
    change = FeatureUpdate(level, UpgradeType.UPGRADE if level > now else UpgradeType.SAFE_DOWNGRADE)
    troubles.timeline.add(CLUSTER, "fault", f"{name} is to go from {now} to {level}")
    if await _asks(troubles, lambda operator: _set_level(operator, name, change)):
        troubles.timeline.saw(f"{name} goes {'up' if level > now else 'down'}")


async def _set_level(operator: AsyncAdmin, name: str, change: FeatureUpdate) -> None:
    (await operator.update_features({name: change})).all()


OPERATORS: Final[dict[str, Callable[[Troubles, Trouble], Awaitable[None]]]] = {
    "unregistered": unregistered,
    "disk error once": disk_error_once,
    "brokers configured": brokers_configured,
    "coordinators grow": coordinators_grow,
    "features changed": features_changed,
}
