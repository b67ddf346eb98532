"""Kafka as a source and sink of Spark, exactly once if wanted: `headrace.spark.session()`, `format("headrace")`.

Names are loaded when first used: what runs without Spark (options, planning) can be imported without it.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headrace.spark.foreach_batch import abort_orphan, exactly_once, write_once
    from headrace.spark.lag import track_lag
    from headrace.spark.metrics import SparkQueries
    from headrace.spark.packaging import package
    from headrace.spark.schemas import dead_letters, from_registry, to_registry
    from headrace.spark.source import HeadraceSource
    from headrace.spark.starting import session

_LAZY = {
    "HeadraceSource": "headrace.spark.source",
    "SparkQueries": "headrace.spark.metrics",
    "abort_orphan": "headrace.spark.foreach_batch",
    "dead_letters": "headrace.spark.schemas",
    "exactly_once": "headrace.spark.foreach_batch",
    "from_registry": "headrace.spark.schemas",
    "package": "headrace.spark.packaging",
    "session": "headrace.spark.starting",
    "to_registry": "headrace.spark.schemas",
    "track_lag": "headrace.spark.lag",
    "write_once": "headrace.spark.foreach_batch",
}

__all__ = [
    "HeadraceSource",
    "SparkQueries",
    "abort_orphan",
    "dead_letters",
    "exactly_once",
    "from_registry",
    "package",
    "session",
    "to_registry",
    "track_lag",
    "write_once",
]


def __getattr__(name: str) -> Any:
    module = _LAZY.get(name)
    if module is None:
        raise AttributeError(f"module 'headrace.spark' has no attribute {name!r}")
    try:
        value = getattr(importlib.import_module(module), name)
    except ModuleNotFoundError as error:
        from headrace.spark.extras import explained

        raise explained(error) from error
    globals()[name] = value
    return value
