"""What is shipped of campaigns says nothing that is not understood."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from pydantic import AliasChoices

from tunefleet.errors import MachineError
from tunefleet.settings import CampaignSettings, ProcessSettings, TrackingSettings, load
from tunefleet.spec.documents.campaign_file import parse_campaigns

FOLDER = Path(__file__).resolve().parents[3] / "examples" / "campaign"


@pytest.mark.parametrize("name", ["config.yaml", "example-config.yaml"])
def test_the_shipped_files_are_read(name: str) -> None:
    found = parse_campaigns((FOLDER / name).read_text(), filename=name)
    assert any(spec.enabled for spec in found.values())


def test_the_shipped_settings_are_those_that_there_are() -> None:
    said = set(re.findall(r"^# ([A-Z][A-Z0-9_]+)=", (FOLDER / "example.env").read_text(), re.MULTILINE))
    known: set[str] = set()
    for field in (*CampaignSettings.model_fields.values(), *TrackingSettings.model_fields.values()):
        alias = field.validation_alias
        assert isinstance(alias, AliasChoices)
        known.add(str(alias.choices[0]))
    assert said <= known
    shared = {name for field in ProcessSettings.model_fields.values() for name in field.validation_alias.choices}
    ours = shared | {"HF_HUB_OFFLINE", "TUNEFLEET_GRADIENTS_SETTLE_S", "TUNEFLEET_TRACKING_TIMEOUT_S"}
    assert known - ours - said == set()


def test_the_documents_variables_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"CHECK_INTERVAL": "60", "MIN_HOURS_BETWEEN_RUNS": "6", "MAX_HOURS_BETWEEN_RUNS": "8"}.items():
        monkeypatch.setenv(name, value)
    found = load(CampaignSettings)
    assert (found.check_interval_s, found.min_hours, found.max_hours) == (60, 6, 8)
    assert found.gradients_url == "https://api.gradients.io"


@pytest.mark.parametrize(
    ("variable", "value", "said"),
    [
        ("CHECK_INTERVAL", "soon", "CHECK_INTERVAL must be a number, not 'soon'"),
        (
            "MIN_DAYS_BETWEEN_RUNS",
            "3",
            "TUNEFLEET_CAMPAIGN_MAX_DAYS is 0, less than TUNEFLEET_CAMPAIGN_MIN_DAYS, which is 3",
        ),
    ],
)
def test_a_bad_variable_is_named_with_its_value(
    monkeypatch: pytest.MonkeyPatch, variable: str, value: str, said: str
) -> None:
    monkeypatch.setenv(variable, value)
    monkeypatch.setenv("GRADIENTS_API_KEY", "a-secret")
    with pytest.raises(MachineError) as caught:
        load(CampaignSettings)
    assert said in str(caught.value)
    assert "a-secret" not in str(caught.value)


def test_no_secret_is_shown() -> None:
    settings = CampaignSettings(gradients_key="a-secret", hf_token="b-secret", s3_secret_key="c-secret")
    assert "secret" not in repr(settings).replace("SecretStr", "").replace("s3_secret_key", "")
