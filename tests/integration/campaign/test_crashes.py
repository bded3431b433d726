"""A process of a campaign that dies at each point of a cycle."""

from __future__ import annotations

import pytest

from tests.unit.campaign.test_crashes import crashed
from tests.unit.orchestrator.conftest import fresh_data, lab
from tests.unit.orchestrator.lab import Lab

__all__ = ["fresh_data", "lab"]


@pytest.mark.proof
@pytest.mark.timeout(600)
async def test_a_crash_at_any_point_costs_nothing(lab: Lab) -> None:
    await crashed(lab, every=1)
