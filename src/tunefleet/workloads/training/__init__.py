"""Supervised fine-tuning (SFT), full or with a LoRA adapter, and code shared by all training tasks.

Shared by all training tasks:

    setup                   launch, setup, resume, delivery
    launch                  one process start: spec, overrides, timings
    model.assembly          spec → base model and adapter
    model.lora              LoRA configuration and checks
    model.hardware          devices and kernels
    model.memory            memory estimate before the run
    model.deepspeed         DeepSpeed configuration
    arguments               spec → training arguments
    exact_trainer           `Trainer` mixin with deterministic resume
    callbacks               callbacks of every run, divergence detection
    async_checkpoint        checkpoints written in the background
    disk_check              disk space estimate before the run
    checkpoint_compression  zstd compression of checkpoints
    label_scores            loss on labelled positions only, on CPUs
    participation           shard of a federated run
    report                  keys common to all results

SFT only:

    run             the run from start to end
    trainer         TRL's trainer with an exact eval loss
    build           the trainer with its callbacks, predictions at evaluations
    rows.dataset    rows, tokens, streams
    rows.streaming  samples from a stream, packing
    samples         answers before and after
    summary         the result

`job.json` names it `tunefleet.workloads.training:main`. Importing it takes five seconds, so the fork server does it
before a job arrives.
"""

from __future__ import annotations

from tunefleet.workloads.training.run import run as main

__all__ = ["main"]
