"""`echo`: gives back what it was given; proves that a fleet works, and measures what a task costs."""

from __future__ import annotations

from typing import Any

from tunefleet.executors.base import LightExecutor
from tunefleet.executors.parts import part_of
from tunefleet.schemas.worker_link import Offer


class EchoExecutor(LightExecutor):
    """Answers with its spec, and with its items if the spec lists some; of a part of a task with those of the part."""

    kind = "echo"

    def run(self, offer: Offer) -> dict[str, Any]:
        """Return the spec; with `data.items` also `items` (each an `output`, as of an inference) and their `count`."""
        result: dict[str, Any] = {"ok": True, "echo": offer.spec}
        data = offer.spec.get("data")
        items = data.get("items") if isinstance(data, dict) else None
        if isinstance(items, list):
            mine = part_of(items, offer.spec)
            outputs = [{"index": at, "output": item} for at, item in enumerate(mine)]
            result |= {"items": outputs, "count": len(outputs)}
        return result
