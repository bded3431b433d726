"""Memory estimate of a training run, before anything is allocated.

Without side effects: the server estimates from a workflow file, a training run from its own model before it starts.
"""
