"""From `spec.data` to the items of a task: a text each, with metadata.

Used by every kind that processes items; independent of models.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np
import orjson

from tunefleet.analysis.dataset.messages import Message, RowError, looks_like_messages, read_question
from tunefleet.analysis.dataset.shapes import columns_hint
from tunefleet.errors import DataError
from tunefleet.spec.expressions.graph_template import to_list
from tunefleet.spec.expressions.size_limits import SizeBudget
from tunefleet.spec.options.policy import ShardSpec
from tunefleet.spec.options.prompts import InferenceData, PromptData
from tunefleet.spec.tasks.base_task import positions_of
from tunefleet.workloads.data.dataset_source import HubSet, Place
from tunefleet.workloads.data.readers import Rows, take

# Key of a job's inputs with the path of the dataset, if it was uploaded or downloaded.
POINTER: Final = "data.url"


@dataclass(frozen=True, slots=True)
class Item:
    """One item of a task."""

    text: str
    metadata: dict[str, Any] = field(default_factory=dict)
    chat: tuple[Message, ...] = ()


def read_items(
    data: PromptData, inputs: Mapping[str, str], workspace: Path, *, shard: ShardSpec | None = None
) -> list[Item]:
    """Return the items of a task, in order; for a shard only its own."""
    part = {} if shard is None else {"shard": shard.model_dump()}
    if data.type == "dataset":
        return _of_dataset(data, inputs, workspace, part)
    listed = _listed(data)
    return [listed[at] for at in positions_of(len(listed), part)]


def _listed(data: PromptData) -> list[Item]:
    texts: list[Any] = list(data.items or ())
    if data.type == "graph_template":
        # The server expands a template to a list, unless that needs nothing but the template.
        texts = to_list(data.model_dump(mode="json", by_alias=True, exclude_unset=True), {}, SizeBudget())["items"]
    notes = data.metadata or data.items_metadata or ({},) * len(texts)
    found = []
    for number, (text, note) in enumerate(zip(texts, notes, strict=True)):
        where = f"spec.data.items.{number}"
        if isinstance(text, list | tuple):
            found.append(_of_chat(list(text), "items", dict(note), where))
        elif isinstance(text, str):
            found.append(Item(text, dict(note)))
        else:
            raise DataError(f"{where} is not a text: its reference was not resolved.")
    return found


def _of_chat(messages: Any, column: str, metadata: dict[str, Any], where: str) -> Item:
    """Read a chat whose last message is to be answered."""
    try:
        chat = read_question(messages, column)
    except RowError as error:
        raise DataError(f"{where}: {error}.") from None
    return Item(chat[-1]["content"], metadata, chat)


def _of_dataset(data: PromptData, inputs: Mapping[str, str], workspace: Path, part: Mapping[str, Any]) -> list[Item]:
    place = Place(str(data.url), inputs.get(POINTER), workspace, HubSet(data.name, data.revision))
    rows, origin = place.read(data.split, None)
    if len(rows) == 0:
        raise DataError(f"{origin} has no rows.", hint="Choose a dataset, split or slice that has rows.")
    # Shuffled before sharding, so that all shards agree on the order.
    order = list(shuffled(len(rows), data.seed, data.buffer_size)) if data.shuffle else range(len(rows))
    places = [order[at] for at in positions_of(len(rows), part)]
    wanted = _columns(data, rows, origin)
    chosen = take(rows, places)
    found = []
    for row, at in zip(chosen, places, strict=True):
        metadata = {alias: _plain(row.get(column)) for column, alias in wanted.items()}
        value = row.get(data.column)
        if isinstance(data, InferenceData) and looks_like_messages(value):
            found.append(_of_chat(value, data.column, metadata, f"Row {at + 1} of {origin}"))
        else:
            found.append(Item(_text(value, data.column, at + 1, origin), metadata))
    return found


def _columns(data: PromptData, rows: Rows, origin: str) -> dict[str, str]:
    """Return the columns that are kept as metadata, with their names."""
    columns = list(rows[0])
    if data.column not in columns:
        hint = f"Set `data.column`. {columns_hint(data.column, columns)}"
        raise DataError(f"{origin} has no column {data.column!r}.", hint=hint)
    if data.metadata_include_all:
        return {column: column for column in columns}
    wanted = dict(data.metadata_columns or {})
    for column in wanted:
        if column not in columns:
            hint = f"Correct `data.metadata_columns`. {columns_hint(column, columns)}"
            raise DataError(f"{origin} has no column {column!r}.", hint=hint)
    return wanted


def _text(value: Any, column: str, number: int, origin: str) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, int | float) and not isinstance(value, bool):
        return str(value)
    what = "nothing" if value is None else f"a {type(value).__name__}"
    raise DataError(f"Row {number} of {origin} has {what} in {column!r}, not text.")


def shuffled(count: int, seed: int, buffer_size: int | None) -> Iterator[int]:
    """Yield positions in random order, deterministic for the same arguments."""
    rng = np.random.default_rng(seed)
    if buffer_size is None or buffer_size >= count:
        yield from rng.permutation(count).tolist()
        # Shuffle buffer as in `datasets` streaming: bounded memory, local randomness.
        return
    buffer = list(range(buffer_size))
    for position in range(buffer_size, count):
        at = int(rng.integers(buffer_size))
        yield buffer[at]
        buffer[at] = position
    yield from (buffer[at] for at in rng.permutation(buffer_size).tolist())


def _plain(value: Any) -> Any:
    """Return a value as JSON; other values become text."""
    if value is None or isinstance(value, str | int | float | bool):
        return value
    return orjson.loads(orjson.dumps(value, default=str, option=orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_NON_STR_KEYS))
