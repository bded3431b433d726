"""Text in PostgreSQL: sorted as SQLite sorts it, and any character but the one with the number zero can be kept."""

from __future__ import annotations

from typing import Any, Final

from sqlalchemy import Connection

SHOWN: Final = "\u2400"
"""Stands for that character, which a program's output may have: it is its picture."""


def install(connection: Any) -> None:
    """Let a connection of psycopg take any text."""
    from psycopg.types.string import StrDumper, StrDumperUnknown  # noqa: PLC0415 -- the driver is an extra

    class Shown(StrDumper):
        def dump(self, obj: str) -> Any:
            return super().dump(obj.replace("\0", SHOWN) if "\0" in obj else obj)

    class ShownUnknown(StrDumperUnknown):
        def dump(self, obj: str) -> Any:
            return super().dump(obj.replace("\0", SHOWN) if "\0" in obj else obj)

    connection.adapters.register_dumper(str, Shown)
    connection.adapters.register_dumper(str, ShownUnknown)


_UNSORTED: Final = """
    SELECT quote_ident(c.relname) AS tab, quote_ident(a.attname) AS col, format_type(a.atttypid, a.atttypmod) AS type
    FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid JOIN pg_collation k ON k.oid = a.attcollation
    WHERE c.relnamespace = current_schema()::regnamespace AND c.relkind = 'r' AND a.attnum > 0 AND NOT a.attisdropped
      AND k.collname = 'default'
    ORDER BY c.relname, a.attnum
"""


def sort_by_code(connection: Connection) -> None:
    """Let every text column sort by the characters' numbers, whatever the database's language sorts by.

    Lists are then in the same order with each store, and no index depends on the operating system's library.
    """
    changes: dict[str, list[str]] = {}
    for table, column, type_ in connection.exec_driver_sql(_UNSORTED).all():
        changes.setdefault(table, []).append(f'ALTER COLUMN {column} TYPE {type_} COLLATE "C"')
    for table, columns in changes.items():
        connection.exec_driver_sql(f"ALTER TABLE {table} {', '.join(columns)}")
