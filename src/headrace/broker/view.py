"""Who this broker is, and the cluster as it knows it. Who follows the metadata writes the image; all others read."""

from __future__ import annotations

from collections.abc import Iterable

from headrace.cluster.broker_config import BrokerConfig
from headrace.cluster.changes import Changes
from headrace.cluster.controller import Controller
from headrace.cluster.image import Image
from headrace.config import ConfigValue
from headrace.log import LogConfig


class ClusterView:
    """What nearly everything in a broker looks at."""

    def __init__(self, node_id: int, cluster_id: str, incarnation: bytes, controller: Controller, image: Image) -> None:
        self.node_id = node_id
        self.cluster_id = cluster_id
        #: Of this process, which may not be the first with its number.
        self.incarnation = incarnation
        #: The one in which it is registered; -1 until then.
        self.broker_epoch = -1
        #: Always the same object, whose content changes.
        self.image = image
        self._controller = controller
        self._config: BrokerConfig | None = None
        self._fetch_bytes_max: tuple[BrokerConfig | None, int] = (None, 0)

    @property
    def started_with(self) -> BrokerConfig:
        return self._controller.config

    @property
    def config(self) -> BrokerConfig:
        """The configuration in effect, with what was changed while it runs: another object after each change."""
        if self._config is None:
            self._config = self._controller.broker_config(self.image)
        return self._config

    @property
    def fetch_bytes_max(self) -> int:
        """As the configuration says, without a look-up for each fetch."""
        config = self.config
        if self._fetch_bytes_max[0] is not config:
            self._fetch_bytes_max = config, config.get_int("fetch.max.bytes")
        return self._fetch_bytes_max[1]

    def follow(self, changes: Changes) -> None:
        """After a change of the metadata: new settings count."""
        self._config = None

    def log_config(self, topic: str) -> LogConfig:
        """The configuration in effect for the logs of a topic."""
        return LogConfig.of(self.topic_values(topic))

    def topic_values(self, topic: str) -> dict[str, ConfigValue]:
        """Every topic key with the value in effect for a topic."""
        return self._controller.topic_config(self.image, topic)

    def topic_name(self, topic_id: bytes) -> str | None:
        topic = self.image.topics_by_id.get(topic_id)
        return None if topic is None else topic.name

    def topic_id(self, name: str) -> bytes | None:
        topic = self.image.topics.get(name)
        return None if topic is None else topic.topic_id

    def partition_count(self, name: str) -> int | None:
        topic = self.image.topics.get(name)
        return None if topic is None else len(topic.partitions)

    def topic_names(self) -> Iterable[str]:
        return self.image.topics.keys()

    def topic_version(self, name: str) -> int:
        """Another number after every change of the topic, or of the racks of brokers; 0 when there is none."""
        topic = self.image.topics.get(name)
        return 0 if topic is None else max(topic.version, self.image.brokers_version)

    def partition_racks(self, name: str) -> list[list[str]]:
        """Of each partition, the racks of its replicas, as far as they have any."""
        topic = self.image.topics.get(name)
        if topic is None:
            return []
        racks = {node_id: broker.rack for node_id, broker in self.image.brokers.items() if broker.rack is not None}
        if not racks:
            return [[] for _ in topic.partitions]
        return [[racks[node_id] for node_id in one.replicas if node_id in racks] for one in topic.partitions]
