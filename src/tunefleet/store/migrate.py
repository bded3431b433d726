"""Bring the tables to the version that this code works with.

Alembic is imported only where a database is of an older version: no other start pays for it.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final

from sqlalchemy import Connection, Engine, inspect, text

from tunefleet.errors import StoreError
from tunefleet.store.creating import create
from tunefleet.store.postgres_text import sort_by_code

HEAD: Final = "0072"
"""The newest revision; a test holds it against the folder."""
FOLDER: Final = Path(__file__).parent / "migrations"
_KNOWN: Final = frozenset(
    {
        "0001", "0002", "0003", "0004", "0005", "0006", "0007", "0008", "0009", "0010", "0014", "0011", "0020", "0031",
        "0040", "0041", "0042", "0050", "0060", "0063", "0070", "0071", HEAD,
    }
)  # fmt: skip

_OURS: Final = frozenset({"alembic_version", "meta"})


def to_head(engine: Engine, name: str, before: Callable[[str], object]) -> None:
    """Make the tables of an empty database, or run the migrations that another lacks.

    Args:
        engine: Of the database.
        name: What to call the database in a message.
        before: Called with the revision of tables that are about to be migrated, while nobody else can write; what it
            raises leaves them as they are. A database without tables has nothing to lose, and it is not called.

    Raises:
        StoreError: If a newer version of Tunefleet made the tables, or another program.
    """
    with engine.begin() as connection:
        revision = revision_of(connection, name)
        if revision == HEAD:
            return
        if revision is None:
            create(connection, HEAD)
        else:
            before(revision)
            upgrade(connection)


def revision_of(connection: Connection, name: str) -> str | None:
    """Return the revision of a database's tables, `None` if it has no tables.

    Args:
        connection: To look with.
        name: What to call the database in a message.

    Raises:
        StoreError: If a newer version of Tunefleet made the tables, or another program.
    """
    found = set(inspect(connection).get_table_names())
    if not found:
        return None
    if not found >= _OURS:
        raise StoreError(f"{name} has tables of another program.", hint="Use another data folder, or database.")
    revision = connection.execute(text("SELECT version_num FROM alembic_version")).scalar()
    if revision is not None and revision not in _KNOWN:
        raise StoreError(
            f"{name} was made by a newer version of Tunefleet (revision {revision}, this one knows {HEAD}).",
            hint="Upgrade Tunefleet, or use another data folder, or database.",
        )
    return revision


def upgrade(connection: Connection, revision: str = HEAD) -> None:
    """Run the migrations up to a revision, in the caller's transaction."""
    from alembic import command  # noqa: PLC0415 - a third of a second, needed once per upgrade
    from alembic.config import Config  # noqa: PLC0415

    config = Config()
    config.set_main_option("script_location", str(FOLDER))
    config.attributes["connection"] = connection
    command.upgrade(config, revision)
    if connection.dialect.name == "postgresql":
        sort_by_code(connection)


def is_known(revision: str) -> bool:
    """Whether this version can work with tables of a revision, or bring them up to date."""
    return revision in _KNOWN
