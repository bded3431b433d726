"""Virtual environments for task types whose libraries conflict with Tunefleet's own.

A *layer* has a few pinned packages on top of Tunefleet's environment: seconds, megabytes. An *isolated* environment has
all its packages from a complete lock, with only the package `tunefleet` linked in.

Executors call `reason(name)` before they offer a kind and `at(name).python` when they build a job; `tunefleet env`
creates and checks them.
"""

from tunefleet.runtime.envs.registry import FAMILIES, Environment, Family, at, family, ready, reason

__all__ = ["FAMILIES", "Environment", "Family", "at", "family", "ready", "reason"]
