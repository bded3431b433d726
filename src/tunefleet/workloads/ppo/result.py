"""`responses.json` of a PPO run: settings, data, rewards and KL divergence."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tunefleet.schemas.job_folder import Job
from tunefleet.spec import PpoSpec
from tunefleet.workloads.ppo.prompts import Prompts
from tunefleet.workloads.ppo.setup import Plan
from tunefleet.workloads.ppo.trainer import Trainer
from tunefleet.workloads.training.report import FinishedRun, contract_keys, effective_settings, throughput


@dataclass(frozen=True, slots=True)
class Outcome(FinishedRun):
    """A finished PPO run."""

    prompts: Prompts
    plan: Plan


def build(job: Job, spec: PpoSpec, outcome: Outcome) -> dict[str, Any]:
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
