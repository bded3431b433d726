"""`config.data` to the columns, the number of rows and what is held out; where the rows lie is found elsewhere."""

from __future__ import annotations

from typing import Any, Final

from tunefleet.agent.translate import pairs
from tunefleet.agent.translate.config_reader import Reading
from tunefleet.agent.translate.methods import PAIRS

# The document's split of a single set: 80 % are trained on, drawn by seed 42.
HELD_OUT: Final = 0.2
_FORMATS: Final[dict[str, dict[str, str]]] = {
    "chatml": {"messages_field": "messages"},
    "messages": {"messages_field": "messages"},
    "openai": {"messages_field": "messages"},
    "chat": {"messages_field": "messages"},
    "sharegpt": {"messages_field": "conversations"},
    "alpaca": {},  # a usual shape of rows, with its `input`
    "prompt_completion": {"prompt_column": "prompt", "response_column": "completion"},
    "prompt_response": {"prompt_column": "prompt", "response_column": "response"},
    "text": {"text_field": "text"},
    "raw_text": {"text_field": "text"},
}
_FILE_FORMATS: Final = frozenset({"jsonl", "json", "csv", "parquet", "auto", "standard"})
_COLUMNS: Final = ("prompt_column", "response_column", "messages_field", "separator")


def data(read: Reading, method: str) -> None:
    """Translate the block."""
    read.move("data.max_samples", "data.max_samples")
    form = read.take("data.dataset_format", "data.format")
    if method in PAIRS:
        pairs.columns(read, method, form, _FILE_FORMATS)
    else:
        _supervised(read, form, plain_text=method == "cpt")
    read.ignore("data.strategy", "data.generation_type", why="has no effect: the columns decide how a row is read")


def _supervised(read: Reading, form: Any, *, plain_text: bool) -> None:
    said = _columns(read)
    read.ignore(*pairs.CHOSEN, why="belongs to another training method and has no effect")
    name_of_form = str(form).lower()
    columns = _FORMATS.get(name_of_form) if form is not None else None
    if form is not None and name_of_form in pairs.FORMATS:
        read.warnings.append(f"config.data.dataset_format {form!r} belongs to dpo and orpo; the columns decide.")
    elif form is not None and columns is None and name_of_form not in _FILE_FORMATS:
        read.warnings.append(f"config.data.dataset_format {form!r} is not known; the columns decide.")
    if plain_text and not read.spec.get("data", {}).get("text_field"):
        read.put("data.text_field", "text", "training.method")
    elif columns and not said and not plain_text:
        for name, value in columns.items():
            read.put(f"data.{name}", value, "data.dataset_format")


def _columns(read: Reading) -> bool:
    text = read.move("data.text_field", "data.text_field", "data.text_column")
    others = [read.move(f"data.{name}", f"data.{name}") for name in _COLUMNS]
    return text is not None or any(value is not None for value in others[:3])


def held_out(read: Reading) -> float:
    """Return the part of a single set that is held out; 0 for none."""
    held, path = read.taken("data.eval_split", "eval_split", "data.validation_split")
    train = read.take("data.train_split")
    trained = _part(train)
    if held is None and trained is not None:
        held, path = round(1 - trained, 6), "data.train_split"
    if held is None:
        return HELD_OUT
    part = _part(held)
    if part is None and isinstance(held, str):
        read.warnings.append(f"config.{path} {held!r} is a name; a split of that kind is found by itself.")
        return HELD_OUT
    if part is None or not 0 <= part < 1:
        read.fault(path, f"is {held!r:.40}, not a part of one", "write for example 0.1")
        return HELD_OUT
    if trained is not None and part + trained > 1 + 1e-9:
        read.fault(path, "and data.train_split are more than everything", "leave one of them out")
    return part


def _part(value: Any) -> float | None:
    """Read a part of one, also in percent; None for what is no number."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return None
    return number / 100 if number > 1 else number
