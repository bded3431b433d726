"""Database, files and data folder belong together: what does not is refused, and nothing of it is deleted."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tunefleet.artifacts import FolderStore
from tunefleet.cli.main import run
from tunefleet.db.backup import restore, write
from tunefleet.errors import StoreError
from tunefleet.orchestrator.access import api_keys
from tunefleet.orchestrator.access.permissions import Actor
from tunefleet.orchestrator.bootstrap import open_context
from tunefleet.orchestrator.context import ServerContext
from tunefleet.orchestrator.storage import artifacts, garbage_collection
from tunefleet.settings import ServerSettings

OLD_S = 7 * 86_400
FILES = {name.encode() for name in ("rows", "weights")}


def settings(folder: Path, **changes: object) -> ServerSettings:
    return ServerSettings(data=folder, synchronous="NORMAL", **changes)


async def filled(folder: Path) -> dict[Path, bytes]:
    """Fill a data folder as a server with two old files does; return what must stay as it is."""
    core = open_context(settings(folder))
    await api_keys.ensure_first(core)
    for data in FILES:
        await store(core, data)
    core.close()
    age(folder)
    return kept(folder)


async def store(core: ServerContext, data: bytes) -> str:
    digest = hashlib.sha256(data).hexdigest()
    with core.blobs.append(digest, 0, len(data)) as upload:
        upload.write(data)
        upload.finish()
    await artifacts.stored(core, Actor("key-1", "me", "admin"), digest, len(data))
    return digest


def unknown(folder: Path, data: bytes) -> str:
    digest = hashlib.sha256(data).hexdigest()
    with FolderStore(folder / "artifacts").append(digest, 0, len(data)) as upload:
        upload.write(data)
        upload.finish()
    return digest


def age(folder: Path) -> None:
    old = time.time() - OLD_S
    for path in (folder / "artifacts" / "blobs").rglob("*"):
        os.utime(path, (old, old))


def kept(folder: Path) -> dict[Path, bytes]:
    places = (folder / "artifacts" / "blobs", folder / "keys")
    return {path: path.read_bytes() for place in places for path in place.rglob("*") if path.is_file()}


@pytest.fixture
def sqlite_only(everywhere: object) -> None:
    if everywhere is not None:
        pytest.skip("the database is no file")


def another(folder: Path) -> None:
    other = folder.parent / "other"
    open_context(settings(other)).close()
    (other / "tunefleet.db").replace(folder / "tunefleet.db")


def empty(folder: Path) -> None:
    (folder / "tunefleet.db").write_bytes(b"")


def gone(folder: Path) -> None:
    (folder / "tunefleet.db").unlink()


def gone_with_the_note(folder: Path) -> None:
    gone(folder)
    (folder / "database-id").unlink()


def another_with_the_note(folder: Path) -> None:
    another(folder)
    (folder / "database-id").unlink()


def elsewhere(folder: Path) -> None:
    """The database looks for its files where there are none."""
    (folder / "artifacts").rename(folder / "moved")


WRONG = [another, empty, gone, gone_with_the_note, another_with_the_note, elsewhere]


@pytest.mark.usefixtures("sqlite_only")
@pytest.mark.parametrize("happens", WRONG)
async def test_a_wrong_database_is_refused_and_nothing_is_deleted(
    tmp_path: Path, happens: Callable[[Path], None]
) -> None:
    folder = tmp_path / "data"
    before = await filled(folder)
    for path in folder.glob("tunefleet.db-*"):
        path.unlink()
    happens(folder)
    for _ in range(2):
        with pytest.raises(StoreError, match="--adopt-files") as caught:
            open_context(settings(folder))
        assert str(folder) in caught.value.message
    if happens is elsewhere:
        (folder / "moved").rename(folder / "artifacts2")
        return
    assert kept(folder) == before


@pytest.mark.usefixtures("sqlite_only")
@pytest.mark.parametrize("happens", [another, empty, gone_with_the_note])
async def test_who_adopts_files_keeps_those_that_no_row_knows(
    tmp_path: Path, happens: Callable[[Path], None], caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "data"
    before = await filled(folder)
    happens(folder)
    caplog.set_level(logging.WARNING)
    core = open_context(settings(folder), adopt_files=True)
    assert "Paired " in caplog.text
    await api_keys.ensure_first(core)
    assert (await garbage_collection.collect(core)).files == 0
    mine = (folder / "keys" / "admin.key").read_text().strip()
    assert (await api_keys.authenticate(core, mine)).role == "admin", "the key of before opens the new database"
    core.close()
    core = open_context(settings(folder))  # from now on it is theirs
    assert (await garbage_collection.collect(core)).files == 0
    core.close()
    assert before.items() <= kept(folder).items()


@pytest.mark.usefixtures("sqlite_only")
async def test_of_what_nobody_knows_only_that_of_this_run_is_garbage(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    await filled(folder)
    before = unknown(folder, b"of a crash")
    age(folder)
    core = open_context(settings(folder, garbage_grace_s=0))
    since = unknown(folder, b"refused")
    collected = await garbage_collection.collect(core)
    assert core.blobs.has(before)
    assert not core.blobs.has(since)
    assert collected.files >= 1
    core.close()
    open_context(settings(folder)).close()


@pytest.mark.usefixtures("sqlite_only")
async def test_an_older_copy_of_the_database_deletes_no_newer_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "data"
    await filled(folder)
    copy = (folder / "tunefleet.db").read_bytes()
    core = open_context(settings(folder))
    newer = await store(core, b"newer than the copy")
    core.close()
    age(folder)
    (folder / "tunefleet.db").write_bytes(copy)
    core = open_context(settings(folder))
    await garbage_collection.collect(core)
    assert core.blobs.has(newer)
    core.close()
    assert run(["verify-store", "--data", str(folder), "--json"]) == 0
    assert newer in json.loads(capsys.readouterr().out)["unknown"]
    assert run(["verify-store", "--data", str(folder), "--delete-unknown"]) == 0
    assert "1 file not in the database" in capsys.readouterr().out
    core = open_context(settings(folder))
    assert not core.blobs.has(newer)
    core.close()


@pytest.mark.usefixtures("sqlite_only")
async def test_the_files_of_another_database_are_not_looked_after(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of its files that database knows none: each would be deleted."""
    for name in ("data", "other"):
        await filled(tmp_path / name)
        age(tmp_path / name)
    stored = {path: path.read_bytes() for path in (tmp_path / "data" / "artifacts").rglob("*") if path.is_file()}
    monkeypatch.setenv("TUNEFLEET_DATABASE_URL", f"sqlite:///{tmp_path / 'other' / 'tunefleet.db'}")
    for options in ([], ["--delete-unknown"]):
        assert run(["verify-store", "--data", str(tmp_path / "data"), *options]) != 0
        assert "do not belong to" in capsys.readouterr().err
    assert {path: path.read_bytes() for path in stored} == stored


@pytest.mark.usefixtures("sqlite_only")
async def test_files_that_are_newer_than_a_restored_backup_stay(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    await filled(folder)
    backup = tmp_path / "fleet.zip"
    write(folder / "tunefleet.db", backup)
    core = open_context(settings(folder))
    newer = await store(core, b"newer than the backup")
    core.close()
    age(folder)
    restore(backup, folder / "tunefleet.db", folder, force=True)
    core = open_context(settings(folder))
    await garbage_collection.collect(core)
    assert core.blobs.has(newer)
    core.close()


@pytest.mark.usefixtures("sqlite_only")
async def test_a_folder_of_before_there_were_marks_is_paired_by_what_rows_know(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    await filled(folder)
    core = open_context(settings(folder))
    digest = hashlib.sha256(b"rows").hexdigest()
    await core.write(lambda connection: connection.exec_driver_sql("DELETE FROM meta WHERE name = 'files_mark'"))
    core.close()
    (folder / "database-id").unlink()
    core = open_context(settings(folder))
    assert core.blobs.has(digest)
    core.close()


async def test_a_key_file_that_holds_no_key_is_not_replaced(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    (folder / "keys").mkdir(parents=True)
    (folder / "keys" / "admin.key").write_text("my notes\n")
    core = open_context(settings(folder))
    with pytest.raises(StoreError, match="contains no valid key"):
        await api_keys.ensure_first(core)
    assert (folder / "keys" / "admin.key").read_text() == "my notes\n"
    core.close()
