"""Archives: honest ones come out as they went in; hostile ones leave nothing behind."""

from __future__ import annotations

import gzip
import io
import os
import stat
import tarfile
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tunefleet.artifacts import UnpackLimits, is_archive, pack, unpack
from tunefleet.artifacts.archive import is_packed
from tunefleet.errors import ArtifactError, MachineError, NotFoundError, TooLargeError, TunefleetError

SMALL = UnpackLimits(max_files=10, max_total_bytes=10_000_000, max_ratio=50, ratio_from_bytes=100_000)


def tar_bytes(*members: tuple[str, bytes | dict[str, object]], mode: str = "w") -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode=mode) as archive:  # type: ignore[call-overload]
        for name, content in members:
            info = tarfile.TarInfo(name)
            if isinstance(content, bytes):
                info.size = len(content)
                archive.addfile(info, io.BytesIO(content))
            else:
                for key, value in content.items():
                    setattr(info, key, value)
                archive.addfile(info)
    return buffer.getvalue()


def zip_bytes(*members: tuple[str, bytes], mode: int = 0, compression: int = zipfile.ZIP_DEFLATED) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", compression) as archive:
        for name, content in members:
            info = zipfile.ZipInfo("x")
            info.filename = name  # as written: the constructor would tidy it
            info.compress_type = compression
            info.external_attr = mode << 16
            archive.writestr(info, content)
    return buffer.getvalue()


def refused(
    tmp_path: Path, data: bytes, kind: type[TunefleetError], message: str, *, limits: UnpackLimits = SMALL
) -> None:
    archive = tmp_path / "archive.bin"
    archive.write_bytes(data)
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(kind, match=message):
        unpack(archive, tmp_path / "dest", limits=limits)
    assert sorted(tmp_path.rglob("*")) == before, "nothing half-done may stay"


def unpacked(tmp_path: Path, data: bytes) -> dict[str, bytes]:
    archive = tmp_path / "archive.bin"
    archive.write_bytes(data)
    root = unpack(archive, tmp_path / "dest")
    return {file.relative_to(root).as_posix(): file.read_bytes() for file in root.rglob("*") if file.is_file()}


@pytest.mark.parametrize("mode", ["w", "w:gz", "w:bz2", "w:xz"])
def test_every_kind_of_tar(tmp_path: Path, mode: str) -> None:
    data = tar_bytes(("./", {"type": tarfile.DIRTYPE}), ("./a.txt", b"1"), ("b/c.txt", b"2" * 5000), mode=mode)
    assert unpacked(tmp_path, data) == {"a.txt": b"1", "b/c.txt": b"2" * 5000}


@pytest.mark.parametrize("compression", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_every_kind_of_zip(tmp_path: Path, compression: int) -> None:
    data = zip_bytes(("a.txt", b"1"), ("empty/", b""), ("b/c.txt", b"2" * 5000), compression=compression)
    assert unpacked(tmp_path, data) == {"a.txt": b"1", "b/c.txt": b"2" * 5000}
    assert (tmp_path / "dest" / "empty").is_dir()


def test_a_single_folder_at_the_top_is_entered(tmp_path: Path) -> None:
    (tmp_path / "x.tar").write_bytes(tar_bytes(("model/config.json", b"{}")))
    assert unpack(tmp_path / "x.tar", tmp_path / "dest") == tmp_path / "dest" / "model"


def test_what_macos_packs_beside_a_folder_decides_nothing(tmp_path: Path) -> None:
    beside = [("._model", b"x"), ("__MACOSX/._model", b"x"), (".DS_Store", b"x")]
    (tmp_path / "x.tar").write_bytes(tar_bytes(*beside, ("model/config.json", b"{}"), ("model/._config.json", b"x")))
    assert unpack(tmp_path / "x.tar", tmp_path / "dest") == tmp_path / "dest" / "model"


def test_a_tar_that_holds_a_zip_is_a_tar(tmp_path: Path) -> None:
    assert list(unpacked(tmp_path, tar_bytes(("inner.zip", zip_bytes(("a", b"1")))))) == ["inner.zip"]


def test_modes_and_owners_are_not_taken_over(tmp_path: Path) -> None:
    (tmp_path / "x.tar").write_bytes(tar_bytes(("d/tool", {"mode": 0o6777, "uid": 12345})))
    tool = unpack(tmp_path / "x.tar", tmp_path / "dest") / "tool"
    assert stat.S_IMODE(tool.stat().st_mode) & 0o7111 == 0
    assert tool.stat().st_uid == os.getuid()


@pytest.mark.parametrize(
    "name", ["/etc/cron.d/x", "../x", "a/../../x", "a/../b", "..", "C:/x", "a\\..\\x", "a//b", "x\n", "~/../../x"]
)
@pytest.mark.parametrize("make", [tar_bytes, zip_bytes])
def test_names_that_leave_the_folder(tmp_path: Path, name: str, make: Callable[..., bytes]) -> None:
    refused(tmp_path, make(("ok", b"1"), (name, b"2")), ArtifactError, "unsafe")


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.BLKTYPE, tarfile.FIFOTYPE])
def test_links_and_devices_in_a_tar(tmp_path: Path, kind: bytes) -> None:
    member = {"type": kind, "linkname": "ok"}
    refused(tmp_path, tar_bytes(("ok", b"1"), ("bad", member)), ArtifactError, "link or a device")


def test_a_link_in_a_zip(tmp_path: Path) -> None:
    refused(tmp_path, zip_bytes(("bad", b"/etc/passwd"), mode=stat.S_IFLNK | 0o777), ArtifactError, "link or a device")


@pytest.mark.parametrize("make", [tar_bytes, zip_bytes])
def test_one_name_twice(tmp_path: Path, make: Callable[..., bytes]) -> None:
    with pytest.warns() if make is zip_bytes else _nothing():
        data = make(("a", b"1"), ("a", b"2"))
    refused(tmp_path, data, ArtifactError, "contains 'a' twice")


@pytest.mark.parametrize("make", [tar_bytes, zip_bytes])
def test_a_file_and_a_folder_of_one_name(tmp_path: Path, make: Callable[..., bytes]) -> None:
    refused(tmp_path, make(("a", b"1"), ("a/b", b"2")), ArtifactError, "where a folder is needed")


@pytest.mark.parametrize("make", [tar_bytes, zip_bytes])
def test_a_folder_and_a_file_of_one_name(tmp_path: Path, make: Callable[..., bytes]) -> None:
    refused(tmp_path, make(("a/b", b"1"), ("a", b"2")), ArtifactError, "as a folder and as a file")


def test_bombs(tmp_path: Path) -> None:
    zeros = bytes(2_000_000)
    refused(tmp_path, tar_bytes(("a", zeros), mode="w:gz"), TooLargeError, "times its size")
    refused(tmp_path, zip_bytes(("a", zeros)), TooLargeError, "times its size")
    refused(tmp_path, tar_bytes(("a", bytes(11_000_000))), TooLargeError, "more than 10,000,000 bytes")
    many = [(f"f{index}", b"") for index in range(11)]
    refused(tmp_path, tar_bytes(*many), TooLargeError, "more than 10 members")
    refused(tmp_path, zip_bytes(*many), TooLargeError, "more than 10 members")


def test_a_bomb_in_a_header(tmp_path: Path) -> None:
    info = tarfile.TarInfo("pax")
    info.type, info.size = tarfile.XHDTYPE, 8 << 20
    data = gzip.compress(info.tobuf() + bytes(8 << 20))
    refused(tmp_path, data, ArtifactError, "header of 8,388,608 bytes")


def test_a_sparse_bomb(tmp_path: Path) -> None:
    info = tarfile.TarInfo("hole")
    info.pax_headers = {"GNU.sparse.major": "1", "GNU.sparse.minor": "0", "GNU.sparse.realsize": str(1 << 40)}
    body = b"1\n1099511627775\n1\n".ljust(512, b"\0") + b"x"
    info.size = len(body)
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as archive:
        archive.addfile(info, io.BytesIO(body))
    refused(tmp_path, buffer.getvalue(), TooLargeError, "unpacks to more than")


def header_bytes(kind: bytes, body: bytes = b"") -> bytes:
    info = tarfile.TarInfo("header")
    info.type, info.size = kind, len(body)
    return info.tobuf() + body.ljust(-len(body) % 512 + len(body), b"\0")


ENDLESS = [
    header_bytes(tarfile.XHDTYPE) * 3000,
    header_bytes(tarfile.GNUTYPE_LONGNAME) * 3000,
    header_bytes(tarfile.XHDTYPE, b"22 GNU.sparse.major=1\n" + b"9" * 30 + b" a=b\n"),
]


@pytest.mark.parametrize("data", ENDLESS, ids=["headers", "long names", "a length"])
def test_headers_that_the_library_does_not_stand(tmp_path: Path, data: bytes) -> None:
    refused(tmp_path, gzip.compress(data), ArtifactError, "corrupt or incomplete")
    (tmp_path / "plain").write_bytes(data)
    assert is_packed(tmp_path / "plain")


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"not an archive at all" * 100,
        gzip.compress(b"not a tar" * 100),
        tar_bytes(("a", b"1" * 5000), mode="w:gz")[:60],
        tar_bytes(("a", b"1" * 5000))[:2000],
        zip_bytes(("a", b"1" * 5000))[:40],
        b"BZh9" + b"x" * 100,
        b"\xfd7zXZ\x00" + b"x" * 100,
    ],
    # gzip writes the time into its header: names made of the bytes would differ between two processes.
    ids=["empty", "text", "gzip of text", "cut tar.gz", "cut tar", "cut zip", "bzip2", "xz"],
)
def test_broken_archives(tmp_path: Path, data: bytes) -> None:
    refused(tmp_path, data, ArtifactError, "corrupt or incomplete|no files")


def test_a_damaged_zip_member(tmp_path: Path) -> None:
    data = bytearray(zip_bytes(("a", os.urandom(500)), compression=zipfile.ZIP_STORED))
    data[100] ^= 0xFF
    refused(tmp_path, bytes(data), ArtifactError, "corrupt or incomplete")


@pytest.mark.parametrize("mode", ["w:gz", "w:bz2", "w:xz"])
def test_a_compressed_tar_whose_end_is_missing(tmp_path: Path, mode: str) -> None:
    whole = tar_bytes(("a", os.urandom(500)), mode=mode)
    refused(tmp_path, whole[:-4], ArtifactError, "corrupt or incomplete")


def test_a_damaged_tar_gz_member(tmp_path: Path) -> None:
    data = bytearray(gzip.compress(tar_bytes(("a", bytes(500))), 0))
    data[700] ^= 0xFF
    refused(tmp_path, bytes(data), ArtifactError, "corrupt or incomplete")


def test_an_encrypted_zip(tmp_path: Path) -> None:
    data = bytearray(zip_bytes(("a", b"1")))
    for signature, offset in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        data[data.index(signature) + offset] |= 1
    refused(tmp_path, bytes(data), ArtifactError, "encrypted")


def test_destination_must_be_free(tmp_path: Path) -> None:
    archive = tmp_path / "a.tar"
    archive.write_bytes(tar_bytes(("a", b"1")))
    (tmp_path / "dest").mkdir()
    assert unpack(archive, tmp_path / "dest") == tmp_path / "dest"
    with pytest.raises(ArtifactError, match="already exists"):
        unpack(archive, tmp_path / "dest")
    with pytest.raises(NotFoundError, match=r"b\.tar"):
        unpack(tmp_path / "b.tar", tmp_path / "new")


MEMBERS = st.lists(
    st.tuples(
        st.one_of(
            st.text(min_size=1, max_size=12),
            st.lists(st.sampled_from(["..", ".", "a", "b", "", "~", "C:", "\\"]), min_size=1, max_size=6).map("/".join),
        ),
        st.sampled_from([tarfile.REGTYPE, tarfile.DIRTYPE, tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE]),
        st.sampled_from(["", "..", "/", "a", "../../x"]),
    ),
    max_size=5,
)


@settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow])
@given(MEMBERS)
def test_no_tar_writes_outside_its_folder(members: list[tuple[str, bytes, str]]) -> None:
    try:
        data = tar_bytes(*((name, {"type": kind, "linkname": link}) for name, kind, link in members))
    except (UnicodeError, ValueError):
        return
    _stays_inside(data)


@settings(max_examples=60)
@given(st.binary(max_size=200), st.sampled_from([b"", b"PK\x03\x04", b"\x1f\x8b\x08", b"BZh9", b"\xfd7zXZ\x00"]))
def test_no_noise_writes_outside_its_folder(noise: bytes, magic: bytes) -> None:
    _stays_inside(magic + noise)


@settings(max_examples=60)
@given(st.integers(0, 600), st.integers(0, 255), st.sampled_from([tar_bytes, zip_bytes]))
def test_no_damage_is_a_traceback(position: int, value: int, make: Callable[..., bytes]) -> None:
    data = bytearray(make(("model/a.txt", b"1" * 50), ("model/b.txt", b"2" * 50)))
    data[position % len(data)] = value
    _stays_inside(bytes(data))


def _stays_inside(data: bytes) -> None:
    with tempfile.TemporaryDirectory() as outer:
        inner = Path(outer) / "x" / "y"
        inner.mkdir(parents=True)
        (inner / "archive").write_bytes(data)
        try:
            unpack(inner / "archive", inner / "dest", limits=SMALL)
        except (ArtifactError, TooLargeError):
            assert not (inner / "dest").exists()
        left = {path.relative_to(outer).as_posix() for path in Path(outer).rglob("*")}
        assert all(name in {"x", "x/y", "x/y/archive"} or name.startswith("x/y/dest") for name in left)
        assert not any(path.is_symlink() for path in Path(outer).rglob("*"))


def test_packing_is_repeatable_and_comes_back(tmp_path: Path) -> None:
    folder = tmp_path / "final_lora"
    (folder / "sub").mkdir(parents=True)
    (folder / "adapter.safetensors").write_bytes(os.urandom(100_000))
    (folder / "sub" / "é.json").write_text("{}")
    pack(folder, tmp_path / "one.tar.gz")
    os.utime(folder / "sub" / "é.json", (1, 1))
    pack(folder, tmp_path / "two.tar.gz")
    assert (tmp_path / "one.tar.gz").read_bytes() == (tmp_path / "two.tar.gz").read_bytes()
    root = unpack(tmp_path / "one.tar.gz", tmp_path / "dest")
    assert root == tmp_path / "dest" / "final_lora"
    assert (root / "adapter.safetensors").read_bytes() == (folder / "adapter.safetensors").read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["dest", "final_lora", "one.tar.gz", "two.tar.gz"]


def test_packing_needs_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "file").write_bytes(b"1" * 100)
    # No small file system is at hand in a unit test.
    monkeypatch.setattr("tunefleet.artifacts.packing.disk_free", lambda _: 10)
    with pytest.raises(MachineError, match="10 free"):
        pack(tmp_path / "folder", tmp_path / "x.tar.gz")


@pytest.mark.parametrize(
    ("name", "expected"), [("a.tar.gz", True), ("A.TGZ", True), ("b.zip", True), ("c.jsonl", False), ("d.gz", False)]
)
def test_names_of_archives(name: str, expected: bool) -> None:
    assert is_archive(Path(name)) is expected


class _nothing:
    def __enter__(self) -> None: ...

    def __exit__(self, *_: object) -> None: ...
