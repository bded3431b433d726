"""Leaves out what a plain Trainer imports if it is there and does not need: that takes longer than torch itself."""

from __future__ import annotations

import sys
from typing import Any

LEFT_OUT = ("bitsandbytes", "datasets", "pandas", "peft", "scipy", "sklearn")
_modules: dict[str, Any] = sys.modules
for name in LEFT_OUT:
    _modules.setdefault(name, None)
