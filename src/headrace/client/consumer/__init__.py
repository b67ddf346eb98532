"""Reading: `Consumer` (blocking) and `aio.Consumer`, over one core without I/O."""

from headrace.client.consumer.blocking import Consumer
from headrace.client.consumer.records import ConsumerRecord, ConsumerRecords

__all__ = ["Consumer", "ConsumerRecord", "ConsumerRecords"]
