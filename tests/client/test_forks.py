"""What clients hear of a fork, when one of them fails to deal with it."""

from __future__ import annotations

import os

from headrace.client.forks import ignore_forks, watch_forks


class Failing:
    def after_fork(self) -> None:
        raise AttributeError("half made")


class Told:
    pid = 0

    def after_fork(self) -> None:
        self.pid = os.getpid()


def test_a_client_that_fails_in_the_child_does_not_keep_the_fork_from_the_others() -> None:
    # Sixteen, because a set has no order: some come after the failing one, whatever it is.
    failing, told = [Failing() for _ in range(8)], [Told() for _ in range(16)]
    for client in [*failing, *told]:
        watch_forks(client)
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.write(writer, b"%d" % sum(client.pid == os.getpid() for client in told))
        finally:
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        assert pipe.read() == b"16"
    os.waitpid(child, 0)
    for client in [*failing, *told]:
        ignore_forks(client)
