"""Test contracts for packages with their own executors; see `executor_contract`."""

from __future__ import annotations

from tunefleet.testing.executor_contract import ExecutorContract, JobContract, LightContract

__all__ = ["ExecutorContract", "JobContract", "LightContract"]
