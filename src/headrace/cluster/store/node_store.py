"""A store that several brokers share, in the nodes of a session: ZooKeeper's, a directory's, or a model's.

All brokers of a cluster name the same store. `node_formats` says what its nodes hold, `node_log` how the log is kept;
here is who is alive and who is the controller.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence

from headrace.cluster.image import Image
from headrace.cluster.records import MetadataRecord
from headrace.cluster.store import OutcomeUnknownError, Reading, Seat, StoreMember, WrongClusterError
from headrace.cluster.store.node_formats import (
    BROKERS,
    CONTROLLER,
    EPOCH,
    ID,
    LOG,
    NUMBERS,
    SNAPSHOTS,
    ElectionData,
    decode_election,
    decode_member,
    decode_seat,
    encode_election,
    encode_member,
    encode_seat,
    reading,
)
from headrace.cluster.store.node_link import NodeLink
from headrace.cluster.store.node_log import SNAPSHOT_AFTER_BYTES, SNAPSHOT_AFTER_NODES, NodeLog, Won
from headrace.cluster.store.session import (
    NODE_BYTES_MAX,
    ConnectionBrokenError,
    Create,
    Delete,
    NodeError,
    NodeExistsError,
    Operation,
    StoreSession,
    Watch,
    Write,
)
from headrace.errors import DuplicateBrokerRegistrationError, StaleControllerEpochError
from headrace.log.partition_metadata import encode_id
from headrace.runtime import Runtime


class NodeStore:
    """Implements `Store`."""

    def __init__(
        self,
        runtime: Runtime,
        make_session: Callable[[], StoreSession],
        *,
        timeout_s: float,
        where: str,
        snapshot_after_nodes: int = SNAPSHOT_AFTER_NODES,
        snapshot_after_bytes: int = SNAPSHOT_AFTER_BYTES,
        node_bytes_max: int = NODE_BYTES_MAX,
    ) -> None:
        """`where` names the store in messages; `timeout_s` is how long it may be silent before that is an error.

        What is decided at once takes several nodes where it does not fit one of `node_bytes_max`.
        """
        self._runtime = runtime
        self._link = NodeLink(runtime.clock, make_session, timeout_s, where)
        self._log = NodeLog(runtime, self._link, snapshot_after_nodes, snapshot_after_bytes, node_bytes_max)
        self._won: Won | None = None
        self._registered_in: StoreSession | None = None

    async def open(self, cluster_id: str | None) -> str:
        await self._link.begin()
        nobody = encode_election(ElectionData(0, -1, b""))
        for path, data in ((BROKERS, b""), (LOG, b""), (SNAPSHOTS, b""), (EPOCH, nobody)):
            await self._ensure(path, data)
        proposed = cluster_id or encode_id(self._runtime.uuid())
        found = await self._ensure(ID, proposed.encode())
        if cluster_id is not None and found.decode() != cluster_id:
            raise WrongClusterError(
                f"{self._link.where} is the store of the cluster {found.decode()}, but the data of this broker is of "
                f"the cluster {cluster_id}: name another store, or start this broker with other log directories"
            )
        return found.decode()

    async def _ensure(self, path: str, data: bytes) -> bytes:
        """Make a node that stays; what it holds, if it was there already."""
        tries = 0
        while True:
            node = await self._link.read(lambda session: session.get(path))
            if node is not None:
                return node.data
            try:
                await self._link.change([Create(path, data)])
            except (NodeExistsError, ConnectionBrokenError):
                tries = await self._link.before_another_try(tries)

    def _emptied(self, path: str) -> WrongClusterError:
        return WrongClusterError(f"{self._link.where}{path} is gone: the store was emptied while it was in use")

    async def new_number(self, above: int) -> int:
        await self._ensure(NUMBERS, b"0")
        tries = 0
        while True:
            node = await self._link.read(lambda session: session.get(NUMBERS))
            if node is None:
                raise self._emptied(NUMBERS)
            with reading(f"{self._link.where}{NUMBERS}"):
                given = int(node.data) + 1
            try:
                await self._link.change([Write(NUMBERS, b"%d" % given, node.version)])
                return above + given
            except (NodeError, ConnectionBrokenError):
                # Another was given it, or perhaps we were: one that nobody has is no loss.
                tries = await self._link.before_another_try(tries)

    async def close(self) -> None:
        self._won = self._registered_in = None
        await self._link.close()

    # --- who is alive

    async def register(self, member: StoreMember) -> None:
        await self._link.begin()
        path = f"{BROKERS}/{member.node_id}"
        data = encode_member(member)
        tries = 0
        while True:
            node = await self._link.read(lambda session: session.get(path))
            operations: list[Operation] = [Create(path, data, is_ephemeral=True)]
            if node is not None:
                there = decode_member(path, node.data)
                if there.incarnation != member.incarnation:
                    raise DuplicateBrokerRegistrationError(
                        f"Another broker with node.id {member.node_id} is running, or was until a moment ago; give "
                        "this one another number, stop that one, or wait until its session has expired."
                    )
                if self._registered_in is self._link.session and node.data == data:
                    return
                # Of an earlier session of ours, and about to go with it.
                operations.insert(0, Delete(path, node.version))
            session = self._link.session
            try:
                await self._link.change(operations)
                self._registered_in = session
                return
            except (NodeError, ConnectionBrokenError):
                tries = await self._link.before_another_try(tries)
            if await self._link.read(lambda session: session.get(BROKERS)) is None:
                raise self._emptied(BROKERS)

    async def members(self, known: Mapping[int, StoreMember] | None = None) -> dict[int, StoreMember]:
        async def look(session: StoreSession, watch: Watch | None) -> dict[int, StoreMember]:
            found = {}
            for name in await session.children(BROKERS, watch):
                node = await session.get(f"{BROKERS}/{name}")
                if node is not None:
                    member = decode_member(f"{BROKERS}/{name}", node.data)
                    found[member.node_id] = member
            return dict(sorted(found.items()))

        return await self._link.other_than([] if known is None else [dict(known)], look)

    async def lost(self) -> None:
        await self._link.lost()

    @property
    def connected_since(self) -> float | None:
        return self._link.connected_since

    @property
    def reached_s(self) -> float:
        return self._link.reached_s

    @property
    def sure_until(self) -> float:
        return self._link.sure_until

    @property
    def was_away(self) -> bool:
        return self._link.was_away

    # --- who is the controller

    async def seat(self, *other_than: Seat | None) -> Seat | None:
        async def look(session: StoreSession, watch: Watch | None) -> Seat | None:
            node = await session.get(CONTROLLER, watch)
            return None if node is None else decode_seat(node.data)

        return await self._link.other_than(other_than, look)

    async def elect(self, member: StoreMember) -> int | None:
        self._won = None
        tries = 0
        while True:
            won = await self._stand(member)
            if won is None:
                return None
            if won.session is not None:
                await self._log.take_over(won)
                self._won = won
                return won.epoch
            tries = await self._link.before_another_try(tries)

    async def _stand(self, member: StoreMember) -> Won | None:
        """One try to be elected. None: another is the controller. Without a session: to be tried again."""
        seated = await self._link.read(lambda session: session.get(CONTROLLER))
        node = await self._link.read(lambda session: session.get(EPOCH))
        if node is None:
            raise self._emptied(EPOCH)
        operations: list[Operation] = []
        if seated is not None:
            if decode_seat(seated.data).member.incarnation != member.incarnation:
                return None
            # An earlier seat of ours, from before the store was out of reach.
            operations.append(Delete(CONTROLLER, seated.version))
        nonce = self._runtime.rng.randbytes(16)
        epoch = decode_election(node.data).epoch + 1
        operations += [
            Create(CONTROLLER, encode_seat(Seat(epoch, member)), is_ephemeral=True),
            Write(EPOCH, encode_election(ElectionData(epoch, member.node_id, nonce)), node.version),
        ]
        again = Won(epoch, node.version + 1, None)
        session = self._link.session
        try:
            await self._link.change(operations)
        except NodeError:
            return again
        except ConnectionBrokenError:
            await self._link.read(lambda session: session.sync())
            node = await self._link.read(lambda session: session.get(EPOCH))
            if node is None or decode_election(node.data).nonce != nonce:
                return again
        return Won(epoch, again.version, session)

    async def leave_seat(self) -> None:
        won, self._won = self._won, None
        node = await self._link.read(lambda session: session.get(CONTROLLER))
        if won is None or node is None or decode_seat(node.data).epoch != won.epoch:
            return
        with contextlib.suppress(NodeError, ConnectionBrokenError):  # it is another's, or goes with the session
            await self._link.change([Delete(CONTROLLER, node.version)])

    # --- the log

    async def append_if_epoch(self, epoch: int, records: Sequence[MetadataRecord]) -> int:
        won = self._elected(epoch)
        try:
            return await self._log.append(won, records)
        except (StaleControllerEpochError, OutcomeUnknownError):
            if self._won is won:  # and not elected again since
                self._won = None
            raise

    def _elected(self, epoch: int) -> Won:
        won = self._won
        if won is None or won.epoch != epoch or won.session is not self._link.session:
            raise StaleControllerEpochError(f"The controller of epoch {epoch} is none any more.")
        return won

    async def read_from(self, offset: int, *, latest: bool = False) -> Reading:
        if latest:
            await self._link.read(lambda session: session.sync())
        return await self._log.read_from(offset)

    async def grown_beyond(self, offset: int) -> None:
        await self._log.grown_beyond(offset)

    @property
    def snapshot_due(self) -> bool:
        return self._won is not None and self._log.snapshot_due

    async def take_snapshot(self, image: Image, epoch: int) -> None:
        await self._log.take_snapshot(self._elected(epoch), image)
