"""Compress and decompress the records of a batch, byte-compatible with Java's streams; reading is bounded by a limit.

Frames are taken apart here where Java's own readers are more or less strict than the C libraries (trailing bytes,
checksums, reserved bits), so that a batch that Java refuses is refused, and one that it accepts is read. Libraries
load on first use.
"""

from __future__ import annotations

import struct
import threading
import zlib
from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

from headrace.late_imports import late_import
from headrace.records.batch import Buffer, Codec
from headrace.records.errors import DecompressedTooLargeError, MalformedRecordError

if TYPE_CHECKING:
    import zstandard

DEFAULT_LIMIT_BYTES = 256 * 1024 * 1024
"""How large a batch may grow when decompressed, unless the caller says otherwise."""

PIECE_BYTES = 1024 * 1024
"""How much is unpacked at a time, where that is done in pieces."""

LEVELS: dict[Codec, tuple[int, int, int]] = {
    Codec.GZIP: (1, 9, -1),
    Codec.LZ4: (1, 17, 9),
    Codec.ZSTD: (-131072, 22, 3),
}
"""Lowest, highest and default level: the ranges of `compression.gzip.level` and its siblings."""

_BE32 = struct.Struct(">i")
_LE32 = struct.Struct("<I")

# Known writers put at least 32 KB into a frame (a gzip member, a block of snappy's) when there is as much.
_FRAMES_ALWAYS = 64
_FRAME_BYTES_MIN = 4096

_per_thread = threading.local()


def check_level(codec: Codec, level: int | None) -> int | None:
    """The level to use, or ValueError for one that Kafka's configs would refuse."""
    if codec not in LEVELS:
        if level is not None:
            raise ValueError(f"{codec.kafka_name} has no compression level (got {level})")
        return None
    low, high, default = LEVELS[codec]
    if level is None:
        return default
    if not low <= level <= high and level != default:
        raise ValueError(f"compression.{codec.kafka_name}.level must be between {low} and {high}, got {level}")
    return level


def compress(codec: Codec, data: Buffer, level: int | None = None) -> Buffer:
    """Compress as Java's producer does. `level` None is Kafka's default."""
    chosen = check_level(codec, level)
    if codec is Codec.NONE:
        return data
    if codec is Codec.GZIP:
        assert chosen is not None
        return zlib.compress(data, chosen, wbits=31)
    if codec is Codec.SNAPPY:
        return _compress_snappy(data)
    assert chosen is not None
    if codec is Codec.LZ4:
        return _compress_lz4(data, chosen)
    return _compress_zstd(data, chosen)


def decompress(codec: Codec, payload: Buffer, limit_bytes: int = DEFAULT_LIMIT_BYTES) -> Buffer:
    """The records' bytes. DecompressedTooLargeError past the limit, MalformedRecordError if it is no such stream."""
    if codec is Codec.NONE:
        view = memoryview(payload)
        if len(view) > limit_bytes:
            raise _too_large(codec, limit_bytes)
        return view
    parts = list(_PIECES[codec](memoryview(payload), limit_bytes, limit_bytes + 1))
    return parts[0] if len(parts) == 1 else b"".join(parts)


def decompress_pieces(codec: Codec, payload: Buffer, limit_bytes: int = DEFAULT_LIMIT_BYTES) -> Iterator[Buffer]:
    """The records' bytes as `decompress` gives them, piece by piece; none is empty, and few are over PIECE_BYTES."""
    if codec is Codec.NONE:
        yield decompress(codec, payload, limit_bytes)
        return
    for piece in _PIECES[codec](memoryview(payload), limit_bytes, PIECE_BYTES):
        if piece:
            yield piece


def _too_large(codec: Codec, limit_bytes: int) -> DecompressedTooLargeError:
    return DecompressedTooLargeError(
        f"records compressed with {codec.kafka_name} grow past the limit of {limit_bytes} bytes"
    )


def _check_frames(codec: Codec, count: int, limit_bytes: int) -> None:
    """Frames that hold next to nothing cost as much as full ones: there may be as many as make sense for the limit."""
    if count > _FRAMES_ALWAYS + limit_bytes // _FRAME_BYTES_MIN:
        raise DecompressedTooLargeError(
            f"records compressed with {codec.kafka_name} are in more than {count - 1} frames: too many for the limit "
            f"of {limit_bytes} bytes"
        )


def _broken(codec: Codec, what: str) -> MalformedRecordError:
    return MalformedRecordError(f"cannot decompress records with {codec.kafka_name}: {what}")


# --- gzip: members one after another; what follows the last one and is no member is ignored ---

_GZIP_HEADER_CRC = 2
_GZIP_EXTRA = 4
_GZIP_NAME = 8
_GZIP_COMMENT = 16
# Java looks for another member only when more than this many bytes follow a trailer.
_GZIP_TRAILING_IGNORED = 18
_GZIP_OFFERED_BYTES = 512


def _gzip_header_end(view: memoryview, start: int) -> int:
    """Where the deflate data of a member starts; ValueError or IndexError when this is no member."""
    if view[start] != 0x1F or view[start + 1] != 0x8B:
        raise ValueError("not in gzip format")
    if view[start + 2] != 8:
        raise ValueError(f"unsupported compression method {view[start + 2]}")
    flags = view[start + 3]
    at = start + 10
    if flags & _GZIP_EXTRA:
        at += 2 + view[at] + (view[at + 1] << 8)
    for flag in (_GZIP_NAME, _GZIP_COMMENT):
        if flags & flag:
            while view[at]:
                at += 1
            at += 1
    if flags & _GZIP_HEADER_CRC:
        if zlib.crc32(view[start:at]) & 0xFFFF != view[at] + (view[at + 1] << 8):
            raise ValueError("corrupt gzip header")
        at += 2
    if at > len(view):
        raise IndexError("cut in the header")
    return at


def _gzip_pieces(view: memoryview, limit_bytes: int, piece_bytes: int) -> Iterator[bytes]:
    room = limit_bytes
    start = members = 0
    while True:
        members += 1
        _check_frames(Codec.GZIP, members, limit_bytes)
        try:
            at = _gzip_header_end(view, start)
        except (ValueError, IndexError) as error:
            if start:
                break
            raise _broken(Codec.GZIP, str(error)) from None
        # What is not used of the input is copied by zlib. So a first member, mostly the only one, is given all of it,
        # and others more and more: with many small members that would be all of it for each of them.
        offered = len(view) - at if not start else _GZIP_OFFERED_BYTES
        inflater = zlib.decompressobj(-15)
        crc = size = 0
        while not inflater.eof:
            if not inflater.unconsumed_tail and at == len(view):
                raise _broken(Codec.GZIP, "unexpected end of the stream")
            some: Buffer = inflater.unconsumed_tail
            if not some:
                some = view[at : at + offered]
                at += len(some)
                offered *= 2
            try:
                # One byte over the limit is enough to know; max_length 0 would mean no bound.
                data = inflater.decompress(some, min(room + 1, piece_bytes))
            except zlib.error as error:
                raise _broken(Codec.GZIP, str(error)) from None
            room -= len(data)
            if room < 0:
                raise _too_large(Codec.GZIP, limit_bytes)
            crc, size = zlib.crc32(data, crc), size + len(data)
            yield data
        trailer = at - len(inflater.unused_data)
        if len(view) - trailer < 8:
            raise _broken(Codec.GZIP, "cut in the trailer")
        if (crc, size & 0xFFFFFFFF) != struct.unpack_from("<II", view, trailer):
            raise _broken(Codec.GZIP, "corrupt trailer")
        start = trailer + 8
        if len(view) - start <= _GZIP_TRAILING_IGNORED:
            break


# --- snappy: xerial's framing as Java writes it; a raw block is read too ---

_XERIAL_MAGIC = b"\x82SNAPPY\x00"
_XERIAL_HEADER = _XERIAL_MAGIC + struct.pack(">ii", 1, 1)
_XERIAL_BLOCK_BYTES = 32 * 1024
# A copy of 64 bytes takes three.
_SNAPPY_MAX_RATIO = 22
_XERIAL_MAGIC_HEAD = struct.unpack(">i", _XERIAL_MAGIC[:4])[0]


def _compress_snappy(data: Buffer) -> bytes:
    cramjam = late_import("cramjam")
    view = memoryview(data)
    parts: list[bytes] = [_XERIAL_HEADER]
    for start in range(0, len(view), _XERIAL_BLOCK_BYTES):
        block = bytes(cramjam.snappy.compress_raw(view[start : start + _XERIAL_BLOCK_BYTES]))
        parts.append(_BE32.pack(len(block)))
        parts.append(block)
    return b"".join(parts)


def _snappy_block(block: memoryview, room: int, limit_bytes: int) -> bytes:
    """One raw block, its length read first so that nothing is allocated for a length past the limit."""
    cramjam = late_import("cramjam")
    length = shift = 0
    for byte in block[:5]:
        length |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            break
    else:
        raise _broken(Codec.SNAPPY, "no valid block length")
    if length > room:
        raise _too_large(Codec.SNAPPY, limit_bytes)
    if length > _SNAPPY_MAX_RATIO * len(block):
        # It would be allocated before the block is seen to end too early.
        raise _broken(Codec.SNAPPY, f"a block of {len(block)} bytes says that it holds {length}")
    try:
        return bytes(cramjam.snappy.decompress_raw(block))
    except cramjam.DecompressionError as error:
        raise _broken(Codec.SNAPPY, str(error)) from None


def _snappy_pieces(view: memoryview, limit_bytes: int, piece_bytes: int) -> Iterator[bytes]:
    # Blocks are what they are: 32 KB as Java writes them.
    end = len(view)
    if end == 0:
        raise _broken(Codec.SNAPPY, "the stream is empty")
    if end < len(_XERIAL_HEADER) or view[:8] != _XERIAL_MAGIC:
        yield _snappy_block(view, limit_bytes, limit_bytes)
        return
    total = 0
    at = blocks = 0
    after_block = False
    while end - at >= 4:
        blocks += 1
        _check_frames(Codec.SNAPPY, blocks, limit_bytes)
        size = _BE32.unpack_from(view, at)[0]
        if size == _XERIAL_MAGIC_HEAD:
            if end - at < len(_XERIAL_HEADER):
                raise _broken(Codec.SNAPPY, "a header is cut")
            if view[at : at + 8] != _XERIAL_MAGIC:
                # Java takes a wrong header for the end, but only of the read it was busy with: the next one goes on.
                if not after_block:
                    break
                after_block = False
                at += len(_XERIAL_HEADER)
                continue
            # Java looks at the version only where a second stream follows the first.
            if at and _BE32.unpack_from(view, at + 8)[0] < 1:
                raise _broken(Codec.SNAPPY, "incompatible version of the framing")
            at += len(_XERIAL_HEADER)
            continue
        at += 4
        if size < 0 or size > end - at:
            raise _broken(Codec.SNAPPY, f"a block says {size} bytes, {end - at} are left")
        data = _snappy_block(view[at : at + size], limit_bytes - total, limit_bytes)
        total += len(data)
        yield data
        after_block = True
        at += size


# --- lz4: one frame of independent blocks; content size and content checksum are not looked at, as in Java ---

_LZ4_MAGIC = 0x184D2204
_LZ4_STORED = 0x80000000
_LZ4_MAX_RATIO = 255
_LZ4_BLOCK_CHECKSUMS = 0x10


def _compress_lz4(data: Buffer, level: int) -> bytes:
    lz4_frame = late_import("lz4.frame")
    # Java's fast compressor serves the default level, its high compressor all others, which lz4 counts from 3 to 12.
    lz4_level = 0 if level == LEVELS[Codec.LZ4][2] else min(max(level, 3), 12)
    compressed: bytes = lz4_frame.compress(
        data,
        compression_level=lz4_level,
        block_size=lz4_frame.BLOCKSIZE_MAX64KB,
        block_linked=False,
        content_checksum=False,
        block_checksum=False,
        store_size=False,
    )
    return compressed


def _rotate(number: int, bits: int) -> int:
    return ((number << bits) | (number >> (32 - bits))) & 0xFFFFFFFF


@lru_cache(256)  # writers have few descriptors between them, unless they write the content's size
def _xxh32_short(data: bytes) -> int:
    """XXH32 with seed 0 of fewer than 16 bytes: a frame descriptor's checksum."""
    mask = 0xFFFFFFFF
    prime_1, prime_2, prime_3, prime_4, prime_5 = 2654435761, 2246822519, 3266489917, 668265263, 374761393
    total = (prime_5 + len(data)) & mask
    words = len(data) // 4
    for at in range(0, words * 4, 4):
        total = _rotate((total + _LE32.unpack_from(data, at)[0] * prime_3) & mask, 17) * prime_4 & mask
    for byte in data[words * 4 :]:
        total = _rotate((total + byte * prime_5) & mask, 11) * prime_1 & mask
    total = (total ^ (total >> 15)) * prime_2 & mask
    total = (total ^ (total >> 13)) * prime_3 & mask
    return total ^ (total >> 16)


def _lz4_descriptor(view: memoryview) -> tuple[int, int, int]:
    """Flags, block size code and where the blocks start."""
    if len(view) < 7 or _LE32.unpack_from(view)[0] != _LZ4_MAGIC:
        raise _broken(Codec.LZ4, "no frame of a known format")
    flags, block_code = view[4], view[5]
    if flags & 0x03 or block_code & 0x8F:
        raise _broken(Codec.LZ4, "reserved bits are set")
    if flags >> 6 != 1:
        raise _broken(Codec.LZ4, f"version {flags >> 6} of the frame format is unknown")
    if not flags & 0x20:
        raise _broken(Codec.LZ4, "blocks that depend on each other are not supported")
    if not 4 <= block_code >> 4 <= 7:
        raise _broken(Codec.LZ4, f"block size code {block_code >> 4} is unknown")
    at = 14 if flags & 0x08 else 6
    if len(view) <= at or (_xxh32_short(bytes(view[4:at])) >> 8) & 0xFF != view[at]:
        raise _broken(Codec.LZ4, "the frame descriptor is corrupt")
    return flags, block_code, at + 1


def mend_lz4_descriptor(view: memoryview) -> Buffer:
    """The frame with the right checksum of its descriptor, whatever stands there: message format 0 had a wrong one."""
    if len(view) < 7:
        return view
    at = 14 if view[4] & 0x08 else 6
    if len(view) <= at:
        return view
    mended = bytearray(view)
    mended[at] = (_xxh32_short(bytes(view[4:at])) >> 8) & 0xFF
    return mended


class Lz4Blocks(NamedTuple):
    """Where the blocks of a frame lie, and no more than how much they hold."""

    blocks: list[tuple[bool, int, int]]
    """Whether it is stored as it is, its start, its size."""
    block_limit: int
    bound: int
    flags: int
    block_code: int
    start: int
    end: int


def lz4_blocks(view: memoryview) -> Lz4Blocks:
    """Look a frame through without decompressing anything; MalformedRecordError when Java would refuse it."""
    flags, block_code, start = _lz4_descriptor(view)
    block_limit = 1 << (8 + 2 * (block_code >> 4))
    checksum_bytes = 4 if flags & _LZ4_BLOCK_CHECKSUMS else 0
    at = start
    bound = 0
    end = len(view)
    blocks: list[tuple[bool, int, int]] = []
    while True:
        if end - at < 4:
            raise _broken(Codec.LZ4, "the stream ended prematurely")
        word: int = _LE32.unpack_from(view, at)[0]
        size = word & ~_LZ4_STORED
        at += 4
        if size == 0:
            break
        if size > block_limit:
            raise _broken(Codec.LZ4, f"a block of {size} bytes exceeds the maximum of {block_limit}")
        if end - at < size + checksum_bytes:
            raise _broken(Codec.LZ4, "the stream ended prematurely")
        is_stored = word >= _LZ4_STORED
        bound += size if is_stored else min(block_limit, size * _LZ4_MAX_RATIO)
        blocks.append((is_stored, at, size))
        at += size + checksum_bytes
    if flags & 0x04 and end - at < 4:
        raise _broken(Codec.LZ4, "the content checksum is cut")
    return Lz4Blocks(blocks, block_limit, bound, flags, block_code, start, at)


def lz4_into(view: memoryview, found: Lz4Blocks, out: memoryview) -> int | None:
    """Decompress the blocks of a frame one after the other into memory that has room for their bound.

    How many bytes that were; None when a block is damaged or has a checksum of its own: `decompress` sees to those.
    """
    cramjam = late_import("cramjam")
    if found.flags & _LZ4_BLOCK_CHECKSUMS:
        return None
    at = 0
    for is_stored, start, size in found.blocks:
        if is_stored:
            out[at : at + size] = view[start : start + size]
            at += size
            continue
        room = min(found.block_limit, len(out) - at)
        try:
            at += cramjam.lz4.decompress_block_into(view[start : start + size], out[at : at + room], output_len=room)
        except cramjam.DecompressionError:
            return None
    return at


def _lz4_pieces(view: memoryview, limit_bytes: int, piece_bytes: int) -> Iterator[bytes]:
    lz4_frame = late_import("lz4.frame")
    found = lz4_blocks(view)
    flags, block_code, start, at, bound = found.flags, found.block_code, found.start, found.end, found.bound
    # The C library would also check content size and content checksum, which Java ignores: it gets a plain descriptor.
    descriptor = bytes((0x60 | (flags & _LZ4_BLOCK_CHECKSUMS), block_code))
    frame = b"".join(
        (
            _LE32.pack(_LZ4_MAGIC),
            descriptor,
            bytes(((_xxh32_short(descriptor) >> 8) & 0xFF,)),
            view[start : at - 4],
            b"\0" * 4,
        )
    )
    del found
    decompressor = lz4_frame.LZ4FrameDecompressor()
    room = limit_bytes
    while not decompressor.eof:
        length_max = -1 if bound <= min(room, piece_bytes) else min(room + 1, piece_bytes)
        try:
            data: bytes = decompressor.decompress(frame, max_length=length_max)
        except RuntimeError as error:
            raise _broken(Codec.LZ4, str(error)) from None
        room -= len(data)
        if room < 0:
            raise _too_large(Codec.LZ4, limit_bytes)
        frame = b""
        yield data


# --- zstd: frames one after another, skippable ones skipped ---

_ZSTD_MAGIC = 0xFD2FB528
_ZSTD_SKIPPABLE = 0x184D2A50
_ZSTD_BLOCK_LIMIT = 128 * 1024
_ZSTD_WINDOW_LIMIT = 1 << 27
_ZSTD_DICTIONARY_BYTES = (0, 1, 2, 4)
# What Java's reader takes from its input at a time.
_ZSTD_INPUT_BYTES = _ZSTD_BLOCK_LIMIT + 3


def _compress_zstd(data: Buffer, level: int) -> bytes:
    zstd = late_import("zstandard")
    compressors: dict[int, zstandard.ZstdCompressor] | None = getattr(_per_thread, "zstd_compressors", None)
    if compressors is None:
        compressors = _per_thread.zstd_compressors = {}
    compressor = compressors.get(level)
    if compressor is None:
        compressor = compressors[level] = zstd.ZstdCompressor(level=level)
    return compressor.compress(data)


def _zstd_frame(view: memoryview, start: int) -> tuple[int, int]:
    """Where the frame at `start` ends, and a bound on what it holds, from its header and block headers alone."""
    descriptor = view[start + 4]
    single_segment = descriptor & 0x20
    at = start + 5
    window = 0
    if not single_segment:
        exponent, mantissa = view[at] >> 3, view[at] & 7
        window = (1 << (10 + exponent)) + ((1 << (10 + exponent)) >> 3) * mantissa
        at += 1
    at += _ZSTD_DICTIONARY_BYTES[descriptor & 3]
    size_code = descriptor >> 6
    size_bytes = (1 if single_segment else 0) if size_code == 0 else 1 << size_code
    content_bytes = int.from_bytes(view[at : at + size_bytes], "little") + (256 if size_bytes == 2 else 0)
    at += size_bytes
    if single_segment:
        window = content_bytes
    if window > _ZSTD_WINDOW_LIMIT:
        raise _broken(Codec.ZSTD, f"a window of {window} bytes exceeds the maximum of {_ZSTD_WINDOW_LIMIT}")
    block_limit = min(window, _ZSTD_BLOCK_LIMIT)
    bound = 0
    last = 0
    while not last:
        header = view[at] | view[at + 1] << 8 | view[at + 2] << 16
        last, kind, size = header & 1, header >> 1 & 3, header >> 3
        at += 3
        if kind == 3:
            raise _broken(Codec.ZSTD, "a block of a reserved type")
        bound += block_limit if kind == 2 else size
        at += 1 if kind == 1 else size
    if descriptor & 4:
        at += 4
    if at > len(view):
        raise IndexError("cut")
    return at, (content_bytes if size_bytes else bound)


def _zstd_pieces(view: memoryview, limit_bytes: int, piece_bytes: int) -> Iterator[bytes]:
    zstd = late_import("zstandard")
    decompressor: zstandard.ZstdDecompressor | None = getattr(_per_thread, "zstd_decompressor", None)
    if decompressor is None:
        decompressor = _per_thread.zstd_decompressor = zstd.ZstdDecompressor()
    room = limit_bytes
    at = frames = 0
    while at < len(view):
        frames += 1
        _check_frames(Codec.ZSTD, frames, limit_bytes)
        try:
            magic = _LE32.unpack_from(view, at)[0]
            if magic & 0xFFFFFFF0 == _ZSTD_SKIPPABLE:
                following = at + 8 + _LE32.unpack_from(view, at + 4)[0]
                if following > len(view):
                    raise IndexError("cut")
                at = following
                continue
            if magic != _ZSTD_MAGIC:
                raise _broken(Codec.ZSTD, "unknown frame descriptor")
            end, bound = _zstd_frame(view, at)
        except (IndexError, struct.error):
            # Java notices a cut frame only when no other frame ended in the piece of input that it read last.
            if at <= (len(view) - 1) // _ZSTD_INPUT_BYTES * _ZSTD_INPUT_BYTES:
                raise _broken(Codec.ZSTD, "the stream is cut") from None
            end, bound = len(view), room + 1
        for piece in _zstd_frame_pieces(decompressor, view[at:end], bound, room, piece_bytes):
            room -= len(piece)
            if room < 0:
                raise _too_large(Codec.ZSTD, limit_bytes)
            yield piece
        at = end


def _zstd_frame_pieces(
    decompressor: zstandard.ZstdDecompressor, frame: memoryview, bound: int, room: int, piece_bytes: int
) -> Iterator[bytes]:
    zstd = late_import("zstandard")
    try:
        if bound <= min(room, piece_bytes):
            yield decompressor.decompress(frame, max_output_size=max(bound, 1))
            return
        # The bound is only an upper one, or the frame is cut: one byte over the limit is enough to know.
        with decompressor.stream_reader(frame) as reader:
            while piece := reader.read(min(room + 1, piece_bytes)):
                room -= len(piece)
                yield piece
                if room < 0:
                    return
    except zstd.ZstdError as error:
        raise _broken(Codec.ZSTD, str(error)) from None


_PIECES: dict[Codec, Callable[[memoryview, int, int], Iterator[bytes]]] = {
    Codec.GZIP: _gzip_pieces,
    Codec.SNAPPY: _snappy_pieces,
    Codec.LZ4: _lz4_pieces,
    Codec.ZSTD: _zstd_pieces,
}
