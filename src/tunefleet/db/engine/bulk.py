"""Executes one statement for many rows without SQLAlchemy's per-row overhead.

The statement is compiled once per dialect; rows go to the driver unchanged. Only for plain strings and numbers: no
custom type is converted.
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
        """Execute the statement once per row; without rows nothing happens."""
        if not rows:
            return
        prepared = self._prepared.get(connection.dialect.name) or self._prepare(connection)
        full_rows = [(*row, *prepared.constants) for row in rows]
        if prepared.order is None:
            connection.exec_driver_sql(prepared.sql, [dict(zip(prepared.names, row, strict=True)) for row in full_rows])
        else:
            order = prepared.order
            connection.exec_driver_sql(prepared.sql, [tuple([row[index] for index in order]) for row in full_rows])

    def _prepare(self, connection: Connection) -> _Prepared:
        statement, keys = self._statement, None
        if isinstance(statement, Insert):
            # Inline: the assigned numbers are not needed, so the statement has no RETURNING.
            statement, keys = statement.inline(), self._names
        compiled = statement.compile(dialect=connection.dialect, column_keys=keys)
        # Literal values of the statement have become parameters, too.
        fixed = {name: value for name, value in compiled.params.items() if name not in self._names}
        names = (*self._names, *fixed)
        # SQLite's driver takes positional parameters, others take named ones.
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
