"""The only place in `attach` that reads the environment of the process."""

from __future__ import annotations

import os


def variable(name: str) -> str | None:
    """Return an environment variable; None if it is not set, or empty."""
    return os.environ.get(name) or None
