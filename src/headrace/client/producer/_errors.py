"""What the records of a batch that was given up are told."""

from __future__ import annotations

from headrace.client.cluster.core import ClientCore
from headrace.client.errors import DeliveryTimeout
from headrace.client.producer._batch import ProducerBatch
from headrace.errors import HeadraceError, KafkaError


def last_error(batch: ProducerBatch, error: HeadraceError, expired_ms: int | None) -> HeadraceError:
    """The last attempt failed so, and there is no other; `expired_ms`: because the time for it is over."""
    what = f"{batch.count} record(s) for {batch.topic}-{batch.partition} not delivered"
    if expired_ms is not None:
        return DeliveryTimeout(
            f"{what} within {expired_ms} ms (delivery.timeout.ms), after {batch.attempts} attempt(s); last: {error}"
        )
    tried = f" after {batch.attempts} attempts" if batch.attempts > 1 else ""
    message = f"{what}{tried}: {error}"
    return type(error)(message) if isinstance(error, KafkaError) else error


def refused_error(error: HeadraceError, what: str) -> HeadraceError:
    """The brokers refused the credentials: the same error, which says what has come of that."""
    return type(error)(f"{what}: {error}")


def expired_error(batch: ProducerBatch, timeout_ms: int, core: ClientCore, has_id: bool) -> DeliveryTimeout:
    """Its time was over while it waited, or was in flight."""
    leader = core.view.leader_of(batch.topic, batch.partition)
    where = "its partition has no leader" if leader is None else f"its leader is {leader}"
    if not has_id:
        where = "the producer has no producer id yet"
    return DeliveryTimeout(
        f"{batch.count} record(s) for {batch.topic}-{batch.partition} not delivered within {timeout_ms} ms "
        f"(delivery.timeout.ms) in {batch.attempts} attempt(s); {where}; last trouble: {core.metadata_error or 'none'}"
    )
