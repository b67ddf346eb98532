"""Libraries of the extra `schemas`: imported when first used, and named by the error when they are missing."""

from __future__ import annotations

import importlib
from typing import Any

from headrace.errors import MissingExtraError


def need(module: str) -> Any:
    """The module, or an error that says what to install."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise MissingExtraError(
            f'{module} is missing ({error}): schemas need pip install "headrace[schemas]"'
        ) from error
