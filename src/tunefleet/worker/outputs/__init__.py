"""What a job left: collected, uploaded, delivered."""
