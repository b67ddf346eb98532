"""The proxy: what passes, what is cut where, and what stays silent."""

from __future__ import annotations

import contextlib
import gc
import socket
import threading
import time
from collections.abc import Iterator

import pytest
from tests.waiting import eventually

from headrace.testing import Direction, FaultProxy


class Echo:
    """A server that answers every byte with itself, and remembers what it got per connection."""

    def __init__(self) -> None:
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.received: list[bytearray] = []
        self.threads = [threading.Thread(target=self._accept)]
        self.threads[0].start()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.listener.getsockname()[1]}"

    def _accept(self) -> None:
        while True:
            try:
                sock, _ = self.listener.accept()
            except OSError:
                return
            got = bytearray()
            self.received.append(got)
            self.threads.append(threading.Thread(target=self._serve, args=(sock, got)))
            self.threads[-1].start()

    def _serve(self, sock: socket.socket, got: bytearray) -> None:
        with sock, contextlib.suppress(OSError):
            while data := sock.recv(65536):
                got += data
                # Whoever cut the way back may still have sent something.
                with contextlib.suppress(OSError):
                    sock.sendall(data)

    def close(self) -> None:
        self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()
        for thread in self.threads:
            thread.join(60)
            assert not thread.is_alive()


@pytest.fixture
def echo() -> Iterator[Echo]:
    server = Echo()
    yield server
    server.close()


@pytest.fixture
def proxy(echo: Echo) -> Iterator[FaultProxy]:
    with FaultProxy(echo.address) as made:
        yield made


def connect(proxy: FaultProxy) -> socket.socket:
    return socket.create_connection(("127.0.0.1", proxy.port), timeout=60)


def read_exactly(sock: socket.socket, count: int) -> bytes:
    got = b""
    while len(got) < count and (data := sock.recv(count - len(got))):
        got += data
    return got


def read_to_end(sock: socket.socket) -> bytes:
    got = b""
    with contextlib.suppress(ConnectionError):
        while data := sock.recv(65536):
            got += data
    return got


def test_bytes_pass_both_ways_unchanged(proxy: FaultProxy) -> None:
    data = bytes(range(256)) * 4096
    with connect(proxy) as sock:
        sender = threading.Thread(target=sock.sendall, args=(data,))
        sender.start()
        assert read_exactly(sock, len(data)) == data
        sender.join()
    assert proxy.bytes_passed == {Direction.TO_BROKER: len(data), Direction.TO_CLIENT: len(data)}
    assert proxy.accepted == 1


def test_every_connection_is_cut_or_only_one(proxy: FaultProxy) -> None:
    with connect(proxy) as first, connect(proxy) as second, connect(proxy) as third:
        for sock in (first, second, third):
            sock.sendall(b"x")
            assert read_exactly(sock, 1) == b"x"
        assert proxy.cut_one() == 0
        assert read_to_end(first) == b""
        second.sendall(b"y")
        assert read_exactly(second, 1) == b"y"
        assert proxy.cut(2) == 1
        assert read_to_end(third) == b""
        assert proxy.cut() == 1
        assert read_to_end(second) == b""
    assert proxy.cut_one() == -1
    with connect(proxy) as again:
        again.sendall(b"z")
        assert read_exactly(again, 1) == b"z"


@pytest.mark.parametrize("position", [0, 1, 999, 65536, 150_000])
def test_a_cut_to_the_broker_is_at_its_byte(proxy: FaultProxy, echo: Echo, position: int) -> None:
    data = bytes(i % 251 for i in range(200_000))
    cut = proxy.cut_after(position, Direction.TO_BROKER)
    with connect(proxy) as sock:
        with contextlib.suppress(ConnectionError):
            sock.sendall(data)
        assert cut.wait(60)
    assert cut.connection == 0
    eventually(lambda: bool(echo.received) and len(echo.received[0]) == position)
    assert echo.received[0] == data[:position]


@pytest.mark.parametrize("position", [0, 7, 70_000])
def test_a_cut_to_the_client_is_at_its_byte(proxy: FaultProxy, position: int) -> None:
    data = bytes(i % 251 for i in range(100_000))
    cut = proxy.cut_after(position, Direction.TO_CLIENT)
    with connect(proxy) as sock:

        def send() -> None:
            with contextlib.suppress(ConnectionError):
                sock.sendall(data)

        sender = threading.Thread(target=send)
        sender.start()
        assert read_to_end(sock) == data[:position]
        sender.join(60)
    assert cut.happened


def test_two_cuts_wait_for_their_own_bytes(proxy: FaultProxy) -> None:
    first, second = proxy.cut_after(10), proxy.cut_after(15)
    with connect(proxy) as sock:
        sock.sendall(b"a" * 12)
        assert first.wait(60)
        assert not second.happened
    with connect(proxy) as sock:
        sock.sendall(b"a" * 5)
        assert read_exactly(sock, 5) == b"a" * 5
        sock.sendall(b"b")
        assert second.wait(60)


def test_delays_hold_bytes_back(proxy: FaultProxy) -> None:
    proxy.delay(0.1)
    with connect(proxy) as sock:
        begun = time.monotonic()
        sock.sendall(b"x")
        assert read_exactly(sock, 1) == b"x"
        assert time.monotonic() - begun >= 0.2


def test_what_is_swallowed_is_never_answered_and_only_new_connections_recover(proxy: FaultProxy, echo: Echo) -> None:
    with connect(proxy) as before:
        before.sendall(b"x")
        assert read_exactly(before, 1) == b"x"
        proxy.swallow()
        with connect(proxy) as during:
            for sock in (before, during):
                sock.settimeout(0.2)
                sock.sendall(b"lost")
                with pytest.raises(TimeoutError):
                    sock.recv(1)
            proxy.resume()
            for sock in (before, during):
                sock.sendall(b"lost too")
                with pytest.raises(TimeoutError):
                    sock.recv(1)
        with connect(proxy) as after:
            after.sendall(b"y")
            assert read_exactly(after, 1) == b"y"
    assert sorted(map(bytes, echo.received)) == [b"x", b"y"]


def test_what_is_paused_arrives_after_resume(proxy: FaultProxy) -> None:
    with connect(proxy) as sock:
        sock.sendall(b"x")
        assert read_exactly(sock, 1) == b"x"
        proxy.pause()
        sock.settimeout(0.2)
        sock.sendall(b"later")
        with pytest.raises(TimeoutError):
            sock.recv(1)
        proxy.resume()
        sock.settimeout(60)
        assert read_exactly(sock, 5) == b"later"


def test_new_connections_are_refused_and_old_ones_go_on(proxy: FaultProxy) -> None:
    with connect(proxy) as old:
        old.sendall(b"x")
        assert read_exactly(old, 1) == b"x"
        proxy.refuse()
        with pytest.raises(ConnectionRefusedError):
            connect(proxy)
        old.sendall(b"y")
        assert read_exactly(old, 1) == b"y"
        proxy.resume()
        with connect(proxy) as new:
            new.sendall(b"z")
            assert read_exactly(new, 1) == b"z"


def test_without_a_broker_behind_it_connections_are_dropped() -> None:
    # It may be dropped before this side knows that it was made.
    with FaultProxy() as proxy, contextlib.suppress(ConnectionResetError), connect(proxy) as sock:
        assert read_to_end(sock) == b""


def test_an_end_of_one_side_reaches_the_other_and_nothing_is_left_over(
    proxy: FaultProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Neither side is waited for that has said its goodbye.
    monkeypatch.setattr("headrace.testing.proxy._GOODBYE_S", 3600.0)
    with connect(proxy) as sock:
        sock.sendall(b"x")
        assert read_exactly(sock, 1) == b"x"
        assert proxy.connections == 1
    eventually(lambda: proxy.connections == 0)
    proxy.stop()
    proxy.stop()
    assert not [thread for thread in threading.enumerate() if thread.name == "headrace-proxy"]


def test_a_later_connection_overtakes_those_that_are_held_back(echo: Echo, proxy: FaultProxy) -> None:
    with connect(proxy) as first:
        first.sendall(b"a")
        assert read_exactly(first, 1) == b"a"
        reorder = proxy.reorder(2)
        first.sendall(b"early")
        with connect(proxy) as second:
            second.sendall(b"l")
            assert read_exactly(second, 1) == b"l"
            assert not reorder.happened
            assert bytes(echo.received[0]) == b"a"
            second.sendall(b"ate")
            assert reorder.wait(60)
            # Held back, not lost: it arrives now, even from a client that has gone meanwhile.
            first.close()
            eventually(lambda: bytes(echo.received[0]) == b"aearly")
            assert read_exactly(second, 3) == b"ate"


def test_connections_that_are_held_back_go_on_after_resume(proxy: FaultProxy) -> None:
    with connect(proxy) as only:
        only.sendall(b"a")
        assert read_exactly(only, 1) == b"a"
        reorder = proxy.reorder()
        only.sendall(b"b")
        proxy.resume()
        assert read_exactly(only, 1) == b"b"
        assert not reorder.happened


@pytest.mark.slow
def test_connections_that_come_while_it_stops_are_closed() -> None:
    """A socket that is left open is found by the garbage collector, and fails the test."""
    with socket.create_server(("127.0.0.1", 0)) as target:
        for _ in range(15):
            proxy = FaultProxy(f"127.0.0.1:{target.getsockname()[1]}")
            proxy.start()
            clients: list[socket.socket] = []

            def connect(port: int = proxy.port, made: list[socket.socket] = clients) -> None:
                with contextlib.suppress(OSError):
                    while len(made) < 500:
                        made.append(socket.create_connection(("127.0.0.1", port), 10))

            thread = threading.Thread(target=connect)
            thread.start()
            eventually(lambda made=clients: len(made) > 5, "connections")
            proxy.stop()
            thread.join()
            for client in clients:
                client.close()
    gc.collect()
