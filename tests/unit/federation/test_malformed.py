"""Files that lie, or are no safetensors: each is refused with a sentence, and none is executed or crashes."""

from __future__ import annotations

import io
import json
import pickle
import struct
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.federation.adapters import factors
from tunefleet.errors import AdapterRefused
from tunefleet.federation import AdapterFile, write_tensors
from tunefleet.federation.header import FLOATS, parse_header


class _Trap:
    """Unpickling it would leave a file."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Any, tuple[Any, ...]]:
        return (Path.touch, (self.mark,))


def _file(path: Path, header: object, data: bytes = b"\0" * 16, *, length: int | None = None) -> Path:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text) if length is None else length) + text + data)
    return path


def _tensor(start: int = 0, end: int = 16, shape: object = (4,), dtype: object = "F32") -> dict[str, object]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [start, end]}


def _refusal(path: Path) -> str:
    with pytest.raises(AdapterRefused) as caught:
        AdapterFile(path)
    assert caught.value.message.endswith(".")
    assert caught.value.message.isprintable()
    assert len(caught.value.message) < 3000
    return str(caught.value)


def test_a_pickle_is_never_opened(tmp_path: Path) -> None:
    mark = tmp_path / "ran"
    for protocol in (2, 3, 4, 5):
        path = tmp_path / f"p{protocol}.bin"
        path.write_bytes(pickle.dumps(_Trap(mark), protocol=protocol))
        assert "pickle" in _refusal(path)
        assert "safe_serialization=True" in _refusal(path)
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as zipped:
        zipped.writestr("archive/data.pkl", pickle.dumps(_Trap(mark)))
    path = tmp_path / "adapter_model.safetensors"
    path.write_bytes(archive.getvalue())
    assert "zip archive" in _refusal(path)
    assert not mark.exists()


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "too short"),
        (b"abc", "too short"),
        (b"\x1f\x8b\x08\0aaaaaaaaaaaaaaaa", "gzip"),
        (b"GGUF\3\0\0\0aaaaaaaa", "GGUF"),
        (b"<html>not found</html>", "not a safetensors file"),
        (struct.pack("<Q", (1 << 64) - 1), "not a safetensors file"),
        (struct.pack("<Q", 0), "not valid JSON"),
    ],
)
def test_other_files_are_named(tmp_path: Path, content: bytes, words: str) -> None:
    path = tmp_path / "x"
    path.write_bytes(content)
    assert words in _refusal(path)


@pytest.mark.parametrize(
    ("header", "words"),
    [
        ([], "not a JSON object"),
        ("text", "not a JSON object"),
        (b"{", "not valid JSON"),
        (b"\xff\xfe{}", "not valid JSON"),
        (b'{"a": NaN}', "not valid JSON"),
        (b"[" * 900_000, "too many elements"),
        (b'{"a":' * 5_000 + b"1" + b"}" * 5_000, "not valid JSON"),
        (b'{"x": {"dtype": "F32", "shape": [4], "data_offsets": [0, 16]}, "x": 1}', "the duplicate key 'x'"),
        (b'{"x": {"dtype": "F32", "dtype": "I8", "shape": [4], "data_offsets": [0, 16]}}', "the duplicate key 'dtype'"),
        ({"x": 3}, "type, shape and offsets"),
        ({"x": {"dtype": "F32", "shape": [4]}}, "type, shape and offsets"),
        ({"x": {**_tensor(), "more": 1}}, "type, shape and offsets"),
        ({"x": _tensor(dtype="F64", shape=(2,))}, "'F64'; supported types: F32, F16, BF16"),
        ({"x": _tensor(dtype=["F32"])}, "supported types:"),
        ({"x": _tensor(dtype="I8", shape=(16,))}, "'I8'"),
        ({"x": _tensor(shape=4)}, "not a list of sizes"),
        ({"x": _tensor(shape=(-4,))}, "not a list of sizes"),
        ({"x": _tensor(shape=(4.0,))}, "not a list of sizes"),
        ({"x": _tensor(shape=(True, 4))}, "not a list of sizes"),
        ({"x": _tensor(shape=(1 << 60, 0))}, "not a list of sizes"),
        ({"x": _tensor(shape=(1,) * 9)}, "not a list of sizes"),
        ({"x": _tensor(shape=(5,))}, "has 16 bytes"),
        ({"x": _tensor(start=-4, end=12)}, "not a first and a last byte"),
        ({"x": _tensor(start=16, end=0)}, "has -16 bytes"),
        ({"x": {**_tensor(), "data_offsets": [0, 8, 16]}}, "not a first and a last byte"),
        ({"x": {**_tensor(), "data_offsets": "016"}}, "not a first and a last byte"),
        ({"x": _tensor(start=4, end=20)}, "after the end of the file"),
        ({"x": _tensor(0, 400, (100,))}, "after the end of the file"),
        ({"x": _tensor(4, 16, (3,))}, "a gap before it"),
        ({"x": _tensor(0, 8, (2,)), "y": _tensor(4, 16, (3,))}, "overlaps"),
        ({"x": _tensor(0, 16), "y": _tensor(0, 16)}, "overlaps"),
        ({"x": _tensor(0, 8, (2,))}, "belong to no tensor"),
        ({}, "belong to no tensor"),
        ({"": _tensor()}, "not a valid tensor name"),
        ({"a\x1b[2Jb": _tensor()}, "not a valid tensor name"),
        ({"n" * 5000: _tensor()}, "not a valid tensor name"),
        (b'{"\\ud800": {"dtype": "F32", "shape": [4], "data_offsets": [0, 16]}}', "not a valid tensor name"),
        ({"__metadata__": [], "x": _tensor()}, "metadata"),
        ({"__metadata__": {"a": 1}, "x": _tensor()}, "metadata"),
        (b'{"x": {"dtype": "F32", "shape": [4], "data_offsets": [0, ' + b"9" * 5000 + b"]}}", "not valid JSON"),
    ],
)
def test_a_header_that_lies_is_refused(tmp_path: Path, header: object, words: str) -> None:
    assert words in _refusal(_file(tmp_path / "x", header))


def test_a_huge_header_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "x"
    with path.open("wb") as file:
        file.write(struct.pack("<Q", 17 << 20))
        file.truncate(20 << 20)
    assert "header has 17,825,792 bytes" in _refusal(path)


def test_many_tensors_are_refused(tmp_path: Path) -> None:
    header = {f"t{number}": _tensor(0, 0, (0,)) for number in range(60_001)}
    assert "60,001 tensors" in _refusal(_file(tmp_path / "x", header, b""))


def test_a_file_that_was_cut_off_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x"
    write_tensors(path, factors(np.random.default_rng(0)))
    whole = path.read_bytes()
    for size in (len(whole) - 1, len(whole) // 2, 40, 9):
        path.write_bytes(whole[:size])
        _refusal(path)


def test_a_file_that_shrinks_while_it_is_read_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x"
    arrays = factors(np.random.default_rng(0))
    write_tensors(path, arrays)
    with AdapterFile(path) as file:
        with path.open("r+b") as cut:
            cut.truncate(file.size_bytes - 8)
        last = max(file.tensors, key=lambda name: file.tensors[name].end)
        with pytest.raises(AdapterRefused, match="is truncated"):
            file.whole(last)


def test_no_descriptor_is_left_behind(tmp_path: Path) -> None:
    fds = Path("/proc/self/fd")
    if not fds.is_dir():
        pytest.skip("counts open files by /proc")
    path = _file(tmp_path / "x", {"x": 3})
    before = len(list(fds.iterdir()))
    for _ in range(20):
        _refusal(path)
    assert len(list(fds.iterdir())) == before


_SOMETHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)
_ENTRY = st.fixed_dictionaries(
    {
        "dtype": st.sampled_from(["F32", "BF16", "F16", "I64", ""]) | _SOMETHING,
        "shape": st.lists(st.integers(-2, 9), max_size=4) | _SOMETHING,
        "data_offsets": st.lists(st.integers(-8, 80), min_size=2, max_size=2) | _SOMETHING,
    }
)


@given(st.dictionaries(st.text(max_size=12), _ENTRY | _SOMETHING, max_size=4), st.integers(0, 80))
def test_any_header_is_read_or_refused(header: dict[str, Any], size: int) -> None:
    text = json.dumps(header).encode()
    try:
        read = parse_header(text, file_size=8 + len(text) + size)
    except AdapterRefused:
        return
    # What is believed covers the file exactly: nothing twice, nothing left over, nothing outside.
    at = 8 + len(text)
    for tensor in read.tensors.values():
        assert tensor.start == at
        assert tensor.end - tensor.start == tensor.size * FLOATS[tensor.dtype]
        at = tensor.end
    assert at == 8 + len(text) + size


@settings(max_examples=60)
@given(data=st.data())
def test_any_damage_is_refused_or_does_no_harm(data: st.DataObject, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.mktemp("damage") / "x"
    write_tensors(path, factors(np.random.default_rng(0)))
    content = bytearray(path.read_bytes())
    for _ in range(data.draw(st.integers(1, 3))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    path.write_bytes(bytes(content))
    try:
        with AdapterFile(path) as file:
            for name in file.tensors:
                assert file.whole(name).size == file.tensors[name].size
    except AdapterRefused:
        return
