"""Which engines a server asks, and what its settings tell their jobs."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.orchestrator.clusters.fake import Field
from tunefleet.errors import MachineError
from tunefleet.orchestrator.fleet import engines as providers
from tunefleet.settings import ServerSettings, load


@pytest.fixture
def commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Slurm's commands, which are found on the path and not run."""
    for name in ("sbatch", "scancel", "scontrol", "squeue", "srun"):
        path = tmp_path / name
        path.write_text("#!/bin/sh\nexit 1\n")
        path.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))


def test_a_server_without_settings_asks_none() -> None:
    found = providers.engines_of(ServerSettings())
    assert (found.clusters, set(found.absent)) == ({}, {"slurm", "ray"})


@pytest.mark.parametrize(
    ("options", "chosen"),
    [
        ("", False),
        ("--account=lab", False),
        ("--partition=a100", True),
        ("--account lab -p a100", True),
        ("-Ca100", True),
        ("--gpus-per-node=a100:1", True),
        ("--gres=gpu:a100:1", False),
    ],
)
def test_options_that_choose_nodes_or_gpus_are_known(commands: None, options: str, chosen: bool) -> None:
    assert providers.engines_of(ServerSettings(slurm=True, slurm_options=options)).chosen == chosen


async def test_the_settings_of_nodes_stand_in_what_is_asked(field: Field, tmp_path: Path) -> None:
    field.lab.core.settings = field.lab.core.settings.model_copy(
        update={"nodes_command": "/venv/bin/tunefleet", "nodes_patience_s": 90.0, "nodes_dir": tmp_path / "shared"}
    )
    await field.asked()
    ask = field.slurm.asks[field.slurm.newest]
    assert ask.command[:3] == ("/venv/bin/tunefleet", "worker", "--once")
    assert ask.patience_s == 90.0
    assert ask.environment["TUNEFLEET_NODES_PATIENCE_S"] == "90"
    assert ask.environment["TUNEFLEET_NODES_DIR"] == str(tmp_path / "shared")
    assert ask.environment["TUNEFLEET_NODES_JOB"] == field.slurm.newest


def test_a_prelude_that_cannot_be_read_is_named(commands: None, tmp_path: Path) -> None:
    with pytest.raises(MachineError, match="Cannot read the file of TUNEFLEET_SLURM_PRELUDE"):
        providers.engines_of(ServerSettings(slurm=True, slurm_prelude=tmp_path / "none"))


@pytest.mark.parametrize("name", ["TUNEFLEET_SLURM_OPTIONS", "TUNEFLEET_NODES_COMMAND"])
def test_words_that_cannot_be_told_apart_are_refused_at_the_start(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, "--comment='a b")
    with pytest.raises(MachineError, match="cannot be parsed as a command line"):
        load(ServerSettings)


@pytest.mark.parametrize("name", ["TUNEFLEET_RAY_ADDRESS", "TUNEFLEET_NODES_URL"])
def test_an_address_that_is_none_is_refused_at_the_start(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, "head:8265")
    with pytest.raises(MachineError, match=name):
        load(ServerSettings)
