"""Which token of a federation is good: one row for each federation whose token was ever replaced."""

from __future__ import annotations

from typing import NamedTuple

from sqlalchemy import Connection, delete, insert, select, update

from tunefleet.db.tables.federation import federation_tokens

_at = federation_tokens.c


class TokenRow(NamedTuple):
    """The token of a federation: how often it was replaced, and until when the one before is good as well."""

    federation_id: str
    serial: int = 0
    old_until: float | None = None


def get(connection: Connection, federation_id: str) -> TokenRow:
    """Return which token of a federation is good; one that was never replaced has no row, and the serial 0."""
    row = connection.execute(select(federation_tokens).where(_at.federation_id == federation_id)).first()
    return TokenRow(*row) if row else TokenRow(federation_id)


def replace(connection: Connection, federation_id: str, *, old_until: float | None) -> TokenRow:
    """Make the next token the good one; the caller has locked the federation."""
    before = get(connection, federation_id)
    row = before._replace(serial=before.serial + 1, old_until=old_until)
    if before.serial == 0:
        connection.execute(insert(federation_tokens).values(row._asdict()))
    else:
        here = _at.federation_id == federation_id
        connection.execute(update(federation_tokens).where(here).values(row._asdict()))
    return row


def forget(connection: Connection, federation_id: str) -> None:
    """Forget the token of a federation that is removed."""
    connection.execute(delete(federation_tokens).where(_at.federation_id == federation_id))
