"""What the nodes of a store hold.

```
/id                           the cluster id
/epoch                        {epoch, node, nonce}; changed by elections only
/controller                   ephemeral {epoch, node, incarnation, host, port}
/brokers/<id>                 ephemeral {node, incarnation, host, port}
/log/<number>                 epoch, nonce, whether its group ends with it, one batch of records
/snapshots/<end>-<epoch>/<n>  one batch of records each
/snapshot                     {name, chunks, end, next}: the snapshot that counts, and the log's first node after it
```
"""

from __future__ import annotations

import contextlib
import json
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from headrace.cluster.image import InconsistentMetadataError
from headrace.cluster.store import Seat, StoreMember
from headrace.cluster.store.batches import checked_batches
from headrace.records import Batch

ID: Final = "/id"
EPOCH: Final = "/epoch"
CONTROLLER: Final = "/controller"
BROKERS: Final = "/brokers"
NUMBERS: Final = "/numbers"
LOG: Final = "/log"
SNAPSHOTS: Final = "/snapshots"
SNAPSHOT: Final = "/snapshot"

_LOG_HEADER: Final = struct.Struct(">Bi?16s")
_LOG_FORMAT: Final = 1
LOG_HEADER_BYTES: Final = _LOG_HEADER.size


def log_path(number: int) -> str:
    return f"{LOG}/{number:012d}"


class LogNode(NamedTuple):
    """One node of the log."""

    epoch: int
    nonce: bytes
    ends_group: bool
    batch: Batch


def encode_log_node(epoch: int, nonce: bytes, ends_group: bool, batch: bytes | bytearray) -> bytes:
    return _LOG_HEADER.pack(_LOG_FORMAT, epoch, ends_group, nonce) + bytes(batch)


def decode_log_node(path: str, data: bytes) -> LogNode:
    if len(data) < LOG_HEADER_BYTES or data[0] != _LOG_FORMAT:
        raise InconsistentMetadataError(f"{path}: this is no node of a metadata log that this version can read")
    _, epoch, ends_group, nonce = _LOG_HEADER.unpack_from(data)
    batches = list(checked_batches(memoryview(data)[LOG_HEADER_BYTES:], path))
    if len(batches) != 1:
        raise InconsistentMetadataError(f"{path}: it has {len(batches)} batches instead of one")
    return LogNode(epoch, nonce, ends_group, batches[0])


@dataclass(frozen=True, slots=True)
class SnapshotPointer:
    """Which snapshot counts: it stands for every record before `end_offset`, and the log goes on at `next_number`."""

    name: str = ""
    chunks: int = 0
    end_offset: int = 0
    next_number: int = 0

    def encode(self) -> bytes:
        return _json(
            {"name": self.name, "chunks": self.chunks, "end": self.end_offset, "next": self.next_number},
        )

    @classmethod
    def decode(cls, data: bytes) -> SnapshotPointer:
        found = _values(SNAPSHOT, data)
        with reading(SNAPSHOT):
            return cls(str(found["name"]), int(found["chunks"]), int(found["end"]), int(found["next"]))


class ElectionData(NamedTuple):
    """The latest election; the nonce says whose it was, where its outcome was not heard."""

    epoch: int
    node_id: int
    nonce: bytes


def encode_election(election: ElectionData) -> bytes:
    return _json({"epoch": election.epoch, "node": election.node_id, "nonce": election.nonce.hex()})


def decode_election(data: bytes) -> ElectionData:
    found = _values(EPOCH, data)
    with reading(EPOCH):
        return ElectionData(int(found["epoch"]), int(found["node"]), bytes.fromhex(found["nonce"]))


def encode_member(member: StoreMember) -> bytes:
    return _json(_of_member(member))


def decode_member(path: str, data: bytes) -> StoreMember:
    found = _values(path, data)
    with reading(path):
        return _member(found)


def encode_seat(seat: Seat) -> bytes:
    return _json({"epoch": seat.epoch, **_of_member(seat.member)})


def decode_seat(data: bytes) -> Seat:
    found = _values(CONTROLLER, data)
    with reading(CONTROLLER):
        return Seat(int(found["epoch"]), _member(found))


def _of_member(member: StoreMember) -> dict[str, Any]:
    return {
        "node": member.node_id,
        "incarnation": member.incarnation.hex(),
        "host": member.host,
        "port": member.port,
        "listeners": [list(listener) for listener in member.listeners],
    }


def _member(found: dict[str, Any]) -> StoreMember:
    listeners = tuple((str(name), str(host), int(port)) for name, host, port in found.get("listeners", ()))
    return StoreMember(
        int(found["node"]), bytes.fromhex(found["incarnation"]), str(found["host"]), int(found["port"]), listeners
    )


def _json(values: dict[str, Any]) -> bytes:
    return json.dumps(values, separators=(",", ":")).encode()


@contextlib.contextmanager
def reading(path: str) -> Iterator[None]:
    """Whatever cannot be made of what is stored there is said of the place, not of a key or a number."""
    try:
        yield
    except (LookupError, TypeError, ValueError, OverflowError, AttributeError, RecursionError, struct.error) as error:
        raise InconsistentMetadataError(
            f"{path}: it does not hold what this version writes there ({error!r}); is it another program's?"
        ) from error


def _values(path: str, data: bytes) -> dict[str, Any]:
    try:
        found = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise InconsistentMetadataError(f"{path}: it holds no JSON ({error}); is it another program's?") from error
    if not isinstance(found, dict):
        raise InconsistentMetadataError(f"{path}: it holds {type(found).__name__} instead of an object")
    return found
