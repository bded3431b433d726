"""Fine-tuning: supervised, of all weights or of a LoRA adapter.

    recipe      the run from beginning to end     assemble   spec → base model and adapter
    model       tokenizer and weights             adapter    LoRA
    hardware    what is there, and the kernels    arguments  spec → training arguments
    trainer     TRL's, with an exact loss         trackers   those that need more than a name
    launch      what one process start is to do    material   rows, tokens, streams
    build       the trainer with its callbacks    streaming  samples from a stream, and its place
    divergence  notices a broken training         predictions  answers at evaluations
    memory      what it will take, told before    background  checkpoints written beside the training
    compression checkpoints that take less room
    packing     several rows in one sequence      samples    answers before and after
    result      what a run reports                outputs    what a run delivers

`job.json` names it `tunefleet.programs.train:main`. Importing it takes five seconds, which the fork server spends
before a job comes.
"""

from __future__ import annotations

from tunefleet.programs.train.recipe import run as main

__all__ = ["main"]
