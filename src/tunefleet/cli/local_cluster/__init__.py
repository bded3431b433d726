"""A local server with workers: `up`, `demo`, `simulate`, `uninstall`."""
