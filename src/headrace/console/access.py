"""Who may come to the console, and by which way: before anything else of a request is looked at.

A page of another origin must not make a browser that can reach this console use it. So the name that it was asked by
has to be its own (a name that is made to point here later is none: DNS rebinding), changes have to come from its own
pages, as JSON with a header that no form can send (CSRF), and nothing may show it in a frame. Where others than this
machine can reach it, a token has to be shown; a browser does so once, and has a cookie from then on.
"""

from __future__ import annotations

import hmac
import secrets
from http.cookies import CookieError, SimpleCookie
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

COOKIE = "headrace-console"
CHANGE_HEADER = "x-headrace-console"
SESSIONS_MAX = 1_000
BODY_BYTES_MAX = 4 * 1024 * 1024
_LOOPBACK = ("localhost", "127.0.0.1", "[::1]")
_OPEN = ("/", "/api/session", "/api/login")
CONTENT_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; font-src 'self'; "
    "connect-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
)
_HEADERS = {
    "content-security-policy": CONTENT_POLICY,
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), microphone=(), geolocation=()",
}


class AccessCheck:
    """The console behind its checks."""

    def __init__(self, app: ASGIApp, *, token: str | None, host_names: tuple[str, ...]) -> None:
        self._app = app
        self._token = token
        self._names = {*_LOOPBACK, *(name.lower() for name in host_names)}
        self._sessions: dict[str, None] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        refused = self._refused(scope)
        if refused is not None:
            await refused(scope, receive, _with_headers(send))
            return
        if scope["path"] == "/api/login":
            await self._log_in(scope, receive, _with_headers(send))
            return
        scope["state"] = {
            **scope.get("state", {}),
            "needs_token": self._token is not None and not self._is_let_in(scope),
        }
        await self._app(scope, _bounded(receive), _with_headers(send))

    def _refused(self, scope: Scope) -> Response | None:
        headers = Headers(scope=scope)
        host = headers.get("host", "").lower()
        name = host if host.endswith("]") else host.rpartition(":")[0] or host
        if name not in self._names:
            return PlainTextResponse(
                f"this console is not served as {name[:100]!r}; if it is, start it with --host-name {name[:100]}\n", 421
            )
        if scope["method"] not in ("GET", "HEAD"):
            origin = headers.get("origin")
            if origin is not None and urlsplit(origin).netloc.lower() != host:
                return JSONResponse({"error": "a page of another origin may change nothing here"}, 403)
            if headers.get("content-type", "").partition(";")[0].strip() != "application/json":
                return JSONResponse({"error": "changes are sent as JSON"}, 415)
            if CHANGE_HEADER not in headers:
                return JSONResponse({"error": f"changes are sent with the header {CHANGE_HEADER}"}, 403)
        path = scope["path"]
        if path not in _OPEN and not path.startswith("/static/") and not self._is_let_in(scope):
            return JSONResponse({"error": "the console's token is needed"}, 401)
        return None

    def _is_let_in(self, scope: Scope) -> bool:
        if self._token is None:
            return True
        headers = Headers(scope=scope)
        shown = headers.get("authorization", "").removeprefix("Bearer ")
        if shown and hmac.compare_digest(shown.encode(), self._token.encode()):
            return True
        try:
            cookie = SimpleCookie(headers.get("cookie", "")).get(COOKIE)
        except CookieError:
            return False
        return cookie is not None and cookie.value in self._sessions

    async def _log_in(self, scope: Scope, receive: Receive, send: Send) -> None:
        from starlette.requests import Request

        try:
            body = await Request(scope, _bounded(receive)).json()
            shown = str(body.get("token", ""))
        except (ValueError, AttributeError):
            shown = ""
        if self._token is None or not hmac.compare_digest(shown.encode(), self._token.encode()):
            await JSONResponse({"error": "that is not the console's token"}, 401)(scope, receive, send)
            return
        session = secrets.token_urlsafe(32)
        while len(self._sessions) >= SESSIONS_MAX:
            del self._sessions[next(iter(self._sessions))]
        self._sessions[session] = None
        answer = JSONResponse({"ok": True})
        answer.set_cookie(
            COOKIE, session, httponly=True, samesite="strict", secure=scope.get("scheme") == "https", max_age=12 * 3600
        )
        await answer(scope, receive, send)


def _with_headers(send: Send) -> Send:
    async def wrapped(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            for name, value in _HEADERS.items():
                headers[name] = value
            headers.setdefault("cache-control", "no-store")
        await send(message)

    return wrapped


class BodyTooLargeError(ValueError):
    """A request has more than a console takes."""


def _bounded(receive: Receive) -> Receive:
    had = 0

    async def wrapped() -> Message:
        nonlocal had
        message = await receive()
        had += len(message.get("body", b""))
        if had > BODY_BYTES_MAX:
            raise BodyTooLargeError(f"a request of over {BODY_BYTES_MAX} bytes")
        return message

    return wrapped
