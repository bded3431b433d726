"""A number in a JSON text as an SQL expression, which the databases write differently."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Column, ColumnElement, Connection, Double, case, cast, func
from sqlalchemy.types import UserDefinedType


class _Jsonb(UserDefinedType[Any]):
    # SQLAlchemy's own JSONB would load the PostgreSQL dialect in every SQLite server.
    cache_ok = True

    def get_col_spec(self, **_: Any) -> str:
        return "JSONB"


def json_number(connection: Connection, column: Column[Any], group: str, name: str) -> ColumnElement[float | None]:
    """Return the number at `group.name` of a column with a JSON object of objects; null if it is no number.

    Args:
        name: Without quotation marks and backslashes, which SQLite's paths do not support.
    """
    if connection.dialect.name == "sqlite":
        path = f'$.{group}."{name}"'
        kind = func.json_type(column, path)
        return case((kind.in_(("integer", "real")), func.json_extract(column, path, type_=Double)))
    value = cast(column, _Jsonb())
    kind = func.jsonb_typeof(func.jsonb_extract_path(value, group, name))
    return case((kind == "number", cast(func.jsonb_extract_path_text(value, group, name), Double)))
