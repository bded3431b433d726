"""Pure placement decisions: which queued task goes to which worker, and why others stay pending.

No database, clock or network: the input is task requirements and worker states, the output is decisions, each with
its reason.
"""

from __future__ import annotations

from tunefleet.placement.explain import explain, verdict
from tunefleet.placement.match import Fit, Reject, accepts_tasks, is_able, lacks, match, only
from tunefleet.placement.model import LIGHT_KINDS, Candidate, Device, Requirement, WorkerState
from tunefleet.placement.plan import Assignment, Decisions, FreeCapacity, plan
from tunefleet.placement.policy import Policy, Ranking
from tunefleet.placement.shares import CPU_ONLY_SHARE, QUANTUM_S, DecayedUsage, Share, fair_order, units

__all__ = [
    "CPU_ONLY_SHARE",
    "LIGHT_KINDS",
    "QUANTUM_S",
    "Assignment",
    "Candidate",
    "DecayedUsage",
    "Decisions",
    "Device",
    "Fit",
    "FreeCapacity",
    "Policy",
    "Ranking",
    "Reject",
    "Requirement",
    "Share",
    "WorkerState",
    "accepts_tasks",
    "explain",
    "fair_order",
    "is_able",
    "lacks",
    "match",
    "only",
    "plan",
    "units",
    "verdict",
]
