"""Whether an adapter that a worker sends is one that it was given, perhaps rounded to its own type.

A worker that loads a version into a bfloat16 model and saves it untrained sends other bytes, but no other numbers.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import numpy as np

from tunefleet.federation import AdapterFile
from tunefleet.federation.floats import holds, narrow, widen
from tunefleet.federation.header import TensorInfo

# Values that are compared at a time.
_BLOCK: Final = 1 << 18


def untrained(sent: Path, given: Path) -> bool:
    """Whether a file has the values of another one, exactly or rounded to its own types.

    Raises:
        AdapterRefused: If one of them cannot be read.
    """
    with AdapterFile(sent) as mine, AdapterFile(given) as theirs:
        shapes = {name: tensor.shape for name, tensor in mine.tensors.items()}
        if shapes != {name: tensor.shape for name, tensor in theirs.tensors.items()}:
            return False
        return all(_same(mine, theirs, mine.tensors[name], theirs.tensors[name]) for name in shapes)


def _same(mine: AdapterFile, theirs: AdapterFile, sent: TensorInfo, given: TensorInfo) -> bool:
    for start in range(0, sent.size, _BLOCK):
        count = min(_BLOCK, sent.size - start)
        left, right = np.empty(count, np.float32), np.empty(count, np.float32)
        mine.read(sent, start, left)
        theirs.read(given, start, right)
        if sent.dtype != given.dtype and holds(right, sent.dtype):
            widen(narrow(right, sent.dtype), sent.dtype, right)
        if not np.array_equal(left, right):
            return False
    return True
