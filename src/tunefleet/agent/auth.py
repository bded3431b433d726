"""Who may call the agent: whoever has `AGENT_KEY`; without one, local processes of the same user.

The control port's rules: the Host must be local, an Origin is refused unless `CORS_ALLOW_ORIGINS` names it, and the
kernel says whose process it is that connects over loopback. So no web page and no other user can start jobs here.
"""

from __future__ import annotations

import hmac
import os
import re
from typing import Final

from fastapi import Request

from tunefleet.errors import AuthError, ForbiddenError
from tunefleet.trainer_control.control.control_server import peer_uid

_LOCAL_HOSTS: Final = frozenset({"localhost", "127.0.0.1", "[::1]"})


def check(request: Request) -> None:
    """Let a request pass.

    Raises:
        AuthError: If the key is missing or wrong, or the process is another user's.
        ForbiddenError: If it comes from a web page, or was sent to another host's name.
    """
    secret: str | None = request.app.state.key
    given = _given(request)
    if secret is not None:
        if given is None or not hmac.compare_digest(given.encode(), secret.encode()):
            raise AuthError("This agent takes its key only.", hint="Send AGENT_KEY as 'Authorization: Bearer KEY'.")
        return
    host = re.sub(r":\d+$", "", request.headers.get("host", "")).lower()
    if host not in _LOCAL_HOSTS:
        raise ForbiddenError(
            f"The Host {host!r} is not local.", hint="Set AGENT_KEY to reach the agent from elsewhere."
        )
    origin = request.headers.get("origin")
    page = origin is not None or request.headers.get("sec-fetch-site", "none") != "none"
    if page and origin not in request.app.state.origins:
        raise ForbiddenError(
            "A request from a web page is refused.",
            hint="CORS_ALLOW_ORIGINS of the agent names pages that may call it.",
        )
    if not _is_own_process(request):
        raise AuthError(
            "Only processes of the agent's own user on this machine are answered without a key.",
            hint="Set AGENT_KEY and send it as 'Authorization: Bearer KEY'.",
        )


def _given(request: Request) -> str | None:
    scheme, _, value = request.headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer" and value.strip():
        return value.strip()
    return request.headers.get("x-api-key") or None


def _is_own_process(request: Request) -> bool:
    peer, ours = request.scope.get("client"), request.scope.get("server")
    if peer is None or ours is None or not peer[0].startswith("127."):
        return False
    return peer_uid((peer[0], int(peer[1])), (ours[0], int(ours[1]))) == os.geteuid()
