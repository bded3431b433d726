"""`word_count`: counts the words of texts; a custom task type for Tunefleet."""
