"""The best rank-r adapter for a sum of products, from small matrices only.

The sum P = Σ cᵢ Bᵢ Aᵢ is L · R with L = [c₁B₁ … cₖBₖ] and R = [A₁; …; Aₖ]. Its singular values and vectors follow from
the Gram matrices Lᵀ L and R Rᵀ, whose size is the sum of the ranks; P itself, which has the size of the base model's
weight, is never computed. The Gram matrices are float64, so that squaring loses nothing of float32's precision.

Of all pairs with the best product, the one whose A is nearest to the average of the As is chosen: workers with the same
start get factors in the basis that their optimizers know, and a single update is returned unchanged.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from tunefleet.federation.floats import Wide

# Squares below this fraction of the largest are below float32's precision.
_JITTER: Final = 1e-13
_TIE: Final = 1e-13
_FLATTEST: Final = 0.02
"""Lower bound for a direction of the new A relative to the longest: a shorter one would make its B, and its float32
rounding error, longer by the same factor."""


@dataclass(frozen=True, slots=True)
class Truncated:
    """The best pair as a mixture of the stacked factors.

    Args:
        left: k × r; the new B is L · left.
        right: r × k; the new A is right · R.
        tail_left: k × (k - r), if requested; L · tail_left is the B of the residual.
        tail_right: (k - r) × k, if requested; tail_right · R is the A of the residual.
        norm: Frobenius norm of the sum.
        error: Frobenius norm of the residual, divided by `norm`; 0 if there is none.
        spread: Root mean square length of a row of the new A.
        cancelled: Maximum ratio of the terms' length to the length of their sum, a row of the new A: the factor by
            which cancellation amplifies float32's rounding errors.
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
    """Compute the best pair of factors of a given rank.

    Args:
        gram_left: Lᵀ L, k × k.
        gram_right: R Rᵀ, k × k.
        rank: Rank of the new adapter, at most k.
        mean: Target of the new A, as a mixture of the stacked ones: (its rank) × k.
        weights: k weights of the rows of R, for directions that the sum does not determine.
        tail: Whether to compute the residual.
    """
    # A factor may be long and its partner short, but only their product matters: balance their lengths.
    even = _even(gram_left, gram_right)
    left, right = gram_left / np.outer(even, even), gram_right * np.outer(even, even)
    size = len(even)
    kept = min(rank, size)
    trace = float(np.trace(right))
    # right = C Cᵀ: the columns of Rᵀ C⁻ᵀ are orthonormal, and L C are the coordinates of P in this basis.
    lifted = right + np.eye(size) * (_JITTER * trace / kept if trace > 0 else 1.0)
    basis = np.linalg.cholesky(lifted).astype(np.float64, copy=False)
    near: Wide = mean / even
    core = basis.T @ left @ basis
    # With many updates each of these matrices takes as much memory as all that is still needed.
    del left, right, lifted
    total = max(float(np.trace(core)), 0.0)
    values, vectors = _directions(core, basis, near, weights)
    del core
    # Contributions of the jitter and the tie-breaker do not count as error.
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
    # If one factor is zero, so is the product: the average length makes it neither dominate nor vanish.
    if fine.any() and not fine.all():
        even[~fine] = np.exp(np.log(even[fine]).mean())
    return even


def _directions(core: Wide, basis: Wide, mean: Wide, weights: Wide) -> tuple[Wide, Wide]:
    """Return the eigenvalues and eigenvectors of the core, largest first.

    Directions that the sum does not use are degenerate; a trace of the average A orders them.
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
        near: The average A in these directions; without rows, M is a multiple of the identity.
        square: Mean square length of the rows of the updates' A; the new rows get the same length.
    """
    kept = near.shape[1]
    spread = square**0.5 or 1.0
    if near.shape[0] != kept or not near.any():
        return np.eye(kept) * spread, np.eye(kept) / spread, spread
    out, lengths, over = np.linalg.svd(near)
    lengths = np.maximum(lengths, _FLATTEST * lengths[0])
    lengths = lengths * (spread / np.sqrt(np.mean(lengths**2)))
    return (out * lengths) @ over, (over.T / lengths) @ out.T, spread
