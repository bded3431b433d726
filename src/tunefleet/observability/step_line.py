"""Logged values and durations as readable text, and the dictionaries that a Hugging Face Trainer prints."""

from __future__ import annotations

import ast
import math
from collections.abc import Mapping
from typing import Any, Final

# Shown first and in this order; others follow under their own names.
_LABELS: Final = {
    "epoch": "epoch",
    "loss": "loss",
    "train_loss": "train loss",
    "eval_loss": "eval loss",
    "reward": "reward",
    "learning_rate": "lr",
    "grad_norm": "grad norm",
    "mean_token_accuracy": "token accuracy",
}
# Counters and speeds: the metrics have them.
_HIDDEN: Final = (
    "num_tokens",
    "num_input_tokens_seen",
    "total_flos",
    "runtime",
    "per_second",
    "preparation_time",
    "entropy",
)
# A dictionary without any of these is something else that a script printed.
_OF_A_TRAINER: Final = frozenset({"loss", "eval_loss", "train_loss", "reward", "train_runtime", "eval_runtime"})
_LONGEST: Final = 20_000


def step_line(values: Mapping[str, Any], step: int | None = None, steps: int | None = None) -> str:
    """Return logged values as one line, such as `step 40/80  loss 2.10  lr 3.0e-04  grad norm 1.2`."""
    parts = [] if step is None else [f"step {step}/{steps}" if steps else f"step {step}"]
    known = [name for name in _LABELS if name in values and not (name == "epoch" and parts)]
    others = [name for name in values if name not in _LABELS and not any(part in name for part in _HIDDEN)]
    return "  ".join(
        [
            *parts,
            *(
                f"{_LABELS.get(name, name.replace('_', ' '))} {_number(name, values[name])}"
                for name in [*known, *others]
            ),
        ]
    )


def duration(seconds: float) -> str:
    """Return a duration, such as `4.2s`, `3m 20s`, `1h 5m` or `3d 4h`; the web page writes the same."""
    total = max(0, round(seconds))
    if total < 10:
        return f"{max(0.0, seconds):.1f}".removesuffix(".0") + "s"
    for size, unit, below, small in ((86_400, "d", 3600, "h"), (3600, "h", 60, "m"), (60, "m", 1, "s")):
        if total >= size:
            rest = total % size // below
            return f"{total // size}{unit} {rest}{small}" if rest else f"{total // size}{unit}"
    return f"{total}s"


def readable(line: str) -> str:
    """Return a line of a log with the printed dictionary of a Trainer made readable; other lines unchanged."""
    text = line.strip()
    if not (text.startswith("{'") and text.endswith("}")) or len(text) > _LONGEST:
        return line
    try:
        values = ast.literal_eval(text)
    # Also what only looks like a dictionary, such as `{'loss': tensor(1.)}`.
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return line
    if not isinstance(values, dict) or not _OF_A_TRAINER & values.keys() or not all(isinstance(k, str) for k in values):
        return line
    return step_line(values)


def _number(name: str, value: Any) -> str:
    # The Trainer prints numbers as strings with four digits.
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        return str(value)
    if name == "learning_rate" and number:
        return f"{number:.1e}"
    if not math.isfinite(number) or number == int(number):
        return f"{number:g}"
    return f"{number:.2f}" if 1 <= abs(number) < 1000 else f"{number:.3g}"
