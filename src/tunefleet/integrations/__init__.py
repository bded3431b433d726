"""Systems outside that Tunefleet speaks to: clusters, hubs, trackers."""
