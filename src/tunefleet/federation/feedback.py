"""What 8 bits have rounded away of the updates that count: the next upload makes it up.

An update that is refused, or that another one of its worker takes the place of, has given nothing to any version, so
its rounding is not made up for either. What counted and what is kept here add up to what was trained.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from tunefleet.federation.floats import Array


@dataclass(frozen=True, slots=True)
class Feedback:
    """The rounding that is still to be made up.

    Args:
        residual: By name: added to the next upload before that is rounded.
        update: Id of the last update that counts, or is to; None if that is not known.
        own: Of the residual, what that update alone has left out.
    """

    residual: Mapping[str, Array] = field(default_factory=dict)
    update: int | None = None
    own: Mapping[str, Array] = field(default_factory=dict)

    def after(self, left: Mapping[str, Array], update: int, replaces: int | None) -> Feedback:
        """Return what is to be made up once another update counts.

        Args:
            left: What `write_int8` has returned for it, with this residual as `feedback`.
            replaces: Id of the update whose place it has taken.
        """
        own = _less(left, self.residual)
        void = self.own if replaces is not None and replaces == self.update else {}
        return Feedback(_less(left, void), update, own)


def _less(values: Mapping[str, Array], others: Mapping[str, Array]) -> dict[str, Array]:
    """Return differences; a tensor that is not among the others, or has another shape, stays as it is."""
    found: dict[str, Array] = {}
    for name, each in values.items():
        other = others.get(name)
        found[name] = each if other is None or other.shape != each.shape else each - other
    return found
