"""A job that has run in the test's own process."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from tunefleet.schemas.job_folder import JobFolder, JobStatus


@dataclass(frozen=True)
class EndedJob:
    """A job that has come to an end."""

    code: int
    folder: JobFolder
    launch: str

    @property
    def status(self) -> JobStatus:
        return JobStatus.model_validate_json(self.folder.status_json.read_bytes())

    @property
    def result(self) -> dict[str, Any]:
        assert self.code == 0, self.status.traceback
        result: dict[str, Any] = json.loads(self.folder.responses_json.read_bytes())
        return result

    def records(self, kind: str) -> list[dict[str, Any]]:
        lines = (self.folder.journal_dir / f"{self.launch}.jsonl").read_text().splitlines()
        return [record for record in map(json.loads, lines) if record["type"] == kind]
