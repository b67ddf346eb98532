"""Every exception that Headrace raises: one tree, which mirrors Kafka's error codes."""

from __future__ import annotations


class HeadraceError(Exception):
    """The root of all errors that Headrace raises on purpose. Its text says what happened, to what, and what to do."""
