"""What jobs and workers say: journals, points, logs, events, and how people watch them live."""
