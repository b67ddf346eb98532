"""States of share groups as this broker keeps them, and asks others for them.

`ShareStateService` is the share coordinator over `__share_group_state`. `ShareStates` is for whoever needs a state: the
leader of a partition, or the coordinator of a share group. It asks the coordinator of each state, here or elsewhere,
and asks again while that is moving.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Mapping
from typing import Any, Final, NamedTuple, TypeAlias

from headrace import coordination
from headrace.broker.coordinators.driver import CoordinatorDriver
from headrace.broker.coordinators.share_state_pruning import prune_for_ever
from headrace.broker.coordinators.surroundings import CoordinatorSurroundings
from headrace.broker.metadata.service import MetadataService
from headrace.broker.peers import PeerConnection
from headrace.cluster.records import NO_LEADER
from headrace.cluster.topic_names import SHARE_GROUP_STATE
from headrace.coordination import Caller, Now
from headrace.errors import ErrorCode, HeadraceError
from headrace.groups.share.state_coordinator import Shard, ShareStateCoordinator
from headrace.groups.share.state_records import StateKey
from headrace.net.backoff import Backoff
from headrace.protocol.messages import delete_share_group_state as deleting
from headrace.protocol.messages import initialize_share_group_state as beginning
from headrace.protocol.messages import read_share_group_state as reading
from headrace.protocol.messages import read_share_group_state_summary as summing
from headrace.protocol.messages import write_share_group_state as writing

log = logging.getLogger("headrace.broker.coordinator")

#: How long a coordinator is looked for before whoever needs a state is told that there is none.
SEARCH_TIMEOUT_S: Final = 10.0
REQUEST_TIMEOUT_MS: Final = 5_000
_RETRIED: Final = (
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.NETWORK_EXCEPTION,
)

#: Of one group: what is asked of each partition, by topic id and number, and what was answered.
Questions: TypeAlias = Mapping[tuple[bytes, int], Any]
Answers: TypeAlias = dict[tuple[bytes, int], Any]


class ShareStateService(CoordinatorDriver[coordination.Outcome, Shard]):
    """The states whose partition of `__share_group_state` is led here."""

    coordinator: ShareStateCoordinator

    def __init__(
        self, around: CoordinatorSurroundings, coordinator: ShareStateCoordinator, append_timeout_ms: int
    ) -> None:
        super().__init__(around, SHARE_GROUP_STATE, coordinator, append_timeout_ms)

    @property
    def led(self) -> list[int]:
        """The partitions that are served here."""
        return [index for index in self._led if self.coordinator.is_loaded(index)]

    def write_snapshots(self, keys: Collection[StateKey]) -> None:
        self.apply(self.coordinator.snapshot(keys, self.now()))

    def prune_every(self, interval_s: float) -> None:
        """Cut off what is not needed any more of the partitions that are led here, from now on."""
        self.keep(prune_for_ever(self, interval_s))

    def topics_deleted(self, topic_ids: Collection[bytes]) -> None:
        self.apply(self.coordinator.topics_deleted(topic_ids, self.now()))

    async def ask(self, method: Callable[[Caller, Any, Now], coordination.Outcome], request: Any, version: int) -> Any:
        """What the coordinator here answers to this broker itself."""
        token = object()
        answer = self.wait_for(token)
        self.apply(method(Caller(token, None, "", version), request, self.now()))
        return await answer


class _Kind(NamedTuple):
    """One of the five requests, which are alike but for what they say of a partition."""

    request: type
    of_topic: type
    result: type
    version: int
    method: str


_BEGIN: Final = _Kind(
    beginning.InitializeShareGroupStateRequest,
    beginning.InitializeStateData,
    beginning.PartitionResult,
    0,
    "initialize",
)
_READ: Final = _Kind(reading.ReadShareGroupStateRequest, reading.ReadStateData, reading.PartitionResult, 0, "read")
_WRITE: Final = _Kind(writing.WriteShareGroupStateRequest, writing.WriteStateData, writing.PartitionResult, 1, "write")
_DELETE: Final = _Kind(
    deleting.DeleteShareGroupStateRequest, deleting.DeleteStateData, deleting.PartitionResult, 0, "delete"
)
_SUMMARY: Final = _Kind(
    summing.ReadShareGroupStateSummaryRequest, summing.ReadStateSummaryData, summing.PartitionResult, 1, "summary"
)


class ShareStates:
    """Asks the coordinators of states, wherever they are."""

    def __init__(self, around: CoordinatorSurroundings, metadata: MetadataService, here: ShareStateService) -> None:
        self._around = around
        self._metadata = metadata
        self._image = around.cluster.image
        self._here = here
        self._peers = around.make_peers("share-states", REQUEST_TIMEOUT_MS)

    def look_again(self) -> None:
        """Brokers have come or gone."""
        self._peers.look_again()

    async def close(self) -> None:
        await self._peers.close()

    # --- what is asked

    async def begin(self, group_id: str, state_epoch: int, start_offsets: Mapping[tuple[bytes, int], int]) -> Answers:
        """Begin states, or begin them anew in a later epoch; -1 is where the group's settings say."""
        questions = {
            key: beginning.PartitionData(partition=key[1], state_epoch=state_epoch, start_offset=offset)
            for key, offset in start_offsets.items()
        }
        return await self._ask(_BEGIN, group_id, questions)

    async def read(self, key: StateKey, leader_epoch: int) -> reading.PartitionResult:
        """For the leader of a partition, in that epoch: whoever led it before cannot write any more."""
        question = reading.PartitionData(partition=key.partition, leader_epoch=leader_epoch)
        answers = await self._ask(_READ, key.group_id, {key[1:]: question})
        answer: reading.PartitionResult = answers[key[1:]]
        return answer

    async def write(self, key: StateKey, data: writing.PartitionData) -> ErrorCode:
        answers = await self._ask(_WRITE, key.group_id, {key[1:]: data})
        return ErrorCode(answers[key[1:]].error_code)

    async def delete(self, group_id: str, partitions: list[tuple[bytes, int]]) -> Answers:
        return await self._ask(_DELETE, group_id, {key: deleting.PartitionData(partition=key[1]) for key in partitions})

    async def summaries(self, group_id: str, partitions: list[tuple[bytes, int]]) -> Answers:
        questions = {key: summing.PartitionData(partition=key[1], leader_epoch=-1) for key in partitions}
        return await self._ask(_SUMMARY, group_id, questions)

    async def ask_broker(self, node_id: int, request: Any, version: int) -> Any:
        """Something else that another broker is asked for share groups."""
        return await self._peers.request(node_id, PeerConnection.CONTROL, request, version_max=version)

    # --- of whom it is asked

    async def _ask(self, kind: _Kind, group_id: str, questions: Questions) -> Answers:
        """An answer to each, asked again until there is one that stands, or for `SEARCH_TIMEOUT_S`."""
        answers: Answers = {}
        loop = asyncio.get_running_loop()
        deadline = loop.time() + SEARCH_TIMEOUT_S
        backoff, attempt = Backoff(20, 1000), 0
        left = dict(questions)
        while left:
            if SHARE_GROUP_STATE not in self._image.topics:
                await self._create_topic()
            by_node: dict[int, dict[tuple[bytes, int], Any]] = {}
            for key, question in left.items():
                by_node.setdefault(self._coordinator_of(StateKey(group_id, *key)), {})[key] = question
            answered = await asyncio.gather(
                *(self._ask_node(kind, node_id, group_id, theirs) for node_id, theirs in by_node.items())
            )
            for some in answered:
                answers.update(some)
            left = {key: question for key, question in left.items() if answers[key].error_code in _RETRIED}
            pause_s = backoff.wait_ms(attempt, self._around.runtime.rng) / 1000
            if not left or loop.time() + pause_s > deadline:
                break
            attempt += 1
            await asyncio.sleep(pause_s)
        return answers

    async def _create_topic(self) -> None:
        try:
            await self._metadata.ensure_internal(SHARE_GROUP_STATE)
        except HeadraceError as error:
            log.info("%s could not be created, and is tried again: %s", SHARE_GROUP_STATE, error)

    def _coordinator_of(self, key: StateKey) -> int:
        state = self._image.partition(SHARE_GROUP_STATE, self._here.coordinator.partition_of(key.name))
        return NO_LEADER if state is None else state.leader

    async def _ask_node(self, kind: _Kind, node_id: int, group_id: str, questions: Questions) -> Answers:
        answers = {
            key: kind.result(partition=key[1], error_code=ErrorCode.COORDINATOR_NOT_AVAILABLE) for key in questions
        }
        if node_id == NO_LEADER:
            return answers
        by_topic: dict[bytes, Any] = {}
        for (topic_id, _), question in questions.items():
            if topic_id not in by_topic:
                by_topic[topic_id] = kind.of_topic(topic_id=topic_id, partitions=[])
            by_topic[topic_id].partitions.append(question)
        request = kind.request(group_id=group_id, topics=list(by_topic.values()))
        try:
            if self._around.identity.is_this(node_id):
                method = getattr(self._here.coordinator, kind.method)
                response = await self._here.ask(method, request, kind.version)
            else:
                response = await self._peers.request(node_id, PeerConnection.CONTROL, request, version_max=kind.version)
        except HeadraceError as error:
            log.info("broker %d did not answer for the states of share group %s: %s", node_id, group_id, error)
            return answers
        for topic in response.results:
            for one in topic.partitions:
                answers[topic.topic_id, one.partition] = one
        return answers
