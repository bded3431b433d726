"""Dataset preview; part of the HTTP API under `/api/v1`."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from tunefleet.schemas.base import Message

RowKind = Literal["alpaca", "sharegpt", "messages", "chatml", "prompt_response", "preference", "hh", "judged", "text"]


class RowPiece(Message):
    """A part of a row.

    Args:
        part: The role, or `text`, `chosen`, `rejected`.
        counts: Whether it is trained. An estimate by characters, since a chat template adds tokens.
    """

    part: str
    text: str
    counts: bool


class RowShown(Message):
    """A row, split into parts.

    Args:
        line: Its first line in the file; its index in a JSON array.
        pieces: The first parts, in order; texts are truncated to some thousand characters, and the parts to some ten
            thousand in total.
        piece_count: Total number of parts.
        characters: Total number of characters.
        counted: Number of trained characters.
    """

    line: int
    pieces: tuple[RowPiece, ...]
    piece_count: int
    characters: int
    counted: int


class RowFault(Message):
    """An error in a file; `line` is null if it does not concern a single line."""

    message: str
    line: int | None = None
    hint: str | None = None


class Lengths(Message):
    """Length statistics and a histogram of the rows."""

    shortest: int
    median: float
    p95: float
    longest: int
    edges: tuple[float, ...]
    counts: tuple[int, ...]


class DatasetUse(Message):
    """Suggested training task for these rows.

    Args:
        data: Keys of its `data`, except for the file.
    """

    kind: Literal["lora_sft", "dpo", "kto"]
    data: dict[str, Any] = Field(default_factory=dict)


class DatasetLook(Message):
    """Analysis of a file with rows.

    Args:
        size_bytes: Size of the file.
        rows: Number of analyzed rows.
        unseen: What was not analyzed, and why; null if everything was.
        kind: Detected format; null if unknown or without rows.
        recognised: The detected format as text.
        columns: The first columns of the first row.
        column_count: Number of columns of the first row.
        shown: The first rows.
        lengths: Lengths of the analyzed rows, in characters.
        notes: Remarks on data that a run would not use.
        faults: The first errors.
        fault_count: Number of errors in the analyzed rows.
        use: How to train on it; null with errors or an unknown format.
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


class HubModel(Message):
    """A model on the Hub.

    Args:
        weights: Number of weights; null if the Hub does not know it.
        gated: Whether its license must be accepted on the Hub first.
    """

    id: str
    weights: int | None = None
    downloads: int = 0
    gated: bool = False


class HubModels(Message):
    """Models on the Hub that match a search, most downloaded first."""

    models: tuple[HubModel, ...] = ()
