"""Writes the same tokenized rows that the TRL trainer would use, in formats that other trainers read."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import datasets

from tunefleet.spec import TrainingTaskSpec
from tunefleet.trainer_control.files import read_json, write_json
from tunefleet.workloads.data import sources
from tunefleet.workloads.data.tokenization import Encoder, Tokenized, tokenize

# Written last: it marks the rows as complete.
_SUMMARY: Final = "rows.json"
TRAIN: Final = "train.jsonl"
HELD_OUT: Final = "held_out.jsonl"
SAVED: Final = "tokenized"


@dataclass(frozen=True, slots=True)
class Rows:
    """Tokenized rows on disk."""

    folder: Path
    about: dict[str, Any]

    @property
    def train(self) -> Path:
        """The train rows."""
        return self.folder / TRAIN

    @property
    def held_out(self) -> Path | None:
        """The eval rows, if any."""
        return self.folder / HELD_OUT if self.about["held_out_rows"] else None

    @property
    def saved(self) -> Path:
        """Both splits, saved by the library `datasets`."""
        return self.folder / SAVED


def write(
    spec: TrainingTaskSpec, inputs: Mapping[str, str], workspace: Path, encoder: Encoder, limit: int, folder: Path
) -> Rows:
    """Tokenize and write the rows of a spec, unless an earlier launch has.

    Raises:
        DataError: If the rows cannot be used.
    """
    summary = read_json(folder / _SUMMARY)
    if summary is not None:
        return Rows(folder, summary)
    folder.mkdir(parents=True, exist_ok=True)
    portions = sources.open_portions(spec.data, inputs, workspace, seed=spec.training.seed)
    shape, processes = portions.train.shape, spec.training.dataset_num_proc
    train = tokenize(portions.train.rows, shape, encoder, limit, processes)
    splits = {"train": _lines(train, folder / TRAIN)}
    held_out = None
    if portions.held_out is not None:
        held_out = tokenize(portions.held_out.rows, portions.held_out.shape, encoder, limit, processes)
        splits["validation"] = _lines(held_out, folder / HELD_OUT)
    _saved(splits).save_to_disk(str(folder / SAVED))
    about = {
        "dataset": shape.origin,
        "shape": shape.kind,
        "rows": train.rows,
        "dropped_rows": train.dropped,
        "truncated_rows": train.truncated,
        "tokens": train.tokens,
        "trained_tokens": train.trained_tokens,
        "held_out_rows": held_out.rows if held_out is not None else 0,
        "duplicates": portions.duplicates.rows if portions.duplicates else None,
        "notes": list(train.notes),
    }
    write_json(folder / _SUMMARY, about, sync=True)
    return Rows(folder, about)


def _lines(rows: Tokenized, path: Path) -> list[dict[str, list[int]]]:
    found = []
    with path.open("w", encoding="ascii") as file:
        for row in rows.dataset:
            line = {
                "input_ids": row["input_ids"],
                "attention_mask": [1] * len(row["input_ids"]),
                "labels": row["labels"],
            }
            file.write(json.dumps(line) + "\n")
            found.append(line)
    return found


def _saved(splits: Mapping[str, list[dict[str, list[int]]]]) -> datasets.DatasetDict:
    return datasets.DatasetDict({name: datasets.Dataset.from_list(lines) for name, lines in splits.items()})
