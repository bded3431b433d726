"""ORPO: the loss on the chosen answer plus an odds ratio term (Hong et al. 2024, arXiv 2403.07691).

The loss is −log p(chosen) / tokens + beta × −log sigmoid(log odds(chosen) − log odds(rejected)), where the odds of an
answer are p / (1 − p), and p is the geometric mean of the probabilities of its tokens. It needs no reference model.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping
from typing import Any

import torch
from peft import LoraConfig, get_peft_model
from torch import nn
from torch.nn import functional
from transformers import TrainingArguments
from trl.trainer.dpo_trainer import DataCollatorForPreference

from tunefleet.workloads.preference.evaluation import ExactEvalTrainer
from tunefleet.workloads.training.exact_trainer import ExactTrainer


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
