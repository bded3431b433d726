"""What may be drawn: ends, where a schema and a shortest answer both have a say."""

from __future__ import annotations

import numpy as np
import pytest

from tunefleet.workloads.engine.batch_rows import Row
from tunefleet.workloads.engine.protocol import Request, Sampling


@pytest.fixture(scope="module", autouse=True)
def libraries() -> None:
    """Imported for the tests, not to collect them."""
    global _mask_forbidden, torch
    import torch

    from tunefleet.workloads.engine.sampling import _mask_forbidden


END = 2


class Place:
    """A matcher at a place where some tokens can follow."""

    def __init__(self, *allowed: int) -> None:
        self._allowed = allowed

    def allowed(self) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
        return np.isin(np.arange(4), self._allowed)


@pytest.mark.parametrize(
    ("place", "shortest", "left"),
    [
        pytest.param(None, 0, {0, 1, END, 3, 4}, id="free"),
        pytest.param(None, 1, {0, 1, 3, 4}, id="too short"),
        pytest.param(Place(1, END), 0, {1, END}, id="by the schema alone"),
        pytest.param(Place(1, END), 1, {1}, id="too short, and the schema can go on"),
        pytest.param(Place(END), 1, {END}, id="too short, and the schema is at its end"),
    ],
)
def test_an_answer_does_not_end_before_its_time_unless_its_schema_does(
    place: Place | None, shortest: int, left: set[int]
) -> None:
    row = Row(Request(0, "", Sampling(min_tokens=shortest)), 0, [], 9, frozenset([END]), None)
    row.matcher = place  # type: ignore[assignment]
    scores = torch.zeros(5)
    _mask_forbidden(scores, row)
    assert set(torch.isfinite(scores).nonzero().flatten().tolist()) == left
