"""The security of a broker, put together from its settings: its listeners, and who may be another broker."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

from headrace.broker.requests.access import Access
from headrace.broker.security.inter_broker import InterBroker
from headrace.broker.security.jwt_keys import MECHANISM, URL_KEY, SignedTokens, token_checks
from headrace.broker.security.listener import ListenerSecurity, enabled_mechanisms, listener_security
from headrace.broker.security.tls import is_of_tls
from headrace.broker.security.tokens import DelegationTokens, TokensMetadata
from headrace.cluster.decision import NO_ERROR, ApiError
from headrace.config import ConfigError
from headrace.errors import ErrorCode
from headrace.net.sasl.serving import BadCredentialsError, Proof, TokenCheck
from headrace.runtime import Runtime

if TYPE_CHECKING:
    from headrace.broker.listeners import ListenerSetting
    from headrace.broker.security.tls import ListenerTls
    from headrace.broker.view import ClusterView
    from headrace.cluster.broker_config import BrokerConfig
    from headrace.cluster.image import Image

log = logging.getLogger("headrace.broker.security")

#: How often it is looked whether files of certificates are others.
LOOK_EVERY_S: Final = 2.0
_SET: Final = 0
_DELETE: Final = 1


class BrokerSecurity:
    """Made before anything is opened, so that settings that cannot be used are said at once."""

    def __init__(
        self,
        runtime: Runtime,
        config: BrokerConfig,
        settings: Sequence[ListenerSetting],
        image: Callable[[], Image],
    ) -> None:
        self._runtime = runtime
        self._config = config
        self._is_changed = asyncio.Event()
        self.tokens = DelegationTokens(runtime.clock, config, image)
        self._tasks: list[asyncio.Task[None]] = []
        takes_tokens = [
            setting.name
            for setting in settings
            if setting.protocol.startswith("SASL_") and MECHANISM in enabled_mechanisms(setting.name, config)
        ]
        self._token_checks = token_checks(takes_tokens, config)
        self.listeners: dict[str, ListenerSecurity] = {
            setting.name: listener_security(
                setting,
                config,
                runtime.clock,
                image=image,
                token=self.tokens.look_up,
                token_check=self._token_check,
            )
            for setting in settings
        }
        #: How this broker speaks to others.
        self.inter_broker = InterBroker(settings, config)

    def tell(self, access: Access) -> None:
        """Say at which listeners clients have to show who they are, and whom to believe that it is a broker."""
        access.authenticated_listeners = frozenset(name for name, one in self.listeners.items() if one.has_login)
        access.broker_listeners = frozenset({self.inter_broker.setting.name})
        access.has_strangers = len(self.listeners) > 1 or self.inter_broker.setting.protocol != "PLAINTEXT"
        access.tells_brokers = self.tells_clients
        access.broker_principals = self.inter_broker.principals

    def tells_clients(self, listener: str) -> bool:
        """Whether clients of a listener show who they are; by certificates, where it asks for them now."""
        security = self.listeners.get(listener)
        return security is not None and (security.has_login or (security.tls is not None and security.tls.asks_clients))

    # --- certificates that are exchanged while the broker runs

    def start(self, metadata: TokensMetadata) -> None:
        """Look for other certificates, and for tokens that have expired, from now on."""
        loop = asyncio.get_running_loop()
        if any(security.tls is not None for security in self.listeners.values()):
            self._tasks.append(loop.create_task(self._reload_tls()))
        for check in self._token_checks.values():
            if isinstance(check, SignedTokens):
                self._tasks.append(loop.create_task(check.refresh(self._runtime)))
        if self.tokens.settings.secret is not None:
            self._tasks.append(loop.create_task(self.tokens.sweep(metadata)))

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def follow(self, config: BrokerConfig) -> None:
        """The configuration in effect may be another."""
        if config is not self._config:
            self._config = config
            self._is_changed.set()

    async def problem(self, cluster: ClusterView, changes: Sequence[Any]) -> ApiError:
        """Why the listeners could not go on with such changes of this broker's dynamic configuration, if so."""
        if not any(is_of_tls(change.name) for change in changes):
            return NO_ERROR
        config = cluster.config
        # A change that replaces all has no operations: what it leaves out is as good as deleted.
        is_whole = not hasattr(changes[0], "config_operation")
        dynamic = {} if is_whole else dict(config.dynamic)
        for change in changes:
            if is_whole or change.config_operation == _SET:
                dynamic[change.name] = change.value
            elif change.config_operation == _DELETE:
                dynamic.pop(change.name, None)
        known = {name: value for name, value in dynamic.items() if value is not None}
        try:
            wanted = cluster.started_with.with_dynamic(config.dynamic_default, known)
            for security in self.listeners.values():
                if security.tls is not None:
                    await self._runtime.offload(security.tls.check, wanted)
        except ConfigError as error:
            return ApiError(ErrorCode.INVALID_REQUEST, str(error))
        return NO_ERROR

    async def _reload_tls(self) -> None:
        while True:
            for name, security in self.listeners.items():
                if security.tls is not None:
                    await self._reload_one(name, security.tls)
            try:
                await asyncio.wait_for(self._is_changed.wait(), LOOK_EVERY_S)
            except TimeoutError:
                continue
            self._is_changed.clear()

    async def _reload_one(self, name: str, tls: ListenerTls) -> None:
        try:
            if await self._runtime.offload(tls.reload, self._config):
                if name == self.inter_broker.setting.name:
                    self.inter_broker.renew(self._config)
                log.info("the listener %s has taken up new certificates or settings of TLS", name)
        except ConfigError as error:
            log.error("%s. It goes on with what it had", error)
        except Exception:
            log.exception("the TLS of the listener %s was not looked at, by a defect: please report it", name)

    # --- what mechanisms ask

    def _token_check(self, listener: str) -> TokenCheck:
        def refuse(token: str) -> Proof:
            raise BadCredentialsError(f"no keys are configured by which a token could be checked ({URL_KEY})")

        found = self._token_checks.get(listener)
        return refuse if found is None else found.check
