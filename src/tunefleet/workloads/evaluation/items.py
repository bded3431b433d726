"""The rows of one evaluation, and a digest of their used content."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import orjson

from tunefleet.analysis.dataset.notes import Notes
from tunefleet.spec.tasks.evaluate_task import EvaluationSpec
from tunefleet.workloads.data import sources
from tunefleet.workloads.data.formats import Chat, Example
from tunefleet.workloads.data.readers import numbered


@dataclass(frozen=True, slots=True)
class RowSet:
    """Rows and their digest."""

    portion: sources.Portion
    digest: str

    @property
    def examples(self) -> Iterator[Example]:
        """The examples of the rows, in order."""
        shape = self.portion.shape
        return (shape.read(number, row, Notes()) for number, row in numbered(self.portion.rows))

    def __len__(self) -> int:
        return len(self.portion.rows)


def read(evaluation: EvaluationSpec, index: int, inputs: Mapping[str, str], workspace: Path) -> RowSet:
    """Read the rows of an evaluation.

    Raises:
        DataError: If they are invalid.
        UnreachableError: If they are on the Hub that does not respond.
    """
    data = evaluation.data
    assert data is not None
    prefix = f"evaluations.{index}."
    own = {pointer.removeprefix(prefix): path for pointer, path in inputs.items() if pointer.startswith(prefix)}
    portion = sources.open_portions(data, own, workspace, seed=0).train
    return RowSet(portion, _digest(portion))


def _digest(portion: sources.Portion) -> str:
    digest = hashlib.sha256()
    for number, row in numbered(portion.rows):
        # Of the parsed content, so that the file format does not matter.
        digest.update(orjson.dumps(_plain(portion.shape.read(number, row)), option=orjson.OPT_SORT_KEYS) + b"\n")
    return digest.hexdigest()


def _plain(example: Example) -> dict[str, Any]:
    fields = {name: value for name, value in asdict(example).items() if name != "place"}
    return fields | ({"untrained": sorted(example.untrained)} if isinstance(example, Chat) else {})
