"""From the updates of a round to the next version of the adapter."""
