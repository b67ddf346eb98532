"""Writing: `Producer` (blocking) and `aio.Producer`, over one core without I/O."""

from headrace.client.producer.blocking import Producer
from headrace.client.producer.delivery import Delivery, RecordMetadata

__all__ = ["Delivery", "Producer", "RecordMetadata"]
