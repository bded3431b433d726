"""The documents that are submitted: what real users would send, with many tasks in each."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from typing import Any, Final

from tunefleet.simulation.plan import LIGHT, Plan
from tunefleet.simulation.profile import capabilities

# Tasks of one document, at most.
BATCH: Final = 200
# Of so many workers the first are looked at to learn which GPUs there are.
_DRAWN: Final = 200
_MODEL: Final = {"source": {"identifier": "builtin:gsm8k-llama-2m"}}
_DATA: Final = {"path": "builtin:gsm8k", "prompt_column": "question", "response_column": "answer"}


def documents(plan: Plan) -> Iterator[tuple[int, str]]:
    """Write the documents of a plan; yields how many tasks each has, and its text."""
    size = BATCH if plan.rate_per_s is None else max(1, min(BATCH, round(plan.rate_per_s / 5)))
    chance, sizes = random.Random(plan.seed), _gpu_sizes(plan)
    for start in range(0, plan.tasks, size):
        numbers = range(start, min(plan.tasks, start + size))
        nodes = [{"name": f"t{number:06}", "spec": _spec(plan, number, chance, sizes)} for number in numbers]
        shared = {"resources": {"tags": [plan.tag]}}
        document = {
            "apiVersion": "tunefleet/v1",
            "kind": "Workflow",
            "metadata": {"name": f"{plan.run_id}-{start:06}"},
            "spec": {**shared, "graph": {"nodes": nodes}},
        }
        yield len(nodes), json.dumps(document)


def _spec(plan: Plan, number: int, chance: random.Random, sizes: list[int]) -> dict[str, Any]:
    kind = plan.kinds[number % len(plan.kinds)]
    if kind == LIGHT:
        return {"taskType": kind, "data": {"type": "list", "items": ["a"]}}
    spec: dict[str, Any] = {"taskType": kind, "model": _MODEL, "data": _DATA, "training": {"max_steps": 10}}
    if sizes:
        gpu = {"count": 1, "memory": f"{max(1, chance.choice(sizes) // 2)}Gi"}
        spec["resources"] = {"hardware": {"gpu": gpu}}
    return spec


def _gpu_sizes(plan: Plan) -> list[int]:
    """Return the GPU memories that there are, so that no task asks for one that nobody has."""
    found = {
        gpu.memory_total_bytes >> 30
        for number in range(min(plan.workers, _DRAWN))
        for gpu in capabilities(plan, number).gpus
    }
    return sorted(found)
