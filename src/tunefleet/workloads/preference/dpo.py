"""`dpo`, `orpo` and `reward`: training on pairs of a chosen and a rejected answer."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar

import datasets
from trl import DPOConfig, DPOTrainer, RewardConfig, RewardTrainer

from tunefleet.analysis.dataset.notes import Notes
from tunefleet.analysis.memory.estimate import Load
from tunefleet.spec import DpoSpec, OrpoSpec, RewardSpec
from tunefleet.workloads.data.sources import LoadedRows
from tunefleet.workloads.data.tokenization import Encoder
from tunefleet.workloads.preference import preference_rows
from tunefleet.workloads.preference.evaluation import ExactEvalTrainer
from tunefleet.workloads.preference.method import (
    Method,
    Parts,
    SpecT,
    TrainingData,
    load_reference_model,
    require_rows,
    share_rows_on_disk,
)
from tunefleet.workloads.preference.orpo import OrpoTrainer
from tunefleet.workloads.preference.tokenization import Exchange, Exchanges, Limits
from tunefleet.workloads.training.label_scores import score_labels_only


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

    def _tokens(self, pairs: Iterable[preference_rows.Pair], exchanges: Exchanges, limits: Limits) -> datasets.Dataset:
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
