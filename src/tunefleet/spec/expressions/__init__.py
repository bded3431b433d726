"""`${...}` in workflow files: references to other tasks, parameters, conditions, and their limits."""
