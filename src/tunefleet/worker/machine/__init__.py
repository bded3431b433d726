"""What this machine is and how it reports: probe, energy, heartbeat, enrollment."""
