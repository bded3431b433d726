"""What is attached to a script that knows nothing of it."""
