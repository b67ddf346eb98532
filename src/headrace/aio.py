"""The clients for asyncio: `headrace.aio.Producer` and its siblings, loaded when first used."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headrace.client.aio_admin import Admin
    from headrace.client.aio_consumer import Consumer
    from headrace.client.aio_producer import Producer

_LAZY = {
    "Admin": "headrace.client.aio_admin",
    "Consumer": "headrace.client.aio_consumer",
    "Producer": "headrace.client.aio_producer",
}

__all__ = ["Admin", "Consumer", "Producer"]


def __getattr__(name: str) -> Any:
    module = _LAZY.get(name)
    if module is None:
        raise AttributeError(f"module 'headrace.aio' has no attribute {name!r}")
    value = getattr(importlib.import_module(module), name)
    globals()[name] = value
    return value
