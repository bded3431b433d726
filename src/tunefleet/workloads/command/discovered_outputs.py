"""Outputs of a command: those that its spec names, and an adapter or a model that is discovered."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from tunefleet.artifacts import hash_file
from tunefleet.errors import InputError
from tunefleet.schemas.worker_guide import FILE_KIND
from tunefleet.spec import CommandSpec
from tunefleet.trainer_control.autoload import trainings

FOLDER_KIND: Final = "folder"
_KINDS: Final = {"final_lora": "adapter", "final_model": "model"}
_MARKS: Final = {"final_lora": "adapter_config.json", "final_model": "config.json"}
_WEIGHTS: Final = (".safetensors", ".bin")
_OF_MODELS: Final = frozenset({".json", ".safetensors", ".bin", ".model", ".txt", ".jinja", ".md", ".tiktoken", ".py"})
_NOT_DELIVERED: Final = frozenset({"training_args.bin", "trainer_state.json", "optimizer.bin"})


def collected(folder: Path, work: Path, spec: CommandSpec) -> dict[str, Any]:
    """Return the outputs of a command, by name: `kind`, `relative_path`, `bytes`, and `sha256` for a file."""
    found: dict[str, Any] = {}
    for name, path in spec.outputs.items():
        place = (work / path).resolve()
        # A link must not deliver a file from outside of the task.
        if not place.is_relative_to(work.resolve()) or not place.exists():
            raise InputError(
                f"spec.outputs.{name}: the command did not write {path}.",
                hint="Paths are relative to its folder.",
            )
        if name in _KINDS and place.is_dir():
            place = _linked(place, folder / name)
        found[name] = _about(folder, name, place)
    if not _KINDS.keys() & found.keys():
        found |= trained(folder, work)
    return found


def trained(folder: Path, work: Path) -> dict[str, Any]:
    """Return the adapter or model in the output folder of a training run, as an output; empty if there is none."""
    places = [Path(item["output_dir"]) for item in reversed(trainings.recorded(folder))]
    if not places:
        return {}  # without a training run, a model in the folder is not a result
    for place in dict.fromkeys([*places, *_folders(work)]):
        name = next((name for name, mark in _MARKS.items() if (place / mark).is_file() and _has_weights(place)), None)
        if name is not None:
            return {name: _about(folder, name, _linked(place, folder / name))}
    return {}


def _folders(work: Path) -> Iterator[Path]:
    """Yield the folders in which the command may have saved, most recently changed first; no checkpoints."""
    inner = [path.parent for mark in _MARKS.values() for path in work.rglob(mark)]
    own = [path for path in inner if not any(part.startswith("checkpoint-") for part in path.relative_to(work).parts)]
    yield from sorted(own, key=lambda path: path.stat().st_mtime, reverse=True)


def _has_weights(place: Path) -> bool:
    return any(path.suffix in _WEIGHTS and path.name not in _NOT_DELIVERED for path in place.iterdir())


def _linked(source: Path, target: Path) -> Path:
    """Give a trained folder its standard name, without checkpoints; hard links avoid a copy where possible."""
    # Renamed when complete, so that a killed launch leaves no half output.
    draft = target.with_name(f".{target.name}.partial")
    shutil.rmtree(draft, ignore_errors=True)
    draft.mkdir()
    for path in source.iterdir():
        if path.is_file() and path.suffix in _OF_MODELS and path.name not in _NOT_DELIVERED:
            _link(path, draft / path.name)
    shutil.rmtree(target, ignore_errors=True)
    draft.rename(target)
    return target


def _link(source: Path, target: Path) -> None:
    try:
        # Fails across file systems, hence the copy.
        os.link(source.resolve(), target)
    except OSError:
        shutil.copy2(source, target)


def _about(folder: Path, name: str, place: Path) -> dict[str, Any]:
    relative = place.resolve().relative_to(folder.resolve()).as_posix()
    if place.is_file():
        digest, size_bytes = hash_file(place)
        return {"kind": FILE_KIND, "relative_path": relative, "bytes": size_bytes, "sha256": digest}
    size_bytes = sum(path.stat().st_size for path in place.rglob("*") if path.is_file())
    return {"kind": _KINDS.get(name, FOLDER_KIND), "relative_path": relative, "bytes": size_bytes}
