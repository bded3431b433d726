"""Say in one sentence what is wrong with PostgreSQL, without the driver's own words about rows and addresses."""

from __future__ import annotations

from typing import Any, Final

from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError

from tunefleet.errors import StoreError

_AGAIN: Final = "Ask again in a moment; see to it that PostgreSQL runs and can be reached from the server."
_GRANT: Final = "Make the role the owner: ALTER DATABASE … OWNER TO …, or GRANT ALL ON SCHEMA public TO …"
# By the first two or all five characters of an SQLSTATE.
_STATES: Final[dict[str, tuple[str, str]]] = {
    "53100": ("The disk of the database is full.", "Free some space there, or run `tunefleet prune`."),
    "53300": ("PostgreSQL has no connection left.", "Raise its max_connections: a server takes seven."),
    "25006": ("The database cannot be written to.", "Name the primary in the URL, and a role that may write."),
    "42501": ("The database's role lacks a right.", _GRANT),
    "28": ("PostgreSQL refuses the server's role or password.", "Mend TUNEFLEET_DATABASE_URL."),
    "3D000": ("The database is not there.", "Make it: CREATE DATABASE …"),
    "XX001": ("The database is damaged.", "Restore it from a backup."),
    "XX002": ("The database is damaged.", "Restore it from a backup."),
}
_LOST: Final = ("08", "57P", "25P03")
_OPENING: Final = (
    ("password authentication failed", "Mend the user or the password in TUNEFLEET_DATABASE_URL."),
    ("no password supplied", "Write the password into TUNEFLEET_DATABASE_URL."),
    ("pg_hba.conf", "Let the role in from this host in PostgreSQL's pg_hba.conf."),
    ("database", "Make it: CREATE DATABASE …, or mend the name in TUNEFLEET_DATABASE_URL."),
    ("role", "Make the role: CREATE ROLE … LOGIN PASSWORD …, or mend the user in TUNEFLEET_DATABASE_URL."),
)
_OTHERWISE: Final = "Check the host and port in TUNEFLEET_DATABASE_URL, and that PostgreSQL runs there."


def is_psycopg(error: DBAPIError) -> bool:
    """Whether an error is of PostgreSQL's driver."""
    return type(error.orig).__module__.partition(".")[0] == "psycopg"


def is_lost(error: BaseException) -> bool:
    """Whether the connection to the database broke, or could not be made."""
    if isinstance(error, StoreError) and error.__cause__ is not None:
        error = error.__cause__
    if not isinstance(error, DBAPIError) or not is_psycopg(error):
        return False
    state = _state(error)
    if error.connection_invalidated or (state or "").startswith(_LOST):
        return True
    return state is None and type(error.orig).__name__ in {"OperationalError", "ConnectionTimeout"}


def translate(error: DBAPIError) -> StoreError:
    """Return what to raise for an error of PostgreSQL's driver."""
    if is_lost(error):
        return StoreError("The database cannot be reached.", hint=_AGAIN)
    state = _state(error) or ""
    for known in (state, state[:2]):
        if known in _STATES:
            message, hint = _STATES[known]
            return StoreError(message, hint=hint)
    said = getattr(getattr(error.orig, "diag", None), "message_primary", None) or type(error.orig).__name__
    return StoreError(f"The database refused an operation ({said}).")


def unsure() -> StoreError:
    """Return what to raise where nobody knows whether a commit was done."""
    return StoreError(
        "The database was lost as it was to confirm: whether the change was stored is unknown.",
        hint="Ask again: what carries an id or an Idempotency-Key is done once.",
    )


def cannot_be_used(name: str, error: DBAPIError, password: object) -> StoreError:
    """Return what to raise for a database that cannot be opened."""
    state, hint = _state(error), _OTHERWISE
    if state is not None and not is_lost(error):
        told = translate(error)
        reason, hint = told.message, told.hint or _OTHERWISE
        if state == "42501":
            reason = f"{reason} ({_said(error)})"
    else:
        reason = _said(error)
        hint = next((hint for words, hint in _OPENING if words in reason), _OTHERWISE)
    if password and len(str(password)) > 3:  # a shorter one would make the words unreadable
        reason = reason.replace(str(password), "***")
    return StoreError(f"The database {name} cannot be used: {reason.rstrip('.')}.", hint=hint)


def _said(error: DBAPIError) -> str:
    """Return the reason from the driver's lines: with several addresses it tells of each."""
    lines = [line.strip() for line in str(error.orig).splitlines() if line.strip()]
    told = [line for line in lines if not line.endswith("?")]
    fatal = [line.rpartition("FATAL:")[2] for line in told if "FATAL:" in line]
    return (fatal or [line.rpartition(" failed: ")[2] for line in told] or ["no reason given"])[-1].strip()


def _state(error: DBAPIError) -> str | None:
    state = getattr(error.orig, "sqlstate", None)
    return state if isinstance(state, str) else None


# Stands for that character, which a program's output may have: it is its picture.
SHOWN: Final = "\u2400"


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
