"""Requests that change something go to the instance that writes, and its answer goes back as it is."""

from __future__ import annotations

import asyncio
from typing import Any

from headrace.registry import errors
from headrace.schemas.extras import need

FORWARDED = "x-forwarded-by-registry"
"""A request with this header is not sent on again: there is one that writes, or the request fails."""


class Forwarding:
    """Connections to other instances."""

    def __init__(self, authorities: str | None) -> None:
        self._authorities = authorities
        """A file with the certificates to trust when the others are reached by TLS."""
        self._pool: Any = None

    async def send(
        self, method: str, url: str, authorization: str | None, body: bytes, timeout_s: float
    ) -> tuple[int, bytes]:
        """The other's status and answer."""
        return await asyncio.to_thread(self._send, method, url, authorization, body, timeout_s)

    def _send(
        self, method: str, url: str, authorization: str | None, body: bytes, timeout_s: float
    ) -> tuple[int, bytes]:
        urllib3 = need("urllib3")
        if self._pool is None:
            self._pool = urllib3.PoolManager(retries=False, ca_certs=self._authorities)
        headers = {FORWARDED: "true", "content-type": "application/json"}
        if authorization is not None:
            headers["authorization"] = authorization
        try:
            answer = self._pool.request(method, url, body=body or None, headers=headers, timeout=timeout_s)
        except urllib3.exceptions.HTTPError as error:
            raise errors.forwarding_failed(error) from error
        return answer.status, answer.data

    def close(self) -> None:
        if self._pool is not None:
            self._pool.clear()
