"""`echo`: gives back what it was given; proves that a fleet works, and measures what a task costs."""

from __future__ import annotations

from typing import Any

from tunefleet.executors.base import LightExecutor
from tunefleet.executors.parts import part_of
from tunefleet.wire.link import Offer


class EchoExecutor(LightExecutor):
    """Answers with its spec, and with its items if the spec lists some."""

    kind = "echo"

    def run(self, offer: Offer) -> dict[str, Any]:
        """Return the spec; `items` and `count` too if `data.items` is given, of a part only its own."""
        result: dict[str, Any] = {"ok": True, "echo": offer.spec}
        data = offer.spec.get("data")
        items = data.get("items") if isinstance(data, dict) else None
        if isinstance(items, list):
            mine = part_of(items, offer.spec)
            result |= {"items": mine, "count": len(mine)}
        return result
