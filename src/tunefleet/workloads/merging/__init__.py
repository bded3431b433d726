"""Merging: LoRA adapters into their base model, or with each other."""

from __future__ import annotations

from pathlib import Path


def main(folder: Path) -> None:
    """Run the merge of a job folder."""
    from tunefleet.workloads.merging.run import run

    run(folder)
