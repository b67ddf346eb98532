"""The memory of producer ids: a partition remembers each that wrote to it, for a day (`producer.id.expiration.ms`).

Whoever may write may make up ids, a new one with each record, and Kafka has no bound on them. Here all partitions
together remember as many as there is room for. Beyond that those that remember the most forget whom they have not heard
of for longest; never one whose transaction is open. What is forgotten is whether a batch is there already that its
producer sends again, as it is after `producer.id.expiration.ms`: a producer that writes on notices nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable

from headrace.broker.partitions.partition import Partition
from headrace.errors import KafkaError
from headrace.log import Log
from headrace.runtime.rarely import Rarely

log = logging.getLogger("headrace.broker.producers")

# Of one that has written once it is half of that, of one that has written often somewhat more.
PRODUCER_BYTES = 1000
# So much is left when there were too many: so not every new one costs another one its place.
LEFT_PERCENT = 75


def largest_share(counts: Iterable[int], room: int) -> int:
    """How many each may have at most, so that all fit: who has less keeps them, and leaves the rest to others."""
    left = sorted(counts)
    for place, count in enumerate(left):
        share = room // (len(left) - place)
        if count > share:
            return share
        room -= count
    return left[-1] if left else 0


class ProducerMemory:
    """Looks from time to time how many there are."""

    def __init__(
        self, bytes_max: int, partitions: Callable[[], Iterable[Partition]], monotonic: Callable[[], float]
    ) -> None:
        self.count_max = bytes_max // PRODUCER_BYTES
        self._partitions = partitions
        self._said = Rarely(monotonic)

    async def tidy(self) -> None:
        counted = [(partition.log.producers.count, partition) for partition in self._partitions()]
        total = sum(count for count, _ in counted)
        if total <= self.count_max:
            return
        share = largest_share((count for count, _ in counted), self.count_max * LEFT_PERCENT // 100)
        failed: KafkaError | None = None
        for count, partition in counted:
            if count > share:
                try:
                    await partition.turns.change_log(_forget_oldest, share)
                except KafkaError as error:  # its disk failed: others have to forget all the same
                    failed = error
        times = self._said.happened()
        if times:
            most, where = max(counted, key=lambda one: one[0])
            log.warning(
                "%d times since this was last said: partitions remember %d producer ids, the most of them %s (%d); %d "
                "are all that there is room for (headrace.memory.max), and those are forgotten that wrote longest ago",
                *(times, total, where.key, most, self.count_max),
            )
        if failed is not None:
            raise failed


def _forget_oldest(partition_log: Log, left: int) -> None:
    partition_log.producers.remove_oldest(left)
