"""Machines that another system hands out, Slurm or Ray: asking it for nodes, and looking at what became of that.

Knows how to say it to each of them. Does not know what a task is, when nodes are wanted, or what runs on them: it is
given a command line, and starts it once on every node.
"""

from tunefleet.integrations.clusters.base import Ask, Cluster, Seen, Stage

__all__ = ["Ask", "Cluster", "Seen", "Stage"]
