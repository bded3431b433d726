"""`spec.data` of an `echo` task: what it gives back."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import model_validator

from tunefleet.spec.base import Block, only, wrong


class EchoData(Block):
    """`spec.data` of an echo: a list of texts."""

    type: Annotated[
        Literal["list"],
        only("list", "an echo takes only `type: list` in this version", "write `type: list` and the items"),
    ] = "list"
    """Always `list`."""
    items: tuple[str, ...] = ()
    """Texts."""
    metadata: tuple[dict[str, Any], ...] | None = None
    """One mapping an item."""
    items_metadata: tuple[dict[str, Any], ...] | None = None
    """The same as `metadata`."""

    @model_validator(mode="after")
    def _matching(self) -> EchoData:
        if self.metadata is not None and self.items_metadata is not None:
            raise wrong("means the same as metadata", "leave one of them out", at="items_metadata")
        for name in ("metadata", "items_metadata"):
            notes = getattr(self, name)
            if notes is not None and len(notes) != len(self.items):
                raise wrong(f"has {len(notes)} entries for {len(self.items)} items", "one mapping an item", at=name)
        return self
