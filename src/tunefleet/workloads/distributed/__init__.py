"""Workloads on several ranks: roles of ranks, and torchrun on one or several nodes."""
