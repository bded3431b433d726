"""Pure decisions: which waiting task goes to which worker, and why another has to wait.

Knows no database, no clock and no network: it is given what tasks need, what workers have and what is free, and
returns decisions, each with its reason.
"""

from __future__ import annotations

from tunefleet.placement.match import Fit, Reject, match
from tunefleet.placement.model import LIGHT_KINDS, Candidate, Device, Requirement, WorkerState
from tunefleet.placement.plan import Assignment, Decisions, explain, plan

__all__ = [
    "LIGHT_KINDS",
    "Assignment",
    "Candidate",
    "Decisions",
    "Device",
    "Fit",
    "Reject",
    "Requirement",
    "WorkerState",
    "explain",
    "match",
    "plan",
]
