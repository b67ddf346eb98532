"""What can be measured, where Prometheus reads it: one registry and one exporter for everything that Headrace counts.

with headrace.metrics.serve(9404, producer, consumer, parallel_consumer):
    ...

A source is anything with `collect()` (as prometheus-client has it: `ParallelConsumer`, `SparkQueries`), or a client
with `metrics()`. A broker serves its own with `headrace.metrics.port`.
"""

from __future__ import annotations

from headrace.metrics.exporter import Exporter, registry_of, serve, text

__all__ = ["Exporter", "registry_of", "serve", "text"]
