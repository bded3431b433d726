"""Which trackers a campaign has and why, and what is said of those that cannot be used."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from tests.unit.campaign.service.desk import spec
from tunefleet import errors
from tunefleet.cli.main import run
from tunefleet.errors import InputError, MachineError, SpecError
from tunefleet.integrations.trackers import catalog
from tunefleet.integrations.trackers.contract import OpenRun, TrackedRun
from tunefleet.settings import TrackingSettings, load
from tunefleet.spec.documents.campaign_file import parse_campaigns

DOCUMENT = """\
name-of-the-task:
  enabled: true
  wandb_project: "wandb-project-name"
  model_repo: "org/model"
  datasets:
    - {{name: "org/rows", field_instruction: "q", field_output: "a"}}
{more}
"""


@pytest.fixture(autouse=True)
def _plain(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith(("WANDB_", "MLFLOW_", "TRACKIO_"))]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(
    ("said", "variables", "names", "why"),
    [
        ({}, {"WANDB_API_KEY": "k"}, (), "no wandb_project is set"),
        ({"wandb_project": "p"}, {"WANDB_API_KEY": "k"}, ("wandb",), "wandb_project and WANDB_API_KEY are set"),
        ({"wandb_project": "p"}, {"WANDB_MODE": "offline"}, ("wandb",), "WANDB_MODE is offline"),
        ({"wandb_project": "p"}, {}, (), "neither WANDB_API_KEY nor WANDB_MODE=offline is set"),
        ({"wandb_project": "p"}, {"WANDB_API_KEY": "k", "WANDB_MODE": "disabled"}, (), "WANDB_MODE is disabled"),
        ({"wandb_project": "p", "tracking": "none"}, {"WANDB_API_KEY": "k"}, (), "set in the campaign"),
        ({"tracking": ["MLflow", "trackio"]}, {}, ("mlflow", "trackio"), "set in the campaign"),
    ],
)
def test_which_and_why(
    monkeypatch: pytest.MonkeyPatch, said: dict[str, Any], variables: dict[str, str], names: tuple[str, ...], why: str
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    found = catalog.chosen(spec(**said), load(TrackingSettings))
    assert found.names == names
    assert why in found.why


def test_every_fault_is_said_at_once_with_the_way_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(catalog, "find_spec", lambda name: None if name == "trackio" else object())
    given = [spec(tracking=["wandb", "mlflow"]), spec(tracking=["trackio", "other"]), spec(tracking="none")]
    with pytest.raises(InputError) as caught:
        catalog.refuse_faults(given, load(TrackingSettings))
    said = str(caught.value)
    for words in (
        "WANDB_API_KEY is not set", "WANDB_MODE=offline", "MLFLOW_TRACKING_URI is not set", "Unknown tracker 'other'",
        "trackio is not installed", errors.install_command("trackers"), "tracking: none",
    ):  # fmt: skip
        assert words in said
    assert "WANDB" not in str(catalog.faults(catalog.chosen(given[2], load(TrackingSettings)), load(TrackingSettings)))


def test_none_beside_a_tracker_is_refused_with_its_line() -> None:
    with pytest.raises(SpecError, match="cannot combine none"):
        parse_campaigns(DOCUMENT.format(more="  tracking: [none, wandb]"), filename="config.yaml")


def test_the_documents_file_selects_wandb_and_its_key_is_shown_nowhere(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    key = "0123456789abcdef0123456789abcdef01234567"
    (tmp_path / "config.yaml").write_text(DOCUMENT.format(more=""))
    (tmp_path / ".env").write_text(f"WANDB_API_KEY={key}\nWANDB_ENTITY=team\n")
    assert run(["campaign", "dry-run"]) == 0
    said = capsys.readouterr()
    assert "wandb (wandb_project and WANDB_API_KEY are set)" in said.out
    assert key not in said.out + said.err
    assert key not in repr(load(TrackingSettings))


def test_a_tracker_without_its_key_ends_a_dry_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "config.yaml").write_text(DOCUMENT.format(more="  tracking: wandb"))
    assert run(["campaign", "dry-run"]) != 0
    assert "WANDB_API_KEY is not set. Set it, or WANDB_MODE=offline." in capsys.readouterr().err


def test_a_bad_mode_names_variable_and_value(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_MODE", "of-line")
    with pytest.raises(MachineError, match=r"WANDB_MODE must be one of .*, not 'of-line'"):
        load(TrackingSettings)


class Brought:
    """As a package brings one."""

    variables = ("BROUGHT_",)

    def fault(self) -> str | None:
        return None

    def open(self, run: TrackedRun, folder: Path) -> OpenRun:
        raise NotImplementedError


def test_a_package_brings_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    about = tmp_path / "brought-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: brought\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text("[tunefleet.trackers]\nbrought = brought_tracker:make\n")
    (tmp_path / "brought_tracker.py").write_text(
        "from tests.unit.campaign.test_trackers import Brought\ndef make(settings): return Brought()\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    found = catalog.check("brought", load(TrackingSettings))
    assert found.variables == ("BROUGHT_",)
    assert "brought" in catalog.names()
