"""What a decision of the controller is: records to append, and the answer to give once they are."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, Generic, NamedTuple, TypeVar

from headrace.cluster.records import MetadataRecord
from headrace.error_codes import ErrorCode

R = TypeVar("R")


class ApiError(NamedTuple):
    """The outcome for one thing in a request: a code, and words for people or none."""

    code: ErrorCode
    message: str | None = None


NO_ERROR: Final = ApiError(ErrorCode.NONE)


@dataclass(slots=True)
class Decision(Generic[R]):
    """The caller appends `records` (if any) to the store, folds them into the image, and then gives `response`."""

    response: R
    records: list[MetadataRecord] = field(default_factory=list)
