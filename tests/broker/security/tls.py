"""Settings of brokers with TLS, and of their clients, for tests."""

from __future__ import annotations

from pathlib import Path

from headrace.certificates import Authority

KEY_PASSWORD = "of the key"


def with_tls(directory: Path, authority: Authority, *, name: str = "a broker", **more: str) -> dict[str, str]:
    """One listener with TLS; its certificate is in a file."""
    store = authority.issue(name).save(directory / "broker.pem")
    return {
        "listeners": "SSL://127.0.0.1:0",
        "inter.broker.listener.name": "SSL",
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(store),
        **trusting(directory, authority),
        **more,
    }


def trusting(directory: Path, authority: Authority) -> dict[str, str]:
    path = directory / "authority.pem"
    path.write_text(authority.certificate)
    return {"ssl.truststore.type": "PEM", "ssl.truststore.location": str(path)}
