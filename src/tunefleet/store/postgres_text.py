"""Text on its way into PostgreSQL, which can hold any character but the one with the number zero."""

from __future__ import annotations

from typing import Any, Final

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
