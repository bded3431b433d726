"""Publishing: a task's model, adapter or GGUF file to the Hugging Face Hub or a bucket, with a model card."""

from __future__ import annotations

from pathlib import Path


def main(folder: Path) -> None:
    """Run the publishing of a job folder."""
    from tunefleet.workloads.publishing.run import run

    run(folder)
