"""How long a campaign sleeps: within its limits, spread over them, and the same draw for the same cycle."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tunefleet.campaign.steps.sleep import draw_s, interval_of
from tunefleet.settings import CampaignSettings
from tunefleet.spec.documents.campaign_document import CampaignSpec, RunIntervalsSpec

LIMIT = st.floats(0, 1000, allow_nan=False)


@given(days=st.tuples(LIMIT, LIMIT), hours=st.tuples(LIMIT, LIMIT), key=st.text(max_size=20))
def test_a_draw_is_within_its_limits_and_the_same_again(
    days: tuple[float, float], hours: tuple[float, float], key: str
) -> None:
    low_d, high_d = sorted(days)
    low_h, high_h = sorted(hours)
    wanted = RunIntervalsSpec(min_days=low_d, max_days=high_d, min_hours=low_h, max_hours=high_h)
    drawn = draw_s(wanted, key)
    assert low_d * 86400 + low_h * 3600 <= drawn * (1 + 1e-9) + 1e-6
    assert drawn <= (high_d * 86400 + high_h * 3600) * (1 + 1e-9) + 1e-6
    assert draw_s(wanted, key) == drawn


def test_draws_do_not_gather_at_the_lower_end() -> None:
    wanted = RunIntervalsSpec(min_hours=6, max_hours=8)
    drawn = [draw_s(wanted, f"camp-1/{cycle}") / 3600 for cycle in range(2000)]
    assert sum(drawn) / len(drawn) == pytest.approx(7, abs=0.05)
    assert sum(each > 7.5 for each in drawn) / len(drawn) == pytest.approx(0.25, abs=0.05)


def test_the_environment_counts_where_the_campaign_says_nothing() -> None:
    settings = CampaignSettings(min_hours=6, max_hours=8, min_days=2, max_days=3)
    base = {"model_repo": "m", "datasets": [{"name": "d", "field_instruction": "q", "field_output": "a"}]}
    assert interval_of(CampaignSpec.model_validate(base), settings).max_days == 3
    own = CampaignSpec.model_validate({**base, "run_intervals": {"max_hours": 1}})
    assert interval_of(own, settings) == RunIntervalsSpec(max_hours=1)
