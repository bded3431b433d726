"""What somebody sees of a dataset before anything is trained on it; part of the HTTP API under `/api/v1`."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from tunefleet.schemas.base import Message

RowKind = Literal["alpaca", "sharegpt", "messages", "chatml", "prompt_response", "preference", "hh", "judged", "text"]


class RowPiece(Message):
    """A part of a row.

    Args:
        part: Who speaks, or `text`, `chosen`, `rejected`.
        counts: Whether the loss counts it, as far as characters can tell: a model's template adds tokens of its own.
    """

    part: str
    text: str
    counts: bool


class RowShown(Message):
    """A row, in parts.

    Args:
        line: Where it begins in the file; of a JSON array its number.
        pieces: The first ones, in order; texts beyond some thousand characters are cut, and so are whole pieces beyond
            some ten thousand in all.
        piece_count: How many pieces the row has.
        characters: How many the row has.
        counted: How many of them count.
    """

    line: int
    pieces: tuple[RowPiece, ...]
    piece_count: int
    characters: int
    counted: int


class RowFault(Message):
    """What is wrong with a file; `line` is null if it is no single line."""

    message: str
    line: int | None = None
    hint: str | None = None


class Lengths(Message):
    """How long rows are, and how many of them lie between two edges."""

    shortest: int
    median: float
    p95: float
    longest: int
    edges: tuple[float, ...]
    counts: tuple[int, ...]


class DatasetUse(Message):
    """How a training is written that reads these rows.

    Args:
        data: The keys of its `data`, besides the one that names the file.
    """

    kind: Literal["lora_sft", "dpo", "kto"]
    data: dict[str, Any] = Field(default_factory=dict)


class DatasetLook(Message):
    """What a file of rows is.

    Args:
        size_bytes: Of the whole file.
        rows: How many rows were looked at.
        unseen: What was not looked at and why, in a sentence; null if all was.
        kind: What the rows are; null if it is none of the shapes that are recognised, or there is no row.
        recognised: The same in words.
        columns: Of the first row, the first ones.
        column_count: How many the first row has.
        shown: The first rows.
        lengths: Of all rows that were looked at, in characters.
        notes: What the rows have and a run does not use, in sentences.
        faults: What is wrong, the first ones.
        fault_count: How many faults there are in what was looked at.
        use: How to train on it; null while it has faults, or no shape.
    """

    file: str
    size_bytes: int
    rows: int = 0
    unseen: str | None = None
    kind: RowKind | None = None
    recognised: str | None = None
    columns: tuple[str, ...] = ()
    column_count: int = 0
    shown: tuple[RowShown, ...] = ()
    lengths: Lengths | None = None
    notes: tuple[str, ...] = ()
    faults: tuple[RowFault, ...] = ()
    fault_count: int = 0
    use: DatasetUse | None = None
