"""Error feedback of 8-bit uploads: the rounding error of updates that count is added to the next upload.

An update that is rejected, or replaced by another one of its worker, contributed to no version, so its rounding error
is dropped. The counted updates and the residual here add up to what was trained.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from tunefleet.federation.floats import Array


@dataclass(frozen=True, slots=True)
class Feedback:
    """The accumulated rounding error.

    Args:
        residual: By tensor name; added to the next upload before rounding.
        update: Id of the last update that counts or will count; `None` if unknown.
        own: The part of the residual that this update alone caused.
    """

    residual: Mapping[str, Array] = field(default_factory=dict)
    update: int | None = None
    own: Mapping[str, Array] = field(default_factory=dict)

    def after(self, left: Mapping[str, Array], update: int, replaces: int | None) -> Feedback:
        """Return the residual after another update counts.

        Args:
            left: Result of `write_int8` for it, with this residual as `feedback`.
            replaces: Id of the update that it replaced.
        """
        own = _less(left, self.residual)
        void = self.own if replaces is not None and replaces == self.update else {}
        return Feedback(_less(left, void), update, own)


def _less(values: Mapping[str, Array], others: Mapping[str, Array]) -> dict[str, Array]:
    """Return differences; a tensor that is missing in the others, or has another shape there, stays unchanged."""
    found: dict[str, Array] = {}
    for name, each in values.items():
        other = others.get(name)
        found[name] = each if other is None or other.shape != each.shape else each - other
    return found
