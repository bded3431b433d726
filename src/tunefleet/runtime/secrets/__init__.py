"""The secrets of tasks, and who may have them."""
