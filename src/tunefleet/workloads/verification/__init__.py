"""Verifying: whether a model is whole and can be trained; and giving it another tokenizer."""

from __future__ import annotations

from pathlib import Path


def main(folder: Path) -> None:
    """Run the verification of a job folder."""
    from tunefleet.workloads.verification.run import run

    run(folder)
