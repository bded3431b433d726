"""`${...}` in a document: references to other tasks, parameters, conditions, and their limits."""
