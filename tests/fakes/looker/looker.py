"""Executors as somebody else would install them: a job, a real process, tells what it finds in its environment.

Their folder on `PYTHONPATH` is the installation. Of the document's code, model and data they take no notice.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

from tunefleet.executors.base import JobExecutor, Output
from tunefleet.schemas.job_folder import JobFolder


class Looker(JobExecutor):
    """`taskType: python`."""

    kind = "python"
    program = "looker:main"

    def outputs(self, folder: JobFolder) -> list[Output]:
        return []


class LookingTrainer(Looker):
    """`taskType: dpo`."""

    kind = "dpo"


def main(folder: Path) -> None:
    """Leave the environment as the result; then choose devices as trainers do, which concerns this process alone."""
    found = {"environment": dict(os.environ)}
    JobFolder(folder).responses_json.write_text(json.dumps(found), encoding="utf-8")
    os.environ["CUDA_VISIBLE_DEVICES"] = "7"
