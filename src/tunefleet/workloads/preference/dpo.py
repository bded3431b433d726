"""`dpo`, `orpo` and `reward`: training on pairs of a chosen and a rejected answer.

ORPO adds an odds ratio term to the loss on the chosen answer (Hong et al. 2024, arXiv 2403.07691): −log p(chosen) /
tokens + beta × −log sigmoid(log odds(chosen) − log odds(rejected)), where the odds of an answer are p / (1 − p), and p
is the geometric mean of the probabilities of its tokens. It needs no reference model.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any, ClassVar

import datasets
import torch
from peft import LoraConfig, get_peft_model
from torch import nn
from torch.nn import functional
from transformers import TrainingArguments
from trl import DPOConfig, DPOTrainer, RewardConfig, RewardTrainer
from trl.trainer.dpo_trainer import DataCollatorForPreference

from tunefleet.analysis.dataset.notes import Notes
from tunefleet.analysis.memory import Load
from tunefleet.spec import DpoSpec, OrpoSpec, RewardSpec
from tunefleet.workloads.data.sources import LoadedRows
from tunefleet.workloads.data.tokenization import Encoder
from tunefleet.workloads.preference import preference_rows
from tunefleet.workloads.preference.method import (
    ExactEvalTrainer,
    Method,
    Parts,
    SpecT,
    TrainingData,
    load_reference_model,
    require_rows,
    share_rows_on_disk,
)
from tunefleet.workloads.preference.preference_rows import Exchange, Exchanges, Limits
from tunefleet.workloads.training.exact_trainer import ExactTrainer
from tunefleet.workloads.training.label_scores import score_labels_only


def odds_ratio(better: torch.Tensor, worse: torch.Tensor) -> torch.Tensor:
    """Return the log odds ratios."""
    return (better - worse) - (_log1mexp(better) - _log1mexp(worse))


def _log1mexp(x: torch.Tensor) -> torch.Tensor:
    """Return log(1 − exp(x)) of negative numbers, accurate at both ends (Mächler 2012)."""
    # At 0 the logarithm is minus infinity and its gradient NaN.
    x = x.clamp(max=-torch.finfo(x.dtype).eps)
    return torch.where(x > -math.log(2), torch.log(-torch.expm1(x)), torch.log1p(-torch.exp(x)))


class _OrpoLoss(ExactTrainer):
    # The loss is a mean over the rows of one batch, so the Trainer must divide it by the accumulation steps.
    loss_is_scaled_for_ga = False
    _metrics: Mapping[str, Any]

    def __init__(
        self, *, beta: float, arguments: dict[str, Any], peft_config: LoraConfig | None, **kwargs: Any
    ) -> None:
        model, tokenizer = kwargs.pop("model"), kwargs["processing_class"]
        if peft_config is not None:
            model = get_peft_model(model, peft_config)
        model.config.get_text_config().pad_token_id = tokenizer.pad_token_id
        self._beta = beta
        self._metrics = {"train": defaultdict(list), "eval": defaultdict(list)}
        self._total_train_tokens = 0
        collate = DataCollatorForPreference(pad_token_id=tokenizer.pad_token_id)
        super().__init__(model=model, args=TrainingArguments(**arguments), data_collator=collate, **kwargs)

    def _set_signature_columns_if_needed(self) -> None:
        # The Trainer drops columns that are not in the model's signature; the collator needs these.
        self._signature_columns = ["prompt_ids", "chosen_ids", "rejected_ids"]

    def compute_loss(
        self,
        model: nn.Module,
        inputs: dict[str, Any],
        return_outputs: bool = False,
        num_items_in_batch: torch.Tensor | int | None = None,
    ) -> Any:
        """Return the loss of a batch, whose first half are chosen answers and the second half rejected ones."""
        del num_items_in_batch  # a batch is weighted by its rows
        ids, attention = inputs["input_ids"], inputs["attention_mask"]
        outputs = model(input_ids=ids, attention_mask=attention, use_cache=False)
        mask = inputs["completion_mask"][:, 1:]
        each = functional.log_softmax(outputs.logits[:, :-1].float(), dim=-1)
        each = each.gather(2, ids[:, 1:].unsqueeze(2)).squeeze(2) * mask
        better, worse = (each.sum(1) / mask.sum(1).clamp(min=1)).chunk(2)
        ratios = odds_ratio(better, worse)
        likelihood = -each.chunk(2)[0].sum() / mask.chunk(2)[0].sum().clamp(min=1)
        loss = likelihood - self._beta * functional.logsigmoid(ratios).mean()
        self._note(likelihood, better.detach(), worse.detach(), ratios.detach(), attention)
        return (loss, outputs) if return_outputs else loss

    def prediction_step(
        self, model: nn.Module, inputs: dict[str, Any], prediction_loss_only: bool, ignore_keys: list[str] | None = None
    ) -> Any:
        """Compute the loss of an eval batch."""
        del prediction_loss_only, ignore_keys
        inputs = self._prepare_inputs(inputs)
        with torch.no_grad(), self.compute_loss_context_manager():
            return self.compute_loss(model, inputs).detach(), None, None

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Add the metrics collected since the last log."""
        mode = "train" if self.model.training else "eval"
        prefix = "eval_" if mode == "eval" else ""
        logs.update({f"{prefix}{name}": sum(values) / len(values) for name, values in self._metrics[mode].items()})
        self._metrics[mode].clear()
        super().log(logs, start_time)

    def _note(
        self,
        likelihood: torch.Tensor,
        better: torch.Tensor,
        worse: torch.Tensor,
        ratios: torch.Tensor,
        attention: torch.Tensor,
    ) -> None:
        mode = "train" if self.model.training else "eval"
        gather = self.accelerator.gather
        if mode == "train":
            self._total_train_tokens += int(gather(attention.sum()).sum().item())
        found = {
            "nll_loss": likelihood.detach(),
            "log_odds_ratio": ratios.mean(),
            "rewards/accuracies": (better > worse).float().mean(),
            "rewards/margins": self._beta * (better - worse).mean(),
        }
        for name, value in found.items():
            self._metrics[mode][name].append(gather(value).mean().item())


class OrpoTrainer(ExactEvalTrainer, _OrpoLoss):
    """ORPO trainer with exact eval metrics."""

    sequences_per_row = 2


class PairMethod(Method[SpecT]):
    """Base class of the methods that train on preference pairs."""

    row_kind = "pairs"

    @property
    def load(self) -> Load:
        """Two sequences per row."""
        return Load(sequences=2)

    def tokenize(self, found: LoadedRows, encoder: Encoder, max_length: int) -> TrainingData:
        """Tokenize prompts, chosen and rejected answers."""
        shape = self.shape(found.train, found.origin, Notes())
        prompt_limit = getattr(self.spec.training, "max_prompt_length", None)
        limits = Limits(max_length, prompt_limit)
        train = self._tokens(preference_rows.pairs(found.train, shape), Exchanges(encoder, shape.notes), limits)
        # Rows that the reader skipped count as dropped, too.
        limits.counts.dropped += len(found.train) - limits.counts.rows - limits.counts.dropped
        require_rows(limits.counts, found.origin, max_length)
        held_out = None
        if found.held_out is not None:
            others = Limits(max_length, prompt_limit)
            read = preference_rows.pairs(found.held_out, self.shape(found.held_out, found.held_out_origin, shape.notes))
            held_out = self._tokens(read, Exchanges(encoder, shape.notes), others)
            require_rows(others.counts, found.held_out_origin, max_length)
        return TrainingData(train, held_out, limits.counts, found.origin, max_length, shape.notes.sentences)

    def _tokens(
        self, pairs: Iterable[preference_rows.PreferencePair], exchanges: Exchanges, limits: Limits
    ) -> datasets.Dataset:
        kept = list(pairs)
        chosen = exchanges.encode(Exchange(pair.prompt, pair.chosen, pair.tools, pair.place) for pair in kept)
        rejected = exchanges.encode(Exchange(pair.prompt, pair.rejected, pair.tools, pair.place) for pair in kept)
        columns: dict[str, list[list[int]]] = {"prompt_ids": [], "chosen_ids": [], "rejected_ids": []}
        # Both answers are encoded with the same prompt, so the prompt's tokens of one of them suffice.
        for (prompt, better), (_, worse) in zip(chosen, rejected, strict=True):
            cut = limits.cut(prompt, [better, worse])
            if cut is not None:
                for name, ids in zip(columns, (cut[0], *cut[1]), strict=True):
                    columns[name].append(ids)
        return self.to_dataset(columns)

    def to_dataset(self, columns: dict[str, list[list[int]]]) -> datasets.Dataset:
        """Return the dataset in the columns of the trainer."""
        return datasets.Dataset.from_dict(columns)


class _Dpo(ExactEvalTrainer, DPOTrainer):
    sequences_per_row = 2

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        for model in (self.model, self.ref_model):
            if model is not None:
                score_labels_only(model)

    def _prepare_dataset(self, dataset: Any, *args: Any, **kwargs: Any) -> Any:
        return dataset  # rows are already tokenized and truncated


class DpoMethod(PairMethod[DpoSpec]):
    """Direct preference optimization (Rafailov et al. 2023, arXiv 2305.18290)."""

    @property
    def load(self) -> Load:
        """Two sequences per row, and a reference model unless the adapter is disabled to get one."""
        training = self.spec.training
        return Load(2, reference=self.spec.adapter is None and not training.precompute_ref_log_probs)

    def trainer(self, parts: Parts) -> ExactEvalTrainer:
        """Build TRL's trainer."""
        training = self.spec.training
        args = DPOConfig(
            **parts.arguments,
            beta=training.beta,
            loss_type=[training.loss_type],
            label_smoothing=training.label_smoothing,
            max_length=None,
            precompute_ref_log_probs=training.precompute_ref_log_probs,
        )
        common = share_rows_on_disk(self.launch, parts.common, wanted=training.precompute_ref_log_probs)
        early = training.precompute_ref_log_probs
        return _Dpo(args=args, ref_model=None if early else load_reference_model(self.launch, parts), **common)


class OrpoMethod(PairMethod[OrpoSpec]):
    """Odds ratio preference optimization (Hong et al. 2024, arXiv 2403.07691)."""

    def trainer(self, parts: Parts) -> ExactEvalTrainer:
        """Build Tunefleet's own trainer."""
        return OrpoTrainer(beta=self.spec.training.beta, arguments=parts.arguments, **parts.common)


class _Reward(ExactEvalTrainer, RewardTrainer):
    sequences_per_row = 2


class RewardMethod(PairMethod[RewardSpec]):
    """A reward model (Bradley-Terry, as in Ouyang et al. 2022, arXiv 2203.02155)."""

    scores = True
    measures: ClassVar = {"accuracy": "accuracy", "margin": "margin", "reward": "mean_reward"}

    def to_dataset(self, columns: dict[str, list[list[int]]]) -> datasets.Dataset:
        """Concatenate prompt and answer: the reward model scores both together."""
        prompts = columns.pop("prompt_ids")
        return datasets.Dataset.from_dict(
            {
                name: [prompt + answer for prompt, answer in zip(prompts, answers, strict=True)]
                for name, answers in columns.items()
            }
        )

    def trainer(self, parts: Parts) -> ExactEvalTrainer:
        """Build TRL's trainer."""
        centre = self.spec.training.center_rewards_coefficient
        args = RewardConfig(**parts.arguments, max_length=None, center_rewards_coefficient=centre)
        return _Reward(args=args, **parts.common)
