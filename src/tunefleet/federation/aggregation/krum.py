"""Krum: trusts updates with near neighbors, measured on products.

Of n updates, f of which may be arbitrary, each gets as its score the sum of the squared distances to its n - f - 2
nearest neighbors; the smallest score is chosen (`krum`), or the `keep` smallest are averaged (`multi_krum`). The
updates of f malicious workers cannot be chosen unless they are as near to honest updates as those are to each other.
Source: Blanchard et al. 2017, https://arxiv.org/abs/1703.02757.
"""

from __future__ import annotations

import numpy as np

from tunefleet.errors import InputError
from tunefleet.federation.floats import Wide


def scores(apart: Wide, byzantine: int) -> Wide:
    """Return each update's score.

    Args:
        apart: Squared distance of each pair.
        byzantine: Number of updates that may be arbitrary.

    Raises:
        InputError: If there are fewer than 2 f + 3.
    """
    count = len(apart)
    if count < 2 * byzantine + 3:
        raise InputError(
            f"Krum with byzantine: {byzantine} requires {2 * byzantine + 3} updates; there are {count}.",
            hint="Raise min_workers, or lower byzantine.",
        )
    # Index 0 is the update itself.
    near = np.sort(apart, axis=1)[:, 1 : count - byzantine - 1]
    total: Wide = near.sum(axis=1)
    return total


def chosen(found: Wide, keep: int) -> list[int]:
    """Return the indexes of the smallest scores; of equal ones the first.

    Args:
        keep: Number of updates.
    """
    return sorted(int(each) for each in np.argsort(found, kind="stable")[:keep])
