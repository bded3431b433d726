"""`evaluate`: measures a model, a tuned model or an adapter."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from tunefleet.executors.base import JobExecutor, Output, missing
from tunefleet.schemas.control import BETWEEN_ITEMS
from tunefleet.schemas.job_folder import JobFolder
from tunefleet.spec.tasks.evaluate_task import ITEMS_FOLDER

_NEEDED: Final = ("torch", "transformers", "peft", "accelerate", "datasets")
_HARNESS: Final = "lm-eval"


class EvaluateExecutor(JobExecutor):
    """Measures; leaves what came out for each row."""

    kind = "evaluate"
    program = "tunefleet.workloads.evaluation:main"
    heeds = BETWEEN_ITEMS

    def unavailable_reason(self) -> str | None:
        """Name the libraries that are missing, without importing those that are there."""
        return missing(*_NEEDED, extra="train")

    def environment_for(self, spec: Mapping[str, Any]) -> str | None:
        """Return that of lm-eval if one of the evaluations is lm-eval's; the others run there as well as anywhere."""
        evaluations = spec.get("evaluations") or []
        return _HARNESS if any(each.get("type") == "lm_eval" for each in evaluations) else None

    def outputs(self, folder: JobFolder) -> list[Output]:
        """Return the folder with what came out for each row."""
        path = folder.root / ITEMS_FOLDER
        return [Output(name=ITEMS_FOLDER, kind="report", path=path)] if path.is_dir() else []


_MODEL = "final_model"


class VerifyExecutor(JobExecutor):
    """Verifies a model; leaves it with another tokenizer if that was asked for."""

    kind = "verify"
    program = "tunefleet.workloads.verification:main"

    def unavailable_reason(self) -> str | None:
        """Name the libraries that are missing, without importing those that are there."""
        return missing("torch", "transformers", "safetensors", extra="train", what="The training libraries")

    def outputs(self, folder: JobFolder) -> list[Output]:
        """Return the model with its new tokenizer, if there is one."""
        made = folder.root / _MODEL
        return [Output(name=_MODEL, kind="model", path=made)] if made.is_dir() else []
