"""Pages of metrics, in Prometheus' format, that the console was told of: of brokers, parallel consumers, Spark."""

from __future__ import annotations

import urllib.request
from typing import NamedTuple

from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families

_PAGE_BYTES_MAX = 16 * 1024 * 1024
_PAGE_TIMEOUT_S = 3.0


class MetricsPage(NamedTuple):
    """What one address has said."""

    url: str
    families: list[Metric]
    error: str | None = None


def read_page(url: str) -> MetricsPage:
    """Ask an address, and read what it says."""
    if not url.startswith(("http://", "https://")):
        return MetricsPage(url, [], "a page of metrics has an address that begins with http:// or https://")
    try:
        with urllib.request.urlopen(url, timeout=_PAGE_TIMEOUT_S) as answer:
            text = answer.read(_PAGE_BYTES_MAX).decode("utf-8", "replace")
        return MetricsPage(url, list(text_string_to_metric_families(text)))
    except (OSError, ValueError) as error:
        return MetricsPage(url, [], str(error))


def compacted_to(pages: list[MetricsPage], topic: str) -> dict[int, tuple[int, bool]]:
    """Up to which offset the partitions of a topic are compacted, by the broker that is least far, and whether one
    cannot compact it. Only Headrace's brokers say so."""
    offsets: dict[int, int] = {}
    broken: set[int] = set()
    for page in pages:
        for family in page.families:
            if family.name not in ("headrace_log_compacted_to_offset", "headrace_log_uncleanable"):
                continue
            for sample in family.samples:
                if sample.labels.get("topic") != topic:
                    continue
                partition, value = int(sample.labels["partition"]), int(sample.value)
                if family.name == "headrace_log_compacted_to_offset":
                    offsets[partition] = min(value, offsets.get(partition, value))
                elif value:
                    broken.add(partition)
    return {partition: (offset, partition in broken) for partition, offset in offsets.items()}
