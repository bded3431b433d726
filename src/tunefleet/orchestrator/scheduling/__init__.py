"""Scheduling: queue, fair share, coalescing, autoscaling and the reaper."""
