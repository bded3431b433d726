"""`evaluate`: evaluates a model or an adapter; `verify`: checks a model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from tunefleet.executors.base import JobExecutor, Output, missing
from tunefleet.schemas.control import BETWEEN_ITEMS
from tunefleet.schemas.job_folder import JobFolder
from tunefleet.spec.tasks.evaluate_task import ITEMS_FOLDER

_NEEDED: Final = ("torch", "transformers", "peft", "accelerate", "datasets")
_HARNESS: Final = "lm-eval"
_MODEL = "final_model"


class EvaluateExecutor(JobExecutor):
    """Evaluates; leaves the output for each row."""

    kind = "evaluate"
    program = "tunefleet.workloads.evaluation:main"
    supported_commands = BETWEEN_ITEMS

    def unavailable_reason(self) -> str | None:
        """Return which libraries are missing."""
        return missing(*_NEEDED, extra="train")

    def environment_for(self, spec: Mapping[str, Any]) -> str | None:
        """Return the environment of lm-eval if one of the evaluations needs it; the others run there, too."""
        evaluations = spec.get("evaluations") or []
        return _HARNESS if any(each.get("type") == "lm_eval" for each in evaluations) else None

    def outputs(self, folder: JobFolder) -> list[Output]:
        """Return the folder with the output for each row."""
        path = folder.root / ITEMS_FOLDER
        return [Output(name=ITEMS_FOLDER, kind="report", path=path)] if path.is_dir() else []


class VerifyExecutor(JobExecutor):
    """Verifies a model; leaves it with another tokenizer if the spec requests one."""

    kind = "verify"
    program = "tunefleet.workloads.verification:main"

    def unavailable_reason(self) -> str | None:
        """Return which libraries are missing."""
        return missing("torch", "transformers", "safetensors", extra="train", what="The training libraries")

    def outputs(self, folder: JobFolder) -> list[Output]:
        """Return the model with its new tokenizer, if there is one."""
        path = folder.root / _MODEL
        return [Output(name=_MODEL, kind="model", path=path)] if path.is_dir() else []
