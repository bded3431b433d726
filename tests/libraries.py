"""The training libraries take longer to import than all tests take to be collected: who needs them, and when."""

from __future__ import annotations

import functools
from importlib.util import find_spec

import pytest


def required(*names: str) -> None:
    """Skip a file or a test where a library is not installed, without importing it as `importorskip` does."""
    for name in names:
        if not _found(name):
            pytest.skip(f"{name} is not installed", allow_module_level=True)


@functools.cache
def _found(name: str) -> bool:
    return find_spec(name) is not None
