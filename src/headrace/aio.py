"""The clients for asyncio: `headrace.aio.Producer` and its siblings, loaded when first used."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headrace.client.admin.aio import Admin
    from headrace.client.consumer.aio import Consumer
    from headrace.client.producer.aio import Producer
    from headrace.client.share.aio import ShareConsumer
    from headrace.client.transactions.exactly_once import exactly_once_async as exactly_once

_LAZY = {
    "Admin": "headrace.client.admin.aio",
    "Consumer": "headrace.client.consumer.aio",
    "Producer": "headrace.client.producer.aio",
    "ShareConsumer": "headrace.client.share.aio",
    "exactly_once": "headrace.client.transactions.exactly_once",
}
_NAMES = {"exactly_once": "exactly_once_async"}

__all__ = ["Admin", "Consumer", "Producer", "ShareConsumer", "exactly_once"]


def __getattr__(name: str) -> Any:
    module = _LAZY.get(name)
    if module is None:
        raise AttributeError(f"module 'headrace.aio' has no attribute {name!r}")
    value = getattr(importlib.import_module(module), _NAMES.get(name, name))
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_LAZY})
