"""A multipart body is read as it arrives, wherever it is cut: the file passes through, texts beside it are kept."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tunefleet.api.multipart import FilePart
from tunefleet.errors import InputError

FORM = "multipart/form-data; boundary=b"


def part(name: str, content: bytes, filename: str | None = None) -> bytes:
    file = "" if filename is None else f'; filename="{filename}"'
    head = f'--b\r\nContent-Disposition: form-data; name="{name}"{file}\r\n\r\n'
    return head.encode() + content + b"\r\n"


def body(*parts: bytes) -> bytes:
    return b"".join(parts) + b"--b--\r\n"


class Taken(FilePart):
    """A part whose file is gathered for the test."""

    def __init__(self, **options: object) -> None:
        self.file = bytearray()
        super().__init__(FORM, self.file.extend, field="adapter", **options)  # type: ignore[arg-type]


ADAPTER = part("adapter", b"\x1f\x8b\r\n--not the end\r\n", "adapter-job1-worker1-step100.tar.gz")
COUNT = part("numExamples", b"1600")


@pytest.mark.parametrize("parts", [(ADAPTER, COUNT), (COUNT, ADAPTER)], ids=["file first", "text first"])
def test_a_text_is_read_before_and_behind_the_file(parts: tuple[bytes, ...]) -> None:
    taken = Taken(texts=("numExamples",))
    taken.feed(body(*parts, part("other", b"x" * 100_000)))
    assert taken.finish() == "adapter-job1-worker1-step100.tar.gz"
    assert taken.file == b"\x1f\x8b\r\n--not the end\r\n"
    assert taken.texts == {"numExamples": "1600"}


@given(cuts=st.lists(st.integers(1, 400), max_size=20), file=st.binary(max_size=300))
def test_it_does_not_matter_where_the_body_is_cut(cuts: list[int], file: bytes) -> None:
    if b"\r\n--b" in file:
        return
    whole = body(COUNT, part("adapter", file, "a.tar.gz"), part("round", "drei –".encode()))
    taken = Taken(texts=("numExamples", "round"))
    at = 0
    for end in [*sorted(set(cuts)), len(whole)]:
        taken.feed(whole[at:end])
        at = max(at, end)
    assert taken.finish() == "a.tar.gz"
    assert taken.file == file
    assert taken.texts == {"numExamples": "1600", "round": "drei –"}


def test_a_name_that_does_not_matter_is_not_looked_at() -> None:
    for sent in ("../../etc/passwd", ".hidden", ""):
        taken = Taken(named=False)
        taken.feed(body(part("adapter", b"x", sent)))
        assert taken.finish() == ""
        with pytest.raises(InputError, match="plain file name"):
            Taken().feed(body(part("adapter", b"x", sent)))


def test_a_field_twice_or_without_end_of_its_text_is_refused() -> None:
    with pytest.raises(InputError, match="'numExamples' more than once"):
        Taken(texts=("numExamples",)).feed(body(COUNT, COUNT, ADAPTER))
    with pytest.raises(InputError, match="exceeds 4,096 bytes"):
        Taken(texts=("numExamples",)).feed(part("numExamples", b"1" * 5000))
    with pytest.raises(InputError, match="more than one file"):
        Taken().feed(body(ADAPTER, ADAPTER))


def test_a_body_without_its_file_or_its_end_is_refused() -> None:
    without = Taken(texts=("numExamples",))
    without.feed(body(COUNT))
    with pytest.raises(InputError, match="no file in the field 'adapter'"):
        without.finish()
    cut = Taken()
    cut.feed(body(ADAPTER)[:-8])
    with pytest.raises(InputError, match="is truncated"):
        cut.finish()
