"""Compression is Java's framing both ways, and reading never grows past its limit."""

import gzip
import random
import re
import struct
import tracemalloc
import zlib

import cramjam
import lz4.frame
import pytest
import zstandard

from headrace.records import (
    HEADER_BYTES,
    Batch,
    Codec,
    DecompressedTooLargeError,
    MalformedRecordError,
    build_batch,
    check_level,
    compress,
    decode_columns,
    decompress,
    read_records,
)
from headrace.records.compression import lz4_blocks, lz4_into

COMPRESSED = [Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD]
TEXT = b"".join(b"%d bottles of beer on the wall, " % count for count in range(20_000))
SHORT = TEXT[:1000]


@pytest.mark.parametrize("codec", COMPRESSED)
@pytest.mark.parametrize("data", [b"", b"x", TEXT, bytes(300_000)], ids=["empty", "one", "text", "zeros"])
def test_what_is_compressed_is_read_back(codec: Codec, data: bytes) -> None:
    assert bytes(decompress(codec, compress(codec, data))) == data
    assert bytes(decompress(codec, memoryview(bytearray(compress(codec, memoryview(data)))))) == data


@pytest.mark.slow
@pytest.mark.parametrize(
    ("codec", "level"),
    [
        (Codec.GZIP, 1),
        (Codec.GZIP, 9),
        (Codec.LZ4, 1),
        (Codec.LZ4, 9),
        (Codec.LZ4, 17),
        (Codec.ZSTD, -5),
        (Codec.ZSTD, 19),
    ],
)
def test_levels_of_kafka_s_configs_are_taken(codec: Codec, level: int) -> None:
    assert bytes(decompress(codec, compress(codec, TEXT, level))) == TEXT


@pytest.mark.parametrize(
    ("codec", "level"),
    [(Codec.GZIP, 0), (Codec.GZIP, 10), (Codec.LZ4, 0), (Codec.LZ4, 18), (Codec.ZSTD, 23), (Codec.SNAPPY, 1)],
)
def test_levels_outside_kafka_s_ranges_are_refused(codec: Codec, level: int) -> None:
    with pytest.raises(ValueError, match="level"):
        check_level(codec, level)


@pytest.mark.slow
@pytest.mark.parametrize("codec", COMPRESSED)
def test_a_bomb_stops_at_the_limit(codec: Codec) -> None:
    bomb = bytes(compress(codec, bytes(64 * 1024 * 1024)))
    limit = 1024 * 1024
    tracemalloc.start()
    with pytest.raises(DecompressedTooLargeError, match="limit of 1048576 bytes"):
        decompress(codec, bomb, limit)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < len(bomb) * 3 + 4 * limit
    assert len(decompress(codec, bomb, 64 * 1024 * 1024)) == 64 * 1024 * 1024


def test_a_zstd_bomb_that_hides_its_size_stops_at_the_limit() -> None:
    bomb = zstandard.ZstdCompressor(write_content_size=False).compress(bytes(64 * 1024 * 1024))
    with pytest.raises(DecompressedTooLargeError):
        decompress(Codec.ZSTD, bomb, 1024 * 1024)


def test_a_snappy_block_that_claims_too_much_is_not_allocated() -> None:
    with pytest.raises(DecompressedTooLargeError):
        decompress(Codec.SNAPPY, b"\xff\xff\xff\xff\x0f" + b"x" * 20, 1024 * 1024)


def test_a_snappy_block_that_claims_more_than_it_can_hold_is_not_allocated() -> None:
    """Within the limit: sixty bytes would have a quarter of a gigabyte allocated."""
    claimed = b"\xcd\xc2\x81\x7f"  # 266,363,213
    with pytest.raises(MalformedRecordError, match="says that it holds 266363213"):
        decompress(Codec.SNAPPY, claimed + b"x" * 60, 1 << 28)
    densest = b"a" * 100_000
    assert bytes(decompress(Codec.SNAPPY, bytes(cramjam.snappy.compress_raw(densest)), 1 << 28)) == densest


@pytest.mark.parametrize("codec", COMPRESSED)
def test_a_cut_stream_is_refused_wherever_it_is_cut(codec: Codec) -> None:
    whole = bytes(compress(codec, TEXT[:5000]))
    for length in range(len(whole)):
        try:
            data = bytes(decompress(codec, whole[:length]))
        except MalformedRecordError:
            continue
        # What is left of a framing's header or of its end may read as an empty stream, never as some of the data.
        assert data == b"", (codec, length)


@pytest.mark.parametrize("codec", COMPRESSED)
def test_noise_is_refused(codec: Codec) -> None:
    with pytest.raises(MalformedRecordError):
        decompress(codec, b"\xff" * 100)


def test_snappy_is_written_in_xerial_s_framing_with_blocks_of_32_kib() -> None:
    framed = bytes(compress(Codec.SNAPPY, TEXT[:40_000]))
    assert framed[:16] == b"\x82SNAPPY\x00\x00\x00\x00\x01\x00\x00\x00\x01"
    (size,) = struct.unpack_from(">i", framed, 16)
    assert bytes(cramjam.snappy.decompress_raw(framed[20 : 20 + size])) == TEXT[: 32 * 1024]


def test_raw_and_concatenated_snappy_is_read() -> None:
    raw = bytes(cramjam.snappy.compress_raw(TEXT))
    assert bytes(decompress(Codec.SNAPPY, raw)) == TEXT
    framed = bytes(compress(Codec.SNAPPY, b"one"))
    assert bytes(decompress(Codec.SNAPPY, framed + framed)) == b"oneone"


def test_lz4_is_written_in_independent_blocks() -> None:
    frame = bytes(compress(Codec.LZ4, TEXT))
    assert frame[:6] == b"\x04\x22\x4d\x18\x60\x40"


def test_lz4_ignores_content_size_and_checksum_but_not_block_checksums() -> None:
    options = {"block_linked": False, "content_checksum": True, "block_checksum": True, "store_size": True}
    frame = bytearray(lz4.frame.compress(TEXT, **options))
    frame[-1] ^= 0xFF
    assert bytes(decompress(Codec.LZ4, frame)) == TEXT
    assert bytes(decompress(Codec.LZ4, frame + b"trailing")) == TEXT
    frame[-9] ^= 0xFF
    with pytest.raises(MalformedRecordError):
        decompress(Codec.LZ4, frame)


def test_lz4_blocks_that_depend_on_each_other_are_refused() -> None:
    with pytest.raises(MalformedRecordError, match="depend"):
        decompress(Codec.LZ4, lz4.frame.compress(TEXT * 4, block_linked=True, block_size=lz4.frame.BLOCKSIZE_MAX64KB))


def test_gzip_members_follow_each_other_and_trailing_bytes_are_ignored() -> None:
    member = gzip.compress(TEXT, mtime=0)
    assert bytes(decompress(Codec.GZIP, member + member)) == TEXT + TEXT
    assert bytes(decompress(Codec.GZIP, member + b"x" * 50)) == TEXT


def test_gzip_header_fields_are_skipped() -> None:
    body = zlib.compressobj(wbits=-15)
    deflated = body.compress(TEXT) + body.flush()
    header = b"\x1f\x8b\x08\x1e" + bytes(6) + struct.pack("<H", 3) + b"abc" + b"name\0" + b"comment\0"
    header += struct.pack("<H", zlib.crc32(header) & 0xFFFF)
    trailer = struct.pack("<II", zlib.crc32(TEXT), len(TEXT))
    assert bytes(decompress(Codec.GZIP, header + deflated + trailer)) == TEXT
    broken = header[:-1] + bytes([header[-1] ^ 1])
    with pytest.raises(MalformedRecordError, match="header"):
        decompress(Codec.GZIP, broken + deflated + trailer)


def test_zstd_frames_follow_each_other_and_skippable_ones_are_skipped() -> None:
    frame = bytes(compress(Codec.ZSTD, TEXT))
    skippable = struct.pack("<II", 0x184D2A53, 5) + b"12345"
    assert bytes(decompress(Codec.ZSTD, skippable + frame + skippable + frame)) == TEXT + TEXT
    with pytest.raises(MalformedRecordError):
        decompress(Codec.ZSTD, frame + b"garbage")


def lz4_frames() -> list[bytes]:
    noise = random.Random(1).randbytes(150_000)
    texts = [b"", b"a", SHORT, SHORT * 200, noise, SHORT * 50 + noise]
    sizes = (lz4.frame.BLOCKSIZE_MAX64KB, lz4.frame.BLOCKSIZE_MAX4MB)
    return [lz4.frame.compress(text, block_linked=False, block_size=size) for text in texts for size in sizes]


def test_lz4_decompresses_into_memory_that_is_there() -> None:
    for frame in map(memoryview, lz4_frames()):
        wanted = bytes(decompress(Codec.LZ4, frame))
        blocks = lz4_blocks(frame)
        out = memoryview(bytearray(b"?" * (blocks.bound + 3)))
        size = lz4_into(frame, blocks, out[: blocks.bound])
        assert size == len(wanted) <= blocks.bound
        assert bytes(out[:size]) == wanted
        assert bytes(out[blocks.bound :]) == b"???"


def test_a_damaged_lz4_frame_gives_the_same_both_ways() -> None:
    rng = random.Random(2)
    for _ in range(400):
        frame = bytearray(compress(Codec.LZ4, SHORT * 3 + rng.randbytes(300)))
        frame[rng.randrange(7, len(frame))] ^= 1 << rng.randrange(8)
        try:
            blocks = lz4_blocks(memoryview(frame))
        except MalformedRecordError as error:
            with pytest.raises(MalformedRecordError, match=re.escape(str(error))):
                decompress(Codec.LZ4, frame)
            continue
        out = memoryview(bytearray(blocks.bound))
        size = lz4_into(memoryview(frame), blocks, out)
        if size is None:
            with pytest.raises(MalformedRecordError):
                decompress(Codec.LZ4, frame)
        else:
            assert bytes(out[:size]) == bytes(decompress(Codec.LZ4, frame))


def test_batches_of_lz4_are_decoded_together_as_one_by_one() -> None:
    made = [
        Batch(build_batch([(n, b"k", SHORT * n, ()) for n in range(1, 9)], base_offset=8 * m, codec=Codec.LZ4))
        for m in range(5)
    ]
    rows = [record for batch in made for record in read_records(batch)]
    found = decode_columns(made)
    assert found.offsets.tolist() == [record.offset for record in rows]
    assert found.values.to_list() == [record.value for record in rows]
    with pytest.raises(DecompressedTooLargeError):
        decode_columns(made, limit_bytes=4 * sum(len(SHORT) * n for n in range(1, 9)))
    damaged = bytearray(made[3].buffer)
    damaged[HEADER_BYTES + 20 : HEADER_BYTES + 40] = bytes(20)
    with pytest.raises(MalformedRecordError) as one:
        decode_columns(Batch(damaged))
    with pytest.raises(MalformedRecordError) as together:
        decode_columns([*made[:3], Batch(damaged), made[4]])
    assert str(one.value) == str(together.value)
