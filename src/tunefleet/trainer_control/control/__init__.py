"""Commands for a training run: queue, HTTP server, files, overrides."""
