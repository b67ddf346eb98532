"""Requests between brokers end when they are due, though nobody looks at the time after every one of them."""

from __future__ import annotations

import asyncio

import pytest

from headrace.broker.peers import PeerConnection, Peers
from headrace.errors import NetworkError, RequestTimedOutError
from headrace.net.node import Node
from headrace.net.security import PLAINTEXT
from headrace.protocol.messages.api_versions import ApiVersionsRequest
from headrace.runtime.simulated import Simulation, run_simulation


class _Silent(asyncio.Protocol):
    """A broker that takes connections, and answers nothing."""


async def _peers(simulation: Simulation) -> Peers:
    await simulation.host("broker-2").runtime.network.listen(_Silent, "broker-2", 9092)
    nodes = {2: Node(2, "broker-2", 9092), 3: Node(3, "broker-2", 1)}
    runtime = simulation.host("broker-1").runtime
    return Peers(runtime, nodes.get, client_id="broker-1", request_timeout_ms=30_000, security=PLAINTEXT)


async def _ask(peers: Peers, node_id: int, **options: object) -> object:
    return await peers.request(node_id, PeerConnection.CONTROL, ApiVersionsRequest(), **options)  # type: ignore[arg-type]  # as given


def test_a_broker_that_does_not_answer_is_given_up_in_time() -> None:
    async def main(simulation: Simulation) -> float:
        peers = await _peers(simulation)
        with pytest.raises(RequestTimedOutError):
            await _ask(peers, 2, timeout_ms=500)
        took_s = asyncio.get_running_loop().time()
        await peers.close()
        return took_s

    assert run_simulation(main, 1).value == pytest.approx(0.5, abs=0.3)


def test_a_shorter_time_out_counts_beside_a_longer_one() -> None:
    async def main(simulation: Simulation) -> float:
        peers = await _peers(simulation)
        patient = asyncio.ensure_future(_ask(peers, 2, timeout_ms=20_000))
        await asyncio.sleep(0.1)
        began_s = asyncio.get_running_loop().time()
        with pytest.raises(RequestTimedOutError):
            await peers.request(2, PeerConnection.METADATA, ApiVersionsRequest(), timeout_ms=500)
        took_s = asyncio.get_running_loop().time() - began_s
        assert not patient.done()
        patient.cancel()
        await peers.close()
        return took_s

    assert run_simulation(main, 1).value == pytest.approx(0.5, abs=0.3)


def test_one_that_refuses_connections_is_an_error() -> None:
    async def main(simulation: Simulation) -> None:
        peers = await _peers(simulation)
        with pytest.raises(NetworkError):
            await _ask(peers, 3)
        await peers.close()

    run_simulation(main, 1)


def test_a_question_is_given_up_for_what_makes_it_needless() -> None:
    async def main(simulation: Simulation) -> float:
        peers = await _peers(simulation)
        moved: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        asyncio.get_running_loop().call_later(0.25, moved.set_result, None)
        assert await _ask(peers, 2, unless=moved) is None
        took_s = asyncio.get_running_loop().time()
        await peers.close()
        return took_s

    assert run_simulation(main, 1).value == pytest.approx(0.25, abs=0.01)
