"""Bodies of the compatible routes."""
