"""Layout of a worker's archive: the adapter at its root, the tokenizer, and the folder of the upload guide's recipe.

Only names and sizes are inspected: no file is loaded that could execute code. `validation` checks the adapter.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tunefleet.artifacts import UnpackLimits, unpack
from tunefleet.errors import AdapterRefused
from tunefleet.schemas.federated import ADAPTER_FILE, CONFIG_FILE

# Where `save_pretrained` puts the second adapter that the guide's recipe loads, next to the one at the root.
RECIPE_FOLDER: Final = "aggregated"
MAX_CONFIG_BYTES: Final = 1 << 20
MAX_TOKENIZER_FILES: Final = 64
_MAX_FILES: Final = 4096
# Allowance for other files in an archive: tokenizer, texts.
_EXTRA_BYTES: Final = 256 << 20
_PICKLES: Final = ("adapter_model.bin", "adapter_model.pt", "adapter_model.pth", "adapter_model.pkl")
_TOKENIZER: Final = re.compile(
    r"(tokenizer(_config)?|special_tokens_map|added_tokens|vocab|chat_template|processor_config)\.json"
    r"|(vocab|merges)\.txt|\w[\w.-]*\.(model|tiktoken|jinja)|additional_chat_templates/\w[\w.-]*\.jinja"
)
_SAFE: Final = "Save it with `model.save_pretrained(folder, safe_serialization=True)`."


@dataclass(frozen=True, slots=True)
class ArchiveFiles:
    """The files of an archive that an update consists of."""

    weights: Path
    config: bytes
    tokenizer: dict[str, Path]


def open_archive(archive: Path, into: Path, *, max_bytes: int) -> Path:
    """Unpack an untrusted archive within limits, and return the folder with the adapter."""
    limits = UnpackLimits(max_files=_MAX_FILES, max_total_bytes=2 * max_bytes + _EXTRA_BYTES)
    return unpack(archive, into, limits=limits)


def find_adapter(folder: Path) -> ArchiveFiles:
    """Return the adapter and tokenizer of an unpacked archive."""
    for name in _PICKLES:
        if (folder / name).exists():
            raise AdapterRefused(f"{name} is a pickle file, which can execute code and is never loaded.", hint=_SAFE)
    weights, config = folder / ADAPTER_FILE, folder / CONFIG_FILE
    for file in (config, weights):
        if not file.is_file():
            raise AdapterRefused(
                f"The archive has no {file.name} at its root.",
                hint="Pack the output folder of `save_pretrained`: `tar.add(folder, arcname='.')`.",
            )
    return ArchiveFiles(weights, read_config_file(config), _tokenizer_in(folder))


def find_recipes_adapter(folder: Path) -> ArchiveFiles | None:
    """Return the second adapter that the guide's recipe saves; None if there is none."""
    below = folder / RECIPE_FOLDER
    return find_adapter(below) if (below / CONFIG_FILE).is_file() else None


def read_config_file(config: Path) -> bytes:
    """Return the content of an `adapter_config.json`."""
    if config.stat().st_size > MAX_CONFIG_BYTES:
        raise AdapterRefused(f"{config.name} has more than {MAX_CONFIG_BYTES:,} bytes.", hint="Save the adapter again.")
    return config.read_bytes()


def _tokenizer_in(folder: Path) -> dict[str, Path]:
    found = {
        path: file
        for file in sorted(folder.rglob("*"))
        if file.is_file() and is_tokenizer(path := file.relative_to(folder).as_posix())
    }
    if len(found) > MAX_TOKENIZER_FILES:
        raise AdapterRefused(f"The archive has more than {MAX_TOKENIZER_FILES} tokenizer files.")
    return found


def is_tokenizer(path: str) -> bool:
    """Whether a path within an archive is a tokenizer file."""
    return _TOKENIZER.fullmatch(path) is not None
