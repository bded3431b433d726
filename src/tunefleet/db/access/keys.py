"""API keys, login codes, browser sessions and invitations; secrets are stored only as hashes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

from sqlalchemy import Connection, bindparam, delete, insert, select, update

from tunefleet.db.repositories import notifications
from tunefleet.db.rows import KeyRow
from tunefleet.db.tables.core import api_keys, meta, sessions
from tunefleet.db.tables.operations import invitations

_FILES_KEPT: Final = "files_kept_until"
_USED = update(api_keys).where(api_keys.c.id == bindparam("b_id")).values(last_used_at=bindparam("b_at"))
_invitation = invitations.c


def get_meta(connection: Connection, name: str) -> str | None:
    """Return a value of the database as a whole."""
    value: str | None = connection.execute(select(meta.c.value).where(meta.c.name == name)).scalar()
    return value


def put_meta(connection: Connection, name: str, value: str) -> None:
    """Insert a value of the database as a whole; fails if it exists."""
    connection.execute(insert(meta).values(name=name, value=value))


def change_meta(connection: Connection, name: str, value: str) -> None:
    """Update a value of the database as a whole."""
    connection.execute(update(meta).where(meta.c.name == name).values(value=value))


def files_kept_until(connection: Connection) -> float:
    """Return the Unix time until which unreferenced files are kept: they may be missing from this database's rows."""
    return float(get_meta(connection, _FILES_KEPT) or 0.0)


def keep_unknown_files(connection: Connection, now: float) -> None:
    """Keep unreferenced files: this database may be an older copy than the files are."""
    put = change_meta if get_meta(connection, _FILES_KEPT) is not None else put_meta
    put(connection, _FILES_KEPT, repr(now))


def insert_one(connection: Connection, row: Mapping[str, Any]) -> None:
    """Store a key."""
    connection.execute(insert(api_keys), [dict(row)])


def by_hash(connection: Connection, secret_hash: str) -> KeyRow | None:
    """Return the key with this hash."""
    row = connection.execute(select(api_keys).where(api_keys.c.secret_hash == secret_hash)).first()
    return KeyRow(*row) if row else None


def by_id(connection: Connection, key_id: str) -> KeyRow | None:
    """Return a key."""
    row = connection.execute(select(api_keys).where(api_keys.c.id == key_id)).first()
    return KeyRow(*row) if row else None


def all_rows(connection: Connection, *, project: str | None) -> list[KeyRow]:
    """Return the keys of a project, or all, oldest first."""
    query = select(api_keys).order_by(api_keys.c.seq)
    if project is not None:
        query = query.where(api_keys.c.project == project)
    return [KeyRow(*row) for row in connection.execute(query)]


def revoke(connection: Connection, key_id: str, at: float) -> None:
    """Revoke a key and delete its sessions."""
    connection.execute(update(api_keys).where(api_keys.c.id == key_id).values(revoked_at=at))
    connection.execute(delete(sessions).where(sessions.c.key_id == key_id))
    notifications.changed(connection)


def delete_one(connection: Connection, key_id: str) -> None:
    """Delete a temporary key and its sessions."""
    connection.execute(delete(sessions).where(sessions.c.key_id == key_id))
    connection.execute(delete(api_keys).where(api_keys.c.id == key_id))


def set_used(connection: Connection, times: Iterable[tuple[str, float]]) -> None:
    """Store when keys were last used."""
    rows = [{"b_id": key_id, "b_at": at} for key_id, at in times]
    if rows:
        connection.execute(_USED, rows)


def add_session(connection: Connection, *, token_hash: str, kind: str, key_id: str, expires_at: float) -> None:
    """Store a login code or a browser session."""
    connection.execute(insert(sessions).values(token_hash=token_hash, kind=kind, key_id=key_id, expires_at=expires_at))


def session_key(connection: Connection, *, token_hash: str, kind: str, now: float) -> KeyRow | None:
    """Return the key of a code or session, if neither has expired."""
    query = (
        select(api_keys)
        .join(sessions, sessions.c.key_id == api_keys.c.id)
        .where(
            sessions.c.token_hash == token_hash,
            sessions.c.kind == kind,
            sessions.c.expires_at > now,
            api_keys.c.revoked_at.is_(None),
        )
    )
    row = connection.execute(query).first()
    return KeyRow(*row) if row else None


def drop_session(connection: Connection, token_hash: str) -> None:
    """Delete a code or session."""
    connection.execute(delete(sessions).where(sessions.c.token_hash == token_hash))


def drop_expired_sessions(connection: Connection, now: float) -> None:
    """Delete expired codes and sessions."""
    connection.execute(delete(sessions).where(sessions.c.expires_at <= now))


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


def insert_invitation(connection: Connection, row: Mapping[str, Any]) -> None:
    """Store an invitation."""
    connection.execute(insert(invitations), [dict(row)])


def invitation_by_id(connection: Connection, invitation_id: str, *, project: str) -> InvitationRow | None:
    """Return an invitation of a project."""
    return _invitation_where(connection, (_invitation.id == invitation_id) & (_invitation.project == project))


def invitation_by_hash(connection: Connection, token_hash: str) -> InvitationRow | None:
    """Return the invitation whose token has this hash."""
    return _invitation_where(connection, _invitation.token_hash == token_hash)


def invitation_of_key(connection: Connection, key_id: str) -> InvitationRow | None:
    """Return the invitation that created a key."""
    return _invitation_where(connection, _invitation.key_id == key_id)


def all_invitations(connection: Connection, *, project: str) -> list[InvitationRow]:
    """Return all invitations of a project, newest first."""
    query = select(invitations).where(_invitation.project == project).order_by(_invitation.seq.desc())
    return [InvitationRow(*row) for row in connection.execute(query)]


def use_invitation(connection: Connection, invitation_id: str, *, key_id: str, at: float) -> bool:
    """Mark an invitation as used.

    Returns:
        Whether it was unused and not withdrawn; of two concurrent calls only one succeeds.
    """
    # Compare-and-swap in one statement: a separate check would let two machines join with one token.
    free = (_invitation.id == invitation_id) & _invitation.used_at.is_(None) & _invitation.revoked_at.is_(None)
    return connection.execute(update(invitations).where(free).values(used_at=at, key_id=key_id)).rowcount == 1


def revoke_invitation(connection: Connection, invitation_id: str, at: float) -> bool:
    """Withdraw an unused invitation; returns whether there was one."""
    free = (_invitation.id == invitation_id) & _invitation.used_at.is_(None)
    return connection.execute(update(invitations).where(free).values(revoked_at=at)).rowcount == 1


def _invitation_where(connection: Connection, where: Any) -> InvitationRow | None:
    row = connection.execute(select(invitations).where(where)).first()
    return InvitationRow(*row) if row else None
