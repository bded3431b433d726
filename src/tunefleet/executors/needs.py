"""Which packages a kind needs that are not here, said without importing those that are."""

from __future__ import annotations

from importlib.util import find_spec

from tunefleet import extras


def missing(*names: str, extra: str, what: str = "The libraries that it needs") -> str | None:
    """Return why a kind cannot run here, with the way out; `None` if all packages are installed.

    Args:
        names: Top-level packages.
        extra: Of Tunefleet, which installs them.
        what: What the packages are, as the sentence begins.
    """
    absent = [name for name in names if find_spec(name) is None]
    if not absent:
        return None
    return f"{what} are not installed ({', '.join(absent)} missing): {extras.install(extra)}"
