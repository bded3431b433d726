"""What is computed of rows, models and results without a training library."""
