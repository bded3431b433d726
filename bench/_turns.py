"""Trainings that take turns step by step: on a machine that is slower for a second, all of them are slower then.

A side is one process or several ranks; only the side whose turn it is computes. So steps of two sides that are compared
lie milliseconds apart, and not minutes.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import Any, Final, NamedTuple

import numpy as np
from transformers import TrainerCallback

_TURN: Final = "step "
TEN: Final = 10


class Took(NamedTuple):
    """Seconds of a step: on the wall, and of all threads of its process."""

    wall_s: float
    processor_s: float


class Process(NamedTuple):
    """One process of a side: its command line and its environment."""

    command: Sequence[str]
    environment: Mapping[str, str]


class Turns(TrainerCallback):
    """Ends each step by telling what it took, and waits for the next turn; the last of a training's callbacks."""

    def __init__(self) -> None:
        self._began = self._now()

    def on_step_end(self, *_: Any, **__: Any) -> None:
        wall, processor = (now - then for now, then in zip(self._now(), self._began, strict=True))
        print(f"{_TURN}{wall} {processor}", flush=True)
        sys.stdin.readline()
        self._began = self._now()

    @staticmethod
    def _now() -> tuple[float, float]:
        return time.perf_counter(), time.process_time()


def take_turns(sides: Mapping[str, Sequence[Process]], steps: int, warm_up: int) -> dict[str, list[list[Took]]]:
    """Let trainings of so many steps take turns, each in another order than the time before.

    Returns:
        Side → for each of its processes what its steps took, without the first ones.
    """
    found: dict[str, list[list[Took]]] = {}
    names = list(sides)
    with ExitStack() as stack:
        there: dict[str, list[subprocess.Popen[str]]] = {}
        for name, processes in sides.items():
            there[name] = [
                stack.enter_context(
                    subprocess.Popen(
                        each.command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=each.environment
                    )
                )
                for each in processes
            ]
            # The first step, with all that it waits for, before the next side begins.
            found[name] = [[_taken(each)] for each in there[name]]
        for step in range(1, steps):
            for name in [*names[step % len(names) :], *names[: step % len(names)]]:
                for each in there[name]:
                    _give(each)
                for each, took in zip(there[name], found[name], strict=True):
                    took.append(_taken(each))
        for processes_ in there.values():
            for each in processes_:
                _give(each)
            for each in processes_:
                each.communicate()
    return {name: [took[warm_up:] for took in each] for name, each in found.items()}


def tens_ms(took: Sequence[Took], column: int) -> list[float]:
    """Return the median milliseconds of each ten steps: of column 0 on the wall, of column 1 the processor's."""
    whole = len(took) // TEN * TEN
    return [float(each) for each in 1e3 * np.median(np.array(took[:whole])[:, column].reshape(-1, TEN), axis=1)]


def _give(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    process.stdin.write("go\n")
    process.stdin.flush()


def _taken(process: subprocess.Popen[str]) -> Took:
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith(_TURN):
            return Took(*map(float, line.removeprefix(_TURN).split()))
    raise SystemExit(f"A training ended before its last step: {process.args!r}")
