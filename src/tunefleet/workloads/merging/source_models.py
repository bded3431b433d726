"""Locations of the base and the adapters of a merge."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final

from tunefleet.artifacts.archive import only_folder, unpacked_path
from tunefleet.errors import ModelError
from tunefleet.spec.base import is_hub_name
from tunefleet.spec.tasks.merge_task import MergeAdapterSpec, MergeTaskSpec
from tunefleet.workloads.common import base_model, containment, hub_files
from tunefleet.workloads.common.base_model import Source

_WEIGHTS = "checkpoint.load"
NEEDED: Final = ("*.json", "*.safetensors", "*.jinja", "*.model", "*.txt", "*.py", "*.tiktoken", "*.md", "LICENSE*")
"""Files that are downloaded from a repository: weights as safetensors, and all small files."""


def base_of(spec: MergeTaskSpec, inputs: Mapping[str, str], workspace: Path) -> Source:
    """Find the base, and download it if it is on the Hub: its files are read one by one.

    Raises:
        ModelError: If it does not exist.
        UnreachableError: If the Hub does not respond.
    """
    named = spec.model.source
    start = spec.start
    if start is not None:
        path = next((inputs[name] for name in (spec.start_pointer, _WEIGHTS) if name in inputs), None)
        if path is None:
            raise ModelError(f"The weights of {start.task or start.url or start.place} were not downloaded.")
        folder = only_folder(unpacked_path(Path(path), workspace))
        return base_model.locate(str(folder), str(folder), trust_remote_code=named.trust_remote_code)
    source = base_model.locate_named(named, inputs, workspace, trust_remote_code=named.trust_remote_code)
    if Path(source.path).is_dir():
        return source
    folder = hub_files.fetched(source.path, named.revision, NEEDED)
    return replace(source, path=str(folder), revision=None)


def adapter_folder(index: int, adapter: MergeAdapterSpec, inputs: Mapping[str, str], workspace: Path) -> Path:
    """Find an adapter, and download it if it is on the Hub."""
    pointer = f"model.adapters.{index}"
    path = next((inputs[name] for name in (f"{pointer}.path", pointer) if name in inputs), None)
    if path is not None:
        folder = only_folder(unpacked_path(Path(path), workspace))
    elif adapter.path is not None and is_hub_name(adapter.path):
        folder = hub_files.fetched(adapter.path, adapter.revision, NEEDED)
    else:
        raise ModelError(f"spec.{pointer}: {adapter.path or adapter.task_id or adapter.url} not found on this worker.")
    # Before PEFT reads the configuration, which may name other files.
    containment.check_adapter(folder)
    return folder


def label_of(index: int, adapter: MergeAdapterSpec) -> str:
    """Return the name of an adapter in messages."""
    place = adapter.name or adapter.path or adapter.task_id or adapter.url
    return f"adapter {place}" if place else f"adapter {index + 1}"
