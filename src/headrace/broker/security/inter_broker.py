"""How brokers of a cluster speak to each other: at which listener, as whom, and whom they believe to be a broker.

Each broker registers the listener that others reach it by as its first one. So all know at which listeners others come
in, also while a cluster is moved from one to another: with `PLAINTEXT` and `SASL_SSL` at every broker, a part of them
speaks by the one and a part by the other, and when the last has moved nobody is believed at the former any more.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from headrace.broker.security.listener import jaas_entry
from headrace.broker.security.principals import NoRuleError, PrincipalRules, subject_of
from headrace.broker.security.tls import TLS_KEYS
from headrace.broker.security.users import SCRAM_NUMBERS
from headrace.cluster.acl_authorizer import SUPER_USERS_KEY
from headrace.cluster.authorizer import parse_super_users
from headrace.cluster.records import UserScramCredentialRecord
from headrace.config import ConfigError
from headrace.net.key_stores import first_certificate
from headrace.net.node import Node
from headrace.net.sasl.serving import USER, ScramKeys, scram_keys
from headrace.net.security import PLAINTEXT, Security, client_security
from headrace.net.tls import der_of, identity, renew
from headrace.runtime import Runtime

if TYPE_CHECKING:
    from headrace.broker.listeners import ListenerSetting
    from headrace.cluster.broker_config import BrokerConfig
    from headrace.cluster.image import BrokerImage, Image

NAME_KEY: Final = "inter.broker.listener.name"
PROTOCOL_KEY: Final = "security.inter.broker.protocol"
MECHANISM_KEY: Final = "sasl.mechanism.inter.broker.protocol"
_ITERATIONS: Final = 8192
_SALT_BYTES: Final = 24
_OAUTH_KEYS: Final = (
    "sasl.oauthbearer.client.credentials.client.id",
    "sasl.oauthbearer.client.credentials.client.secret",
    "sasl.oauthbearer.scope",
    "sasl.oauthbearer.token.endpoint.url",
    "sasl.login.read.timeout.ms",
    "sasl.login.retry.backoff.ms",
)


def inter_broker_setting(settings: Sequence[ListenerSetting], config: BrokerConfig) -> ListenerSetting:
    """The listener that is named for brokers, or else the first."""
    named, protocol = config.values.get(NAME_KEY), config.given.get(PROTOCOL_KEY)
    if named is None and protocol is None:
        return settings[0]
    if named is not None and protocol is not None:
        raise ConfigError({NAME_KEY: f"{NAME_KEY} and {PROTOCOL_KEY} both say how brokers speak: give one of them"})
    wanted = str(named or protocol).strip().upper()
    for setting in settings:
        if setting.name == wanted:
            return setting
    key = NAME_KEY if named is not None else PROTOCOL_KEY
    raise ConfigError({key: f"{key}={wanted}: there is no such listener among {', '.join(s.name for s in settings)}"})


class InterBroker:
    """What this broker shows to others, and what it takes for one of them."""

    def __init__(self, settings: Sequence[ListenerSetting], config: BrokerConfig) -> None:
        self._settings = settings
        self.setting = inter_broker_setting(settings, config)
        #: Who other brokers are at listeners that know who connects, where no authorizer says who may act as one.
        self.principals = _own_principals(settings, config)
        self.security: Security = PLAINTEXT
        self._own_users = [login for login in _own_logins(settings, config) if login[0] in SCRAM_NUMBERS]

    @property
    def in_order(self) -> list[ListenerSetting]:
        """All listeners, that of brokers first."""
        return [self.setting, *(setting for setting in self._settings if setting is not self.setting)]

    def begin(self, config: BrokerConfig) -> None:
        """There are other brokers to speak to; a `ConfigError` where the settings do not say how."""
        values = self._client_values(config)
        try:
            self.security = client_security(values)
        except ConfigError as error:
            raise ConfigError(
                {
                    MECHANISM_KEY: f"this broker cannot speak to others at the listener {self.setting.name}: "
                    + str(error).replace("sasl.mechanism ", f"{MECHANISM_KEY} ")
                }
            ) from None

    def renew(self, config: BrokerConfig) -> None:
        """The certificates of the listener were exchanged: connections from now on are made with them."""
        if self.security.tls is not None:
            renew(self.security.tls, self._client_values(config))

    def _client_values(self, config: BrokerConfig) -> dict[str, Any]:
        name = self.setting.name
        mechanism = str(config.listener_value(name, MECHANISM_KEY)).upper()
        values: dict[str, Any] = {key: config.listener_value(name, key) for key in TLS_KEYS}
        values |= {key: config.listener_value(name, key, mechanism) for key in _OAUTH_KEYS}
        algorithm = config.listener_value(name, "ssl.endpoint.identification.algorithm")
        given = config.listener_value(name, "sasl.jaas.config", mechanism)
        return values | {
            "security.protocol": self.setting.protocol,
            "ssl.endpoint.identification.algorithm": algorithm or "",
            "enable.ssl.certificate.verification": True,
            "sasl.mechanism": mechanism,
            "sasl.jaas.config": given,
            "sasl.username": None,
            "sasl.password": None,
            "sasl.oauthbearer.token.callback": None,
        }

    # --- others

    def node(self, broker: BrokerImage) -> Node | None:
        """Where another broker is reached."""
        address = broker.listener(self.setting.name) or next(iter(broker.listeners), None)
        if address is None:
            return None
        return Node(broker.node_id, address.host, address.port, broker.rack, broker.incarnation_id)

    def listeners_of(self, brokers: Mapping[int, BrokerImage]) -> frozenset[str]:
        """At which listeners other brokers come in: by the one that is theirs here, or by one of those before."""
        return frozenset({self.setting.name, *(one.listeners[0].name for one in brokers.values() if one.listeners)})

    # --- its own user

    def own_users(self, image: Image, runtime: Runtime) -> list[UserScramCredentialRecord]:
        """Lets brokers log in as the users that they share, where these are not there yet."""
        records = []
        for mechanism, name, password in self._own_users:
            number = SCRAM_NUMBERS[mechanism]
            if (name, number) not in image.scram:
                salt = runtime.rng.randbytes(_SALT_BYTES)
                keys = scram_keys(mechanism, password, iterations=_ITERATIONS, salt=salt)
                records.append(scram_record(name, number, keys))
        return records


def scram_record(name: str, mechanism: int, keys: ScramKeys) -> UserScramCredentialRecord:
    return UserScramCredentialRecord(
        name=name,
        mechanism=mechanism,
        salt=keys.salt,
        stored_key=keys.stored_key,
        server_key=keys.server_key,
        iterations=keys.iterations,
    )


def _own_logins(settings: Sequence[ListenerSetting], config: BrokerConfig) -> Iterator[tuple[str, str, str]]:
    """Mechanism, user and password by which this broker itself logs in, at any listener that may be that of brokers."""
    for setting in settings:
        if setting.protocol.startswith("SASL_"):
            mechanism = str(config.listener_value(setting.name, MECHANISM_KEY)).upper()
            entry = jaas_entry(setting.name, mechanism, config)
            if entry is not None and "username" in entry.options:
                yield mechanism, entry.options["username"], entry.options.get("password", "")


def _own_principals(settings: Sequence[ListenerSetting], config: BrokerConfig) -> frozenset[str]:
    """As whom this broker itself would be known at each of its listeners: others of a cluster are the same."""
    found = set(parse_super_users(config.given.get(SUPER_USERS_KEY, "")))
    found |= {f"{USER}:{name}" for _, name, _ in _own_logins(settings, config)}
    for setting in settings:
        if setting.protocol == "SSL" and config.listener_value(setting.name, "ssl.client.auth") != "none":
            user = _certificate_user(setting.name, config)
            if user is not None:
                found.add(f"{USER}:{user}")
    return frozenset(found)


def _certificate_user(listener: str, config: BrokerConfig) -> str | None:
    values = {key: config.listener_value(listener, key) for key in TLS_KEYS}
    rules = PrincipalRules(str(config.listener_value(listener, "ssl.principal.mapping.rules") or ""))
    own = identity(values)
    pem = None if own is None else first_certificate(own[0])
    try:
        return None if pem is None else rules.user(subject_of(der_of(pem)))
    except NoRuleError:
        return None
