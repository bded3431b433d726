"""What a package with executors of its own tests them with; see `executor_contract`."""

from __future__ import annotations

from tunefleet.testing.executor_contract import ExecutorContract, JobContract, LightContract

__all__ = ["ExecutorContract", "JobContract", "LightContract"]
