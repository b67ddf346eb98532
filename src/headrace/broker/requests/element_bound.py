"""How many elements the arrays of one request may have.

Each is looked at, and most are answered, in one go of the event loop, for a few microseconds each: what a request may
name has to be bounded, or a few bytes of it keep everyone else waiting for seconds. Kafka has no such bound; but nobody
has a reason to name many more things than there are. So it follows from the number of partitions: a topic, its
partition, and two or three of its replicas may all be named. What is made need not be there: to make topics takes a
hundred times as long as to name them, so that there the bound can be higher.
"""

from __future__ import annotations

from headrace.cluster.image import Image
from headrace.protocol.api import ApiKey

ELEMENTS_ALWAYS = 3_000
ELEMENTS_PER_PARTITION = 5
ELEMENTS_TO_MAKE = 20_000
_MAKING = frozenset((ApiKey.CREATE_TOPICS, ApiKey.CREATE_PARTITIONS))


class ElementBound:
    """Counts the partitions when the metadata has changed, and only if somebody asks."""

    def __init__(self, image: Image) -> None:
        self._image = image
        self._offset = -1
        self._max = ELEMENTS_ALWAYS

    def max_of(self, api_key: ApiKey) -> int:
        image = self._image
        if image.offset != self._offset:
            self._offset = image.offset
            partitions = sum(len(topic.partitions) for topic in image.topics.values())
            self._max = ELEMENTS_ALWAYS + ELEMENTS_PER_PARTITION * partitions
        return self._max if api_key not in _MAKING else max(self._max, ELEMENTS_TO_MAKE)
