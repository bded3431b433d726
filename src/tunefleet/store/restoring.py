"""Fill a database from a backup of either store: in one transaction, or not at all."""

from __future__ import annotations

from pathlib import Path

from sqlalchemy import Connection, delete, inspect, text

from tunefleet.errors import ConflictError
from tunefleet.store import archive, migrate, opening
from tunefleet.store.archive import Manifest, Progress


def restore(
    file: Path,
    target: Path | str,
    folder: Path,
    *,
    force: bool = False,
    progress: Progress = lambda _name: None,
) -> Manifest:
    """Fill a database that no server uses from a file; the file is read whole before anything is changed.

    Args:
        file: What `archive.write` has written.
        target: Of the database.
        folder: The data folder of its server.
        force: Throw away what the database has.
        progress: Told the name of each table.

    Raises:
        ArtifactError: If the file is damaged, or no backup.
        StoreError: If it is of a newer or a development version, a server uses the database, or it cannot be written.
        ConflictError: If the database has rows and `force` is not given.
    """
    manifest = archive.verified(file)
    with opening.writing(target, folder) as connection:
        name = opening.name_of(target)
        revision = migrate.revision_of(connection, name)
        if revision is not None:
            _refuse_full(connection, name, force=force)
        if revision != manifest.revision:
            _drop(connection)
            migrate.upgrade(connection, manifest.revision)
        # Also what migrations put into new tables: the backup has it.
        for table in opening.tables_of(connection):
            connection.execute(delete(table))
        for table in opening.tables_of(connection):
            if (part := manifest.tables.get(table.name)) is not None:
                progress(table.name)
                archive.fill(connection, table, part, archive.lines_of(file, table.name))
        _count_on(connection, manifest.counters)
        if manifest.revision != migrate.HEAD:
            migrate.upgrade(connection)
    return manifest


def _refuse_full(connection: Connection, name: str, *, force: bool) -> None:
    rows = opening.rows_of(connection)
    if rows and not force:
        raise ConflictError(
            f"{name} is not empty: it has {rows} rows.",
            hint="Restore into another database or folder, or throw away what this one has with --force.",
        )


def _drop(connection: Connection) -> None:
    for name in inspect(connection).get_table_names():
        connection.exec_driver_sql(f'DROP TABLE "{name}"')


def _count_on(connection: Connection, counters: dict[str, int]) -> None:
    """Let numbers go on where they were: one that was given out once is never given again."""
    if connection.dialect.name == "sqlite":
        connection.execute(text("DELETE FROM sqlite_sequence"))
        put = text("INSERT INTO sqlite_sequence (name, seq) VALUES (:name, :seq)")
        for name, last in counters.items():
            connection.execute(put, {"name": name, "seq": last})
        return
    put = text("SELECT setval(pg_get_serial_sequence(:table, :column)::regclass, :last)")
    for table, column in archive.counted(connection):
        if table in counters:
            connection.execute(put, {"table": table, "column": column, "last": counters[table]})
