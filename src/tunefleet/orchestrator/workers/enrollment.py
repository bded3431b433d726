"""Invitations: one single-use token, one machine, one key.

The machine generates its key and sends only the hash, so that requests are idempotent: a retry after a lost response
gets the same response, any other machine with the token is refused.
"""

from __future__ import annotations

import json
import secrets
from typing import Final, Literal

from tunefleet.db import Connection
from tunefleet.db.access import keys
from tunefleet.db.access import keys as key_rows
from tunefleet.db.access.keys import InvitationRow
from tunefleet.errors import AuthError, ConflictError, NotFoundError
from tunefleet.orchestrator.access import api_keys
from tunefleet.orchestrator.access.login_throttle import LoginThrottle
from tunefleet.orchestrator.access.permissions import Actor, may_administer
from tunefleet.orchestrator.context import ServerContext
from tunefleet.orchestrator.ids import hash_secret, new_id
from tunefleet.orchestrator.views import to_datetime, to_optional_datetime
from tunefleet.schemas.enrollment import InvitationCreate, InvitationCreated, InvitationView, JoinReply, JoinRequest

PREFIX: Final = "tfj_"
_NEW_TOKEN_HINT: Final = "Ask an admin for a new one (`tunefleet workers invite`)."


async def create(core: ServerContext, actor: Actor, body: InvitationCreate, url: str) -> InvitationCreated:
    """Create an invitation; its token is returned only here.

    Raises:
        ForbiddenError: If the actor is not an admin.
    """
    may_administer(actor)
    token, id_, now = f"{PREFIX}{secrets.token_urlsafe(30)}", new_id("inv"), core.clock.wall()
    row = {
        "id": id_, "project": actor.project, "token_hash": hash_secret(token), "worker_id": body.worker_id,
        "tags": None if body.tags is None else json.dumps(body.tags),
        "owner": body.owner or body.worker_id or actor.owner, "created_by": actor.owner,
        "created_at": now, "expires_at": now + body.expires_s,
    }  # fmt: skip

    def operation(connection: Connection) -> InvitationRow:
        keys.insert_invitation(connection, row)
        return _find_invitation(connection, actor, id_)

    view = _view(await core.write(operation), now)
    command = f"tunefleet join {url} {token}"
    return InvitationCreated(**view.model_dump(), token=token, url=url, command=command)


async def list_(core: ServerContext, actor: Actor) -> list[InvitationView]:
    """Return all invitations, newest first, without their tokens.

    Raises:
        ForbiddenError: If the actor is not an admin.
    """
    may_administer(actor)
    rows = await core.read(lambda connection: keys.all_invitations(connection, project=actor.project))
    now = core.clock.wall()
    return [_view(row, now) for row in rows]


async def withdraw(core: ServerContext, actor: Actor, invitation_id: str) -> InvitationView:
    """Revoke an invitation.

    Raises:
        ForbiddenError: If the actor is not an admin.
        ConflictError: If a machine has joined with it.
    """
    may_administer(actor)
    now = core.clock.wall()

    def operation(connection: Connection) -> InvitationRow:
        row = _find_invitation(connection, actor, invitation_id)
        if row.revoked_at is None and not keys.revoke_invitation(connection, row.id, now):
            raise ConflictError(
                f"A machine has already joined with {row.id}.",
                hint=f"Revoke its key with `tunefleet keys revoke {row.key_id}`.",
            )
        return _find_invitation(connection, actor, invitation_id)

    return _view(await core.write(operation), now)


async def join(core: ServerContext, address: str, request: JoinRequest) -> JoinReply:
    """Exchange the token of an invitation for the key of a worker.

    Raises:
        AuthError: If the token is wrong, expired or withdrawn, its project is archived, or the key that it was
            exchanged for was revoked.
        ConflictError: If another machine has used it.
        TooManyError: If the address has failed too often.
    """
    core.state(LoginThrottle).begin(address, core.clock.monotonic())
    now = core.clock.wall()
    row = await core.write(lambda connection: _exchange(connection, request, now))
    core.state(LoginThrottle).succeeded(address, core.clock.monotonic())
    assert row.key_id is not None, "the exchange has set it"
    return JoinReply(key_id=row.key_id, owner=row.owner, worker_id=row.worker_id, tags=_tags(row))


def _exchange(connection: Connection, request: JoinRequest, now: float) -> InvitationRow:
    row = keys.invitation_by_hash(connection, hash_secret(request.token))
    if row is None:
        raise AuthError("The join token is wrong.", hint=f"Copy the complete command. {_NEW_TOKEN_HINT}")
    if row.revoked_at is not None:
        raise AuthError("The join token was withdrawn.", hint=_NEW_TOKEN_HINT)
    if row.key_id is not None:
        return _repeated_join(connection, row, request)
    if row.expires_at <= now:
        raise AuthError("The join token has expired.", hint=_NEW_TOKEN_HINT)
    api_keys.refuse_archived(connection, row.project)
    if key_rows.by_hash(connection, request.secret_hash) is not None:
        raise ConflictError("Another key has this hash.", hint="Let `tunefleet join` generate a key.")
    key = api_keys.insert(
        connection,
        project=row.project,
        name=row.worker_id or request.name or row.id,
        role="worker",
        owner=row.owner,
        secret_hash=request.secret_hash,
        now=now,
    )
    if not keys.use_invitation(connection, row.id, key_id=key.id, at=now):
        raise _already_used()  # a concurrent request won; the transaction rolls back the key as well
    return row._replace(used_at=now, key_id=key.id)


def _repeated_join(connection: Connection, row: InvitationRow, request: JoinRequest) -> InvitationRow:
    assert row.key_id is not None, "checked by the caller"
    key = key_rows.by_id(connection, row.key_id)
    if key is None or key.secret_hash != request.secret_hash:
        raise _already_used()
    if key.revoked_at is not None:
        raise AuthError("The key that this machine joined with was revoked.", hint=_NEW_TOKEN_HINT)
    return row


def _already_used() -> ConflictError:
    return ConflictError(
        "Another machine has joined with this single-use token.",
        hint=f"{_NEW_TOKEN_HINT} If you do not know the machine, revoke its key (see `tunefleet workers invitations`).",
    )


def _find_invitation(connection: Connection, actor: Actor, invitation_id: str) -> InvitationRow:
    row = keys.invitation_by_id(connection, invitation_id, project=actor.project)
    if row is None:
        raise NotFoundError(
            f"Invitation {invitation_id} not found.", hint="List them with `tunefleet workers invitations`."
        )
    return row


def _tags(row: InvitationRow) -> tuple[str, ...] | None:
    return None if row.tags is None else tuple(json.loads(row.tags))


def _state(row: InvitationRow, now: float) -> Literal["open", "used", "expired", "withdrawn"]:
    if row.used_at is not None:
        return "used"
    if row.revoked_at is not None:
        return "withdrawn"
    return "expired" if row.expires_at <= now else "open"


def _view(row: InvitationRow, now: float) -> InvitationView:
    return InvitationView(
        id=row.id, state=_state(row, now), worker_id=row.worker_id, tags=_tags(row), owner=row.owner,
        created_by=row.created_by, created_at=to_datetime(row.created_at), expires_at=to_datetime(row.expires_at),
        used_at=to_optional_datetime(row.used_at), key_id=row.key_id,
    )  # fmt: skip
