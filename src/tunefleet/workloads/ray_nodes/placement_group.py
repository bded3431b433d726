"""A placement group of a Ray cluster: one bundle on each of several nodes, with a pending reason."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

import ray
from ray._private.state import available_resources_per_node
from ray.experimental.internal_kv import _internal_kv_get
from ray.util.placement_group import placement_group, placement_group_table, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from tunefleet.integrations.clusters.base import NodeRequest
from tunefleet.workloads.ray_nodes.diagnostics import ClusterCapacity, Machine, capacity_of
from tunefleet.workloads.ray_nodes.node import Node

_LOOK_S: Final = 0.5
_FIRST_S: Final = 2.0
"""Free resources are assigned within this time; nothing is reported before."""
# A cluster that was just started gets its nodes one by one.
_SETTLE_S: Final = 5.0
# How long to wait for more nodes than the minimum that were free a moment ago.
_FREE_S: Final = 5.0
_STATUS: Final = "__autoscaling_status"
_V2: Final = "__autoscaler_v2_enabled"


class HopelessError(Exception):
    """The cluster cannot provide the nodes."""


class StoppedError(Exception):
    """The job was asked to stop."""


class NodeGroup:
    """The nodes of an order; all are reserved together."""

    def __init__(self, ask: NodeRequest, nodes: int) -> None:
        self.nodes = nodes
        self._ask = ask
        self._need = dict(look(ask).need)
        self._group = self._reserved()

    def _reserved(self) -> Any:
        return placement_group([self._need] * self.nodes, strategy="STRICT_SPREAD")

    def suit(self, need: Mapping[str, float]) -> None:
        """Adapt to the current requirement: a node that joined defines how Ray names its GPU type."""
        if self._need != need:
            self.leave()
            self._need = dict(need)
            self._group = self._reserved()

    def ready(self, wait_s: float) -> bool:
        """Return whether all bundles are reserved; wait for them at most this long."""
        return bool(self._group.wait(timeout_seconds=wait_s))

    def names(self) -> list[str]:
        """Return the nodes of the bundles, in order."""
        where = placement_group_table(self._group)["bundles_to_node_id"]
        called = {node["NodeID"]: str(node["NodeName"]) for node in ray.nodes()}
        # A bundle whose node has just died has no node.
        return [called.get(where.get(number, ""), "(unknown)") for number in range(self.nodes)]

    def start(self, index: int, number: int) -> tuple[Any, Any]:
        """Start the command in a bundle."""
        need, ask = self._need, self._ask
        options = {
            "num_cpus": need["CPU"],
            "num_gpus": need.get("GPU", 0),
            "memory": need.get("memory"),
            "max_restarts": 0,
            "max_task_retries": 0,
            "max_concurrency": 2,
            "scheduling_strategy": PlacementGroupSchedulingStrategy(
                placement_group=self._group, placement_group_bundle_index=index
            ),
        }
        actor = ray.remote(Node).options(**options).remote(number, ask.grace_s)
        return actor, actor.run.remote(list(ask.command), dict(ask.environment))

    def leave(self) -> None:
        """Release the bundles; their actors end."""
        remove_placement_group(self._group)


def take(ask: NodeRequest, say: Callable[[str], None], stopped: Callable[[], bool]) -> NodeGroup:
    """Reserve the nodes of an order: more than the minimum if they are free now, else the minimum.

    Raises:
        HopelessError: If the cluster cannot provide them, or did not within `patience_s`.
        StoppedError: If a stop was requested.
    """
    most = min(look(ask).now, ask.nodes_max)
    if most > ask.nodes:
        group = NodeGroup(ask, most)
        if group.ready(_FREE_S):
            return group
        group.leave()
    group = NodeGroup(ask, ask.nodes)
    try:
        _wait(group, ask, say, stopped)
    except BaseException:
        group.leave()
        raise
    return group


def _wait(group: NodeGroup, ask: NodeRequest, say: Callable[[str], None], stopped: Callable[[], bool]) -> None:
    last_reason, began = "", time.monotonic()
    had, patient_s = began, _FIRST_S
    while not group.ready(patient_s):
        patient_s = _LOOK_S
        if stopped():
            raise StoppedError
        now, seen = time.monotonic(), look(ask)
        group.suit(seen.need)
        had = had if seen.lacking else now
        if seen.hopeless and now - began > min(_SETTLE_S, ask.patience_s):
            raise HopelessError(seen.never)
        if now - had > ask.patience_s:
            raise HopelessError(f"{seen.short}; no change within {ask.patience_s:.0f} s.")
        why = seen.why(ask.patience_s)
        if why != last_reason:
            say(why)
            last_reason = why


def look(ask: NodeRequest) -> ClusterCapacity:
    """Compare an order with the cluster's current state."""
    free = available_resources_per_node()
    machines = [
        Machine(str(node["NodeName"]), node["Resources"], free.get(node["NodeID"], {}))
        for node in ray.nodes()
        if node["Alive"]
    ]
    return capacity_of(ask, machines, autoscaled=_autoscaled())


def _autoscaled() -> bool | None:
    """Return whether an autoscaler that starts nodes runs: it reports node types, a mere monitor reports node ids."""
    if _internal_kv_get(_V2) == b"1":
        return True
    report = json.loads(_internal_kv_get(_STATUS) or b"{}").get("autoscaler_report")
    if not report or not report.get("active_nodes"):
        return None
    ids = {f"node_{node['NodeID']}" for node in ray.nodes()}
    return not set(report["active_nodes"]) <= ids
