"""The token of a campaign: grants its engine the access that the campaign's owner has as a member.

It contains the campaign's id and a MAC, and is not stored. It is valid while the owner has a key that may submit.
"""

from __future__ import annotations

import hmac
from typing import Final

from tunefleet.db import Connection
from tunefleet.db.access import keys
from tunefleet.db.campaigns import campaigns
from tunefleet.errors import AuthError
from tunefleet.orchestrator.access.api_keys import SHARED_TOKEN, refuse_archived
from tunefleet.orchestrator.access.permissions import Actor
from tunefleet.orchestrator.context import ServerContext
from tunefleet.orchestrator.ids import sign

PREFIX: Final = "camp-"
_MAC_DIGITS: Final = 32
_SUBMITTING: Final = frozenset({"admin", "member"})


def token_of(server_secret: bytes, campaign_id: str) -> str:
    """Return the token of a campaign, signed with the server's secret."""
    return f"{campaign_id}.{_mac(server_secret, campaign_id)}"


def is_token(secret: str) -> bool:
    """Whether a secret has the form of a campaign's token."""
    return secret.startswith(PREFIX) and "." in secret


async def authenticate(core: ServerContext, token: str) -> Actor:
    """Authenticate a campaign's token.

    Raises:
        AuthError: If the token is not valid, the campaign does not exist, or its owner has no key left.
    """
    campaign_id, _, mac = token.partition(".")
    if not hmac.compare_digest(mac.encode(), _mac(core.secret, campaign_id).encode()):
        raise AuthError("The campaign token is not valid.", hint="Only this server's campaign engine has one.")
    shared = core.settings.shared_token is not None
    return await core.read(lambda connection: _actor(connection, campaign_id, shared=shared))


def _actor(connection: Connection, campaign_id: str, *, shared: bool) -> Actor:
    row = campaigns.by_id(connection, campaign_id)
    if row is None:
        raise AuthError(f"Campaign {campaign_id} not found.")
    refuse_archived(connection, row.project)
    uses_shared_token = shared and row.owner == SHARED_TOKEN.owner
    mine = [key for key in keys.all_rows(connection, project=row.project) if key.owner == row.owner]
    if not uses_shared_token and not any(key.revoked_at is None and key.role in _SUBMITTING for key in mine):
        raise AuthError(
            f"{row.owner}, who owns campaign {row.name}, no longer has a key that may submit.",
            hint=f"Create one with `tunefleet keys create --owner {row.owner}`, or stop the campaign.",
        )
    return Actor(row.id, row.owner, "member", row.project)


def _mac(server_secret: bytes, campaign_id: str) -> str:
    return sign(server_secret, "campaign", campaign_id)[:_MAC_DIGITS]
