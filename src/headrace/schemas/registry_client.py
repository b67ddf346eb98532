"""A client of a schema registry: Confluent's, Karapace, Redpanda's, Apicurio's or Headrace's own.

What never changes (the schema that a number stands for) is kept; what may (the newest version) for as long as is set.
While a registry is away what is kept goes on, and everything else waits with a bound.
"""

from __future__ import annotations

import base64
import json
import threading
import time
import uuid
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeVar
from urllib.parse import quote, urlencode

from headrace.config import ConfigError
from headrace.errors import HeadraceError
from headrace.schemas.extras import need
from headrace.schemas.schema import Reference, Schema

T = TypeVar("T")

CACHE_CAPACITY = 10_000
DEFAULT_TIMEOUT_S = 30.0
_BACKOFF_S, _BACKOFF_S_MAX = 0.1, 2.0
_REQUEST_TIMEOUT_S = 10.0
_AGAIN = (408, 429, 500, 502, 503, 504)
_CONTENT_TYPE = "application/vnd.schemaregistry.v1+json"


class RegistryUnavailableError(HeadraceError):
    """No registry answered in time. Nothing was lost: what was to be read or written can be tried again."""


class RegistryRequestError(HeadraceError):
    """The registry refused: `code` is its own number, as in 40403 for a schema that it does not have."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(f"{message} (schema registry error {code})")
        self.code = code

    @property
    def is_not_found(self) -> bool:
        return self.code == 404 or self.code // 100 == 404


class RegisteredSchema(NamedTuple):
    """A schema, and what a registry knows it by."""

    id: int
    schema: Schema
    subject: str | None = None
    version: int | None = None
    guid: uuid.UUID | None = None


class RegistryClient:
    """Asks a registry. May be shared by any number of serializers, on any number of threads.

        client = RegistryClient("http://localhost:8081")
        client.latest("orders-value").schema.text

    `urls`: one address or several, separated by commas; the next one is asked when one does not answer. `settings`:
    what says who asks, by Kafka's names (`basic.auth.user.info`, `bearer.auth.token`, `schema.registry.ssl.*`), and
    `schema.registry.timeout.ms`, how long an answer may take with all that is tried.
    """

    def __init__(self, urls: str, settings: Mapping[str, Any] | None = None) -> None:
        settings = settings or {}
        self.urls = tuple(one.strip().rstrip("/") for one in str(urls).split(",") if one.strip())
        for url in self.urls:
            if not url.startswith(("http://", "https://")):
                raise ConfigError(
                    {"schema.registry.url": f"schema.registry.url={url}: it begins with http:// or https://"}
                )
        if not self.urls:
            raise ConfigError({"schema.registry.url": "schema.registry.url names no registry"})
        self._headers = {"accept": f"{_CONTENT_TYPE}, application/json", **_authorization(settings)}
        self._tls = _tls(settings)
        self._timeout_s = _number(settings, "schema.registry.timeout.ms", DEFAULT_TIMEOUT_S * 1000) / 1000
        ttl_s = _number(settings, "latest.cache.ttl.sec", -1)
        self._latest_ttl_s = None if ttl_s < 0 else ttl_s
        self._schemas: _Kept = _Kept()
        self._latest: _Kept = _Kept()
        self._pool: Any = None
        self._lock = threading.Lock()

    # --- what never changes -------------------------------------------------------------------------------------------

    def by_id(self, number: int, subject: str | None = None) -> RegisteredSchema:
        """The schema with this number."""
        query = {"subject": subject} if subject is not None else {}
        return self._schemas.get(
            (number, subject),
            lambda: _registered({**self._get(f"/schemas/ids/{number}", query), "id": number}),
        )

    def by_guid(self, guid: uuid.UUID) -> RegisteredSchema:
        """The schema with this GUID, which it has in every registry."""
        return self._schemas.get(
            guid, lambda: _registered({"id": 0, **self._get(f"/schemas/guids/{guid}"), "guid": str(guid)})
        )

    def version(self, subject: str, version: int) -> RegisteredSchema:
        """One version of a subject."""
        path = f"/subjects/{_part(subject)}/versions/{version}"
        return self._schemas.get(
            (subject, version, "version"), lambda: _registered(self._get(path, {"deleted": "true"}))
        )

    def register(self, subject: str, schema: Schema, *, normalize: bool = False) -> RegisteredSchema:
        """Register a schema, unless it is registered already."""
        query = {"normalize": "true"} if normalize else {}
        path = f"/subjects/{_part(subject)}/versions"
        return self._schemas.get(
            (subject, schema, normalize),
            lambda: _own(self._ask("POST", path, query, schema.to_json()), subject, schema),
        )

    def lookup(self, subject: str, schema: Schema, *, normalize: bool = False) -> RegisteredSchema:
        """What a schema is registered as; `RegistryRequestError` if it is not."""
        query = {"normalize": "true"} if normalize else {}
        return self._schemas.get(
            (subject, schema, normalize),
            lambda: _own(self._ask("POST", f"/subjects/{_part(subject)}", query, schema.to_json()), subject, schema),
        )

    # --- what may change ----------------------------------------------------------------------------------------------

    def latest(self, subject: str) -> RegisteredSchema:
        """The newest version of a subject; kept for `latest.cache.ttl.sec` seconds, -1: for good."""
        path = f"/subjects/{_part(subject)}/versions/latest"
        return self._latest.get(subject, lambda: _registered(self._get(path)), self._latest_ttl_s)

    def subjects(self, prefix: str | None = None, *, deleted: bool = False) -> list[str]:
        query = {"subjectPrefix": prefix} if prefix is not None else {}
        found: list[str] = self._get("/subjects", {**query, **({"deleted": "true"} if deleted else {})})
        return found

    def versions(self, subject: str) -> list[int]:
        found: list[int] = self._get(f"/subjects/{_part(subject)}/versions")
        return found

    def check(self, subject: str, schema: Schema, version: str | None = None) -> list[str]:
        """Why a schema cannot be registered under a subject; empty if it can. `version`: held against this one only."""
        path = f"/compatibility/subjects/{_part(subject)}/versions" + (f"/{version}" if version is not None else "")
        found = self._ask("POST", path, {"verbose": "true"}, schema.to_json())
        return [] if found.get("is_compatible") else list(found.get("messages") or ["the registry does not say why"])

    def level(self, subject: str) -> str:
        """The level of compatibility that holds for a subject."""
        found = self._get(f"/config/{_part(subject)}", {"defaultToGlobal": "true"})
        return str(found.get("compatibilityLevel"))

    def set_level(self, subject: str | None, level: str) -> None:
        path = "/config" if subject is None else f"/config/{_part(subject)}"
        self._ask("PUT", path, {}, {"compatibility": level})

    def delete(self, subject: str, *, permanent: bool = False) -> list[int]:
        """Delete a subject, softly unless said otherwise; gives its versions."""
        found: list[int] = self._ask(
            "DELETE", f"/subjects/{_part(subject)}", {"permanent": "true"} if permanent else {}
        )
        return found

    def referred(self, schema: Schema) -> dict[str, str]:
        """The texts of all that a schema refers to, by name; those first that others refer to."""
        texts: dict[str, str] = {}

        def add(references: tuple[Reference, ...]) -> None:
            for one in references:
                if one.name not in texts:
                    found = self.version(one.subject, one.version).schema
                    add(found.references)
                    texts[one.name] = found.text

        add(schema.references)
        return texts

    def close(self) -> None:
        pool, self._pool = self._pool, None
        if pool is not None:
            pool.clear()

    def __getstate__(self) -> dict[str, Any]:
        # A serializer may travel to another process; connections and locks do not.
        return {**self.__dict__, "_pool": None, "_lock": None, "_schemas": None, "_latest": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._lock, self._schemas, self._latest = threading.Lock(), _Kept(), _Kept()

    # --- asking -------------------------------------------------------------------------------------------------------

    def _get(self, path: str, query: Mapping[str, str] | None = None) -> Any:
        return self._ask("GET", path, query or {})

    def _ask(self, method: str, path: str, query: Mapping[str, str], body: Any = None) -> Any:
        """One of the registries answers, or the time is over."""
        deadline = time.monotonic() + self._timeout_s
        pause_s = _BACKOFF_S
        last = ""
        while True:
            for url in self.urls:
                left_s = max(0.05, deadline - time.monotonic())
                try:
                    status, answer = self._send(method, url + path, query, body, min(left_s, _REQUEST_TIMEOUT_S))
                except OSError as error:
                    last = f"{url}: {error}"
                    continue
                if status in _AGAIN:
                    last = f"{url}: HTTP {status} {_message(answer)[1]}"
                    continue
                if status >= 400:
                    raise RegistryRequestError(*_message(answer, status))
                try:
                    return json.loads(answer)
                except ValueError:
                    raise RegistryRequestError(status, f"{url} answers what is no JSON: is it a registry?") from None
            if time.monotonic() + pause_s >= deadline:
                raise RegistryUnavailableError(
                    f"no schema registry answered within {self._timeout_s:.0f} s (schema.registry.timeout.ms); {last}"
                )
            time.sleep(pause_s)
            pause_s = min(pause_s * 2, _BACKOFF_S_MAX)

    def _send(self, method: str, url: str, query: Mapping[str, str], body: Any, timeout_s: float) -> tuple[int, bytes]:
        urllib3 = need("urllib3")
        with self._lock:
            if self._pool is None:
                self._pool = urllib3.PoolManager(retries=False, maxsize=4, **self._tls)
            pool = self._pool
        headers, data = self._headers, None
        if body is not None:
            headers, data = {**headers, "content-type": _CONTENT_TYPE}, json.dumps(body).encode()
        try:
            answer = pool.request(
                method,
                f"{url}?{urlencode(query)}" if query else url,
                body=data,
                headers=headers,
                timeout=timeout_s,
            )
        except urllib3.exceptions.HTTPError as error:
            raise OSError(str(error)) from error
        return answer.status, answer.data


class _Kept:
    """Answers that were had, the last used last; each is asked for once, however many threads want it."""

    def __init__(self) -> None:
        self._found: OrderedDict[Any, tuple[float, Any]] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: Any, ask: Callable[[], T], ttl_s: float | None = None) -> T:
        kept = self._fresh(key, ttl_s)
        if kept is None:
            with self._lock:
                kept = self._fresh(key, ttl_s)
                if kept is None:
                    kept = self._ask(key, ask)
        found: T = kept
        return found

    def _fresh(self, key: Any, ttl_s: float | None) -> Any:
        found = self._found.get(key)
        if found is None or (ttl_s is not None and time.monotonic() - found[0] >= ttl_s):
            return None
        return found[1]

    def _ask(self, key: Any, ask: Callable[[], Any]) -> Any:
        try:
            value = ask()
        except RegistryUnavailableError:
            if key not in self._found:
                raise
            # What it was is better than nothing.
            value = self._found[key][1]
        self._found[key] = (time.monotonic(), value)
        while len(self._found) > CACHE_CAPACITY:
            self._found.popitem(last=False)
        return value


def _registered(body: Mapping[str, Any]) -> RegisteredSchema:
    guid = body.get("guid")
    return RegisteredSchema(
        int(body["id"]),
        Schema.from_json(body),
        body.get("subject"),
        body.get("version"),
        uuid.UUID(guid) if guid else None,
    )


def _own(body: Mapping[str, Any], subject: str, schema: Schema) -> RegisteredSchema:
    guid = body.get("guid")
    return RegisteredSchema(int(body["id"]), schema, subject, body.get("version"), uuid.UUID(guid) if guid else None)


def _part(subject: str) -> str:
    return quote(subject, safe="")


def _message(answer: bytes, status: int = 0) -> tuple[int, str]:
    try:
        body = json.loads(answer)
        return int(body["error_code"]), str(body["message"])
    except (ValueError, KeyError, TypeError):
        return status, answer[:200].decode(errors="replace") or f"HTTP {status}"


def _authorization(settings: Mapping[str, Any]) -> dict[str, str]:
    def plain(name: str) -> str | None:
        value = settings.get(name, settings.get(f"schema.registry.{name}"))
        return None if value is None else str(getattr(value, "value", value))

    user, token = plain("basic.auth.user.info"), plain("bearer.auth.token")
    if user is not None and token is not None:
        raise ConfigError(
            {"bearer.auth.token": "basic.auth.user.info and bearer.auth.token: a client shows one of them"}
        )
    if user is not None:
        return {"authorization": f"Basic {base64.b64encode(user.encode()).decode()}"}
    return {} if token is None else {"authorization": f"Bearer {token}"}


def _tls(settings: Mapping[str, Any]) -> dict[str, Any]:
    own = {name.removeprefix("schema.registry."): value for name, value in settings.items()}
    found: dict[str, Any] = {}
    if own.get("ssl.truststore.location") or own.get("ssl.ca.location"):
        found["ca_certs"] = str(own.get("ssl.truststore.location") or own["ssl.ca.location"])
    certificate = own.get("ssl.certificate.location") or own.get("ssl.keystore.location")
    if certificate:
        found["cert_file"] = str(certificate)
        found["key_file"] = str(own.get("ssl.key.location") or certificate)
        if own.get("ssl.key.password"):
            found["key_password"] = str(getattr(own["ssl.key.password"], "value", own["ssl.key.password"]))
    return found


def _number(settings: Mapping[str, Any], name: str, default: float) -> float:
    try:
        return float(settings.get(name, default))
    except (TypeError, ValueError):
        raise ConfigError({name: f"{name}={settings[name]!r} is no number"}) from None
