"""An executor as somebody else would install it: no model answers, its job exports each item of its part in capitals.

Its folder on `PYTHONPATH` is the installation.
"""

from __future__ import annotations

import json
from pathlib import Path

from tunefleet.executors.base import JobExecutor, Output
from tunefleet.schemas.job_folder import JobFolder
from tunefleet.spec.tasks.base_task import part_of


class Exporter(JobExecutor):
    """`taskType: inference`."""

    kind = "inference"
    program = "exporter:main"

    def outputs(self, folder: JobFolder) -> list[Output]:
        return []


def main(folder: Path) -> None:
    """Write a row for each item, the last one without the end of its line, and a result that names the file."""
    spec = json.loads((folder / "job.json").read_text(encoding="utf-8"))["spec"]
    mine = part_of(spec["data"]["items"], spec)
    path = Path(spec["postprocess"]["jsonl_export"]["path"])
    (folder / path).parent.mkdir(parents=True, exist_ok=True)
    rows = [json.dumps({"prompt": item, "response": item.upper()}) for item in mine]
    (folder / path).write_text("\n".join(rows), encoding="utf-8")
    items = [{"index": at, "output": item.upper()} for at, item in enumerate(mine)]
    found = {"items": items, "jsonl_export": {"path": str(path), "record_count": len(rows)}}
    JobFolder(folder).responses_json.write_text(json.dumps(found), encoding="utf-8")
