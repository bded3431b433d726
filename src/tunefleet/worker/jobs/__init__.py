"""From an offer to the end of its job."""
