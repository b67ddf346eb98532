"""The security of a broker, put together from its settings: its listeners, and who may be another broker."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from headrace.broker.security.listener import ListenerSecurity, listener_security
from headrace.net.sasl.serving import BadCredentialsError, Proof, ScramKeys, TokenCheck
from headrace.runtime import Runtime

if TYPE_CHECKING:
    from headrace.broker.server.listeners import ListenerSetting
    from headrace.cluster.broker_config import BrokerConfig
    from headrace.cluster.image import Image


class BrokerSecurity:
    """Made before anything is opened, so that settings that cannot be used are said at once."""

    def __init__(
        self,
        runtime: Runtime,
        config: BrokerConfig,
        settings: Sequence[ListenerSetting],
        image: Callable[[], Image],
    ) -> None:
        self.listeners: dict[str, ListenerSecurity] = {
            setting.name: listener_security(
                setting,
                config,
                runtime.clock,
                image=image,
                token=self._token,
                token_check=self._token_check,
            )
            for setting in settings
        }

    @property
    def authenticated(self) -> frozenset[str]:
        """The listeners whose clients have to say who they are."""
        return frozenset(name for name, security in self.listeners.items() if security.has_login)

    def _token(self, mechanism: str, token_id: str) -> tuple[ScramKeys, Proof] | None:
        return None

    def _token_check(self, listener: str) -> TokenCheck:
        def refuse(token: str) -> Proof:
            raise BadCredentialsError("no keys are configured by which a token could be checked")

        return refuse
