"""What the socket alone costs: as many bytes as a client moves, over the loopback, and nothing done with them.

Who reads or writes records cannot be faster than this. At 1 KB a record it is most of what there is.
"""

from __future__ import annotations

import multiprocessing
import socket

from bench.consume import Seconds, now, since

PIECE_BYTES = 1024 * 1024
SAMPLE_ROWS = 1000
_JOIN_S = 60.0


def encoded_bytes(values: list[bytes], codec: str) -> int:
    """About how many bytes these values are in batches."""
    from headrace.records import Codec, build_batch_of

    sample = values[:SAMPLE_ROWS]
    batch = build_batch_of([0] * len(sample), [None] * len(sample), sample, codec=Codec[codec.upper()])
    return len(batch) * len(values) // len(sample)


def socket_alone(size: int, *, receives: bool) -> Seconds:
    """Receive or send so many bytes, in pieces, always from or into the same memory. The other end is a process."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        context = multiprocessing.get_context("fork")
        peer = context.Process(target=_peer, args=(listener.getsockname()[1], size, not receives))
        peer.start()
        connected, _ = listener.accept()
        with connected:
            start = now()
            _move(connected, size, receives)
            took = since(start)
    peer.join(_JOIN_S)
    return took


def _peer(port: int, size: int, receives: bool) -> None:
    with socket.create_connection(("127.0.0.1", port)) as connected:
        _move(connected, size, receives)


def _move(connected: socket.socket, size: int, receives: bool) -> None:
    memory = memoryview(bytearray(PIECE_BYTES))
    while size:
        piece = memory[: min(size, PIECE_BYTES)]
        moved = connected.recv_into(piece) if receives else connected.sendmsg([piece])
        if not moved:
            raise ConnectionError(f"the other end went away with {size} bytes to go")
        size -= moved
