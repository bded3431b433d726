"""`kto`: training on answers that are labelled desirable or undesirable (unpaired preference)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar

import datasets
import numpy as np
from trl import KTOConfig, KTOTrainer

from tunefleet.analysis.dataset.notes import Notes
from tunefleet.analysis.memory import Load
from tunefleet.errors import DataError
from tunefleet.spec import KtoSpec
from tunefleet.workloads.data.sources import LoadedRows
from tunefleet.workloads.data.tokenization import Encoder
from tunefleet.workloads.preference import preference_rows
from tunefleet.workloads.preference.method import (
    ExactEvalTrainer,
    Method,
    Parts,
    TrainingData,
    load_reference_model,
    require_rows,
    share_rows_on_disk,
)
from tunefleet.workloads.preference.preference_rows import Exchange, Exchanges, Limits
from tunefleet.workloads.training.label_scores import score_labels_only


class _Kto(ExactEvalTrainer, KTOTrainer):
    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        for model in (self.model, self.ref_model):
            if model is not None:
                score_labels_only(model)

    def _prepare_dataset(self, dataset: Any, *args: Any, **kwargs: Any) -> Any:
        return dataset  # rows are already tokenized and truncated


class KtoMethod(Method[KtoSpec]):
    """Kahneman-Tversky optimization (Ethayarajh et al. 2024, arXiv 2402.01306)."""

    row_kind = "judged"
    measures: ClassVar = {
        "reward_good": "rewards/chosen",
        "reward_bad": "rewards/rejected",
        "margin": "rewards/margins",
    }

    @property
    def load(self) -> Load:
        """The answer and a mismatched one for the KL term; a reference model unless the adapter is disabled for it."""
        early = self.spec.training.precompute_ref_log_probs
        return Load(2, reference=self.spec.adapter is None and not early)

    def tokenize(self, found: LoadedRows, encoder: Encoder, max_length: int) -> TrainingData:
        """Tokenize prompts and answers, shuffled with the seed so that batches mix both labels."""
        training = self.spec.training
        shape = self.shape(found.train, found.origin, Notes())
        exchanges = Exchanges(encoder, shape.notes)
        limits = Limits(max_length, training.max_prompt_length)
        train = self._tokens(preference_rows.labelled_answers(found.train, shape), exchanges, limits, found.origin)
        require_rows(limits.counts, found.origin, max_length)
        self._report_balance(train)
        held_out = None
        if found.held_out is not None:
            others = Limits(max_length, training.max_prompt_length)
            read = preference_rows.labelled_answers(
                found.held_out, self.shape(found.held_out, found.held_out_origin, shape.notes)
            )
            held_out = self._tokens(read, exchanges, others, found.held_out_origin)
            require_rows(others.counts, found.held_out_origin, max_length)
        return TrainingData(train, held_out, limits.counts, found.origin, max_length, shape.notes.sentences)

    def trainer(self, parts: Parts) -> ExactEvalTrainer:
        """Build TRL's trainer."""
        training = self.spec.training
        early = training.precompute_ref_log_probs
        args = KTOConfig(
            **parts.arguments,
            beta=training.beta,
            loss_type=training.loss_type,
            desirable_weight=training.desirable_weight,
            undesirable_weight=training.undesirable_weight,
            max_length=None,
            precompute_ref_log_probs=early,
        )
        common = share_rows_on_disk(self.launch, parts.common, wanted=early)
        return _Kto(args=args, ref_model=None if early else load_reference_model(self.launch, parts), **common)

    def _tokens(
        self, answers: Iterable[preference_rows.LabelledAnswer], exchanges: Exchanges, limits: Limits, origin: str
    ) -> datasets.Dataset:
        judged = list(answers)
        order = np.random.default_rng(self.spec.training.seed).permutation(len(judged)).tolist()
        judged = [judged[at] for at in order]
        prompts, completions, labels = [], [], []
        encoded = exchanges.encode(Exchange(one.prompt, one.completion, one.tools, one.place) for one in judged)
        for one, (prompt, answer) in zip(judged, encoded, strict=True):
            cut = limits.cut(prompt, [answer])
            if cut is not None:
                prompts.append(cut[0])
                completions.append(cut[1][0])
                labels.append(one.good)
        columns: dict[str, list[Any]] = {"prompt_ids": prompts, "completion_ids": completions, "label": labels}
        if self.spec.training.loss_type == "kto":
            if len(prompts) == 1:
                raise DataError(
                    f"{origin} has only one usable row: the KL term is estimated from answers to other prompts.",
                    hint="Add rows, or set `training.loss_type: apo_zero_unpaired`.",
                )
            # Each prompt is paired with the answer to the previous one, from which the KL term is estimated.
            mismatched = zip(prompts, [*completions[-1:], *completions[:-1]], strict=True)
            columns["KL_completion_ids"] = [answer[: limits.whole - len(prompt)] for prompt, answer in mismatched]
        return datasets.Dataset.from_dict(columns)

    def _report_balance(self, train: datasets.Dataset) -> None:
        good = sum(train["label"])
        bad = len(train) - good
        weighed = self.spec.training.desirable_weight * good, self.spec.training.undesirable_weight * bad
        # Eq. (8) of the paper recommends a ratio of the weighted counts between 1 and 4/3.
        if min(weighed) * 4 / 3 < max(weighed):
            text = (
                f"{good} answers are desirable and {bad} are undesirable: balance them with `desirable_weight` and "
                "`undesirable_weight`."
            )
            self.launch.journal.event("data.unbalanced", text, "warning", {"good": good, "bad": bad})
