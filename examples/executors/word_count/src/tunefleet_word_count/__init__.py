"""`word_count`: counts the words of texts; a task kind of one's own for Tunefleet."""
