"""What every endpoint works with."""

from __future__ import annotations

from dataclasses import dataclass

from starlette.requests import Request

from kvist.server.chat import Chats
from kvist.server.config import ServeConfig
from kvist.server.refuse import Refusal
from kvist.server.service import Service
from kvist.server.sessions.sessions import Sessions
from kvist.server.tenants import Tenant


@dataclass(frozen=True, slots=True)
class Desk:
    """The service, the conversations, the saved sessions, the limits."""

    service: Service
    chats: Chats
    sessions: Sessions
    config: ServeConfig

    def check_model(self, asked: str | None) -> str:
        """The name to answer under. Raises ``Refusal`` (404) for a model that is not served; None: whatever is."""
        names = self.config.names
        if asked is not None and asked not in names:
            what = f"the model {asked[:200]!r} is not served here"
            raise Refusal(404, "model_not_found", what, remedy=f"served: {', '.join(names)}", param="model")
        return asked or names[0]


def tenant_of(request: Request) -> Tenant:
    """Who asks: the door found out."""
    tenant: Tenant = request.state.tenant
    return tenant


def name_of(request: Request) -> str:
    """What the request is called: the client's X-Request-Id, or one of ours."""
    name: str = request.state.name
    return name


def check_admin(request: Request) -> None:
    """Raises ``Refusal`` (403) for those who may not change what others see."""
    if not tenant_of(request).admin:
        what = "this needs the admin key"
        raise Refusal(403, "not_admin", what, remedy="start the server with --admin-api-key, and send that key")
