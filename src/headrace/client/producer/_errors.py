"""What records are told that were given up, in a batch or before they got into one."""

from __future__ import annotations

from headrace.client.cluster.core import ClientCore
from headrace.client.cluster.view import TopicView
from headrace.client.errors import DeliveryTimeoutError
from headrace.client.producer._batch import ProducerBatch
from headrace.errors import (
    HeadraceError,
    KafkaError,
    OutOfOrderSequenceNumberError,
    RequestTimedOutError,
    UnknownTopicOrPartitionError,
    error_for,
)
from headrace.words import plural


def last_error(batch: ProducerBatch, error: HeadraceError, expired_ms: int | None) -> HeadraceError:
    """The last attempt failed so, and there is no other; `expired_ms`: because the time for it is over."""
    what = f"{plural(batch.count, 'record')} for {batch.topic}-{batch.partition} not delivered"
    if expired_ms is not None:
        return DeliveryTimeoutError(
            f"{what} within {expired_ms} ms (delivery.timeout.ms), after {plural(batch.attempts, 'attempt')}; "
            f"last: {error}"
        )
    tried = f" after {batch.attempts} attempts" if batch.attempts > 1 else ""
    message = f"{what}{tried}: {error}"
    if isinstance(error, OutOfOrderSequenceNumberError) and batch.doubt_until:
        message += " (an earlier attempt was not answered, and may have been written)"
    return type(error)(message) if isinstance(error, KafkaError) else error


def refused_error(error: HeadraceError, what: str) -> HeadraceError:
    """The brokers refused the credentials: the same error, which says what has come of that."""
    return type(error)(f"{what}: {error}")


def expired_error(batch: ProducerBatch, timeout_ms: int, core: ClientCore, has_id: bool) -> DeliveryTimeoutError:
    """Its time was over while it waited, or was in flight."""
    leader = core.view.leader_of(batch.topic, batch.partition)
    where = "its partition has no leader" if leader is None else f"its leader is {leader}"
    if not has_id:
        where = "the producer has no producer id yet"
    trouble = core.trouble or batch.last_error
    last = "; nothing is known to keep it" if trouble is None else f"; last: {trouble}"
    return DeliveryTimeoutError(
        f"{plural(batch.count, 'record')} for {batch.topic}-{batch.partition} not delivered within {timeout_ms} ms "
        f"(delivery.timeout.ms) in {plural(batch.attempts, 'attempt')}; {where}{last}"
    )


def unknown_topic(
    topic: str, view: TopicView | None, timeout_ms: int, trouble: HeadraceError | None
) -> DeliveryTimeoutError:
    """Its topic was not known in time: because the brokers do not know it, or because none could be asked."""
    if trouble is not None:
        return DeliveryTimeoutError(
            f"nothing could be sent to topic {topic} within {timeout_ms} ms (max.block.ms): {trouble}. Check "
            "bootstrap.servers and that the brokers run"
        )
    told = f" (the brokers say {error_for(view.error_code).code.name})" if view is not None and view.error_code else ""
    return DeliveryTimeoutError(
        f"topic {topic} was not known within {timeout_ms} ms (max.block.ms){told}: create it, or allow "
        "auto.create.topics.enable on the brokers"
    )


def unknown_partition(topic: str, partition: int | None, count: int, waited_ms: int = 0) -> HeadraceError:
    """Its topic has no such partition: at all, or for so long as it was waited for."""
    waited = f" (nor was one added within {waited_ms} ms, max.block.ms)" if waited_ms else ""
    return UnknownTopicOrPartitionError(f"{topic} has partitions 0 to {count - 1}: there is no {partition}{waited}")


def unknown_partitions(topic: str, seconds: float, trouble: HeadraceError | None) -> RequestTimedOutError:
    """`partitions_for` waited in vain."""
    what = f"topic {topic} could not be asked for" if trouble is not None else f"topic {topic} was not known"
    return RequestTimedOutError(f"{what} within {seconds} s: {trouble or 'the brokers do not know it'}")
