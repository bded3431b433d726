"""Nodes for tasks that name an engine: asked for when their turn comes, given back when they need them no more.

A cluster's job is only the room: on its nodes run workers that are good for one task, and all that is true of a task
on other workers is true there.
"""
