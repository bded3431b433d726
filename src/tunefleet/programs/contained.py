"""Folders that somebody brought name files inside themselves only: libraries would open such names anywhere."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import yaml

from tunefleet.errors import DataError, ModelError

READ: Final = ("*_config.json", "config.json", "modules.json", "config_sentence_transformers.json")
"""Files of a model whose texts become arguments, some of which a library opens."""
_LEADS_OUT: Final = re.compile(r"(/|~|[A-Za-z]:[\\/]|\\\\|file:)[^\n]+|([^\n]*[\\/])?\.\.([\\/][^\n]*)?")
_NEVER_OPENED: Final = frozenset({
    "_name_or_path", "name_or_path", "tokenizer_file", "special_tokens_map_file", "chat_template", "content",
    "additional_special_tokens", "extra_special_tokens", "architectures", "auto_map",
})  # fmt: skip
"""Keys that are notes of where something came from (Transformers puts the folder's own file in the place of both
`*_file`), or text; keys that end with `_token` are text as well."""
CARDS: Final = ("README.md", ".huggingface.yaml")
"""Where a dataset of the hub says which files are its data."""
_FRONT_MATTER: Final = re.compile(r"\s*---[^\S\n]*\r?\n(.*?)\n---[^\S\n]*(\r?\n|\Z)", re.DOTALL)
_BASE: Final = "base_model_name_or_path"


def leads_out(text: str) -> bool:
    """Whether a text, taken for a path, leads away from the folder that it stands in."""
    return _LEADS_OUT.fullmatch(text) is not None


def _there(text: str, look: Callable[[Path], bool]) -> bool:
    """Whether a text names something where this runs: a job of a warm process runs in `/`."""
    try:
        return look(Path(text))
    except (OSError, ValueError):  # no name of a file at all
        return False


def check_model(folder: Path) -> None:
    """Refuse a model or a tokenizer whose files name others outside of its folder.

    Args:
        folder: With `config.json` or a tokenizer.

    Raises:
        ModelError: If one does, or cannot be read.
    """
    _check(folder, opened_base=True)


def check_adapter(folder: Path) -> None:
    """Refuse an adapter whose files name others outside of its folder; the base that it names is not opened."""
    _check(folder, opened_base=False)


def check_dataset(folder: Path) -> None:
    """Refuse a dataset of the hub whose card names data outside of its repository.

    Args:
        folder: With the files `CARDS` of the repository, as far as there are any.

    Raises:
        DataError: If it does, or cannot be read.
    """
    for file in (folder / name for name in CARDS if (folder / name).is_file()):
        text = file.read_text(encoding="utf-8", errors="replace")
        head = _FRONT_MATTER.match(text)
        try:
            content = yaml.safe_load(text if file.suffix == ".yaml" else head[1] if head else "")
        except yaml.YAMLError as error:
            raise DataError(f"The head of {file.name} is no YAML: {error}.") from None
        for key, each in _texts(content.get("configs") if isinstance(content, dict) else None):
            if leads_out(each) or "::" in each or ("://" in each and not each.startswith("hf://")):
                raise DataError(f"{file.name} names {each!r} under {key!r}, which leads out of the dataset.")


def _check(folder: Path, *, opened_base: bool) -> None:
    for index in folder.glob("*.index.json"):
        _check_shards(index, folder)
    for file in sorted({path for pattern in READ for path in folder.glob(pattern)}):
        try:
            content = json.loads(file.read_bytes())
        except ValueError as error:
            raise ModelError(f"{file.name} of {folder.name} cannot be read: {error}") from None
        for key, text in _texts(content):
            base = key == _BASE
            # A folder alone is no argument that is opened, and many are called as a model is: `opt`.
            if (base and not opened_base) or not (
                leads_out(text) or _there(text, Path.exists if base else Path.is_file)
            ):
                continue
            raise ModelError(
                f"{file.name} of {folder.name} names {text!r} under {key!r}, which leads out of the folder.",
                hint="Put the file into the folder, or remove the key.",
            )


def _check_shards(index: Path, folder: Path) -> None:
    try:
        shards = set(json.loads(index.read_bytes())["weight_map"].values())
    except (ValueError, KeyError, AttributeError, TypeError) as error:
        raise ModelError(f"{index.name} of {folder.name} is no index of shards: {error!r}.") from None
    for shard in shards:
        if not isinstance(shard, str) or not (folder / shard).resolve().is_relative_to(folder.resolve()):
            raise ModelError(f"{index.name} of {folder.name} names {shard!r}, which leads out of the folder.")


def _texts(value: Any, key: str = "") -> Iterator[tuple[str, str]]:
    """Yield each text that a library may open, with the innermost key above it."""
    if isinstance(value, str):
        yield key, value
    elif isinstance(value, list):
        for each in value:
            yield from _texts(each, key)
    elif isinstance(value, Mapping):
        for name, each in value.items():
            if name not in _NEVER_OPENED and not name.endswith("_token"):
                yield from _texts(each, name)
