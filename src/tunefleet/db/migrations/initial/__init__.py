"""The tables of the initial revision as they were then: what `db/tables` say later does not change them."""

from __future__ import annotations

from typing import Any, Final

import sqlalchemy as sa

SERIAL: Final = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def only(condition: str) -> dict[str, Any]:
    """Return the options of an index that has only the rows for which a condition is true."""
    return {"sqlite_where": sa.text(condition), "postgresql_where": sa.text(condition)}
