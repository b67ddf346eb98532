"""How the descriptors of a process are shared out between open files and connections.

A part is kept for what is open only for a moment (indexes, checkpoints, directories that are synced) and for pipes. Of
the rest, files that are kept open because they are used often may have what connections leave, and always a quarter.
"""

from __future__ import annotations

from dataclasses import dataclass

from headrace.log.files import DEFAULT_OPEN_FILES_MAX

RESERVED = 64
# Beyond this, keeping a file open saves less than the kernel's memory for it costs.
OPEN_FILES_MAX = 16_384
NO_LIMIT = 2**31 - 1


@dataclass(frozen=True, slots=True)
class DescriptorShares:
    """Connections may have up to `connections_max`, and files what is left of `shared`, but at least `files_min`."""

    shared: int
    files_min: int
    files_max: int
    connections_max: int

    def files_beside(self, connections: int) -> int:
        """How many files may be kept open while there are so many connections."""
        return min(self.files_max, max(self.files_min, self.shared - connections))


def share_out(free: int | None) -> DescriptorShares:
    """The shares of a process that may have so many descriptors more; None is any number."""
    if free is None:
        return DescriptorShares(NO_LIMIT, DEFAULT_OPEN_FILES_MAX, DEFAULT_OPEN_FILES_MAX, NO_LIMIT)
    shared = max(2, free - min(RESERVED, free // 4))
    files_min = max(1, shared // 4)
    return DescriptorShares(shared, files_min, OPEN_FILES_MAX, shared - files_min)
