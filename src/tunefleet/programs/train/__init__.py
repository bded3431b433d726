"""Fine-tuning: supervised, of all weights or of a LoRA adapter.

sources     which rows a spec means           readers    files and folders → rows
shapes      what a row is                     chat       conversations → text and the assistant's spans
tokens      rows → ids and labels             packing    several rows in one sequence
hub         names of the hub                  hardware   what is there, and the kernels that follow
model       tokenizer and weights             adapter    LoRA
arguments   spec → training arguments         trainer    TRL's trainer with an exact held-out loss
samples     answers before and after          recipe     the run from beginning to end
result      what a run reports                outputs    what a run delivers
"""

from __future__ import annotations

from pathlib import Path


def main(folder: Path) -> None:
    """Run the training of a job folder; `job.json` names it `tunefleet.programs.train:main`."""
    # Imports for five seconds; `preview`, which needs the neighbours of this module, does without it.
    from tunefleet.programs.train.recipe import run

    run(folder)
