"""Hide credentials in what hosts ship; the rules are those of every log."""

from __future__ import annotations

from tunefleet.observability.scrub import scrub, scrub_bytes

__all__ = ["scrub", "scrub_bytes"]
