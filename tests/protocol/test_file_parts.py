"""Records that are still on disk travel as a part of their own, whatever their size."""

from __future__ import annotations

import pytest

from headrace.net.outbox import FilePart
from headrace.protocol import codec
from headrace.protocol.messages.fetch import FetchableTopicResponse, FetchResponse, PartitionData


class NoFile:
    def read(self, position: int, length: int) -> bytes:
        raise AssertionError("nothing is read while a frame is made")

    def read_into_nowait(self, position: int, buffer: memoryview) -> int | None:
        raise AssertionError("nothing is read while a frame is made")

    def send_nowait(self, position: int, length: int, socket_number: int) -> int | None:
        raise AssertionError("nothing is sent while a frame is made")


@pytest.mark.parametrize("size", [1, 4096, 4097, 1_000_000])
def test_a_part_of_a_file_is_not_joined(size: int) -> None:
    part = FilePart(NoFile(), 0, size)
    data = PartitionData(partition_index=0, high_watermark=1, records=part)  # type: ignore[arg-type]
    response = FetchResponse(responses=[FetchableTopicResponse(topic="t", partitions=[data])])
    parts = codec.encode_response(response, 12, 7)
    assert [len(x) for x in parts if x is part] == [size]
    announced = int.from_bytes(bytes(parts[0][:4]), "big")
    assert announced == sum(map(len, parts)) - 4
