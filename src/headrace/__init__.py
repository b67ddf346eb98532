"""Headrace: Kafka in Python, with its data pipeline on Spark."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from headrace._version import __version__

if TYPE_CHECKING:
    from headrace.client.admin import Admin, NewTopic, OffsetAndMetadata, OffsetSpec
    from headrace.client.producer import Producer

# Loaded when first used, so that `import headrace` costs next to nothing.
_LAZY = {
    "Admin": "headrace.client.admin",
    "NewTopic": "headrace.client.admin",
    "OffsetAndMetadata": "headrace.client.offsets",
    "OffsetSpec": "headrace.client.offsets",
    "Producer": "headrace.client.producer",
}

__all__ = ["Admin", "NewTopic", "OffsetAndMetadata", "OffsetSpec", "Producer", "__version__"]


def __getattr__(name: str) -> Any:
    module = _LAZY.get(name)
    if module is None:
        raise AttributeError(f"module 'headrace' has no attribute {name!r}")
    value = getattr(importlib.import_module(module), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_LAZY})
