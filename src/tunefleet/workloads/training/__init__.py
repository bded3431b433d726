"""Fine-tuning: supervised, of all weights or of a LoRA adapter.

Shared by all trainings, whichever library trains:

    setup                   begin, set up, resume, deliver
    launch                  what one process start is to do
    assembly                spec → base model and adapter
    weights_loader          weights
    lora                    LoRA
    hardware                what is there, and the kernels
    arguments               spec → training arguments
    exact_trainer           what every trainer does otherwise
    callbacks               what watches every training
    trackers                those that need more than a name
    divergence              notices a broken training
    memory                  what it will take, told before
    async_checkpoint        checkpoints written beside it
    disk_check              what it will write, told before
    checkpoint_compression  checkpoints that take less room
    outputs                 what a run delivers
    participation           a part of a federation
    report                  what all results have
    clock                   how long the parts take

Of the supervised ones alone:

    run          the training from beginning to end
    supervised   spec → arguments of TRL's trainer
    trainer      TRL's, with an exact loss
    build        the trainer with its callbacks
    dataset      rows, tokens, streams
    streaming    samples from a stream, and its place
    packing      several rows in one sequence
    samples      answers before and after
    predictions  answers at evaluations
    summary      what a run reports

`job.json` names it `tunefleet.workloads.training:main`. Importing it takes five seconds, which the fork server spends
before a job comes.
"""

from __future__ import annotations

from tunefleet.workloads.training.run import run as main

__all__ = ["main"]
