"""A server and workers on this machine: `up`, `demo`, `simulate`, `uninstall`."""
