"""What one listener asks of those who connect: by which mechanisms they log in, and what becomes of a refusal."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final

from headrace.broker.requests.client import Client
from headrace.broker.security.tls import ListenerTls
from headrace.broker.security.users import TokenLookup, password_check, scram_lookup
from headrace.config import ConfigError, Password
from headrace.net.sasl.jaas import InvalidJaasError, JaasEntry, parse_jaas
from headrace.net.sasl.scram import DIGESTS
from headrace.net.sasl.serving import OauthServer, PlainServer, ScramServer, ServerMechanism, TokenCheck
from headrace.runtime import Clock
from headrace.runtime.rarely import Rarely
from headrace.words import visible

if TYPE_CHECKING:
    from headrace.broker.listeners import ListenerSetting
    from headrace.cluster.broker_config import BrokerConfig
    from headrace.cluster.image import Image

log = logging.getLogger("headrace.broker.security")

MECHANISMS: Final = ("PLAIN", *DIGESTS, "OAUTHBEARER")
_KERBEROS: Final = "GSSAPI"
_USER_OPTION: Final = "user_"
_SAID_EVERY_S: Final = 1.0
_STRANGERS_SAID_EVERY_S: Final = 60.0

MakeMechanism = Callable[[], ServerMechanism]


class ListenerSecurity:
    """The security of one listener. `mechanisms` is empty where nobody logs in, `tls` is None where there is none."""

    def __init__(
        self,
        setting: ListenerSetting,
        clock: Clock,
        *,
        tls: ListenerTls | None,
        mechanisms: Mapping[str, MakeMechanism],
        sessions_ms: Mapping[str, int],
        refusal_delay_s: float,
        receive_bytes_max: int,
    ) -> None:
        self.name = setting.name
        self.protocol = setting.protocol
        self.tls = tls
        self.mechanisms = mechanisms
        self.refusal_delay_s = refusal_delay_s
        #: How large a frame may be before its sender is known.
        self.receive_bytes_max = receive_bytes_max
        self.now_ms = clock.now_ms
        self._sessions_ms = sessions_ms
        self._refusals = Rarely(clock.monotonic, _SAID_EVERY_S)
        self._strangers = Rarely(clock.monotonic, _STRANGERS_SAID_EVERY_S)
        self.refused = 0

    @property
    def has_login(self) -> bool:
        return self.protocol.startswith("SASL_")

    def session_ms(self, mechanism: str) -> int:
        """For how long a login holds; 0: as long as the connection lives."""
        return self._sessions_ms.get(mechanism, 0)

    def tell_refusal(self, connection: Client, why: str) -> None:
        """Into the log, a line a second at most. What a client said in it is escaped."""
        self.refused += 1
        audit = connection.access.audit
        if audit is not None:
            audit.login_refused(connection.peer_host, self.name, why)
        count = self._refusals.happened()
        if count:
            more = f" ({count} refusals since this was last said)" if count > 1 else ""
            log.warning(
                "%s was refused at the listener %s: %s%s",
                connection.peer_host,
                self.name,
                visible(why),
                more,
            )

    def tell_stranger(self, connection: Client) -> None:
        """Somebody asked for what is for brokers, and is not known as one."""
        if self._strangers.happened():
            log.warning(
                "%s at %s asked the listener %s as a broker would, and is not known as one; if it is, name it in "
                "super.users",
                visible(connection.principal),
                connection.peer_host,
                self.name,
            )


def listener_security(
    setting: ListenerSetting,
    config: BrokerConfig,
    clock: Clock,
    *,
    image: Callable[[], Image],
    token: TokenLookup,
    token_check: Callable[[str], TokenCheck],
) -> ListenerSecurity:
    """What the settings ask for, or a `ConfigError` that says what they lack."""
    has_login = setting.protocol.startswith("SASL_")
    tls = ListenerTls(setting.name, config, has_login=has_login) if setting.protocol.endswith("SSL") else None
    mechanisms: dict[str, MakeMechanism] = {}
    sessions_ms: dict[str, int] = {}
    if has_login:
        for name in enabled_mechanisms(setting.name, config):
            mechanisms[name] = _mechanism(setting.name, name, config, image, token, token_check)
            session_ms = config.listener_value(setting.name, "connections.max.reauth.ms", name)
            sessions_ms[name] = session_ms if isinstance(session_ms, int) else 0
    delay_ms = config.listener_value(setting.name, "connection.failed.authentication.delay.ms")
    receive_bytes = config.listener_value(setting.name, "sasl.server.max.receive.size")
    assert isinstance(delay_ms, int)
    assert isinstance(receive_bytes, int)
    return ListenerSecurity(
        setting,
        clock,
        tls=tls,
        mechanisms=mechanisms,
        sessions_ms=sessions_ms,
        refusal_delay_s=delay_ms / 1000,
        receive_bytes_max=receive_bytes,
    )


def enabled_mechanisms(listener: str, config: BrokerConfig) -> list[str]:
    key = "sasl.enabled.mechanisms"
    given = config.listener_value(listener, key)
    names = [str(name).strip().upper() for name in given] if isinstance(given, tuple) else []
    known = [name for name in names if name in MECHANISMS]
    others = [name for name in names if name not in MECHANISMS]
    if not known:
        why = "its default, GSSAPI (Kerberos), is not spoken here" if _KERBEROS in others else "none is given"
        raise ConfigError({key: f"{key}: the listener {listener} needs some of {', '.join(MECHANISMS)}: {why}"})
    if others:
        log.warning("%s: %s is not spoken here, and left out at the listener %s", key, ", ".join(others), listener)
    return known


def _mechanism(
    listener: str,
    name: str,
    config: BrokerConfig,
    image: Callable[[], Image],
    token: TokenLookup,
    token_check: Callable[[str], TokenCheck],
) -> MakeMechanism:
    entry = jaas_entry(listener, name, config)
    if name == "PLAIN":
        users = (
            {}
            if entry is None
            else {
                option.removeprefix(_USER_OPTION): value
                for option, value in entry.options.items()
                if option.startswith(_USER_OPTION)
            }
        )
        if not users:
            key = jaas_key(listener, name)
            raise ConfigError(
                {
                    key: f'{key}: PLAIN at the listener {listener} has no users: give user_NAME="PASSWORD" to '
                    "org.apache.kafka.common.security.plain.PlainLoginModule there"
                }
            )
        is_password = password_check(users)
        return lambda: PlainServer(is_password)
    if name == "OAUTHBEARER":
        check = token_check(listener)
        return lambda: OauthServer(check)
    look_up = scram_lookup(name, image, token)
    return lambda: ScramServer(name, look_up)


def jaas_key(listener: str, mechanism: str) -> str:
    return f"listener.name.{listener.lower()}.{mechanism.lower()}.sasl.jaas.config"


def jaas_entry(listener: str, mechanism: str, config: BrokerConfig) -> JaasEntry | None:
    """The line that says who is who for one mechanism at one listener; None where there is none.

    One without a listener's or a mechanism's prefix counts where its module is the mechanism's.
    """
    given = config.listener_value(listener, "sasl.jaas.config", mechanism)
    if not isinstance(given, Password) or not given.value.strip():
        return None
    key = jaas_key(listener, mechanism)
    try:
        entry = parse_jaas(given.value)
        if key not in config.given and key not in config.dynamic and not entry.is_for(mechanism):
            return None
        entry.check_mechanism(mechanism)
    except InvalidJaasError as error:
        raise ConfigError({key: f"{key}: {error}"}) from None
    return entry
