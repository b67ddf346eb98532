"""A broker's page for Prometheus: off unless `headrace.metrics.port` asks for it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from headrace.config import Password

if TYPE_CHECKING:
    from headrace.broker.metrics.readings import Readable
    from headrace.broker.telemetry.pushed import ClientMetrics
    from headrace.cluster.broker_config import BrokerConfig

OFF = -1


def is_wanted(config: BrokerConfig) -> bool:
    return config.get_int("headrace.metrics.port") != OFF


def begin(parts: Readable, config: BrokerConfig, pushed: ClientMetrics) -> tuple[str, Callable[[], Awaitable[None]]]:
    """Serve the metrics of a broker, and those that clients push to it: where, and what ends it."""
    # Here, so that a broker that serves none starts without these.
    from prometheus_client import CollectorRegistry, PlatformCollector, ProcessCollector

    from headrace.broker.metrics.client_metrics import ClientMetricsCollector
    from headrace.broker.metrics.collector import BrokerCollector, watch_loop
    from headrace.metrics import Exporter

    loop = asyncio.get_running_loop()
    registry = CollectorRegistry()
    registry.register(BrokerCollector(parts, loop))
    registry.register(ClientMetricsCollector(pushed))
    ProcessCollector(registry=registry)
    PlatformCollector(registry=registry)
    token = config["headrace.metrics.token"]
    exporter = Exporter(
        registry,
        config.get_int("headrace.metrics.port"),
        host=str(config["headrace.metrics.host"]),
        token=token.value if isinstance(token, Password) else None,
    )
    stop_watching = watch_loop(loop, parts.loop_late.add)

    async def close() -> None:
        stop_watching()
        await loop.run_in_executor(None, exporter.close)

    return exporter.address, close
