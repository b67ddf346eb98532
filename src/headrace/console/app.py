"""The console's pages and what they ask: an ASGI application."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp

from headrace._version import __version__
from headrace.client.errors import ClientClosedError
from headrace.config import ConfigError
from headrace.console import browsing, groups, history, others, overview, refusals, topics
from headrace.console.access import AccessCheck, BodyTooLargeError
from headrace.console.audit import ChangeLog
from headrace.console.changes import CHANGES, NOT_AUDITED, ChangeError, topics_of
from headrace.console.cluster import Cluster, opened
from headrace.console.expressions import ExpressionError
from headrace.console.live import Streams
from headrace.console.settings import ConsoleSettings
from headrace.errors import HeadraceError, RequestTimedOutError

log = logging.getLogger("headrace.console")

STATIC = Path(__file__).parent / "static"
#: A file's age in a browser's cache: it is asked for anew by each version's pages.
_CACHE = "no-cache"

View = Callable[[Cluster, Request], Awaitable[Any]]


def make_app(settings: ConsoleSettings) -> ASGIApp:
    """The console of these clusters."""
    clusters = {one.name: Cluster(one) for one in settings.clusters}
    console = _Console(settings, clusters)

    @contextlib.asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        async with opened(clusters):
            yield

    views: dict[str, View] = {
        "overview": lambda cluster, request: overview.overview(cluster),
        "disks": lambda cluster, request: overview.disks(cluster),
        "topics": _topics,
        "topic": lambda cluster, request: topics.topic_page(cluster, request.query_params["name"]),
        "topic-configs": lambda cluster, request: topics.topic_configs(cluster, request.query_params["name"]),
        "groups": _groups,
        "group": lambda cluster, request: groups.group_page(cluster, request.query_params["name"]),
        "history": lambda cluster, request: history.group_history(cluster, request.query_params["name"]),
        "transactions": lambda cluster, request: others.transactions(cluster),
        "hanging": lambda cluster, request: others.hanging(cluster),
        "moves": lambda cluster, request: others.moves(cluster),
        "rights": lambda cluster, request: others.rights(cluster),
        "refused": lambda cluster, request: refusals.refusals(cluster),
        "workers": lambda cluster, request: others.workers(cluster),
        "broker-configs": lambda cluster, request: others.broker_configs(cluster, int(request.query_params["id"])),
    }
    routes = [
        Route("/", console.index),
        Route("/api/session", console.session),
        Route("/api/c/{cluster}/messages", console.messages),
        Route("/api/c/{cluster}/message", console.message),
        Route("/api/c/{cluster}/download", console.download),
        Route("/api/c/{cluster}/tail", console.tail),
        Route("/api/c/{cluster}/preview-reset", console.preview_reset, methods=["POST"]),
        Route("/api/c/{cluster}/what-if", console.what_if, methods=["POST"]),
        Route("/api/c/{cluster}/change/{change}", console.change, methods=["POST"]),
        *(Route(f"/api/c/{{cluster}}/{name}", console.view(view)) for name, view in views.items()),
        *(Route(f"/api/c/{{cluster}}/live/{name}", console.live(view)) for name, view in views.items()),
        Mount("/static", _Static(directory=STATIC)),
    ]
    app = Starlette(routes=routes, lifespan=lifespan, exception_handlers={Exception: _failed, **_EXPECTED})
    return AccessCheck(app, token=settings.token, host_names=settings.host_names)


class _Static(StaticFiles):
    def file_response(self, *args: Any, **keywords: Any) -> Response:
        answer = super().file_response(*args, **keywords)
        answer.headers["cache-control"] = _CACHE
        return answer


async def _topics(cluster: Cluster, request: Request) -> Any:
    asked = request.query_params
    return await topics.topic_list(
        cluster,
        search=asked.get("search", ""),
        sort=asked.get("sort", "name"),
        descending=asked.get("desc") == "1",
        page=_whole(asked.get("page", "0")),
        with_internal=asked.get("internal") == "1",
    )


async def _groups(cluster: Cluster, request: Request) -> Any:
    asked = request.query_params
    return await groups.group_list(
        cluster,
        search=asked.get("search", ""),
        sort=asked.get("sort", "lag"),
        descending=asked.get("desc", "1") == "1",
        page=_whole(asked.get("page", "0")),
    )


def _whole(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise ChangeError(f"{text[:40]!r} is no whole number") from None


class _Console:
    """What needs the settings, beside a cluster."""

    def __init__(self, settings: ConsoleSettings, clusters: dict[str, Cluster]) -> None:
        self._settings = settings
        self._clusters = clusters
        self._audit = ChangeLog(settings.audit_file)
        self._streams = Streams()

    async def index(self, request: Request) -> Response:
        return FileResponse(STATIC / "index.html", headers={"cache-control": _CACHE})

    async def session(self, request: Request) -> Response:
        """What the page needs to begin."""
        if request.state.needs_token:
            return JSONResponse({"needs_token": True, "version": __version__})
        return JSONResponse(
            {
                "needs_token": False,
                "version": __version__,
                "changes": self._settings.allow_changes,
                "clusters": [{"name": one.name, "servers": one.settings.servers} for one in self._clusters.values()],
            }
        )

    def _cluster(self, request: Request) -> Cluster:
        name = request.path_params["cluster"]
        if name not in self._clusters:
            raise ChangeError(f"this console knows no cluster {name!r}")
        return self._clusters[name]

    def view(self, view: View) -> Callable[[Request], Awaitable[Response]]:
        async def answer(request: Request) -> Response:
            return JSONResponse(await view(self._cluster(request), request))

        return answer

    def live(self, view: View) -> Callable[[Request], Awaitable[Response]]:
        async def answer(request: Request) -> Response:
            cluster = self._cluster(request)
            return self._streams.respond(request, lambda: view(cluster, request))

        return answer

    # --- messages

    async def messages(self, request: Request) -> Response:
        browser = browsing.Browser(self._cluster(request), self._settings.masks)
        return JSONResponse(await browser.page(request.query_params))

    async def message(self, request: Request) -> Response:
        browser = browsing.Browser(self._cluster(request), self._settings.masks)
        found = await browser.one(request.query_params)
        return JSONResponse(found, 404 if found is None else 200)

    async def download(self, request: Request) -> Response:
        browser = browsing.Browser(self._cluster(request), self._settings.masks)
        name, data = await browser.download(request.query_params)
        # Whatever it is, it is saved, not shown: nothing in it can run here.
        return Response(
            data,
            media_type="application/octet-stream",
            headers={"content-disposition": f'attachment; filename="{name}"'},
        )

    async def tail(self, request: Request) -> Response:
        browser = browsing.Browser(self._cluster(request), self._settings.masks)
        return self._streams.stream(await browser.tail(request))

    # --- changes

    async def preview_reset(self, request: Request) -> Response:
        wanted = await _body(request)
        to, topics_wanted = groups.reset_to(wanted), topics_of(wanted)
        cluster = self._cluster(request)
        return JSONResponse(
            await groups.preview_reset(cluster, str(wanted.get("group")), to, topics_wanted, dry_run=True)
        )

    async def what_if(self, request: Request) -> Response:
        return JSONResponse(await history.group_what_if(self._cluster(request), await _body(request)))

    async def change(self, request: Request) -> Response:
        name, cluster = request.path_params["change"], self._cluster(request)
        change = CHANGES.get(name)
        if change is None:
            raise ChangeError(f"there is no change {name!r}")
        wanted = await _body(request)
        about = {key: value for key, value in wanted.items() if key not in NOT_AUDITED}
        who = request.client.host if request.client is not None else "unknown"
        error: str | None = "the console is read-only: start it with --allow-changes"
        try:
            if not self._settings.allow_changes:
                return JSONResponse({"error": error}, 403)
            done = await change(cluster, wanted)
            error = None
        except (HeadraceError, ValueError, KeyError, TypeError) as failure:
            error = str(failure) or type(failure).__name__
            raise
        finally:
            self._audit.write(cluster=cluster.name, who=who, what=name, about=about, error=error)
            cluster.forget()
        return JSONResponse({"done": done})


async def _body(request: Request) -> dict[str, Any]:
    found = await request.json()
    if not isinstance(found, dict):
        raise ChangeError("an object is expected")
    return found


# --- errors -----------------------------------------------------------------------------------------------------------


async def _refused(request: Request, error: Exception) -> Response:
    return JSONResponse({"error": str(error) or type(error).__name__}, 400)


async def _of_cluster(request: Request, error: Exception) -> Response:
    return JSONResponse({"error": str(error) or type(error).__name__}, 502)


async def _too_late(request: Request, error: Exception) -> Response:
    return JSONResponse({"error": str(error) or "the cluster does not answer"}, 504)


async def _failed(request: Request, error: Exception) -> Response:
    log.error("%s failed, by a defect: please report it", request.url.path, exc_info=error)
    return JSONResponse({"error": "the console has failed, by a defect; its log says more"}, 500)


_EXPECTED: dict[Any, Any] = {
    RequestTimedOutError: _too_late,
    TimeoutError: _too_late,
    asyncio.TimeoutError: _too_late,
    ConfigError: _refused,
    HeadraceError: _of_cluster,
    ClientClosedError: _too_late,
    ExpressionError: _refused,
    ChangeError: _refused,
    BodyTooLargeError: _refused,
    ValueError: _refused,
    KeyError: _refused,
}
