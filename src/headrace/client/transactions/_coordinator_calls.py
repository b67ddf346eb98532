"""Requests of a transaction to its coordinators, one after the other, over a blocking client: each is repeated until
it is answered for good, or time is over."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from headrace.client.cluster import ANY_NODE, BlockingClient, coordinator_key
from headrace.client.cluster.coordinator import NOT_THE_COORDINATOR, found_coordinator
from headrace.client.errors import ProducerFencedError
from headrace.client.transactions._requests import TransactionRequest, find_coordinator, read_codes
from headrace.errors import ErrorCode, HeadraceError, KafkaError, RequestTimedOutError, RetriableError, error_for
from headrace.net.backoff import Backoff
from headrace.net.node import Node

FENCED = frozenset({ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_ID_MAPPING})
"""The epoch, or the whole producer id, was replaced by a newer one: whoever has it may do no more."""

_CONCURRENT_FIRST_MS = 20
"""The end of the last transaction is under way, which takes a moment: waiting longer would slow every one down."""


class CoordinatorCalls:
    """The coordinators of one transactional id, and of the groups whose offsets it commits."""

    def __init__(self, client: BlockingClient, transactional_id: str, timeout_ms: int) -> None:
        self._client = client
        self._transactional_id = transactional_id
        self._timeout_ms = timeout_ms
        self._nodes: dict[str | None, Node] = {}
        """By group; None is the transaction's."""

    def take(self, step: TransactionRequest) -> Any:
        """The answer to a step. Raises `ProducerFencedError`, another final error, or `RequestTimedOutError`."""
        core = self._client.core
        concurrent = Backoff(_CONCURRENT_FIRST_MS, core.config.retry_backoff.max_ms)
        deadline = core.clock.monotonic() + self._timeout_ms / 1000
        failures = 0
        last: HeadraceError | None = None
        while core.clock.monotonic() < deadline:
            backoff = core.config.retry_backoff
            try:
                return self._answer(step)
            except RetriableError as error:
                last = error
                if isinstance(error, KafkaError) and error.code == ErrorCode.CONCURRENT_TRANSACTIONS:
                    backoff = concurrent
            wait_s = backoff.wait_ms(failures, core.rng) / 1000
            failures += 1
            self._client.poll_until(lambda: False, min(core.clock.monotonic() + wait_s, deadline))
        raise RequestTimedOutError(
            f"{self._about(step)} was not done within {self._timeout_ms} ms; the last answer was: {last}"
        ) from last

    def _answer(self, step: TransactionRequest) -> Any:
        """One attempt; raises whatever its outcome is but success."""
        group_id = step.group_id
        try:
            key = coordinator_key(self._coordinator(group_id).id)
            response = self._client.request(key, step.request, version_max=step.version_max)
        except RetriableError:
            self._nodes.pop(group_id, None)
            raise
        code = _gravest(read_codes(step, response).values())
        if code == ErrorCode.NONE:
            return response
        if code in NOT_THE_COORDINATOR:
            self._nodes.pop(group_id, None)
        error = error_for(code)
        if code in FENCED:
            raise ProducerFencedError(f"{self._about(step)}: {error}") from error
        raise error

    def _coordinator(self, group_id: str | None) -> Node:
        known = self._nodes.get(group_id)
        if known is not None:
            return known
        name = self._transactional_id if group_id is None else group_id
        question = find_coordinator(name, is_group=group_id is not None)
        found = found_coordinator(self._client.request(ANY_NODE, question.request))
        if not isinstance(found, Node):
            raise found
        self._client.core.learn_node(found)
        self._nodes[group_id] = found
        return found

    def _about(self, step: TransactionRequest) -> str:
        return f"{step.kind.value} of {self._transactional_id if step.group_id is None else step.group_id}"


def _gravest(codes: Iterable[int]) -> int:
    """The error that says most: partitions that were not attempted only say that another one failed, and what will not
    pass is not waited for."""

    def gravity(code: int) -> int:
        if code in FENCED:
            return 3
        if code == ErrorCode.OPERATION_NOT_ATTEMPTED:
            return 0
        return 1 if isinstance(error_for(code), RetriableError) else 2

    return max((code for code in codes if code), key=gravity, default=int(ErrorCode.NONE))
