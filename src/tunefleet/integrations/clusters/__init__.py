"""Nodes from a cluster manager, Slurm or Ray: requesting nodes, and monitoring the requests.

Knows the protocol of each. Does not know what a task is, when nodes are needed, or what runs on them: it gets a command
line, and starts it once on every node.
"""

from tunefleet.integrations.clusters.base import Cluster, ClusterJobState, NodeRequest, Stage

__all__ = ["Cluster", "ClusterJobState", "NodeRequest", "Stage"]
