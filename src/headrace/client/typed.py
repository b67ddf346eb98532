"""What keys and values are for a type checker, as in `Producer[str, Order]`: anything, unless it is said."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    # A default needs no annotation to be repeated everywhere; Python has it from 3.13 on.
    from typing_extensions import TypeVar

    K = TypeVar("K", default=Any)
    V = TypeVar("V", default=Any)
else:
    from typing import TypeVar

    K, V = TypeVar("K"), TypeVar("V")
