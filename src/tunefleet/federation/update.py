"""What takes part in an average: one worker's adapter, or the global one."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tunefleet.federation.adapter import CONFIG, TENSORS, AdapterConfig, read_config


@dataclass(frozen=True, slots=True)
class Update:
    """One adapter.

    Args:
        worker: Who made it; names in one average differ.
        path: Its `adapter_model.safetensors`.
        config: What its `adapter_config.json` says.
        num_examples: Rows that it was trained on since the version before.
    """

    worker: str
    path: Path
    config: AdapterConfig
    num_examples: int = 1


def update_in(folder: Path, *, worker: str = "global", num_examples: int = 1) -> Update:
    """Return the adapter that `save_pretrained` left in a folder.

    Args:
        folder: It has `adapter_model.safetensors` and `adapter_config.json`.
        worker: Who made it.
        num_examples: Rows that it was trained on.

    Raises:
        AdapterRefused: If its config is refused.
    """
    return Update(worker, folder / TENSORS, read_config((folder / CONFIG).read_bytes()), num_examples)
