"""Bundled assets: a small model and datasets, named `builtin:NAME` in a spec, and example workflow files.

    builtin:gsm8k-llama-2m     model    a Llama of 2.2 million parameters trained on GSM8K's questions
    builtin:extraction         dataset  4,000 training and 200 test sentences, with their content as JSON
    builtin:gsm8k              dataset  2,000 training and 320 test rows of GSM8K
    builtin:gsm8k-preferences  dataset  240 training and 40 test pairs of answers to problems of GSM8K

Nothing is uploaded for them. Does not import torch, so that any package can list them.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from tunefleet.errors import DataError, ModelError, NotFoundError
from tunefleet.spec.base import BUILTIN_PREFIX

_ROOT = Path(__file__).parent
_FOLDERS: dict[Literal["model", "dataset"], Path] = {"model": _ROOT / "models", "dataset": _ROOT / "data"}


def is_builtin(name: str) -> bool:
    """Return whether a name in a spec is a bundled asset."""
    return name.startswith(BUILTIN_PREFIX)


def names(kind: Literal["model", "dataset"]) -> list[str]:
    """List the bundled assets by their names in a spec."""
    return sorted(
        BUILTIN_PREFIX + path.name for path in _FOLDERS[kind].iterdir() if path.is_dir() and path.name[0] != "_"
    )


def locate(name: str, kind: Literal["model", "dataset"]) -> Path:
    """Return the folder of a built-in asset.

    Raises:
        ModelError: If no built-in model has that name.
        DataError: If no built-in dataset has that name.
    """
    known = names(kind)
    if name not in known:
        error = ModelError if kind == "model" else DataError
        raise error(f"There is no built-in {kind} {name!r}.", hint=f"Built in: {', '.join(known)}.")
    return _FOLDERS[kind] / name.removeprefix(BUILTIN_PREFIX)


def example(name: str) -> Path:
    """Return a bundled example workflow file."""
    path = _ROOT / "examples" / f"{name}.yaml"
    if not path.is_file():
        known = ", ".join(sorted(found.stem for found in path.parent.glob("*.yaml")))
        raise NotFoundError(f"Example {name!r} not found.", hint=f"Examples: {known}.")
    return path
