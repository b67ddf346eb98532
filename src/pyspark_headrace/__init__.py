"""Spark looks for packages of this form of name and registers their `DefaultSource`: so `format("headrace")` works."""

from headrace.spark.source import HeadraceSource as DefaultSource

__all__ = ["DefaultSource"]
