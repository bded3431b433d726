"""Small LoRA trainings on NumPy, apart on several workers: what the averages are measured on, and their figure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Wide = npt.NDArray[np.float64]
STEPS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
SEEDS = range(8)


class Curve(NamedTuple):
    """One line of the figure: an error for each of `STEPS`."""

    name: str
    colour: str
    dashed: bool
    errors: list[float]


def train(rng: np.random.Generator, target: Wide, a: Wide, steps: int, rate: float = 0.01) -> tuple[Wide, Wide]:
    """Fit B · A to a target with Adam on random rows, from B = 0, as LoRA begins."""
    b = np.zeros((len(target), len(a)))
    rows = rng.standard_normal((2 * len(a), target.shape[1]))
    moments = [np.zeros_like(b), np.zeros_like(b), np.zeros_like(a), np.zeros_like(a)]
    for step in range(1, steps + 1):
        slope = (rows @ (b @ a - target).T / len(rows)).T @ rows
        for at, (weight, gradient) in enumerate(((b, slope @ a.T), (a, b.T @ slope))):
            first, second = moments[2 * at], moments[2 * at + 1]
            first += 0.1 * (gradient - first)
            second += 0.001 * (gradient**2 - second)
            size = np.sqrt(second / (1 - 0.999**step)) + 1e-8
            np.subtract(weight, rate * first / (1 - 0.9**step) / size, out=weight)
    return b, a


def _targets(rng: np.random.Generator, count: int, rows: int, columns: int, rank: int) -> list[Wide]:
    """Something that all workers are to learn, and something of each one's own data."""

    def random(of: int) -> Wide:
        found: Wide = rng.standard_normal((rows, of)) @ rng.standard_normal((of, columns)) / columns
        return found

    shared = random(rank)
    return [shared + 2 * random(2) for _ in range(count)]


def trained(count: int, modules: list[str], size: int, rank: int) -> Iterator[dict[str, npt.NDArray[np.float32]]]:
    """Yield adapters of workers that began alike and trained apart, as PEFT names their tensors."""
    rng = np.random.default_rng(0)
    starts = {name: rng.standard_normal((rank, size)) / size**0.5 for name in modules}
    targets = {name: _targets(rng, count, size, size, rank) for name in modules}
    for worker in range(count):
        found: dict[str, npt.NDArray[np.float32]] = {}
        for name in modules:
            b, a = train(rng, targets[name][worker], starts[name].copy(), 60)
            found[f"base_model.model.{name}.lora_A.weight"] = a.astype(np.float32)
            found[f"base_model.model.{name}.lora_B.weight"] = b.astype(np.float32)
        yield found


def _errors(seed: int, steps: int, *, alike: bool, count: int = 4, rank: int = 8) -> tuple[float, float]:
    """Error of the average of factors, and of the best adapter of that rank, against the average of products."""
    rng = np.random.default_rng(seed)
    rows, columns = 64, 48
    start = rng.standard_normal((rank, columns)) / columns**0.5
    pairs = []
    for target in _targets(rng, count, rows, columns, rank):
        a = start.copy() if alike else rng.standard_normal((rank, columns)) / columns**0.5
        pairs.append(train(rng, target, a, steps))
    true = np.mean([b @ a for b, a in pairs], axis=0)
    plain = np.mean([b for b, _ in pairs], axis=0) @ np.mean([a for _, a in pairs], axis=0)
    values = np.linalg.svd(true, compute_uv=False)
    best = np.sqrt((values[rank:] ** 2).sum() / (values**2).sum())
    return float(np.linalg.norm(plain - true) / np.linalg.norm(true)), float(best)


def errors_by_steps() -> list[Curve]:
    """Train four workers apart for so many steps, from one start and from starts of their own."""
    found = {
        alike: [np.mean([_errors(seed, steps, alike=alike) for seed in SEEDS], axis=0) for steps in STEPS]
        for alike in (True, False)
    }
    return [
        Curve("factors, own starts", "#c0392b", True, [float(each[0]) for each in found[False]]),
        Curve("factors, one start", "#c0392b", False, [float(each[0]) for each in found[True]]),
        Curve("products, own starts", "#1f6f8b", True, [float(each[1]) for each in found[False]]),
        Curve("products, one start", "#1f6f8b", False, [float(each[1]) for each in found[True]]),
    ]


LEFT, TOP, WIDTH, HEIGHT = 64, 24, 460, 260


def _x(steps: int) -> float:
    return LEFT + WIDTH * float(np.log2(steps) / np.log2(STEPS[-1]))


def _y(error: float) -> float:
    return TOP + HEIGHT * (1 - error)


def drawing(curves: list[Curve]) -> str:
    """Draw the figure as SVG that is legible on light and dark pages."""
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 720 {TOP + HEIGHT + 60}" '
        'font-family="sans-serif" font-size="13" role="img">',
        "<title>Error of the averaged adapter against the average of the updates</title>",
        f'<rect width="720" height="{TOP + HEIGHT + 60}" fill="#ffffff"/>',
    ]
    for error in (0.0, 0.2, 0.4, 0.6, 0.8, 1.0):
        y = _y(error)
        parts.append(f'<line x1="{LEFT}" y1="{y:.1f}" x2="{LEFT + WIDTH}" y2="{y:.1f}" stroke="#dddddd"/>')
        parts.append(f'<text x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{error:.1f}</text>')
    parts += [
        f'<text x="{_x(steps):.1f}" y="{TOP + HEIGHT + 20}" text-anchor="middle">{steps}</text>' for steps in STEPS[::2]
    ]
    middle = LEFT + WIDTH / 2
    parts.append(
        f'<text x="{middle}" y="{TOP + HEIGHT + 44}" text-anchor="middle">optimizer steps between two averages</text>'
    )
    parts.append(
        f'<text x="16" y="{TOP + HEIGHT / 2}" text-anchor="middle" '
        f'transform="rotate(-90 16 {TOP + HEIGHT / 2})">relative error of B · A</text>'
    )
    labels = _apart([_y(curve.errors[-1]) for curve in curves])
    for curve, label in zip(curves, labels, strict=True):
        points = " ".join(f"{_x(s):.1f},{_y(e):.1f}" for s, e in zip(STEPS, curve.errors, strict=True))
        dash = ' stroke-dasharray="6 4"' if curve.dashed else ""
        parts.append(f'<polyline points="{points}" fill="none" stroke="{curve.colour}" stroke-width="2"{dash}/>')
        parts.append(f'<text x="{LEFT + WIDTH + 10}" y="{label + 4:.1f}" fill="{curve.colour}">{curve.name}</text>')
    return "\n".join([*parts, "</svg>", ""])


def _apart(places: list[float], room: float = 17.0) -> list[float]:
    """Move labels down that would lie on each other."""
    found = list(places)
    lowest = -room
    for at in sorted(range(len(places)), key=places.__getitem__):
        found[at] = lowest = max(places[at], lowest + room)
    return found
