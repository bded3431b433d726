"""The arithmetic of averaging LoRA adapters: files in, one adapter out, on NumPy.

Knows files and numbers, and nothing durable: no store, no rounds, no clock but for its own seconds, no torch. Reads
safetensors block by block, reckons in float32 (float64 where small matrices are squared), and refuses by name what it
does not understand. The server averages with it; a worker packs and unpacks uploads with it.
"""

from __future__ import annotations

from tunefleet.federation.adapter import CONFIG, TENSORS, AdapterConfig, AdapterFile, read_config
from tunefleet.federation.update import Update, update_in

__all__ = ["CONFIG", "TENSORS", "AdapterConfig", "AdapterFile", "Update", "read_config", "update_in"]
