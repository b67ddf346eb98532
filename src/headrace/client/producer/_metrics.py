"""What a producer counts, under Kafka's names."""

from __future__ import annotations

from dataclasses import dataclass

from headrace.client.producer._batch import ProducerBatch
from headrace.errors import HeadraceError


@dataclass(slots=True)
class ProducerMetrics:
    records: int = 0
    record_errors: int = 0
    record_retries: int = 0
    batches: int = 0
    bytes: int = 0
    uncompressed_bytes: int = 0
    requests: int = 0
    answers: int = 0
    latency_s: float = 0.0
    latency_max_s: float = 0.0
    queue_s: float = 0.0
    splits: int = 0

    def batch_sent(self, batch: ProducerBatch, size: int, now: float) -> None:
        if batch.attempts == 0:
            self.batches += 1
            self.records += batch.count
            self.uncompressed_bytes += batch.size
            self.queue_s += now - batch.created
        self.bytes += size

    def request_sent(self) -> None:
        self.requests += 1

    def answered(self, latency_s: float) -> None:
        self.answers += 1
        self.latency_s += latency_s
        self.latency_max_s = max(self.latency_max_s, latency_s)

    def retried(self, batch: ProducerBatch) -> None:
        self.record_retries += batch.count

    def finished(self, batch: ProducerBatch, error: HeadraceError | None) -> None:
        if error is not None:
            self.record_errors += batch.count

    def read(self) -> dict[str, float]:
        batches, answers = max(1, self.batches), max(1, self.answers)
        return {
            "record-send-total": self.records,
            "record-error-total": self.record_errors,
            "record-retry-total": self.record_retries,
            "byte-total": self.bytes,
            "request-total": self.requests,
            "batch-split-total": self.splits,
            "batch-size-avg": self.bytes / batches,
            "compression-rate-avg": self.bytes / max(1, self.uncompressed_bytes),
            "records-per-request-avg": self.records / max(1, self.requests),
            "record-queue-time-avg": self.queue_s / batches * 1000,
            "request-latency-avg": self.latency_s / answers * 1000,
            "request-latency-max": self.latency_max_s * 1000,
        }
