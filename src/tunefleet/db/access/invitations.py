"""Invitations: single-use tokens with which machines join, stored only as hashes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from sqlalchemy import Connection, insert, select, update

from tunefleet.db.tables.operations import invitations

_at = invitations.c


class InvitationRow(NamedTuple):
    """An invitation."""

    seq: int
    id: str
    project: str
    token_hash: str
    worker_id: str | None
    tags: str | None
    owner: str
    created_by: str
    created_at: float
    expires_at: float
    revoked_at: float | None
    used_at: float | None
    key_id: str | None


def insert_one(connection: Connection, row: Mapping[str, Any]) -> None:
    """Store an invitation."""
    connection.execute(insert(invitations), [dict(row)])


def by_id(connection: Connection, invitation_id: str, *, project: str) -> InvitationRow | None:
    """Return an invitation of a project."""
    return _one(connection, (_at.id == invitation_id) & (_at.project == project))


def by_hash(connection: Connection, token_hash: str) -> InvitationRow | None:
    """Return the invitation whose token has this hash."""
    return _one(connection, _at.token_hash == token_hash)


def by_key(connection: Connection, key_id: str) -> InvitationRow | None:
    """Return the invitation that created a key."""
    return _one(connection, _at.key_id == key_id)


def all_rows(connection: Connection, *, project: str) -> list[InvitationRow]:
    """Return all invitations of a project, newest first."""
    query = select(invitations).where(_at.project == project).order_by(_at.seq.desc())
    return [InvitationRow(*row) for row in connection.execute(query)]


def use(connection: Connection, invitation_id: str, *, key_id: str, at: float) -> bool:
    """Mark an invitation as used.

    Returns:
        Whether it was unused and not withdrawn; of two concurrent calls only one succeeds.
    """
    # Compare-and-swap in one statement: a separate check would let two machines join with one token.
    free = (_at.id == invitation_id) & _at.used_at.is_(None) & _at.revoked_at.is_(None)
    return connection.execute(update(invitations).where(free).values(used_at=at, key_id=key_id)).rowcount == 1


def revoke(connection: Connection, invitation_id: str, at: float) -> bool:
    """Withdraw an unused invitation; returns whether there was one."""
    free = (_at.id == invitation_id) & _at.used_at.is_(None)
    return connection.execute(update(invitations).where(free).values(revoked_at=at)).rowcount == 1


def _one(connection: Connection, where: Any) -> InvitationRow | None:
    row = connection.execute(select(invitations).where(where)).first()
    return InvitationRow(*row) if row else None
