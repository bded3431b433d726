"""A complete database in one file that restores to either store: tables as JSON lines, with their hashes.

Knows rows as they are stored, not their meaning. The file contains everything that a server's database contains,
including secrets' hashes and webhook addresses; only its owner can read it.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any, Final

from sqlalchemy import Connection, Table, delete, insert, inspect, select, text

import tunefleet
from tunefleet.db.engine import migrate, offline, statistics
from tunefleet.errors import ArtifactError, ConflictError, StoreError

FORMAT: Final = "tunefleet-backup/1"
_MANIFEST: Final = "manifest.json"
_CHUNK_ROWS: Final = 500
_BLOCK_BYTES: Final = 1 << 20
_NO_BACKUP: Final = "Use a file that `tunefleet backup` wrote."

# Called with the name of each table before it is processed.
Progress = Callable[[str], object]
_NEW: Final = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
_DAMAGED: Final = "Use another backup. Nothing was changed."


@dataclass(frozen=True, slots=True)
class Part:
    """A table in the archive."""

    rows: int
    size_bytes: int
    sha256: str
    columns: list[str]


@dataclass(frozen=True, slots=True)
class Manifest:
    """Manifest of the archive.

    Args:
        counters: Table → last assigned number, so that a restored database reuses none.
    """

    revision: str
    made_at: str
    made_by: str
    engine: str
    tables: dict[str, Part]
    counters: dict[str, int] = field(default_factory=dict)
    format: str = FORMAT

    @property
    def rows(self) -> int:
        """Number of rows in all tables."""
        return sum(part.rows for part in self.tables.values())


def write(target: Path | str, file: Path, *, progress: Progress = lambda _name: None) -> Manifest:
    """Write a snapshot of a database into a file, even while servers write to it.

    Raises:
        StoreError: If the database is unreadable, or has no tables.
        OSError: If the file cannot be written.
    """
    part_file = file.with_name(f".{file.name}.part")
    try:
        with offline.reading(target) as connection, os.fdopen(os.open(part_file, _NEW, 0o600), "wb") as out:
            manifest = _write(connection, offline.name_of(target), out, progress)
            out.flush()
            # Before the rename: a backup under its final name must survive a power cut.
            os.fsync(out.fileno())
        part_file.replace(file)
    finally:
        part_file.unlink(missing_ok=True)
    return manifest


def _write(connection: Connection, name: str, out: IO[bytes], progress: Progress) -> Manifest:
    revision = migrate.revision_of(connection, name)
    if revision is None:
        raise StoreError(f"{name} has no tables.", hint="Start its server once to create them.")
    parts = {}
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED, compresslevel=6) as packed:
        for table in offline.tables_of(connection):
            progress(table.name)
            with packed.open(_member(table.name), "w", force_zip64=True) as member:
                parts[table.name] = _write_table(connection, table, member)
        manifest = Manifest(
            revision=revision,
            made_at=datetime.now(UTC).isoformat(timespec="seconds"),
            made_by=tunefleet.__version__,
            engine=statistics.engine(connection),
            tables=parts,
            counters=_counters(connection),
        )
        packed.writestr(_MANIFEST, json.dumps(asdict(manifest), indent=1))
    return manifest


def _write_table(connection: Connection, table: Table, member: IO[bytes]) -> Part:
    digest, size, rows = hashlib.sha256(), 0, 0
    query = select(table).execution_options(yield_per=_CHUNK_ROWS)
    for row in connection.execute(query):
        line = json.dumps([_encoded(value) for value in row], separators=(",", ":")).encode() + b"\n"
        member.write(line)
        digest.update(line)
        size += len(line)
        rows += 1
    return Part(rows, size, digest.hexdigest(), [column.name for column in table.columns])


def verified(file: Path) -> Manifest:
    """Read a complete file, verify its hashes, and return its manifest.

    Raises:
        StoreError: If a newer or a development version of Tunefleet wrote it.
    """
    try:
        with zipfile.ZipFile(file) as packed:
            manifest = _manifest(json.loads(packed.read(_MANIFEST)), file)
            for name, part in manifest.tables.items():
                digest = hashlib.sha256()
                with packed.open(_member(name)) as member:
                    while block := member.read(_BLOCK_BYTES):
                        digest.update(block)
                if digest.hexdigest() != part.sha256:
                    raise ArtifactError(f"{file} is damaged: the hash of table {name} does not match.", hint=_DAMAGED)
    except (zipfile.BadZipFile, KeyError, ValueError, TypeError, EOFError) as error:
        raise ArtifactError(f"{file} is not a backup, or is damaged.", hint=_NO_BACKUP, detail=repr(error)) from error
    except OSError as error:
        raise StoreError(f"Cannot read {file}: {error.strerror}.", hint=_NO_BACKUP) from error
    return manifest


def _manifest(manifest_json: dict[str, Any], file: Path) -> Manifest:
    if manifest_json.get("format") != FORMAT:
        raise ArtifactError(f"{file} is not a backup, or was written by a newer version of Tunefleet.", hint=_NO_BACKUP)
    manifest = Manifest(
        **{**manifest_json, "tables": {name: Part(**part) for name, part in manifest_json["tables"].items()}}
    )
    migrate.refuse_unknown(manifest.revision, str(file), manifest.made_by)
    return manifest


def _lines_of(file: Path, table: str) -> Iterator[list[Any]]:
    """Yield the rows of a table, in the order of the manifest's columns."""
    with zipfile.ZipFile(file) as packed, packed.open(_member(table)) as member:
        for line in member:
            yield [_decoded(value) for value in json.loads(line)]


def fill(connection: Connection, table: Table, part: Part, rows: Iterator[list[Any]]) -> None:
    """Insert the rows of a table."""
    columns = [table.columns[name] for name in part.columns]
    statement = insert(table).inline()
    chunk: list[dict[str, Any]] = []
    for row in rows:
        chunk.append({column.name: value for column, value in zip(columns, row, strict=True)})
        if len(chunk) == _CHUNK_ROWS:
            connection.execute(statement, chunk)
            chunk = []
    if chunk:
        connection.execute(statement, chunk)


def _counters(connection: Connection) -> dict[str, int]:
    if connection.dialect.name == "sqlite":
        return {row.name: row.seq for row in connection.execute(text("SELECT name, seq FROM sqlite_sequence"))}
    found = {}
    for table, column in counted(connection):
        sequence = text("SELECT pg_sequence_last_value(pg_get_serial_sequence(:table, :column)::regclass)")
        last = connection.execute(sequence, {"table": table, "column": column}).scalar()
        if last is not None:
            found[table] = int(last)
    return found


def counted(connection: Connection) -> list[tuple[str, str]]:
    """Return the PostgreSQL tables with numbered rows, and the column of each."""
    query = text(
        "SELECT table_name, column_name FROM information_schema.columns "
        "WHERE table_schema = current_schema() AND column_default LIKE 'nextval(%' ORDER BY table_name"
    )
    return [(str(table), str(column)) for table, column in connection.execute(query)]


def _member(table: str) -> str:
    return f"tables/{table}.jsonl"


def _encoded(value: Any) -> Any:
    return {"base64": base64.b64encode(value).decode()} if isinstance(value, bytes | memoryview) else value


def _decoded(value: Any) -> Any:
    return base64.b64decode(value["base64"]) if isinstance(value, dict) else value


def restore(
    file: Path,
    target: Path | str,
    folder: Path,
    *,
    force: bool = False,
    progress: Progress = lambda _name: None,
) -> Manifest:
    """Restore a database that no server uses; the file is verified completely before anything is changed.

    Raises:
        ArtifactError: If the file is damaged, or not a backup.
        StoreError: If it is of a newer or development version, a server uses the database, or it is not writable.
        ConflictError: If the database has rows and `force` is false.
    """
    manifest = verified(file)
    with offline.writing(target, folder) as connection:
        name = offline.name_of(target)
        revision = migrate.revision_of(connection, name)
        if revision is not None:
            _refuse_full(connection, name, force=force)
        if revision != manifest.revision:
            _drop(connection)
            migrate.upgrade(connection, manifest.revision)
        # Includes rows that migrations insert into new tables: the backup contains them.
        for table in offline.tables_of(connection):
            connection.execute(delete(table))
        for table in offline.tables_of(connection):
            if (part := manifest.tables.get(table.name)) is not None:
                progress(table.name)
                fill(connection, table, part, _lines_of(file, table.name))
        _count_on(connection, manifest.counters)
        if manifest.revision != migrate.HEAD:
            migrate.upgrade(connection)
    return manifest


def _refuse_full(connection: Connection, name: str, *, force: bool) -> None:
    rows = offline.rows_of(connection)
    if rows and not force:
        raise ConflictError(
            f"{name} is not empty: it has {rows} rows.",
            hint="Restore into another database or folder, or overwrite this one with --force.",
        )


def _drop(connection: Connection) -> None:
    for name in inspect(connection).get_table_names():
        connection.exec_driver_sql(f'DROP TABLE "{name}"')


def _count_on(connection: Connection, counters: dict[str, int]) -> None:
    """Continue the numbering of the backup: an assigned number is never assigned again."""
    if connection.dialect.name == "sqlite":
        connection.execute(text("DELETE FROM sqlite_sequence"))
        put = text("INSERT INTO sqlite_sequence (name, seq) VALUES (:name, :seq)")
        for name, last in counters.items():
            connection.execute(put, {"name": name, "seq": last})
        return
    put = text("SELECT setval(pg_get_serial_sequence(:table, :column)::regclass, :last)")
    for table, column in counted(connection):
        if table in counters:
            connection.execute(put, {"table": table, "column": column, "last": counters[table]})
