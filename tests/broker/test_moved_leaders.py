"""How soon a partition whose leader has moved takes records that wait for its followers."""

from __future__ import annotations

import asyncio

from headrace.errors import ErrorCode

from . import raw
from .several import SeveralBrokers, create, run_several

#: How long a follower's fetch waits at most (replica.fetch.wait.max.ms), in a cluster where nothing else happens.
FETCH_WAIT_S = 0.5


def test_a_follower_need_not_wait_out_its_fetch_before_it_follows_another_partition() -> None:
    async def main(cluster: SeveralBrokers) -> None:
        assert await create(cluster, 1, "t", partitions=6, replicas=3) == ErrorCode.NONE
        loop = asyncio.get_running_loop()
        await asyncio.sleep(2)  # all is copied, and followers' fetches wait
        victim = cluster.other_than(cluster.controller_id())
        states = cluster.running(cluster.other_than(victim)).image.topics["t"].partitions
        moved = [index for index, state in enumerate(states) if state.leader == victim]
        assert moved
        cluster.brokers[victim].kill()

        def leader_of(index: int) -> int | None:
            """Whoever has begun to lead it."""
            for node_id in cluster.brokers:
                if node_id != victim:
                    partition = cluster.running(node_id).partition("t", index)
                    if partition.is_leader and partition.has_begun:
                        return node_id
            return None

        await cluster.until(lambda: all(leader_of(index) is not None for index in moved))
        began = loop.time()
        for index in moved:
            leader = leader_of(index)
            assert leader is not None
            request = raw.produce_request("t", index, raw.batch([b"x"]))
            answer = await cluster.client(leader).request(request, raw.PRODUCE_VERSION, 30.0)
            assert raw.produced(answer).error_code == ErrorCode.NONE
        assert loop.time() - began < FETCH_WAIT_S / 2  # of virtual time

    for seed in range(1, 6):
        run_several(main, seed)
