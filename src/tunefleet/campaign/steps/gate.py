"""`gate`: decide on promotion by a row-by-row comparison with the base and with the promoted model."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from tunefleet.analysis.evaluation.comparison import Difference, compare
from tunefleet.campaign import promotion_rule
from tunefleet.campaign.contract import Later, Outcome, Repeatable, StepContext
from tunefleet.campaign.scratch_folder import step_folder
from tunefleet.campaign.task_client import result_of
from tunefleet.errors import NotFoundError
from tunefleet.lifecycle.cycle import StepName
from tunefleet.spec.tasks.evaluate_task import ITEMS_FOLDER

# For a candidate that is the same model as the one that it is compared with.
_SAME: Final = Difference(0.0, 0.0, 0.0, "the same evaluation", None, "none")


class GateStep(Repeatable):
    """Decides on promotion; `record` promotes."""

    name = StepName.GATE

    async def plan(self, context: StepContext) -> Outcome:
        """Plan which evaluations are compared."""
        measured = context.outcome(StepName.EVALUATE)
        against = {name: measured[name]["task_id"] for name in ("base", "promoted") if measured[name] is not None}
        return {
            "metric": measured["metric"],
            "candidate": context.outcome(StepName.SELECT)["evaluation"]["task_id"],
            "against": against,
        }

    async def act(self, context: StepContext, intent: Outcome) -> Outcome | Later:
        """Compare, and decide."""
        named = [intent["candidate"], *intent["against"].values()]
        results = {task: result_of(await context.client.tasks.get(task)) for task in dict.fromkeys(named)}
        async with step_folder(context, "gate") as folder:
            items = {task: await _items(context, task, folder / task) for task in results}
            differences, higher = await asyncio.to_thread(_differences, intent, results, items)
        decision = promotion_rule.decide(context.spec.gate, differences, higher_is_better=higher)
        await context.log(decision.reason)
        return decision.as_json()


async def _items(context: StepContext, task_id: str, folder: Path) -> Path | None:
    try:
        return await context.client.tasks.fetch_output(task_id, ITEMS_FOLDER, folder)
    except NotFoundError:
        return None  # they were removed: the decision says that the models cannot be compared


def _differences(
    intent: Outcome, results: Mapping[str, Mapping[str, Any]], items: Mapping[str, Path | None]
) -> tuple[dict[str, Difference | None], bool]:
    def find(task: str, file: str) -> Path | None:
        root = items[task]
        return None if root is None else root / Path(file).name

    metric, candidate = intent["metric"], intent["candidate"]
    found: dict[str, Difference | None] = {}
    for name, task in intent["against"].items():
        if task == candidate:
            found[name] = _SAME
            continue
        rows = {row.metric: row for row in compare({task: results[task], candidate: results[candidate]}, find)}
        found[name] = rows[metric].differences[1]
    return found, bool(results[candidate]["metrics"][metric]["higher_is_better"])
