"""The Redis transport between servers and workers."""
