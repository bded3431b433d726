"""The content-addressed folder: what is in it is whole, and an upload may break anywhere."""

from __future__ import annotations

import contextlib
import hashlib
import os
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest

from tunefleet import fsutil
from tunefleet.artifacts import FolderStore
from tunefleet.artifacts import upload as uploading
from tunefleet.errors import (
    ArtifactError,
    ConflictError,
    MachineError,
    NotFoundError,
    OffsetConflict,
    TooLargeError,
)

DATA = b"0123456789" * 1000
DIGEST = hashlib.sha256(DATA).hexdigest()


@pytest.fixture
def store(tmp_path: Path) -> FolderStore:
    return FolderStore(tmp_path / "store")


def test_an_upload_in_one_piece(store: FolderStore) -> None:
    with store.append(DIGEST, 0, len(DATA)) as upload:
        assert not upload.finish()
        upload.write(DATA)
        assert upload.complete
        assert upload.finish()
    assert store.has(DIGEST)
    assert store.path(DIGEST).read_bytes() == DATA
    assert store.size(DIGEST) == len(DATA)
    assert store.kept_before(float("inf")) == {DIGEST: len(DATA)}
    assert store.kept_before(0.0) == {}
    assert store.partial_size(DIGEST) == 0
    assert list((store.root / "uploads").iterdir()) == []


def test_pieces_are_written_together_however_many_they_are_and_however_few_the_disk_takes(
    store: FolderStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, calls = os.writev, []

    def short(descriptor: int, pieces: Sequence[memoryview]) -> int:
        calls.append(len(pieces))
        most = len(pieces) // 2
        return whole(descriptor, [*pieces[:most], pieces[most][:2]])

    monkeypatch.setattr(os, "writev", short)
    monkeypatch.setattr(uploading, "_UNHASHED_BYTES", 700)
    with store.append(DIGEST, 0, len(DATA)) as upload:
        upload.write_all([])
        upload.write_all([DATA[:600], b"", memoryview(DATA)[600:800]])
        upload.write_all([DATA[at : at + 3] for at in range(800, len(DATA), 3)])
        assert upload.finish()
    assert store.path(DIGEST).read_bytes() == DATA
    assert max(calls) > 1000


def test_an_upload_that_breaks_goes_on_where_it_stood(store: FolderStore) -> None:
    with contextlib.suppress(ConnectionError), store.append(DIGEST, 0, len(DATA)) as upload:
        upload.write(DATA[:3000])
        raise ConnectionError
    assert not store.has(DIGEST)
    assert FolderStore(store.root).partial_size(DIGEST) == 3000
    with pytest.raises(OffsetConflict) as caught:
        store.append(DIGEST, 0, len(DATA))
    assert caught.value.cursor == 3000
    with store.append(DIGEST, 3000, len(DATA)) as upload:
        upload.write(DATA[3000:])
        assert upload.finish()
    assert store.path(DIGEST).read_bytes() == DATA


def test_wrong_content_is_thrown_away(store: FolderStore) -> None:
    with store.append(DIGEST, 0, len(DATA)) as upload:
        upload.write(b"x" * len(DATA))
        with pytest.raises(ArtifactError, match="does not match"):
            upload.finish()
    assert not store.has(DIGEST)
    assert store.partial_size(DIGEST) == 0


def test_more_than_announced_is_refused_and_nothing_of_it_kept(store: FolderStore) -> None:
    with store.append(DIGEST, 0, len(DATA)) as upload:
        upload.write(DATA[:100])
        with pytest.raises(TooLargeError, match="announced"):
            upload.write(b"y" * len(DATA))
    assert store.partial_size(DIGEST) == 100


def test_a_part_longer_than_the_file_starts_anew(store: FolderStore) -> None:
    with store.append(DIGEST, 0, 2 * len(DATA)) as upload:
        upload.write(DATA + b"x")
    with store.append(DIGEST, 0, len(DATA)) as upload:
        upload.write(DATA)
        assert upload.finish()


def test_an_empty_file(store: FolderStore) -> None:
    digest = hashlib.sha256(b"").hexdigest()
    with store.append(digest, 0, 0) as upload:
        assert upload.finish()
    assert store.size(digest) == 0


def test_two_cannot_write_one_file(store: FolderStore) -> None:
    caught: list[Exception] = []

    def second() -> None:
        try:
            store.append(DIGEST, 0, len(DATA))
        except ConflictError as error:
            caught.append(error)

    with store.append(DIGEST, 0, len(DATA)):
        thread = threading.Thread(target=second)
        thread.start()
        thread.join()
        assert store.sweep_partials(0) == 0, "what is being written is never swept"
    assert len(caught) == 1
    with store.append(DIGEST, 0, len(DATA)) as upload:
        upload.close()
        upload.close()


@pytest.mark.parametrize("name", ["", "abc", "../" + "a" * 61, DIGEST.upper(), "/etc/passwd"])
def test_a_name_that_is_no_digest_reaches_no_path(store: FolderStore, name: str) -> None:
    for act in (store.has, store.path, store.size, store.partial_size, store.delete):
        with pytest.raises(ArtifactError, match="not a SHA-256"):
            act(name)


@pytest.mark.parametrize(("offset", "total"), [(-1, 5), (6, 5)])
def test_impossible_offsets(store: FolderStore, offset: int, total: int) -> None:
    with pytest.raises(ArtifactError, match="cannot start"):
        store.append(DIGEST, offset, total)


def test_what_is_not_here(store: FolderStore) -> None:
    assert not store.has(DIGEST)
    store.delete(DIGEST)
    with pytest.raises(NotFoundError, match=DIGEST):
        store.path(DIGEST)


def test_delete(store: FolderStore) -> None:
    with store.append(DIGEST, 0, len(DATA)) as upload:
        upload.write(DATA)
        assert upload.finish()
    store.delete(DIGEST)
    assert not store.has(DIGEST)


def test_old_partial_uploads_are_swept(store: FolderStore) -> None:
    with store.append(DIGEST, 0, len(DATA)) as upload:
        upload.write(DATA[:10])
    assert store.sweep_partials(3600) == 0
    part = store.root / "uploads" / f"{DIGEST}.part"
    os.utime(part, (0, 0))
    assert store.sweep_partials(3600) == 10
    assert store.partial_size(DIGEST) == 0
    assert list((store.root / "uploads").iterdir()) == []


def test_a_file_that_cannot_fit_is_refused_before_it_is_sent(store: FolderStore) -> None:
    with pytest.raises(MachineError, match="bytes free"):
        store.append(DIGEST, 0, 1 << 60)
    assert list((store.root / "uploads").iterdir()) == []


def test_a_full_disk_keeps_what_fitted(store: FolderStore) -> None:
    with store.append(DIGEST, 0, len(DATA)) as upload:
        upload.write(DATA[:10])
        full = open("/dev/full", "wb", buffering=0)  # noqa: SIM115, PTH123 the upload closes it
        upload._file.close()
        upload._file = full
        with pytest.raises(MachineError, match="is full"):
            upload.write(DATA[10:])
        assert upload.offset == 10


def test_an_upload_of_which_nothing_came_leaves_nothing(store: FolderStore) -> None:
    with store.append(DIGEST, 0, len(DATA)):
        pass
    assert list(store.uploads.iterdir()) == []
    with store.append(DIGEST, 0, len(DATA)) as upload:
        upload.write(DATA[:1])
    assert store.partial_size(DIGEST) == 1


def test_free_space_of_a_path_that_is_not_there_yet(tmp_path: Path) -> None:
    assert fsutil.disk_free(tmp_path / "a" / "b") > 0


def test_replace_file(tmp_path: Path) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    old.write_text("1")
    new.write_text("2")
    fsutil.replace_file(old, new)
    assert new.read_text() == "1"
    assert not old.exists()


def test_several_uploaders_never_mix_their_bytes(store: FolderStore) -> None:
    broken: list[Exception] = []

    def upload() -> None:
        for _ in range(40):
            try:
                with store.append(DIGEST, store.partial_size(DIGEST), len(DATA)) as part:
                    part.write(DATA[part.offset : part.offset + 1000])
                    part.finish()
            except (ConflictError, OffsetConflict):
                continue  # somebody else was faster, as it should be
            except ArtifactError as error:
                broken.append(error)

    threads = [threading.Thread(target=upload) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert broken == []
    assert store.has(DIGEST)
    assert store.path(DIGEST).read_bytes() == DATA
