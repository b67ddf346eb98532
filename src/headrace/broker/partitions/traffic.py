"""What came into a partition's log here and went out of it, since this broker has it: for its metrics."""

from __future__ import annotations


class Traffic:
    """Plain numbers. Records are not counted one by one: offsets say how many came while this broker led."""

    __slots__ = (
        "_before",
        "_led_from",
        "_led_to",
        "bytes_in",
        "bytes_out",
        "replication_bytes_in",
        "replication_bytes_out",
    )

    def __init__(self) -> None:
        self.bytes_in = 0
        self.bytes_out = 0
        self.replication_bytes_in = 0
        self.replication_bytes_out = 0
        self._before = 0
        self._led_from: int | None = None
        self._led_to = 0

    @property
    def messages_in(self) -> int:
        return self._before + (0 if self._led_from is None else self._led_to - self._led_from)

    def leads_from(self, end_offset: int) -> None:
        """This broker leads from now on: what comes behind this end is from producers."""
        self.look(end_offset)
        self.leads_no_more()
        self._led_from = self._led_to = end_offset

    def look(self, end_offset: int) -> None:
        """The log ends there now."""
        if self._led_from is not None:
            self._led_to = max(self._led_to, end_offset)

    def leads_no_more(self) -> None:
        self._before, self._led_from = self.messages_in, None
