"""What a training delivers, written whole or not at all."""

from __future__ import annotations

from tunefleet.workloads.common.outputs import write_file, write_folder

__all__ = ["write_file", "write_folder"]
