"""The tables of the initial revision, frozen: later changes in `db/tables` do not affect them."""

from __future__ import annotations

from typing import Any, Final

import sqlalchemy as sa

SERIAL: Final = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def only(condition: str) -> dict[str, Any]:
    """Return the options of a partial index, which contains only rows that match a condition."""
    return {"sqlite_where": sa.text(condition), "postgresql_where": sa.text(condition)}
