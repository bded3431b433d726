"""Lets the SQLite engines of a test process share the statements that SQLAlchemy has compiled.

Each test opens databases of its own, and each engine compiles all of its statements again, for its own dialect: a third
of the CPU time of the services' tests.
"""

from __future__ import annotations

import functools
from pathlib import Path

from sqlalchemy import Engine
from sqlalchemy.util import LRUCache

from tunefleet.db.engine import database

STATEMENTS = 5000
"""So many are kept: about twice as many as there are."""


@functools.cache
def _first() -> Engine:
    """The engine whose dialect all others use; it is not connected for long."""
    engine = _separate(Path(":memory:"), "OFF", writing=True)
    engine.connect().close()
    engine.dispose()
    engine._compiled_cache = LRUCache(STATEMENTS)
    return engine


def sqlite_engine(path: Path, _synchronous: str, *, writing: bool) -> Engine:
    """Return an engine that shares them; no test cuts the power, so that nothing waits for the disk either."""
    engine = _separate(path, "OFF", writing=writing)
    engine.dialect, engine._compiled_cache = _first().dialect, _first()._compiled_cache
    return engine


def share() -> None:
    """Do so for all databases that this process opens from now on."""
    database.sqlite_engine = sqlite_engine


_separate = database.sqlite_engine
