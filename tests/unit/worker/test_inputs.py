"""Inputs: fetched once, whole or not there, unpacked if they are archives."""

from __future__ import annotations

import io
import os
import tarfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from filelock import FileLock

from tunefleet.errors import ArtifactError, UnreachableError
from tunefleet.schemas.worker_link import InputRef
from tunefleet.worker.transfers import InputStore

REF = InputRef(digest="ab" * 32, name="rows")


def _file(content: bytes = b"{}\n", name: str = "rows.jsonl") -> Callable[[str, Path], Path]:
    def fetch(_: str, dest: Path) -> Path:
        (dest / name).write_bytes(content)
        return dest / name

    return fetch


def _folder(_: str, dest: Path) -> Path:
    (dest / "sub").mkdir()
    (dest / "sub" / "weights.bin").write_bytes(b"w")
    return dest


def _archive(*members: str) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as tar:
        for member in members:
            info = tarfile.TarInfo(member)
            info.size = 1
            tar.addfile(info, io.BytesIO(b"x"))
    return out.getvalue()


def _never(_: str, __: Path) -> Path:
    raise AssertionError("it is here already")


def test_a_file_is_reused_by_the_next_job(tmp_path: Path) -> None:
    first = InputStore(tmp_path).materialise(REF, _file())
    assert first == tmp_path / REF.digest / "rows.jsonl"
    assert InputStore(tmp_path).materialise(REF, _never) == first


def test_a_folder_stands_for_itself(tmp_path: Path) -> None:
    path = InputStore(tmp_path).materialise(REF, _folder)
    assert (path / "sub" / "weights.bin").read_bytes() == b"w"


def test_what_was_cut_is_not_there_and_goes_on_where_it_was(tmp_path: Path) -> None:
    def cut(_: str, dest: Path) -> Path:
        (dest / "rows.jsonl").write_bytes(b"half")
        raise UnreachableError("cut")

    def go_on(_: str, dest: Path) -> Path:
        assert (dest / "rows.jsonl").read_bytes() == b"half"
        return _file(b"whole")("", dest)

    store = InputStore(tmp_path)
    with pytest.raises(UnreachableError):
        store.materialise(REF, cut)
    assert not (tmp_path / REF.digest).exists()
    assert store.materialise(REF, go_on).read_bytes() == b"whole"


def test_files_without_the_note_were_never_whole(tmp_path: Path) -> None:
    store = InputStore(tmp_path)
    store.materialise(REF, _file(b"old"))
    (tmp_path / f"{REF.digest}.json").unlink()
    assert store.materialise(REF, _file(b"new")).read_bytes() == b"new"


def test_an_archive_is_unpacked_to_the_folder_in_it(tmp_path: Path) -> None:
    path = InputStore(tmp_path).materialise(REF, _file(_archive("model/config.json", "model/w.bin"), "model.tar.gz"))
    assert sorted(file.name for file in path.iterdir()) == ["config.json", "w.bin"]
    assert InputStore(tmp_path).materialise(REF, _never) == path


def test_an_unsafe_archive_is_refused_and_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(ArtifactError):
        InputStore(tmp_path / "in").materialise(REF, _file(_archive("../evil"), "model.tar.gz"))
    assert not (tmp_path / "evil").exists()
    assert not (tmp_path / "in" / f"{REF.digest}.unpacked").exists()


def test_two_jobs_that_want_the_same_fetch_it_once(tmp_path: Path) -> None:
    fetched: list[str] = []
    gate = threading.Barrier(2)

    def fetch(digest: str, dest: Path) -> Path:
        fetched.append(digest)
        return _file()(digest, dest)

    def job() -> None:
        gate.wait(5)
        InputStore(tmp_path).materialise(REF, fetch)

    threads = [threading.Thread(target=job) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert len(fetched) == 1


@pytest.mark.parametrize(("age_s", "stays"), [(3600, True), (90_000, False)])
def test_an_incomplete_download_is_kept_for_a_day(tmp_path: Path, age_s: int, stays: bool) -> None:
    part = tmp_path / f"{REF.digest}.part"
    part.mkdir()
    (part / ".rows.jsonl.part").write_bytes(b"half")
    for path in (part, part / ".rows.jsonl.part"):
        os.utime(path, (time.time() - age_s,) * 2)
    with FileLock(tmp_path / f"{REF.digest}.lock"):
        InputStore(tmp_path).delete_stale()
        assert part.exists(), "another process is fetching it"
    InputStore(tmp_path).delete_stale()
    assert part.exists() == stays
