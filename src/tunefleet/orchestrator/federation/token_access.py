"""Federation tokens: show, authenticate, and revoke by replacement."""

from __future__ import annotations

from functools import partial

from tunefleet.db import DEFAULT_PROJECT, Connection, after_commit, wake
from tunefleet.db.federations import federations
from tunefleet.db.federations.federations import FederationRow, TokenRow
from tunefleet.errors import AuthError, InputError
from tunefleet.orchestrator.access.permissions import KEYS, FederationActor, KeyCache
from tunefleet.orchestrator.context import ServerContext
from tunefleet.orchestrator.federation.participants import FederationCaller, may_manage, proven, token_of, worker_name
from tunefleet.orchestrator.federation.status import find, publish_event, spec_of
from tunefleet.orchestrator.views import to_optional_datetime
from tunefleet.schemas.federated import FederationToken


async def authenticate(core: ServerContext, token: str) -> FederationActor:
    """Authenticate a federation token.

    Raises:
        AuthError: If this server did not create the token, or it was revoked.
    """
    federation_id, serial, worker = proven(core.secret, token)
    cache = core.state(KeyCache)
    known = cache.federations
    row = known.get(federation_id)
    if row is None:
        found, cache.projects[federation_id] = await core.read(partial(_look_up, federation_id=federation_id))
        row = known[federation_id] = found
    in_grace_period = row.old_until is not None and core.clock.wall() < row.old_until and serial == row.serial - 1
    if serial != row.serial and not in_grace_period:
        raise AuthError(
            f"This token of {federation_id} was revoked.",
            hint=f"`tunefleet federation token {federation_id}` prints the new one to its owner.",
        )
    return FederationActor(federation_id, cache.projects.get(federation_id, DEFAULT_PROJECT), worker)


def _look_up(connection: Connection, *, federation_id: str) -> tuple[TokenRow, str]:
    federation = federations.find(connection, None, federation_id)
    project = DEFAULT_PROJECT if federation is None else federation.project
    return federations.token(connection, federation_id), project


def current(connection: Connection, server_secret: bytes, federation_id: str) -> str:
    """Return the current token of a federation."""
    return token_of(server_secret, federation_id, federations.token(connection, federation_id).serial)


async def show(
    core: ServerContext, caller: FederationCaller, reference: str, worker: str | None = None
) -> FederationToken:
    """Return the token of a federation, for its owner or an admin.

    Raises:
        ForbiddenError: If the federation belongs to another user.
        InputError: If the worker name is not valid, or is not a participant.
    """
    name = None if worker is None else worker_name(worker)

    def operation(connection: Connection) -> FederationToken:
        row = find(connection, caller, reference)
        may_manage(caller, row)
        named = spec_of(row).participants
        if name is not None and named is not None and name not in named:
            raise InputError(
                f"{name} is not a participant of {row.id} ({', '.join(sorted(named)[:20])}).",
                hint=f"`tunefleet federation token {row.id} --for {min(named)}` creates the token of one of them.",
            )
        return _shown(core, row, federations.token(connection, row.id), name)

    return await core.read(operation)


async def replace(
    core: ServerContext, caller: FederationCaller, reference: str, *, old_for_s: float = 0.0
) -> FederationToken:
    """Replace the token of a federation, and return the new one.

    Signed links stay valid until they expire, and a poll in progress is not interrupted.

    Raises:
        ForbiddenError: If the federation belongs to another user.
    """
    return await core.write(partial(_replace, core=core, caller=caller, reference=reference, old_for_s=old_for_s))


def _replace(
    connection: Connection, *, core: ServerContext, caller: FederationCaller, reference: str, old_for_s: float
) -> FederationToken:
    row, now = find(connection, caller, reference, lock=True), core.clock.wall()
    may_manage(caller, row)
    replaced = federations.replace_token(connection, row.id, old_until=now + old_for_s if old_for_s else None)
    # After the commit: a request that runs meanwhile would cache the old serial again. The topic clears other servers'
    # caches.
    after_commit(connection, core.state(KeyCache).forget)
    wake(connection, KEYS)
    publish_event(connection, row, "federation.token_replaced", now, old_until=replaced.old_until)
    return _shown(core, row, replaced)


def _shown(core: ServerContext, row: FederationRow, token_row: TokenRow, worker: str | None = None) -> FederationToken:
    over = token_row.old_until is None or token_row.old_until <= core.clock.wall()
    return FederationToken(
        id=row.id,
        number=row.seq,
        token=token_of(core.secret, row.id, token_row.serial, worker),
        worker=worker,
        old_until=None if over else to_optional_datetime(token_row.old_until),
    )
