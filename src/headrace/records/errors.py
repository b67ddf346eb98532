"""What can be wrong with a batch: Kafka's CORRUPT_MESSAGE and INVALID_RECORD as exceptions."""

from headrace.errors import HeadraceError


class CorruptBatchError(HeadraceError):
    """The bytes are not a batch: nonsense length or magic, or the checksum does not match (CORRUPT_MESSAGE)."""


class MalformedRecordError(HeadraceError):
    """The batch is whole but a record inside it breaks the format (INVALID_RECORD)."""


class DecompressedTooLargeError(MalformedRecordError):
    """Decompressing would pass the reader's limit: a bomb, or a limit set too low."""


class ManyDifferentError(HeadraceError):
    """So many records of a batch would have to be passed one by one that it takes longer than was allowed."""
