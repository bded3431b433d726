"""Checks that files of untrusted folders name only files inside the folder: libraries would open any path."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import yaml
from huggingface_hub.repocard import REGEX_YAML_BLOCK

from tunefleet.errors import DataError, ModelError

# Files of a model to download and check; a model may have parts in subfolders at any depth.
READ: Final = ("*config.json", "*config_sentence_transformers.json", "*special_tokens_map.json", "*modules.json")
# Files whose strings Transformers, PEFT and Sentence Transformers use as arguments; some are opened as paths.
_ARGUMENTS: Final = re.compile(
    r"(.*tokenizer_|adapter_|sentence_.*_|router_|wordembedding_|cnn_|lstm_|.*processor_)?config\.json"
    r"|config_sentence_transformers\.json|special_tokens_map\.json|modules\.json"
)
_LEADS_OUT: Final = re.compile(r"(/|~|[A-Za-z]:[\\/]|\\\\|file:).+|(.*[\\/])?\.\.([\\/].*)?", re.DOTALL)
_TEXTS: Final = frozenset({
    "_name_or_path", "name_or_path", "chat_template", "content", "additional_special_tokens", "extra_special_tokens",
    "architectures", "auto_map", "prompts", "target_modules", "exclude_modules", "modules_to_save", "layers_pattern",
})  # fmt: skip
"""Keys whose values are names, text or patterns and never opened; keys that end with `_token` are text as well."""
# Keys of `tokenizer_config.json` that Transformers replaces by the folder's own file.
_REPLACED: Final = frozenset({"tokenizer_file", "special_tokens_map_file", "vocab_file", "merges_file"})
# Suffixes of keys in `config.json` that may name a file; other values are numbers, labels and prompts.
_OF_A_MODEL: Final = re.compile(r"(file|path|dir|folder|backbone|structure)$")
# All strings below this key are folders of parts.
_FOLDERS: Final = "structure"
# Files in which a Hub dataset lists its data files.
CARDS: Final = ("README.md", ".huggingface.yaml")
_DATA: Final = frozenset({"data_files", "data_dir", "path"})
_IN_PLACE: Final = frozenset({"hf", "zip", "tar", "gzip", "gz", "bz2", "xz", "lz4", "zstd"})
"""URL schemes that read the dataset's own files."""
_BASE: Final = "base_model_name_or_path"


def escapes_folder(text: str) -> bool:
    """Return whether a string, used as a path, leads out of the folder."""
    return _LEADS_OUT.fullmatch(text) is not None


def _there(text: str, key: str) -> bool:
    """Return whether a string names an existing path relative to the working directory."""
    # Relative names matter because a warm process runs in `/`.
    try:
        # A folder is opened only as a base model, and common folders have names of model types, such as `opt`.
        return Path(text).exists() and (key == _BASE or not Path(text).is_dir())
    except (OSError, ValueError):  # no name of a file at all
        return False


def check_model(folder: Path) -> None:
    """Refuse a model or a tokenizer whose files name files outside its folder."""
    _check(folder, opened_base=True)


def check_adapter(folder: Path) -> None:
    """Refuse an adapter whose files name files outside its folder; its base model is not opened."""
    _check(folder, opened_base=False)


def check_dataset(folder: Path) -> None:
    """Refuse a Hub dataset whose card names data outside its repository."""
    for file in (folder / name for name in CARDS if (folder / name).is_file()):
        # Decoded like the Hub's library, which does not normalize line breaks: both must see the same head.
        text = file.read_bytes().decode("utf-8", errors="replace")
        head = text if file.suffix == ".yaml" else (found[2] if (found := REGEX_YAML_BLOCK.search(text)) else "")
        try:
            content = yaml.safe_load(head)
        except yaml.YAMLError as error:
            if "configs" not in head:
                continue
            raise DataError(f"The metadata of {file.name} is not valid YAML: {error}.") from None
        for key, each in _texts(content.get("configs") if isinstance(content, dict) else None):
            if key in _DATA and opens_elsewhere(each):
                raise DataError(f"{file.name} names {each!r} under {key!r}, which leads out of the dataset.")


def opens_elsewhere(text: str) -> bool:
    """Return whether the datasets library would open something outside, as with `zip://a::/elsewhere`."""
    for part in text.split("::"):
        scheme, colon, rest = part.partition("://")
        if (colon and scheme not in _IN_PLACE) or escapes_folder(rest if colon and scheme != "hf" else part):
            return True
    return False


def _check(folder: Path, *, opened_base: bool) -> None:
    for index in folder.glob("*.index.json"):
        _check_shards(index, folder)
    for file in sorted(path for path in folder.rglob("*.json") if _ARGUMENTS.fullmatch(path.name)):
        body = file.read_bytes()
        try:
            content = json.loads(body) if body else None
        except (ValueError, RecursionError) as error:
            raise ModelError(f"{file.name} cannot be read: {error}") from None
        for key, text in _texts(content):
            if _is_opened(file.name, key, opened_base=opened_base) and (escapes_folder(text) or _there(text, key)):
                raise ModelError(
                    f"{file.name} of {folder.name} names {text!r} under {key!r}, which leads out of the folder.",
                    hint="Put the file into the folder, or remove the key.",
                )


def _is_opened(name: str, key: str, *, opened_base: bool) -> bool:
    if key == _BASE:
        return opened_base and name == "adapter_config.json"
    if name == "config.json":
        return _OF_A_MODEL.search(key) is not None
    # In all other files any string may be opened.
    return not (name == "tokenizer_config.json" and key in _REPLACED)


def _check_shards(index: Path, folder: Path) -> None:
    try:
        shards = set(json.loads(index.read_bytes())["weight_map"].values())
    except (ValueError, KeyError, AttributeError, TypeError) as error:
        raise ModelError(f"{index.name} of {folder.name} is not a valid index of shards: {error!r}.") from None
    for shard in shards:
        if not isinstance(shard, str) or not (folder / shard).resolve().is_relative_to(folder.resolve()):
            raise ModelError(f"{index.name} of {folder.name} names {shard!r}, which leads out of the folder.")


def _texts(value: Any, key: str = "") -> Iterator[tuple[str, str]]:
    """Yield each string that a library may open, with its innermost key."""
    if isinstance(value, str):
        yield key, value
    elif isinstance(value, list):
        for each in value:
            yield from _texts(each, key)
    elif isinstance(value, Mapping):
        for name, each in value.items():
            if name not in _TEXTS and not name.endswith("_token"):
                yield from _texts(each, key if key == _FOLDERS else name)
