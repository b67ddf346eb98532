"""Headrace: Kafka in Python, with its data pipeline on Spark."""

from headrace._version import __version__

__all__ = ["__version__"]
