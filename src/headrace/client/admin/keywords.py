"""The admin client's settings as keywords: Kafka's names with underscores for dots, so that a type checker knows them.

Values may be text, as in a properties file, or the native ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypedDict


class AdminKeywords(TypedDict, total=False):
    """Every setting of the admin client; what each means is in `ADMIN_CONFIGS`."""

    bootstrap_servers: Sequence[str] | str
    client_dns_lookup: str
    client_id: str
    connections_max_idle_ms: int | str
    default_api_timeout_ms: int | str
    enable_ssl_certificate_verification: bool | str
    metadata_max_age_ms: int | str
    metadata_recovery_rebootstrap_trigger_ms: int | str
    metadata_recovery_strategy: str
    receive_buffer_bytes: int | str
    reconnect_backoff_max_ms: int | str
    reconnect_backoff_ms: int | str
    request_timeout_ms: int | str
    retries: int | str
    retry_backoff_max_ms: int | str
    retry_backoff_ms: int | str
    sasl_jaas_config: str | None
    sasl_login_connect_timeout_ms: int | str | None
    sasl_login_read_timeout_ms: int | str | None
    sasl_login_refresh_buffer_seconds: int | str
    sasl_login_refresh_min_period_seconds: int | str
    sasl_login_refresh_window_factor: float | str
    sasl_login_refresh_window_jitter: float | str
    sasl_login_retry_backoff_max_ms: int | str
    sasl_login_retry_backoff_ms: int | str
    sasl_mechanism: str
    sasl_oauthbearer_client_credentials_client_id: str | None
    sasl_oauthbearer_client_credentials_client_secret: str | None
    sasl_oauthbearer_scope: str | None
    sasl_oauthbearer_token_callback: Any
    sasl_oauthbearer_token_endpoint_url: str | None
    sasl_password: str | None
    sasl_username: str | None
    security_protocol: str
    send_buffer_bytes: int | str
    socket_connection_setup_timeout_max_ms: int | str
    socket_connection_setup_timeout_ms: int | str
    ssl_certificate_location: str | None
    ssl_cipher_suites: Sequence[str] | str
    ssl_enabled_protocols: Sequence[str] | str
    ssl_endpoint_identification_algorithm: str
    ssl_key_location: str | None
    ssl_key_password: str | None
    ssl_keystore_certificate_chain: str | None
    ssl_keystore_key: str | None
    ssl_keystore_location: str | None
    ssl_keystore_password: str | None
    ssl_keystore_type: str
    ssl_protocol: str
    ssl_truststore_certificates: str | None
    ssl_truststore_location: str | None
    ssl_truststore_password: str | None
    ssl_truststore_type: str
