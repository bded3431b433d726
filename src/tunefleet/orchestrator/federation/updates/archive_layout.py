"""What a worker's archive holds: the adapter at its root, the tokenizer, and what the upload guide's recipe leaves.

Looks at names and at first bytes only; nothing is opened that could run something. What an adapter must be is decided
elsewhere.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tunefleet.artifacts import UnpackLimits, unpack
from tunefleet.errors import AdapterRefused
from tunefleet.schemas.federated import ADAPTER_FILE, CONFIG_FILE

# Where `save_pretrained` puts the adapter that the guide's recipe loads beside the one at the root.
RECIPE_FOLDER: Final = "aggregated"
MAX_CONFIG_BYTES: Final = 1 << 20
MAX_TOKENIZER_FILES: Final = 64
_MAX_FILES: Final = 4096
_BESIDE_BYTES: Final = 256 << 20
"""What may lie in an archive beside the adapter: tokenizer, texts."""
_PICKLES: Final = ("adapter_model.bin", "adapter_model.pt", "adapter_model.pth", "adapter_model.pkl")
_TOKENIZER: Final = re.compile(
    r"(tokenizer(_config)?|special_tokens_map|added_tokens|vocab|chat_template|processor_config)\.json"
    r"|(vocab|merges)\.txt|\w[\w.-]*\.(model|tiktoken|jinja)|additional_chat_templates/\w[\w.-]*\.jinja"
)
_SAFE: Final = "Save it with `model.save_pretrained(folder, safe_serialization=True)`."


@dataclass(frozen=True, slots=True)
class Found:
    """What is of use in an archive."""

    weights: Path
    config: bytes
    tokenizer: dict[str, Path]


def open_archive(archive: Path, into: Path, *, max_bytes: int) -> Path:
    """Unpack an archive, with the care that a stranger's one takes, and return the folder with the adapter."""
    limits = UnpackLimits(max_files=_MAX_FILES, max_total_bytes=2 * max_bytes + _BESIDE_BYTES)
    return unpack(archive, into, limits=limits)


def find_adapter(folder: Path) -> Found:
    """Return what is of use in an unpacked archive."""
    for name in _PICKLES:
        if (folder / name).exists():
            raise AdapterRefused(f"{name} is a pickle, which is never opened.", hint=_SAFE)
    weights, config = folder / ADAPTER_FILE, folder / CONFIG_FILE
    for file in (config, weights):
        if not file.is_file():
            raise AdapterRefused(
                f"The archive has no {file.name} at its root.",
                hint="Pack the folder that `save_pretrained` has filled: `tar.add(folder, arcname='.')`.",
            )
    return Found(weights, read_config_file(config), _tokenizer_in(folder))


def find_recipes_adapter(folder: Path) -> Found | None:
    """Return the adapter that the guide's recipe leaves in a folder of its own; null if there is none."""
    below = folder / RECIPE_FOLDER
    return find_adapter(below) if (below / CONFIG_FILE).is_file() else None


def read_config_file(config: Path) -> bytes:
    """Return the content of an `adapter_config.json`."""
    if config.stat().st_size > MAX_CONFIG_BYTES:
        raise AdapterRefused(f"{config.name} has more than {MAX_CONFIG_BYTES:,} bytes.", hint="Save the adapter anew.")
    return config.read_bytes()


def _tokenizer_in(folder: Path) -> dict[str, Path]:
    found = {
        path: file
        for file in sorted(folder.rglob("*"))
        if file.is_file() and is_tokenizer(path := file.relative_to(folder).as_posix())
    }
    if len(found) > MAX_TOKENIZER_FILES:
        raise AdapterRefused(f"The archive has more than {MAX_TOKENIZER_FILES} files of a tokenizer.")
    return found


def is_tokenizer(path: str) -> bool:
    """Whether a path within an archive is that of a tokenizer's file."""
    return _TOKENIZER.fullmatch(path) is not None
