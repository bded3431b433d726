"""Scheduling: queue, cluster state, fair share, gangs, coalescing, autoscaling, pending reasons."""
