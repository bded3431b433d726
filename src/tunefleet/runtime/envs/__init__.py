"""Virtual environments that some task kinds run in, because their libraries do not go with ours.

A *layer* has a few pinned packages of its own in front of the environment that Tunefleet runs in: seconds, megabytes.
An *isolated* environment has everything of its own, by a full lock, and only the package `tunefleet` linked in.

Executors ask `reason(name)` before they offer a kind and `at(name).python` when they build a job; `tunefleet env`
makes and checks them.
"""

from tunefleet.runtime.envs.catalog import FAMILIES, Family, family
from tunefleet.runtime.envs.registry import Environment, at, ready, reason

__all__ = ["FAMILIES", "Environment", "Family", "at", "family", "ready", "reason"]
