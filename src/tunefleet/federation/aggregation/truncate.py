"""The best adapter of one rank for a sum of products, from small matrices alone.

The sum P = Σ cᵢ Bᵢ Aᵢ is L · R with L = [c₁B₁ … cₖBₖ] and R = [A₁; …; Aₖ]. Its singular values and vectors follow from
the Gram matrices Lᵀ L and R Rᵀ, whose size is the sum of the ranks; P itself, which has the size of the base model's
weight, is never formed. The Gram matrices are in float64, so that squaring them loses nothing that float32 had.

Of all pairs with the best product one is chosen whose A is near the average of the As: workers that began alike get
factors back in the basis that their optimizers know, and a single update comes back as it was.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from tunefleet.federation.floats import Wide

# Squares that are this small beside the largest are beyond what float32 holds.
_JITTER: Final = 1e-13
_TIE: Final = 1e-13
_FLATTEST: Final = 0.02
"""No direction of the new A is shorter than this part of the longest: its B would be longer by as much, and so would
what float32 rounds away of it."""


@dataclass(frozen=True, slots=True)
class Truncated:
    """How the best pair is mixed from the stacked factors.

    Args:
        left: k × r; the new B is L · left.
        right: r × k; the new A is right · R.
        tail_left: k × (k - r), if it was asked for; L · tail_left is the B of what is left out.
        tail_right: (k - r) × k, if it was asked for; tail_right · R is the A of what is left out.
        norm: Frobenius norm of the sum.
        error: Frobenius norm of what is left out, divided by `norm`; 0 if nothing is.
        spread: Root of the mean square of a row of the new A.
        cancelled: How much longer than a row of the new A the parts are that it is the sum of, at most: what float32
            rounds away of them is as much more of the row.
    """

    left: Wide
    right: Wide
    tail_left: Wide
    tail_right: Wide
    norm: float
    error: float
    spread: float
    cancelled: float


def truncate(
    gram_left: Wide, gram_right: Wide, rank: int, mean: Wide, weights: Wide, *, tail: bool = False
) -> Truncated:
    """Find the best pair of factors of one rank.

    Args:
        gram_left: Lᵀ L, k × k.
        gram_right: R Rᵀ, k × k.
        rank: Of the new adapter; if it is larger than k, k.
        mean: What A should be near to, as mixture of the stacked ones: (its rank) × k.
        weights: k; how much each row of R counts where the sum itself says nothing.
        tail: Whether what is left out is asked for.
    """
    # A factor may be long and its partner short: only their product means something, so both get the same length.
    even = _even(gram_left, gram_right)
    left, right = gram_left / np.outer(even, even), gram_right * np.outer(even, even)
    size = len(even)
    kept = min(rank, size)
    trace = float(np.trace(right))
    # right = C Cᵀ: the columns of Rᵀ C⁻ᵀ are orthonormal, and P has the coordinates L C in them.
    lifted = right + np.eye(size) * (_JITTER * trace / kept if trace > 0 else 1.0)
    basis = np.linalg.cholesky(lifted).astype(np.float64, copy=False)
    near: Wide = mean / even
    core = basis.T @ left @ basis
    # With many updates each of these takes as much as all that stays.
    del left, right, lifted
    total = max(float(np.trace(core)), 0.0)
    values, vectors = _directions(core, basis, near, weights)
    del core
    # What the jitter and the tie may have added is no error.
    lost = float(np.maximum(values[kept:], 0.0).sum())
    lost = lost if lost > 2 * size * _JITTER * total else 0.0
    first, rest = vectors[:, :kept], vectors[:, kept : size if tail else kept]
    shape, inverse, spread = _shape(near @ basis @ first, float(weights @ np.diag(gram_right)) / weights.sum())
    back = np.linalg.solve(basis.T, vectors[:, : kept + rest.shape[1]]).T
    mixed = shape @ back[:kept] * even
    return Truncated(
        left=(basis @ first @ inverse) / even[:, None],
        right=mixed,
        tail_left=(basis @ rest) / even[:, None],
        tail_right=back[kept:] * even,
        norm=total**0.5,
        error=(lost / total) ** 0.5 if total > 0 else 0.0,
        spread=spread,
        cancelled=float(np.sqrt((mixed**2 @ np.diag(gram_right)) / (shape**2).sum(axis=1)).max()),
    )


def _even(gram_left: Wide, gram_right: Wide) -> Wide:
    left, right = np.sqrt(np.diag(gram_left)), np.sqrt(np.diag(gram_right))
    fine = (left > 0) & (right > 0)
    even = np.ones(len(left))
    np.sqrt(np.divide(left, right, out=even, where=fine), out=even, where=fine)
    # Where one is zero the product is: as long as the others, it neither leads nor gets lost.
    if fine.any() and not fine.all():
        even[~fine] = np.exp(np.log(even[fine]).mean())
    return even


def _directions(core: Wide, basis: Wide, mean: Wide, weights: Wide) -> tuple[Wide, Wide]:
    """Return the eigenvalues of the core and its eigenvectors, the largest first.

    Directions that the sum does not use are alike to it; a trace of the average A puts those in order.
    """
    near = mean @ basis
    wished = near.T @ near if near.any() else (basis.T * weights) @ basis
    size, wish = float(np.trace(core)), float(np.trace(wished))
    tie = _TIE * (size if size > 0 else 1.0) / wish if wish > 0 else 0.0
    values, vectors = np.linalg.eigh(core + tie * wished)
    return values[::-1].copy(), vectors[:, ::-1]


def _shape(near: Wide, square: float) -> tuple[Wide, Wide, float]:
    """Return M and its inverse, where the new A is M · Vᵀ and V are the kept directions.

    Args:
        near: The average A in these directions; without rows, M is a multiple of one.
        square: Mean square length of a row of the updates' A; rows of the new A are as long.
    """
    kept = near.shape[1]
    spread = square**0.5 or 1.0
    if near.shape[0] != kept or not near.any():
        return np.eye(kept) * spread, np.eye(kept) / spread, spread
    out, lengths, over = np.linalg.svd(near)
    lengths = np.maximum(lengths, _FLATTEST * lengths[0])
    lengths = lengths * (spread / np.sqrt(np.mean(lengths**2)))
    return (out * lengths) @ over, (over.T / lengths) @ out.T, spread
