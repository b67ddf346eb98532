"""Rules that change under load: no request is served that the rules of its time refuse, none refused that they allow.

What the rules are at a moment is worked out here from what the administrator was answered, by a few lines of its own:
a change counts somewhere between its request and its answer, and so may a request that overlaps it go either way.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple
from unittest import mock

import pytest

from headrace.broker.requests.access import ANONYMOUS, Access, Rights
from headrace.errors import ErrorCode
from headrace.protocol.messages.create_acls import AclCreation, CreateAclsRequest
from headrace.protocol.messages.delete_acls import DeleteAclsFilter, DeleteAclsRequest
from headrace.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from headrace.runtime.simulated import Simulation, run_simulation

from .. import raw
from ..sim import GONE, Client, SimulatedBroker

READ, WRITE, DESCRIBE, ALL = 3, 4, 8, 2
DENY, ALLOW = 2, 3
LITERAL, PREFIXED = 3, 4
TOPIC = 2
USERS = ("alice", "bob", "carol")
TOPICS = ("ta", "tb", "other")
EMPTY = "tc"  # where a fetch waits
SETTINGS = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:admin",
}
OPERATION_OF = {"produce": WRITE, "fetch": READ, "wait": READ, "metadata": DESCRIBE}
RUN_S = 30.0


class Rule(NamedTuple):
    permission: int
    user: str
    operation: int
    pattern: int
    name: str


State = frozenset[Rule]


def may(state: State, user: str, operation: int, topic: str) -> bool:
    about = [
        rule
        for rule in state
        if rule.user in (user, "*")
        and (topic.startswith(rule.name) if rule.pattern == PREFIXED else rule.name in (topic, "*"))
    ]
    if any(rule.permission == DENY and rule.operation in (operation, ALL) for rule in about):
        return False
    enough = {operation, ALL} | ({READ, WRITE} if operation == DESCRIBE else set())
    return any(rule.permission == ALLOW and rule.operation in enough for rule in about)


class History:
    """Which rules there were when."""

    def __init__(self) -> None:
        self._states: list[tuple[float, float, State]] = [(0.0, 0.0, frozenset())]

    @property
    def last(self) -> State:
        return self._states[-1][2]

    def changed(self, asked_at: float, answered_at: float, state: State) -> None:
        self._states.append((asked_at, answered_at, state))

    def during(self, began: float, ended: float) -> Iterator[State]:
        """All that may have counted at some moment in between."""
        known = max(at for at, (_, answered, _) in enumerate(self._states) if answered <= began)
        return (state for asked, _, state in self._states[known:] if asked <= ended)


async def change_rules(admin: Client, history: History, rng: random.Random, now: Callable[[], float]) -> None:
    while now() < RUN_S:
        state = history.last
        asked_at = now()
        if state and rng.random() < 0.45:
            rule = rng.choice(sorted(state))
            gone = DeleteAclsFilter(
                resource_type_filter=TOPIC, resource_name_filter=rule.name, pattern_type_filter=rule.pattern,
                principal_filter=f"User:{rule.user}", host_filter="*", operation=rule.operation,
                permission_type=rule.permission,
            )  # fmt: skip
            after = state - {rule}
            pending = admin.insist(DeleteAclsRequest(filters=[gone]), 2)
        else:
            pattern, name = rng.choice(
                [*((LITERAL, topic) for topic in (*TOPICS, EMPTY)), (PREFIXED, "t"), (LITERAL, "*")]
            )
            permission = ALLOW if rng.random() < 0.75 else DENY
            rule = Rule(permission, rng.choice([*USERS, "*"]), rng.choice((READ, WRITE, DESCRIBE, ALL)), pattern, name)
            creation = AclCreation(
                resource_type=TOPIC, resource_name=name, resource_pattern_type=pattern, principal=f"User:{rule.user}",
                host="*", operation=rule.operation, permission_type=permission,
            )  # fmt: skip
            after = state | {rule}
            pending = admin.insist(CreateAclsRequest(creations=[creation]), 2)
        answer: Any = await pending
        assert all(
            result.error_code == 0 for result in getattr(answer, "results", getattr(answer, "filter_results", ()))
        )
        history.changed(asked_at, now(), after)
        await asyncio.sleep(rng.choice((0.0, 0.01, 0.2)))


class Asked(NamedTuple):
    user: str
    kind: str
    topic: str
    began: float
    ended: float
    error: int


async def ask(client: Client, user: str, rng: random.Random, now: Callable[[], float], asked: list[Asked]) -> None:
    while now() < RUN_S:
        kind = rng.choice(list(OPERATION_OF))
        topic = EMPTY if kind == "wait" else rng.choice(TOPICS)
        began = now()
        try:
            error = await _one(client, kind, topic)
        except GONE:
            await asyncio.sleep(0.2)
            continue
        asked.append(Asked(user, kind, topic, began, now(), error))
        await asyncio.sleep(rng.choice((0.0, 0.001, 0.02)))


async def _one(client: Client, kind: str, topic: str) -> int:
    if kind == "produce":
        answer: Any = await client.request(raw.produce_request(topic, 0, raw.batch([b"v"])), raw.PRODUCE_VERSION)
        return int(raw.produced(answer).error_code)
    if kind == "metadata":
        request = MetadataRequest(topics=[MetadataRequestTopic(name=topic)], allow_auto_topic_creation=False)
        return int((await client.request(request, 9)).topics[0].error_code)
    # One waits for a record that does not come, and its rights may change meanwhile.
    fetching = raw.fetch_request(topic, 0, 0, max_wait_ms=300 if kind == "wait" else 0)
    return int(raw.fetched(await client.request(fetching, raw.FETCH_VERSION)).error_code)


def simulated(seed: int) -> Counter[str]:
    users: dict[str, str] = {}

    def begin(self: Access, listener: str, host: str) -> Rights:
        return self.rights(users.get(host, ANONYMOUS), host)

    found: Counter[str] = Counter()

    async def main(simulation: Simulation) -> None:
        rng = random.Random(seed)
        broker = SimulatedBroker(simulation, SETTINGS)
        await broker.start()
        clients = {name: Client(simulation, name) for name in ("admin", *USERS)}
        users.update({client.host.name: f"User:{name}" for name, client in clients.items()})
        await clients["admin"].insist(
            raw.create_topics_request(dict.fromkeys((*TOPICS, EMPTY), 1)), raw.CREATE_TOPICS_VERSION
        )
        history, asked = History(), list[Asked]()
        now = asyncio.get_running_loop().time
        tasks = [
            asyncio.ensure_future(change_rules(clients["admin"], history, rng, now)),
            *(
                asyncio.ensure_future(ask(clients[name], name, random.Random(f"{seed}{name}"), now, asked))
                for name in USERS
            ),
        ]
        await asyncio.sleep(RUN_S / 2)
        broker.kill()
        await broker.start()
        await asyncio.gather(*tasks)
        for client in clients.values():
            client.close()
        await broker.stop()
        for one in asked:
            verdicts = {
                may(state, one.user, OPERATION_OF[one.kind], one.topic)
                for state in history.during(one.began, one.ended)
            }
            if one.error not in (0, ErrorCode.TOPIC_AUTHORIZATION_FAILED):
                found["other errors"] += 1
                continue
            is_served = one.error != ErrorCode.TOPIC_AUTHORIZATION_FAILED
            assert is_served in verdicts, (one, verdicts)
            found["either"] += len(verdicts) == 2
            found["served" if is_served else "refused"] += 1

    with mock.patch.object(Access, "begin", begin):
        run_simulation(main, seed, time_max_s=600.0)
    return found


@pytest.mark.parametrize("seed", [1, pytest.param(range(2, 12), marks=pytest.mark.slow, id="more")])
def test_every_request_is_decided_by_the_rules_of_its_time(seed: int | range) -> None:
    for one in [seed] if isinstance(seed, int) else seed:
        found = simulated(one)
        assert min(found["served"], found["refused"]) > 50, found
        assert found["either"] < (found["served"] + found["refused"]) / 2, found
        assert found["other errors"] < (found["served"] + found["refused"]) / 10, found


def test_the_simulation_finds_a_broker_that_remembers_verdicts_for_too_long() -> None:
    key = Rights.current_key

    def stale(self: Rights) -> Any:
        return self.key if self.key is not None else key(self)

    with mock.patch.object(Rights, "current_key", stale), pytest.raises(AssertionError):
        simulated(1)
