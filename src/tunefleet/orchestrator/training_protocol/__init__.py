"""The training-agent protocol: reports and polls of agents, and users' operations on jobs.

A job is a task. A job that was registered instead of submitted is held by a pseudo worker (`external:<owner>`): it is
never scheduled and never lost, and its reports are stored like those of every other task.
"""
