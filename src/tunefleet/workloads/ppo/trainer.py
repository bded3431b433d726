"""TRL's PPO trainer with its own training loop, which supports commands, checkpoints and exact resume.

TRL sets up models, optimizer, accelerator and checkpoints. Other differences: padding is identified by length, not by
token, so that a tokenizer whose padding token is its end token loses no end; log-probabilities of sampled tokens come
from the model itself, not from scores truncated by `top_p` or `top_k`; a mini-batch is weighted by its tokens,
independent of how it is split into forward passes.
"""

from __future__ import annotations

import math
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from peft import PeftModel, set_peft_model_state_dict
from safetensors.torch import load_file, save_file
from torch import nn
from transformers import GenerationConfig
from trl.experimental.ppo import PPOTrainer
from trl.experimental.ppo.ppo_trainer import OnlineTrainerState
from trl.models.utils import unwrap_model_for_generation
from trl.trainer.utils import selective_log_softmax, use_adapter

from tunefleet.workloads.ppo.reward_model import RewardModel
from tunefleet.workloads.ppo.rollout import Rollout, RolloutValues, clipped_loss, collect, pad_left, rollout_values
from tunefleet.workloads.ppo.setup import Plan, Prompt
from tunefleet.workloads.training.checkpoint_compression import decompressed, files_kept
from tunefleet.workloads.training.exact_trainer import ExactTrainer, preserve_random_state
from tunefleet.workloads.training.model.lora import REFERENCE

VALUE_FILE = "value_model.safetensors"
_STATE = "trainer_state.json"


class Trainer(ExactTrainer, PPOTrainer):
    """Samples answers, scores them and trains on them; one step is one batch of answers."""

    model: Any
    control: Any

    def __init__(
        self,
        plan: Plan,
        reward_model: RewardModel,
        prompts: Sequence[Prompt],
        held_out: Sequence[Prompt],
        **options: Any,
    ) -> None:
        policy, tokenizer = options["model"], options["processing_class"]
        ends = policy.generation_config.eos_token_id
        super().__init__(reward_model=reward_model.model, **options)
        # TRL removes the end tokens, but they belong in the config of the delivered model.
        policy.generation_config.eos_token_id = ends
        self._ends = {*(ends if isinstance(ends, list) else [ends]), tokenizer.eos_token_id} - {None}
        # Not `reward_model`: TRL keeps the bare module under this name.
        self.plan, self.scoring_model = plan, reward_model
        self._prompts, self._held_out = prompts, held_out
        self._sums: dict[str, float] = {}
        self._steps_summed = 0
        self.kl_stop: float | None = None
        """The KL divergence that stopped the run early."""
        self.last: list[dict[str, Any]] = []
        """Some answers of the last step, with their rewards."""
        # TRL's PPO trainer does not call `Trainer.__init__`, which would set these.
        self.model_wrapped = self.model
        self.deepspeed = None
        self.is_distributed_loading_by_transformers = False
        self.is_fsdp_xla_enabled = self.is_fsdp_xla_v1_enabled = self.is_fsdp_xla_v2_enabled = False

    @property
    def _policy(self) -> Any:
        model = self.accelerator.unwrap_model(self.model)
        return getattr(model, "policy", model)  # after training `self.model` is the policy alone

    @property
    def _value_model(self) -> Any:
        return self.accelerator.unwrap_model(self.model).value_model

    def train(self, resume_from_checkpoint: str | None = None) -> None:
        """Train to the last step, or until a callback stops the run."""
        args, state = self.args, self.state
        state.max_steps, state.num_train_epochs = self.plan.steps, math.ceil(self.plan.epochs)
        state.logging_steps, state.save_steps, state.eval_steps = args.logging_steps, args.save_steps, args.eval_steps
        state.train_batch_size = args.per_device_train_batch_size
        if resume_from_checkpoint is not None:
            restore(self, Path(resume_from_checkpoint))
            state = self.state
        self.model.train()
        self.control = self.callback_handler.on_train_begin(args, state, self.control)
        self.control.should_training_stop = self.control.should_training_stop or state.global_step >= state.max_steps
        while not self.control.should_training_stop:
            self._step()
        self.control = self.callback_handler.on_epoch_end(args, state, self.control)
        self._handle_control()
        if args.load_best_model_at_end and state.best_model_checkpoint is not None:
            self._load_best_model()
        self.control = self.callback_handler.on_train_end(args, state, self.control)
        self.model = self._policy  # the value model is not delivered

    def _step(self) -> None:
        args, state = self.args, self.state
        self.control = self.callback_handler.on_step_begin(args, state, self.control)
        rollout, known = self._roll_out([self._prompts[index] for index in self.plan.rows_of(state.global_step)])
        figures = self._train_on(rollout, known)
        self.lr_scheduler.step()
        before = math.floor(state.epoch or 0.0)
        state.global_step += 1
        state.episode += args.batch_size
        state.epoch = self.plan.epoch_after(state.global_step)
        state.num_input_tokens_seen += int(self._total(rollout.seen.sum()))
        self._add(figures)
        self._keep_samples(rollout, known)
        self._check_kl(figures["kl"])
        self.control = self.callback_handler.on_step_end(args, state, self.control)
        self._handle_control()
        if math.floor(state.epoch) > before and not self.control.should_training_stop:
            self.control = self.callback_handler.on_epoch_end(args, state, self.control)
            self._handle_control()
        if args.torch_empty_cache_steps:
            torch.cuda.empty_cache() if torch.cuda.is_available() else None

    def _handle_control(self) -> None:
        """Log, evaluate and save if a callback requests it, in the order of Transformers."""
        if self.control.should_log and self._steps_summed:
            self.log(self._averages())
        better = False
        if self.control.should_evaluate:
            better = self._determine_best_metric(metrics=self.evaluate(), trial=None)
            if self.args.save_strategy == "best":
                self.control.should_save = better
        if self.control.should_save:
            self._save_checkpoint(self.model, trial=None)
            self.control = self.callback_handler.on_save(self.args, self.state, self.control)

    # Answers

    @torch.no_grad()
    def _roll_out(self, prompts: Sequence[Prompt]) -> tuple[Rollout, RolloutValues]:
        """Sample an answer to each prompt and score it."""
        tokenizer, rows = self.processing_class, self.plan.forward_rows
        ids, seen = pad_left([prompt.ids for prompt in prompts], tokenizer.pad_token_id, self.accelerator.device)
        tokens = {"pad_token_id": tokenizer.pad_token_id, "eos_token_id": sorted(self._ends) or None}
        config = GenerationConfig(**self.plan.generation, **tokens)
        # `generate` needs the tokenizer to find stop strings.
        reads = {"tokenizer": tokenizer} if self.plan.stops else {}
        sampled = []
        with unwrap_model_for_generation(self.model, self.accelerator) as unwrapped, self.accelerator.autocast():
            for start in range(0, len(prompts), rows):
                group = slice(start, start + rows)
                made = unwrapped.policy.generate(
                    input_ids=ids[group], attention_mask=seen[group], generation_config=config, **reads
                )
                sampled.append(made[:, ids.shape[1] :])
        rollout = collect(ids, seen, sampled, tokenizer, self._ends, self.plan.stops)
        texts = [prompt.text + answer for prompt, answer in zip(prompts, rollout.texts, strict=True)]
        scores = self.scoring_model.scores(texts, rows)
        return rollout, self._rollout_values(rollout, scores)

    def _rollout_values(self, rollout: Rollout, scores: torch.Tensor) -> RolloutValues:
        logprobs, reference, values = [], [], []
        for start in range(0, len(rollout.ids), self.plan.forward_rows):
            part = rollout.part(slice(start, start + self.plan.forward_rows))
            now, expected = self._forward_pass(self.accelerator.unwrap_model(self.model), part)
            logprobs.append(now)
            values.append(expected)
            with self._reference_model() as model:
                reference.append(self._logprobs(model, part))
        return rollout_values(
            self.args, rollout.answered, torch.cat(logprobs), torch.cat(reference), torch.cat(values), scores
        )

    @contextmanager
    def _reference_model(self) -> Iterator[nn.Module]:
        """Yield the reference model: a copy, or the policy with the reference adapter or without adapter."""
        if self.ref_model is not None:
            yield self.ref_model
            return
        with use_adapter(self._policy, REFERENCE if REFERENCE in self._policy.peft_config else None):
            yield self._policy

    def _forward_pass(self, model: nn.Module, part: Rollout) -> tuple[torch.Tensor, torch.Tensor]:
        """Return log-probabilities and values of the answer tokens."""
        with self.accelerator.autocast():
            output, values = model(**_inputs(part))
        return self._of_answers(output.logits, part), values[:, part.context - 1 : -1].squeeze(-1).float()

    def _logprobs(self, model: nn.Module, part: Rollout) -> torch.Tensor:
        with self.accelerator.autocast():
            return self._of_answers(model(**_inputs(part)).logits, part)

    def _of_answers(self, logits: torch.Tensor, part: Rollout) -> torch.Tensor:
        return selective_log_softmax(logits[:, part.context - 1 : -1].float() / self.args.temperature, part.answers)

    # Learning

    def _train_on(self, rollout: Rollout, known: RolloutValues) -> dict[str, float]:
        """Make several passes over a batch, with one optimizer step per mini-batch."""
        sums: dict[str, torch.Tensor] = {}
        norms, count = [], len(rollout.ids)
        for _ in range(self.args.num_ppo_epochs):
            parts = np.split(np.random.permutation(count), self.args.num_mini_batches)
            norms += [self._optimize(rollout, known, rows, sums) for rows in parts]
        tokens = float(rollout.answered.sum()) * self.args.num_ppo_epochs
        means = {name: self._mean(each / tokens) for name, each in sums.items()}
        scores, length = self._mean(known.scores.mean()), self._mean(rollout.lengths.float().mean())
        kl = self._mean(known.kl.sum(1).mean())
        return {
            "loss": means["policy_loss"] + self.args.vf_coef * means["value_loss"],
            "reward": scores,
            "kl": kl,
            "objective": scores - self.args.kl_coef * kl,
            **means,
            "entropy": self._mean(-(known.logprobs * rollout.answered).sum() / rollout.answered.sum()),
            "answer_tokens": length,
            "ended": self._mean(torch.tensor(float(np.mean(rollout.ended)), device=known.scores.device)),
            "grad_norm": float(np.mean(norms)),
        }

    def _optimize(self, rollout: Rollout, known: RolloutValues, rows: Any, sums: dict[str, torch.Tensor]) -> float:
        tokens = rollout.answered[rows].sum()
        for start in range(0, len(rows), self.plan.forward_rows):
            some = rows[start : start + self.plan.forward_rows]
            part = rollout.part(some)
            logprobs, values = self._forward_pass(self.model, part)
            total, metrics = clipped_loss(self.args, known, some, part.answered, logprobs, values)
            # Divided by the tokens of the mini-batch: gradients of its forward passes add up to the mean.
            self.accelerator.backward(total / tokens)
            for name, each in metrics.items():
                sums[name] = sums.get(name, 0) + each
        # A limit of 0 means no clipping; the norm is logged anyway.
        limit = self.args.max_grad_norm or math.inf
        norm = self.accelerator.clip_grad_norm_(self.model.parameters(), limit)
        self.optimizer.step()
        self.optimizer.zero_grad()
        return float(norm) if norm is not None else 0.0

    # Figures

    def _mean(self, value: torch.Tensor) -> float:
        return float(self.accelerator.reduce(value.detach().float().reshape(1), "mean"))

    def _total(self, value: torch.Tensor) -> float:
        return float(self.accelerator.reduce(value.detach().reshape(1), "sum"))

    def _add(self, figures: dict[str, float]) -> None:
        for name, value in figures.items():
            self._sums[name] = self._sums.get(name, 0.0) + value
        self._steps_summed += 1

    def _averages(self) -> dict[str, float]:
        """Return the means over all steps since the last log."""
        means = {name: value / self._steps_summed for name, value in self._sums.items()}
        self._sums, self._steps_summed = {}, 0
        return {**means, "learning_rate": self._get_learning_rate(), "episode": self.state.episode}

    def _keep_samples(self, rollout: Rollout, known: RolloutValues) -> None:
        prompts = self.plan.rows_of(self.state.global_step - 1)
        kept = zip(prompts, rollout.texts, known.scores.tolist(), strict=True)
        self.last = [
            {"prompt": self._prompts[index].text, "answer": answer, "reward": score}
            for index, answer, score in list(kept)[: self.plan.samples]
        ]

    def _check_kl(self, kl: float) -> None:
        limit = self.plan.kl_limit
        if limit is not None and kl > limit:
            self.kl_stop = kl
            self.control.should_training_stop = True

    def evaluate(self, *args: Any, **kwargs: Any) -> dict[str, float]:
        """Answer the eval prompts, and log reward and KL divergence; does not affect training."""
        del args, kwargs
        with preserve_random_state():
            rewards, divergences = [], []
            for start in range(0, len(self._held_out), self.plan.rows):
                _, known = self._roll_out(self._held_out[start : start + self.plan.rows])
                rewards += known.scores.tolist()
                divergences += known.kl.sum(1).tolist()
        metrics = {"eval_reward": float(np.mean(rewards)), "eval_kl": float(np.mean(divergences))}
        self.log(dict(metrics))
        self.control = self.callback_handler.on_evaluate(self.args, self.state, self.control, metrics=metrics)
        return metrics

    # Checkpoints

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """Save the policy only."""
        # With several processes TRL looks for the policy on the DDP wrapper, and would save all models.
        wrapped, self.model = self.model, self._policy
        try:
            super().save_model(output_dir, _internal_call)
        finally:
            self.model = wrapped

    def _save_checkpoint(self, model: nn.Module, trial: Any) -> None:
        if self.args.should_save:
            write_value_model(self)
        super()._save_checkpoint(model, trial)

    def _load_best_model(self) -> None:
        load_best(self)


def _inputs(part: Rollout) -> dict[str, Any]:
    positions = (part.seen.cumsum(1) - 1).clamp(min=0)
    return {
        "input_ids": part.ids,
        "attention_mask": part.seen,
        "position_ids": positions,
        "return_dict": True,
        "output_hidden_states": True,
        "use_cache": False,
    }


def write_value_model(trainer: Any) -> None:
    """Write the value model into the checkpoint of this step; the trainer writes the policy."""
    folder = Path(trainer.args.output_dir) / f"checkpoint-{trainer.state.global_step}"
    folder.mkdir(parents=True, exist_ok=True)
    trained = {name: each for name, each in _value_model(trainer).named_parameters() if each.requires_grad}
    save_file({name: each.detach().cpu().contiguous().clone() for name, each in trained.items()}, folder / VALUE_FILE)


def restore(trainer: Any, folder: Path) -> None:
    """Restore a trainer from a checkpoint."""
    load_policy(trainer, folder)
    weights = load_file(folder / VALUE_FILE)
    parameters = dict(_value_model(trainer).named_parameters())
    with torch.no_grad():
        for name, value in weights.items():
            parameters[name].copy_(value)
    state = OnlineTrainerState.load_from_json(str(folder / _STATE))
    limits = ("max_steps", "num_train_epochs", "logging_steps", "save_steps", "eval_steps", "train_batch_size")
    for name in limits:
        # The current spec, with later overrides, takes precedence over the saved values.
        setattr(state, name, getattr(trainer.state, name))
    state.is_local_process_zero = trainer.is_local_process_zero()
    state.is_world_process_zero = trainer.is_world_process_zero()
    trainer.state = state
    trainer._load_callback_state()
    trainer._load_optimizer_and_scheduler(str(folder))
    trainer._load_rng_state(str(folder))


def load_policy(trainer: Any, folder: Path) -> None:
    """Load the weights of the policy from a checkpoint."""
    policy = trainer.accelerator.unwrap_model(trainer.model).policy
    if isinstance(policy, PeftModel):
        set_peft_model_state_dict(policy, load_file(folder / "adapter_model.safetensors"))
        return
    loaded = type(policy).from_pretrained(folder, dtype=policy.dtype)
    policy.load_state_dict(loaded.state_dict())


def load_best(trainer: Any) -> None:
    """Load the policy of the best checkpoint; sets `best_missing` if it is gone."""
    if trainer._writer is not None:
        trainer._writer.wait()  # the best checkpoint may be the last one, which is still being written
    best = Path(str(trainer.state.best_model_checkpoint))
    with files_kept():
        trainer.accelerator.wait_for_everyone()
        folder = decompressed(best, best.parent.parent / "inputs")
        trainer.best_missing = not (folder / VALUE_FILE).exists()
        if not trainer.best_missing:
            load_policy(trainer, folder)
        trainer.accelerator.wait_for_everyone()
    if folder != best:
        shutil.rmtree(folder, ignore_errors=True)


def _value_model(trainer: Any) -> Any:
    return trainer.accelerator.unwrap_model(trainer.model).value_model
