"""A PPO run from start to end: prompts → models → answers, rewards, steps → delivery.

It may be killed at any moment and started again on the same folder: it then resumes from the newest valid checkpoint.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from tunefleet.analysis.memory import Load
from tunefleet.errors import InputError
from tunefleet.schemas.job_folder import Job
from tunefleet.spec import PpoSpec
from tunefleet.trainer_control.distributed import world
from tunefleet.workloads.common import base_model
from tunefleet.workloads.data.tokenization import Encoder
from tunefleet.workloads.distributed import ranks
from tunefleet.workloads.ppo.build import build_trainer, check
from tunefleet.workloads.ppo.reward_model import load_reward_model
from tunefleet.workloads.ppo.setup import Plan, Prompts, answer_tokens, open_prompts, plan
from tunefleet.workloads.ppo.trainer import Trainer
from tunefleet.workloads.training import setup
from tunefleet.workloads.training.dataset import report_notes
from tunefleet.workloads.training.launch import Launch
from tunefleet.workloads.training.model import assembly
from tunefleet.workloads.training.report import FinishedRun, contract_keys, effective_settings, throughput
from tunefleet.workloads.training.setup import require_disk


def run(folder: Path) -> None:
    """Run the PPO task of a job folder.

    Raises:
        InputError: If data, models or options cannot be used.
        MachineError: If this machine lacks something the spec requires.
    """
    launch = setup.open_training(folder, PpoSpec)
    _train(launch)


def _train(launch: Launch[PpoSpec]) -> None:
    spec, clock, session = launch.spec, launch.clock, launch.session
    check(launch)
    # Policy and value model process each row; the reference is a third copy, or the policy without its adapter.
    load = Load(sequences=2, reference=spec.adapter is None, value_model=True)
    hardware_setup = setup.detect_hardware(launch, load=load)
    with clock.part("model"), ranks.leader_first(launch.folder, launch.job.launch, "model"):
        base = assembly.locate_base(spec, launch.job.inputs, launch.workspace)
        tokenizer = base_model.load_tokenizer(base.source)
        tokenizer.padding_side = spec.training.padding_side
        reward_model = load_reward_model(
            spec.reward_model, launch.job.inputs, launch.workspace, torch.device(hardware_setup.machine.device)
        )
    with clock.part("data"), ranks.leader_first(launch.folder, launch.job.launch, "data"):
        longest = _longest_prompt(spec, base_model.context_length(base.source))
        encoder = Encoder(tokenizer, vocabulary=base_model.embedding_rows(base.source))
        prompts = open_prompts(spec, launch.job.inputs, launch.workspace, encoder, longest)
    _report_truncated(launch, prompts.cut, longest)
    report_notes(launch.journal, prompts.notes, prompts.duplicates)
    hardware_setup.memory.report_estimate(
        base.source, hardware_setup.kernels, longest + answer_tokens(spec), launch.journal
    )
    end = launch.overrides.get("max_steps")
    rank, count = world.rank(), world.size()
    planned = plan(spec, len(prompts.train), rank=rank, world=count, max_steps=end)
    with clock.part("model"):
        trainer = build_trainer(
            launch, base, tokenizer, prompts, reward_model, planned, (hardware_setup.machine, hardware_setup.kernels)
        )
    if session.leads:
        require_disk(launch.folder, trainer, adapter=spec.adapter is not None, make_room=lambda: False)
    setup.train(launch, trainer)
    if trainer.kl_stop is not None:
        text = f"Stopped early: the KL divergence of {trainer.kl_stop:.3g} nats is above {planned.kl_limit:.3g}."
        launch.journal.event("training.kl_stopped", text, "warning", {"kl": trainer.kl_stop, "limit": planned.kl_limit})
    with clock.part("saving"):
        delivered = setup.deliver(launch, trainer, tokenizer)
    resume = str(session.resume.path) if session.resume else None
    outcome = Outcome(
        trainer, hardware_setup.machine, hardware_setup.kernels, resume, delivered, clock.seconds(), prompts, planned
    )
    setup.write_result(launch, hardware_setup.memory, _build_result(launch.job, spec, outcome))


def _longest_prompt(spec: PpoSpec, context: int | None) -> int:
    wanted, answer = spec.training.max_seq_length, answer_tokens(spec)
    if context is None:
        return wanted
    if answer >= context:
        raise InputError(
            f"An answer of {answer} tokens leaves no space for a prompt: the context length is {context} tokens.",
            hint="Lower generation.max_new_tokens.",
        )
    return min(wanted, context - answer)


def _report_truncated(launch: Launch[PpoSpec], cut: int, longest: int) -> None:
    if cut:
        text = f"{cut} prompts are truncated on the left to {longest} tokens."
        launch.journal.event("data.truncated", text, "warning")


@dataclass(frozen=True, slots=True)
class Outcome(FinishedRun):
    """A finished PPO run."""

    prompts: Prompts
    plan: Plan


def _build_result(job: Job, spec: PpoSpec, outcome: Outcome) -> dict[str, Any]:
    """Build the result; the first keys are those of the orchestrator's contract."""
    trainer, plan, wanted = outcome.trainer, outcome.plan, spec.reward_model
    assert isinstance(trainer, Trainer)
    good, bad = trainer.scoring_model.labels
    labels = trainer.scoring_model.model.config.id2label
    return {
        **contract_keys(job, spec, outcome, len(outcome.prompts.train)),
        "rewards": _series(trainer, "reward"),
        "kl": _series(trainer, "kl"),
        "held_out_rewards": _series(trainer, "eval_reward") if outcome.prompts.held_out else None,
        "early_stopped": trainer.kl_stop is not None,
        "reward_model": {
            "identifier": wanted.name,
            "type": wanted.type,
            "positive_label": labels[good],
            "negative_label": None if bad is None else labels[bad],
            "scale": wanted.scale,
        },
        "samples": trainer.last,
        "throughput": throughput(outcome),
        "data": {
            "dataset": outcome.prompts.origin,
            "rows": len(outcome.prompts.train),
            "truncated_rows": outcome.prompts.cut,
            "held_out_rows": len(outcome.prompts.held_out),
            "duplicates": outcome.prompts.duplicates.rows if outcome.prompts.duplicates else None,
            "notes": list(outcome.prompts.notes),
        },
        "used": {
            **effective_settings(spec, outcome),
            "prompts_a_step": plan.rows * plan.world,
            "optimizer_steps_a_step": trainer.args.num_ppo_epochs * trainer.args.num_mini_batches,
            "max_new_tokens": plan.generation["max_new_tokens"],
            "kl_coef": trainer.args.kl_coef,
        },
        "timings": outcome.seconds,
    }


def _series(trainer: Trainer, name: str) -> dict[str, float | None]:
    """Return the first, last and greatest logged value."""
    logged = [entry[name] for entry in trainer.state.log_history if name in entry]
    return {
        "first": logged[0] if logged else None,
        "last": logged[-1] if logged else None,
        "greatest": max(logged, default=None),
    }
