"""`data`: builds a dataset from others; `echo`: returns its spec, for tests."""

from __future__ import annotations

from typing import Any

from tunefleet.executors.base import JobExecutor, LightExecutor, Output, missing
from tunefleet.schemas.job_folder import JobFolder
from tunefleet.schemas.worker_guide import FILE_KIND
from tunefleet.schemas.worker_link import Offer
from tunefleet.spec.tasks.base_task import part_of
from tunefleet.trainer_control.files import read_json


class DataExecutor(JobExecutor):
    """Reads rows, transforms them step by step, and delivers the written files."""

    kind = "data"
    program = "tunefleet.workloads.data_pipeline:main"

    def unavailable_reason(self) -> str | None:
        """Return which data libraries are missing."""
        return missing("datasets", "pyarrow", "numpy", extra="train")

    def outputs(self, folder: JobFolder) -> list[Output]:
        """Return the files, as the result lists them."""
        files = (read_json(folder.responses_json) or {}).get("files") or []
        return [Output(name=each["name"], kind=FILE_KIND, path=folder.root / each["name"]) for each in files]


class EchoExecutor(LightExecutor):
    """Returns its spec, and its items if the spec has some; for a shard of a task, those of the shard."""

    kind = "echo"

    def run(self, offer: Offer) -> dict[str, Any]:
        """Return the spec; with `data.items` also `items` (each an `output`, as in `inference`) and their `count`."""
        result: dict[str, Any] = {"ok": True, "echo": offer.spec}
        data = offer.spec.get("data")
        items = data.get("items") if isinstance(data, dict) else None
        if isinstance(items, list):
            shard = part_of(items, offer.spec)
            outputs = [{"index": at, "output": item} for at, item in enumerate(shard)]
            result |= {"items": outputs, "count": len(outputs)}
        return result
