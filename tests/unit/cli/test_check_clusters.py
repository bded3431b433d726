"""What `tunefleet doctor` says of Slurm and Ray."""

from __future__ import annotations

import pytest

from tunefleet.cli.server.checks import ray, slurm


@pytest.mark.usefixtures("home")
def test_what_nobody_may_ask_is_not_looked_at() -> None:
    assert slurm() is None
    assert ray() is None
