"""Tunefleet: a self-hosted control plane for fine-tuning language models."""

from __future__ import annotations

from importlib.metadata import version as _version
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tunefleet.client import AsyncClient as AsyncClient
    from tunefleet.client import Client as Client

__all__ = ["AsyncClient", "Client", "__version__"]

__version__ = _version("tunefleet")


def __getattr__(name: str) -> Any:
    # Imported on first use: `import tunefleet` stays cheap for the CLI and for a trainer's callback.
    if name in {"AsyncClient", "Client"}:
        from tunefleet import client  # noqa: PLC0415

        return getattr(client, name)
    raise AttributeError(f"module 'tunefleet' has no attribute {name!r}")
