"""Murmur2 as Kafka's clients hash keys, one key at a time."""

from __future__ import annotations

import struct

from headrace.records.batch import Buffer

_SEED = 0x9747B28C
_MULTIPLIER = 0x5BD1E995
_MASK = 0xFFFFFFFF


def murmur2(key: Buffer) -> int:
    """The signed 32-bit hash that Java's clients compute."""
    length = len(key)
    words = length >> 2
    hashed = _SEED ^ length
    for word in struct.unpack_from(f"<{words}I", key):
        word = word * _MULTIPLIER & _MASK
        hashed = (hashed * _MULTIPLIER & _MASK) ^ ((word ^ word >> 24) * _MULTIPLIER & _MASK)
    rest = length & 3
    if rest:
        hashed ^= int.from_bytes(key[length - rest :], "little")
        hashed = hashed * _MULTIPLIER & _MASK
    hashed ^= hashed >> 13
    hashed = hashed * _MULTIPLIER & _MASK
    hashed ^= hashed >> 15
    return hashed - 0x100000000 if hashed & 0x80000000 else hashed


def partition_for_key(key: Buffer, partition_count: int) -> int:
    """The partition that Java's default partitioner gives a key."""
    return (murmur2(key) & 0x7FFFFFFF) % partition_count
