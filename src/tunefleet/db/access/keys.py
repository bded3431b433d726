"""API keys, login codes and browser sessions; secrets are stored only as hashes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from sqlalchemy import Connection, bindparam, delete, insert, select, update

from tunefleet.db.repositories import notifications
from tunefleet.db.rows import KeyRow
from tunefleet.db.tables.core import api_keys, meta, sessions

_FILES_KEPT: Final = "files_kept_until"
_USED = update(api_keys).where(api_keys.c.id == bindparam("b_id")).values(last_used_at=bindparam("b_at"))


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
