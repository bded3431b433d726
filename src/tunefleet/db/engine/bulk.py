"""Run one statement with many rows without SQLAlchemy's work per row.

The statement is compiled once for the database's dialect; rows go to the driver as they are. It is for plain texts and
numbers only: no type of ours is converted on this way.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, Insert, TextClause, Update


class Bulk:
    """A prepared INSERT or UPDATE."""

    def __init__(self, statement: Insert | Update | TextClause, names: Sequence[str]) -> None:
        self._statement = statement
        self._names = tuple(names)
        self._prepared: dict[str, _Prepared] = {}

    def run(self, connection: Connection, rows: Sequence[Sequence[Any]]) -> None:
        """Execute the statement once a row; nothing happens without rows."""
        if not rows:
            return
        prepared = self._prepared.get(connection.dialect.name) or self._prepare(connection)
        whole = [(*row, *prepared.constants) for row in rows]
        if prepared.order is None:
            connection.exec_driver_sql(prepared.sql, [dict(zip(prepared.names, row, strict=True)) for row in whole])
        else:
            order = prepared.order
            connection.exec_driver_sql(prepared.sql, [tuple([row[index] for index in order]) for row in whole])

    def _prepare(self, connection: Connection) -> _Prepared:
        statement, keys = self._statement, None
        if isinstance(statement, Insert):
            # Inline: nobody asks which numbers the rows were given.
            statement, keys = statement.inline(), self._names
        compiled = statement.compile(dialect=connection.dialect, column_keys=keys)
        # Values that are written in the statement itself have become parameters too.
        fixed = {name: value for name, value in compiled.params.items() if name not in self._names}
        names = (*self._names, *fixed)
        # Some drivers want parameters by name, SQLite's by position.
        positions = compiled.positiontup
        order = None if positions is None else [names.index(name) for name in positions]
        prepared = _Prepared(str(compiled), names, tuple(fixed.values()), order)
        self._prepared[connection.dialect.name] = prepared
        return prepared


@dataclass(frozen=True, slots=True)
class _Prepared:
    sql: str
    names: tuple[str, ...]
    constants: tuple[Any, ...]
    order: list[int] | None
