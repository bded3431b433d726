"""How servers and workers meet in a Redis."""
