"""Executors of the task types: the program that runs a kind, its inputs and its outputs.

Executors are registered in the entry point group `tunefleet.executors`, so that other packages can add kinds. They do
not depend on the origin of an attempt, and import no training library: the job's process does that.
"""
