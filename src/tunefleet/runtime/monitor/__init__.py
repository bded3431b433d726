"""What is watched while a job runs."""
