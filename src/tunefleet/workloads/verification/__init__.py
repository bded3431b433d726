"""Verification: integrity of a model, whether it can be trained, and replacement of its tokenizer."""

from __future__ import annotations

from pathlib import Path


def main(folder: Path) -> None:
    """Run the verification of a job folder."""
    from tunefleet.workloads.verification.run import run

    run(folder)
