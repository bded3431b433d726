"""What a world has stored, as plain values: rows, files, keys and processes, read once everything rests."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Final

from psycopg import sql
from psycopg.rows import dict_row

from tests.chaos.world import World

Row = dict[str, Any]


@dataclass(frozen=True)
class Rows:
    """Tables of the database, in the order of their keys; each row is a dictionary, without columns of no interest."""

    workflows: list[Row]
    tasks: list[Row]
    task_documents: list[Row]
    attempts: list[Row]
    events: list[Row]
    launches: list[Row]
    metric_points: list[Row]
    log_streams: list[Row]
    log_chunks: list[Row]
    artifacts: list[Row]
    artifact_files: list[Row]
    arriving_files: list[Row]
    commands: list[Row]
    federations: list[Row]
    federation_rounds: list[Row]
    federation_updates: list[Row]
    federation_versions: list[Row]
    campaigns: list[Row]
    campaign_cycles: list[Row]
    campaign_steps: list[Row]
    campaign_spend: list[Row]
    model_versions: list[Row]


@dataclass(frozen=True)
class Journal:
    """A launch's journal as it lies on a machine.

    Args:
        machine: Which.
        task_id: Whose.
        launch: Of which launch.
        records: How many whole lines it has.
    """

    machine: str
    task_id: str
    launch: str
    records: int


@dataclass(frozen=True)
class History:
    """Everything that a checker looks at.

    Args:
        rows: Of the database.
        digests: Digest of each stored file's name → digest of its content.
        journals: Of all machines.
        marks: Path of a file that tasks have written to → its lines.
        filled: Machines whose disk was full at some time.
        left: Files, keys and processes that should be gone, in words.
        deaths: Ends of processes that nobody has brought about, in words.
        secrets: Where a secret was seen, in words.
    """

    rows: Rows
    digests: dict[str, str]
    journals: list[Journal]
    marks: dict[str, list[str]]
    filled: frozenset[str] = frozenset()
    left: tuple[str, ...] = ()
    deaths: tuple[str, ...] = ()
    secrets: tuple[str, ...] = ()


@dataclass
class Reader:
    """Reads histories of a world; a stored file that has not been touched since the last one is not read again."""

    _digests: dict[tuple[Path, int, int], str] = field(default_factory=dict)

    def read(self, world: World, *, filled: frozenset[str], left: list[str], stopped: bool) -> History:
        """Read a world's history.

        Args:
            world: All of whose work has ended.
            filled: Machines whose disk was full at some time.
            left: What else should be gone.
            stopped: Whether its processes have ended: a worker that waits for work has a request in Redis.
        """
        return History(
            rows=rows(world),
            digests={path.name: self._digest(path) for path in world.blobs()},
            journals=list(_journals(world)),
            marks={str(path): path.read_text().splitlines() for path in world.folder.glob("counted-*")},
            filled=filled,
            left=tuple([*left, *_files(world), *(_keys(world) if stopped else ())]),
            deaths=tuple(death for member in world.members.values() for death in member.deaths),
        )

    def _digest(self, path: Path) -> str:
        state = path.stat()
        key = path, state.st_mtime_ns, state.st_size
        if key not in self._digests:
            with path.open("rb") as file:
                self._digests[key] = hashlib.file_digest(file, "sha256").hexdigest()
        return self._digests[key]


def rows(world: World) -> Rows:
    """Read the tables."""
    found: dict[str, list[Row]] = {}
    with world.postgres.connect(world.database_url) as connection, connection.cursor(row_factory=dict_row) as cursor:
        for each in fields(Rows):
            cursor.execute(sql.SQL("SELECT * FROM {} ORDER BY 1, 2").format(sql.Identifier(each.name)))
            found[each.name] = cursor.fetchall()
    return Rows(**found)


def _journals(world: World) -> Iterator[Journal]:
    for machine, results in world.results().items():
        for file in sorted(results.glob("*/journal/*.jsonl")):
            yield Journal(machine, file.parent.parent.name, file.stem, file.read_bytes().count(b"\n"))


TEMPORARY: tuple[Callable[[Path], bool], ...] = (
    lambda path: path.suffix in {".tmp", ".part", ".partial", ".draft", ".new"},
    lambda path: path.name.startswith((".tmp", "tmp")),
)
"""By what a file is known that was meant to be there for a moment."""


UNPACKING: Final = re.compile(r"\..+-[a-z0-9_]{8}")
"""How a folder is called while an archive is unpacked into it."""


def _files(world: World) -> Iterator[str]:
    for root in [*world.results().values(), world.folder / "server" / "data"]:
        for path in sorted(root.rglob("*")):
            # An incomplete download of a killed worker is kept for a day, so that the next fetch resumes it.
            resumable = path.parent.suffix == ".part" and path.parent.parent.name == ".inputs"
            if path.is_file() and any(known(path) for known in TEMPORARY) and not resumable:
                yield f"temporary file {path} ({path.stat().st_size} bytes)"
            if path.is_dir() and UNPACKING.fullmatch(path.name):
                yield f"temporary folder {path}"
    for path in sorted(world.temporary.rglob("*")):
        if path.is_file() and not path.name.endswith((".log", ".lock")):
            yield f"temporary file {path}"


def _keys(world: World) -> Iterator[str]:
    with world.redis.client as client:
        for key in client.scan_iter("*", _type="stream"):
            for group in client.xinfo_groups(key):
                if group["pending"]:
                    yield f"{group['pending']} entries of Redis stream {key} that nobody has acknowledged"


def told(row: Row, column: str) -> Any:
    """Return what a column of JSON says."""
    return None if row[column] is None else json.loads(row[column])
