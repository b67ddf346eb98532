"""What Spark needs and may not be installed: said in a sentence with what to install, and not by a stack."""

from __future__ import annotations

from headrace.errors import MissingExtraError

__all__ = ["MissingExtraError", "explained"]

_OF_THE_EXTRA = ("pyspark", "pyarrow", "numpy", "pandas", "py4j")


def explained(error: ModuleNotFoundError) -> ModuleNotFoundError | MissingExtraError:
    """The same error, or, if it is about a package of the extra, one that says which extra to install."""
    name = (error.name or "").partition(".")[0]
    if name not in _OF_THE_EXTRA:
        return error
    return MissingExtraError(f"this needs Spark, and {name} is not installed: pip install 'headrace[spark]'")
