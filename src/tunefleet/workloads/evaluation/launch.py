"""State of one launch of an evaluation."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from tunefleet.analysis.evaluation.statistics import IntervalOptions
from tunefleet.spec import EvaluateTaskSpec
from tunefleet.spec.tasks.evaluate_task import ITEMS_FOLDER
from tunefleet.workloads.common.job import OpenedJob
from tunefleet.workloads.evaluation.item_log import ItemLog
from tunefleet.workloads.evaluation.model_under_test import EvaluatedModel
from tunefleet.workloads.evaluation.tracker_report import Progress

WORK: Final = "evaluations"


@dataclass(frozen=True, slots=True)
class Run(OpenedJob[EvaluateTaskSpec]):
    """One launch of an evaluation.

    Args:
        subject: The evaluated model.
        progress: Progress over all evaluations.
    """

    subject: EvaluatedModel
    progress: Progress
    seconds: dict[str, float] = field(default_factory=dict)

    @property
    def wanted(self) -> IntervalOptions:
        """The requested confidence of intervals."""
        asked = self.spec.interval
        return IntervalOptions(asked.confidence, asked.resamples, asked.seed)

    def kept(self, name: str, mark: str) -> ItemLog:
        """Open the finished items of an evaluation, by its fingerprint."""
        return ItemLog(self.folder.root / WORK / f"{name}-{mark[:16]}.jsonl")

    def items(self, name: str) -> Path:
        """Return the path where the items of an evaluation are delivered."""
        return self.folder.root / ITEMS_FOLDER / f"{name}.jsonl"
