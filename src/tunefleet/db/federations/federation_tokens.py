"""Valid tokens of federations: one row per federation whose token was ever replaced."""

from __future__ import annotations

from typing import NamedTuple

from sqlalchemy import Connection, delete, insert, select, update

from tunefleet.db.tables.federation import federation_tokens

_at = federation_tokens.c


class TokenRow(NamedTuple):
    """Token state of a federation: number of replacements, and how long the previous token stays valid."""

    federation_id: str
    serial: int = 0
    old_until: float | None = None


def get(connection: Connection, federation_id: str) -> TokenRow:
    """Return the token state of a federation; without a replacement there is no row, and the serial is 0."""
    row = connection.execute(select(federation_tokens).where(_at.federation_id == federation_id)).first()
    return TokenRow(*row) if row else TokenRow(federation_id)


def replace(connection: Connection, federation_id: str, *, old_until: float | None) -> TokenRow:
    """Make the next token valid; the caller has locked the federation."""
    before = get(connection, federation_id)
    row = before._replace(serial=before.serial + 1, old_until=old_until)
    if before.serial == 0:
        connection.execute(insert(federation_tokens).values(row._asdict()))
    else:
        here = _at.federation_id == federation_id
        connection.execute(update(federation_tokens).where(here).values(row._asdict()))
    return row


def forget(connection: Connection, federation_id: str) -> None:
    """Delete the token state of a deleted federation."""
    connection.execute(delete(federation_tokens).where(_at.federation_id == federation_id))
