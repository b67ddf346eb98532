"""The clients for asyncio: `headrace.aio.Producer` and its siblings, loaded when first used."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headrace.client.aio_admin import Admin
    from headrace.client.aio_consumer import Consumer
    from headrace.client.aio_producer import Producer
    from headrace.client.exactly_once import exactly_once_async as exactly_once

_LAZY = {
    "Admin": "headrace.client.aio_admin",
    "Consumer": "headrace.client.aio_consumer",
    "Producer": "headrace.client.aio_producer",
    "exactly_once": "headrace.client.exactly_once",
}
_NAMES = {"exactly_once": "exactly_once_async"}

__all__ = ["Admin", "Consumer", "Producer", "exactly_once"]


def __getattr__(name: str) -> Any:
    module = _LAZY.get(name)
    if module is None:
        raise AttributeError(f"module 'headrace.aio' has no attribute {name!r}")
    value = getattr(importlib.import_module(module), _NAMES.get(name, name))
    globals()[name] = value
    return value
