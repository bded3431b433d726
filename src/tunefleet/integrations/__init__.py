"""External systems: clusters, publishing targets, trackers."""
