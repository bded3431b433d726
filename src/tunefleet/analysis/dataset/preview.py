"""Preview of a dataset file: shape of the rows, the first rows, their lengths, and errors."""

from __future__ import annotations

import itertools
import json
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from tunefleet.analysis.dataset import file_reader
from tunefleet.analysis.dataset.file_reader import Limits, ReadLimitReached, ReadRow
from tunefleet.analysis.dataset.messages import Message, RowError
from tunefleet.analysis.dataset.notes import Notes
from tunefleet.analysis.dataset.parts import Parts
from tunefleet.analysis.dataset.shapes import Recognized, recognize
from tunefleet.errors import DataError
from tunefleet.schemas.datasets import DatasetLook, DatasetUse, Lengths, RowFault, RowPiece, RowShown

# Only this much of a file is read; a worker reads all of it.
MOST_BYTES: Final = 64 << 20
# The preview is CPU-bound Python next to all other work of the server, so its time is limited.
MOST_SECONDS: Final = 10.0
FAULTS_SHOWN: Final = 20
COLUMNS_SHOWN: Final = 200
PIECES_SHOWN: Final = 200
ROW_SHOWN: Final = 40_000
"""Characters of a row that are shown, over all its pieces."""
_FAULT_SHOWN: Final = 1000
_TEXT_SHOWN: Final = 4000
_BINS: Final = 24
_SEPARATOR: Final = "\n\n"


def look(
    name: str,
    pieces: Iterable[bytes],
    size_bytes: int,
    *,
    rows: int = 5,
    most_bytes: int = MOST_BYTES,
    most_seconds: float = MOST_SECONDS,
) -> DatasetLook:
    """Preview a file.

    Args:
        name: File name; its suffix sets the format.
        pieces: The file's bytes, or the first of them.
        size_bytes: Size of the whole file.
        rows: Number of rows that are shown.
        most_bytes: Maximum number of bytes that are read.
        most_seconds: Maximum duration.
    """
    seen = _Preview(name, rows)
    unseen = None
    try:
        for each in file_reader.found(name, pieces, size_bytes, Limits(most_bytes, most_seconds)):
            seen.take(each)
    except DataError as fault:
        seen.blame(fault)
    except ReadLimitReached as why:
        unseen = str(why)
    if seen.rows == 0 and unseen is None and not seen.faults:
        seen.blame(DataError(f"{name} has no rows.", hint="Write one JSON object per line."))
    return DatasetLook(
        file=name,
        size_bytes=size_bytes,
        rows=seen.rows,
        unseen=unseen,
        kind=seen.shape.kind if seen.shape else None,
        recognised=seen.shape.sentence if seen.shape else None,
        columns=seen.columns[:COLUMNS_SHOWN],
        column_count=len(seen.columns),
        shown=tuple(seen.shown),
        lengths=_lengths(seen.lengths),
        notes=seen.notes.sentences,
        faults=tuple(seen.faults),
        fault_count=seen.fault_count,
        use=seen.use(),
    )


class _Preview:
    """The result so far."""

    def __init__(self, name: str, wanted: int) -> None:
        self._name = name
        self._wanted = wanted
        self.notes = Notes()
        self.rows = 0
        self.shape: Recognized | None = None
        self.columns: tuple[str, ...] = ()
        self.shown: list[RowShown] = []
        self.lengths = array("q")
        self.faults: list[RowFault] = []
        self.fault_count = 0

    def blame(self, fault: DataError, line: int | None = None) -> None:
        """Record an error; only the first ones are kept."""
        self.fault_count += 1
        if len(self.faults) < FAULTS_SHOWN:
            hint = None if fault.hint is None else _cut(fault.hint, _FAULT_SHOWN)
            self.faults.append(RowFault(message=_cut(fault.message, _FAULT_SHOWN), line=line, hint=hint))

    def take(self, row: ReadRow) -> None:
        """Process the next row."""
        if row.fault is not None or row.values is None:
            self.blame(row.fault or DataError("It is not a row."), row.line)
            return
        self.rows += 1
        # The first row decides the shape, as in a training run.
        if not self.columns:
            self.columns = tuple(map(str, row.values))
            try:
                self.shape = recognize(row.values, "auto", self._name)
            except DataError as fault:
                self.blame(fault, row.line)
        if self.shape is None:
            return
        try:
            pieces = list(_pieces(self.shape.read(row.values, _SEPARATOR, self.notes, self.rows)))
        except RowError as error:
            hint = f"The first row is read as {self.shape.sentence}; every row needs these columns."
            self.blame(DataError(f"Line {row.line} of {self._name}: {error}.", hint=hint), row.line)
            return
        size = sum(len(piece.text) for piece in pieces)
        self.lengths.append(size)
        if len(self.shown) < self._wanted:
            counted = sum(len(piece.text) for piece in pieces if piece.counts)
            shown = tuple(_shown(pieces))
            self.shown.append(
                RowShown(
                    line=row.line, pieces=shown, piece_count=len(pieces), characters=size, counted=counted,
                )
            )  # fmt: skip

    def use(self) -> DatasetUse | None:
        """Return how a training run reads the rows."""
        # A file with errors would fail in a run as well, so no use is suggested.
        if self.shape is None or self.faults or not self.rows:
            return None
        kind, names = self.shape.kind, self.shape.names
        match kind:
            case "preference" | "hh":
                prompt = {"prompt_column": names["prompt"]} if names.get("prompt", "prompt") != "prompt" else {}
                return DatasetUse(kind="dpo", data=prompt)
            case "judged":
                return DatasetUse(kind="kto")
            case "text":
                return DatasetUse(kind="lora_sft", data={"text_field": names["text"]})
            case "messages" | "sharegpt":
                return DatasetUse(kind="lora_sft", data={"messages_field": names["messages"]})
            case "prompt_response":
                pair = {"prompt_column": names["prompt"], "response_column": names["response"]}
                return DatasetUse(kind="lora_sft", data=pair)
        # Several columns form the prompt, or a text is a chat: a run recognizes them automatically.
        return DatasetUse(kind="lora_sft")


def _shown(pieces: Sequence[RowPiece]) -> Iterator[RowPiece]:
    """Yield the first pieces, truncated to what a page shows."""
    remaining = ROW_SHOWN
    for piece in pieces[:PIECES_SHOWN]:
        text = piece.text[: min(_TEXT_SHOWN, remaining)]
        remaining -= len(text)
        yield piece.model_copy(update={"text": text})
        if not remaining:
            return


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[:most]}…"


def _pieces(parts: Parts) -> Iterable[RowPiece]:
    if parts.text is not None:
        yield RowPiece(part="text", text=parts.text, counts=True)
        return
    context = parts.worse is not None or parts.prompted
    answered = [(turn, _is_trained(turn) and not context) for turn in parts.before]
    for turn, counts in answered:
        yield RowPiece(part=turn["role"], text=_text_of(turn), counts=counts)
    for turn in parts.answer:
        part = "chosen" if parts.worse is not None else turn["role"]
        yield RowPiece(part=part, text=_text_of(turn), counts=_is_trained(turn))
    for turn in parts.worse or ():
        yield RowPiece(part="rejected", text=_text_of(turn), counts=turn["role"] == "assistant")


def _is_trained(turn: Message) -> bool:
    return turn["role"] == "assistant" and turn.get("weight") != 0


def _text_of(turn: Message) -> str:
    calls = turn.get("tool_calls")
    return str(turn["content"]) or (json.dumps(calls, ensure_ascii=False) if calls else "")


def _lengths(found: array[int]) -> Lengths | None:
    if not found:
        return None
    ordered = sorted(found)
    low, high = ordered[0], ordered[-1]
    bins = max(1, min(_BINS, high - low))
    edges = [low + (high - low) * at / bins for at in range(bins + 1)]
    below = [bisect_right(ordered, edge) if at == bins else bisect_left(ordered, edge) for at, edge in enumerate(edges)]
    counts = [after - before for before, after in itertools.pairwise(below)]
    # Plain Python: this package does not depend on NumPy.
    middle = len(ordered) // 2
    median = ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2
    return Lengths(
        shortest=low,
        median=median,
        p95=ordered[min(len(ordered) - 1, round(0.95 * (len(ordered) - 1)))],
        longest=high,
        edges=tuple(round(edge, 1) for edge in edges),
        counts=tuple(counts),
    )
