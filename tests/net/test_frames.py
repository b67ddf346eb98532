"""Frames out of a stream of bytes."""

from __future__ import annotations

import random
import struct

import pytest

from headrace.net.frames import FrameReader, FrameRefusedError, up_to


def test_frames_come_out_whole_however_the_bytes_arrive() -> None:
    rng = random.Random(5)
    frames = [rng.randbytes(rng.choice([0, 1, 3, 60, 64, 65, 200, 5000])) for _ in range(300)]
    stream = b"".join(struct.pack(">i", len(frame)) + frame for frame in frames)
    reader = FrameReader(up_to(10_000), chunk_bytes=64)
    got, at = [], 0
    while at < len(stream):
        target = reader.buffer()
        count = min(rng.randint(1, 400), len(target), len(stream) - at)
        target[:count] = stream[at : at + count]
        at += count
        got += [bytes(frame) for frame in reader.received(count)]
    assert got == frames


@pytest.mark.parametrize("length", [-1, 10_001, 2**31 - 1])
def test_a_frame_over_the_limit_is_refused(length: int) -> None:
    reader = FrameReader(up_to(10_000))
    reader.buffer()[:4] = struct.pack(">i", length)
    with pytest.raises(FrameRefusedError):
        reader.received(4)
