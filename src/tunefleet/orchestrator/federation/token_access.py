"""The token of a federation: shown to who may steer it, checked, and taken back by making another one."""

from __future__ import annotations

from functools import partial

from tunefleet.db import DEFAULT_PROJECT, Connection, after_commit, wake
from tunefleet.db.federations import federation_tokens, federations
from tunefleet.db.federations.federation_tokens import TokenRow
from tunefleet.db.federations.federations import FederationRow
from tunefleet.errors import AuthError, InputError
from tunefleet.orchestrator.context import KEYS, Core
from tunefleet.orchestrator.federation.participants import (
    FederationActor,
    Who,
    may_steer,
    proven,
    token_of,
    worker_name,
)
from tunefleet.orchestrator.federation.status import find, spec_of, tell
from tunefleet.orchestrator.views import maybe_moment
from tunefleet.schemas.federated import FederationToken


async def authenticate(core: Core, token: str) -> FederationActor:
    """Return for which federation a token speaks.

    Raises:
        AuthError: If this server never made it, or it was taken back.
    """
    federation_id, serial, worker = proven(core.secret, token)
    known = core.keys.federations
    row = known.get(federation_id)
    if row is None:
        found, core.keys.projects[federation_id] = await core.read(partial(_looked_up, federation_id=federation_id))
        row = known[federation_id] = found
    spared = row.old_until is not None and core.clock.wall() < row.old_until and serial == row.serial - 1
    if serial != row.serial and not spared:
        raise AuthError(
            f"This token of {federation_id} was taken back.",
            hint=f"`tunefleet federation token {federation_id}` prints the new one to its owner.",
        )
    return FederationActor(federation_id, core.keys.projects.get(federation_id, DEFAULT_PROJECT), worker)


def _looked_up(connection: Connection, *, federation_id: str) -> tuple[TokenRow, str]:
    federation = federations.find(connection, None, federation_id)
    project = DEFAULT_PROJECT if federation is None else federation.project
    return federation_tokens.get(connection, federation_id), project


def current(connection: Connection, server_secret: bytes, federation_id: str) -> str:
    """Return the token of a federation that is good now."""
    return token_of(server_secret, federation_id, federation_tokens.get(connection, federation_id).serial)


async def show(core: Core, who: Who, reference: str, worker: str | None = None) -> FederationToken:
    """Return the token of a federation, for who may steer it.

    Raises:
        ForbiddenError: If it belongs to somebody else.
        InputError: If the name is none, or does not take part.
    """
    name = None if worker is None else worker_name(worker)

    def operation(connection: Connection) -> FederationToken:
        row = find(connection, who, reference)
        may_steer(who, row)
        named = spec_of(row).participants
        if name is not None and named is not None and name not in named:
            raise InputError(
                f"{name} does not take part in {row.id}; {', '.join(sorted(named)[:20])} do.",
                hint=f"`tunefleet federation token {row.id} --for {min(named)}` makes the token of one of them.",
            )
        return _shown(core, row, federation_tokens.get(connection, row.id), name)

    return await core.read(operation)


async def replace(core: Core, who: Who, reference: str, *, old_for_s: float = 0.0) -> FederationToken:
    """Take the token of a federation back, and return the one that is good instead.

    Links to versions that were given out stay good until they expire, and a poll that is held ends first.

    Raises:
        ForbiddenError: If it belongs to somebody else.
    """
    return await core.write(partial(_replace, core=core, who=who, reference=reference, old_for_s=old_for_s))


def _replace(connection: Connection, *, core: Core, who: Who, reference: str, old_for_s: float) -> FederationToken:
    row, now = find(connection, who, reference, lock=True), core.clock.wall()
    may_steer(who, row)
    made = federation_tokens.replace(connection, row.id, old_until=now + old_for_s if old_for_s else None)
    after_commit(connection, core.keys.forget)
    wake(connection, KEYS)
    tell(connection, row, "federation.token_replaced", now, old_until=made.old_until)
    return _shown(core, row, made)


def _shown(core: Core, row: FederationRow, found: TokenRow, worker: str | None = None) -> FederationToken:
    over = found.old_until is None or found.old_until <= core.clock.wall()
    return FederationToken(
        id=row.id,
        number=row.seq,
        token=token_of(core.secret, row.id, found.serial, worker),
        worker=worker,
        old_until=None if over else maybe_moment(found.old_until),
    )
