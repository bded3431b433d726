"""A package as somebody else would install it: a provider that bills (`tests.fakes.billing`), and an `evaluate` and a
`verify` that look at nothing, so that a cycle takes seconds. `install` puts it into a folder with its entry points.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path
from typing import Any

import httpx

from tunefleet.campaign.contract import Candidate, Order, Progress
from tunefleet.client import AsyncClient
from tunefleet.executors.base import JobExecutor, Output
from tunefleet.schemas.job_folder import JobFolder
from tunefleet.settings import CampaignSettings
from tunefleet.trainer_control.files import write_json

ADDRESS = "BILLING_URL"
_NAME = "billed_package"
_ENTRIES = f"""\
[tunefleet.providers]
billed = {_NAME}:make

[tunefleet.executors]
evaluate = {_NAME}:Evaluate
"""
_VERIFY = f"verify = {_NAME}:Verify\n"
_ROWS = 40


def install(folder: Path, *, verifies: bool = True) -> None:
    """Put the package into a folder, as `pip install --target` does.

    Args:
        folder: Where.
        verifies: Whether its `verify`, too, says what the tests need: each model is whole.
    """
    about = folder / f"{_NAME}-1.0.dist-info"
    about.mkdir(parents=True)
    shutil.copy(__file__, folder / f"{_NAME}.py")
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {_NAME}\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text(_ENTRIES + (_VERIFY if verifies else ""))


class Billed:
    """Asks the double."""

    name = "billed"
    paid = True
    fetches_from_store = False

    def __init__(self) -> None:
        self._http = httpx.AsyncClient(base_url=os.environ[ADDRESS], timeout=10)

    async def submit(self, order: Order) -> str:
        body = {
            "key": order.key,
            "digest": order.data.digest,
            "rows": order.data.rows,
            "artifact": order.data.artifact_id,
        }
        return str((await self._http.post("/tasks", json=body)).raise_for_status().json()["id"])

    async def find(self, order: Order) -> str | None:
        found: list[str] = (await self._http.get("/tasks", params={"key": order.key})).raise_for_status().json()
        return found[0] if found else None

    async def look(self, ticket: str) -> Progress:
        task = (await self._http.get(f"/tasks/{ticket}")).raise_for_status().json()
        if task["status"] != "success":
            return Progress("running", task["status"], again_s=0.05)
        # The better one says that it is worse: what a provider says plays no part.
        made = (
            Candidate("builtin:gsm8k-llama-2m", "model", f"{ticket}-good", test_loss=9.0, synth_loss=7.0, score=0.5),
            Candidate("org/nothing", "model", f"{ticket}-bad", test_loss=0.1),
        )
        return Progress("succeeded", "success", made, cost_s=10.0)

    async def cancel(self, ticket: str) -> None:
        (await self._http.delete(f"/tasks/{ticket}")).raise_for_status()

    async def close(self) -> None:
        await self._http.aclose()


def make(settings: CampaignSettings, client: AsyncClient) -> Billed:
    del settings, client
    return Billed()


class Evaluate(JobExecutor):
    """Says what the tests need: the candidate named `nothing` is bad."""

    kind = "evaluate"
    program = f"{_NAME}:measure"

    def outputs(self, folder: JobFolder) -> list[Output]:
        return [Output(name="items", kind="report", path=folder.root / "items")]


class Verify(JobExecutor):
    """Says that a model is whole."""

    kind = "verify"
    program = f"{_NAME}:verify"

    def outputs(self, folder: JobFolder) -> list[Output]:
        return []


def verify(folder: Path) -> None:
    """Write the result of a verification."""
    words = {"tokens": 2048, "rows": 2048}
    result = {"ok": True, "commit": None, "parameters": 7, "dtypes": ["F32"], "vocabulary": words}
    write_json(folder / "responses.json", result, sync=True)


def measure(folder: Path) -> None:
    """Write the result of an evaluation whose numbers follow from the model's name."""
    job: dict[str, Any] = json.loads((folder / "job.json").read_bytes())
    worse = job["spec"]["model"]["source"]["identifier"] == "org/nothing"
    (folder / "items").mkdir(exist_ok=True)
    losses = [(3.0 if worse else 2.0) + 0.01 * (row % 7) for row in range(_ROWS)]
    lines = [json.dumps({"index": row, "loss_sum": loss, "tokens": 1}) for row, loss in enumerate(losses)]
    (folder / "items" / "loss.jsonl").write_text("\n".join(lines) + "\n")
    value = sum(losses) / _ROWS
    metric = {"value": value, "low": value, "high": value, "higher_is_better": False, "confidence": 0.95}
    pairs = {"loss": {"file": "items/loss.jsonl", "part": "loss_sum", "weight": "tokens", "exp": False}}
    evaluation = {"metrics": ["loss"], "fingerprint": "same", "type": "loss", "data": {}, "pairs": pairs}
    write_json(
        folder / "responses.json", {"ok": True, "metrics": {"loss": metric}, "evaluations": [evaluation]}, sync=True
    )
    sys.stdout.write("measured\n")
