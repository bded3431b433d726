"""One training that is had with some callbacks and without them, by blocks of ten steps that take turns.

Two processes that run the same code differ by one or two per cent, by where their memory happens to lie. That is more
than what callbacks cost, and more steps do not make it less. So all variants are had in one process, in which what is
not compared stays as it is; and several such processes are had one after the other, since a callback's own memory lies
somewhere too.
"""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from _common import free_port
from _trainings import training
from transformers import Trainer, TrainerCallback

TEN: Final = 10
WARM_UP: Final = 20
TURNS: Final = "each sample is the mean of ten steps, in turns with ten of the other's in the same process"
Variants = Mapping[str, Sequence[TrainerCallback | type[TrainerCallback]]]


class Took(NamedTuple):
    """Seconds of a step, the mean of ten: on the wall, and of all threads of its process."""

    wall_s: float
    processor_s: float


class Alternation(TrainerCallback):
    """Takes callbacks out of a running training, puts them back, and notes what ten steps took; the last of all.

    Threads that a callback has started stay while it is out. They have nothing to do then but what is left of its turn.

    Args:
        variants: Name → callbacks that only this one has, or their classes; an empty one is the training without any.
        rounds: In how many each variant has ten steps, each in another order than the one before.
    """

    def __init__(self, variants: Variants, rounds: int) -> None:
        self.took: dict[str, list[Took]] = {name: [] for name in variants}
        self.steps = WARM_UP + TEN * len(variants) * rounds
        self._variants = variants
        self._trainer: Trainer | None = None
        self._lists: dict[str, list[TrainerCallback]] = {}
        self._turns = self._order(rounds)
        self._name: str | None = None
        self._began = self._now()

    def of(self, trainer: Trainer) -> None:
        """Be told whose callbacks they are, once all others are there."""
        trainer.add_callback(self)
        everything = trainer.callback_handler.callbacks
        own = {name: [each for each in everything if self._is(each, name)] for name in self._variants}
        for name, wanted in self._variants.items():
            assert len(own[name]) == len(wanted), f"{name}: {own[name]} are there, {wanted} are meant"
            others = [each for other in own if other != name for each in own[other]]
            self._lists[name] = [each for each in everything if each not in others]
        self._trainer, self._all = trainer, everything

    def on_step_end(self, _args: Any, state: Any, _control: Any, **_: Any) -> None:
        if state.global_step < WARM_UP or state.global_step % TEN:
            return
        now = self._now()
        if self._name is not None:
            wall, processor = (end - begin for end, begin in zip(now, self._began, strict=True))
            self.took[self._name].append(Took(wall / TEN, processor / TEN))
        self._name = next(self._turns, None)
        # Bound anew, and not changed: the handler goes through the list meanwhile.
        self._trainer.callback_handler.callbacks = self._lists[self._name] if self._name is not None else self._all
        self._began = self._now()

    def _order(self, rounds: int) -> Iterator[str]:
        names = list(self._variants)
        for number in range(rounds):
            first = number % len(names)
            yield from [*names[first:], *names[:first]]

    def _is(self, callback: TrainerCallback, name: str) -> bool:
        return any(callback is one or type(callback) is one for one in self._variants[name])

    @staticmethod
    def _now() -> tuple[float, float]:
        return time.perf_counter(), time.process_time()


def alternate(folder: Path, variants: Variants, rounds: int, *, jit: bool = False) -> None:
    """Train in this process, which may be one of several ranks, and leave what the steps took in a folder."""
    alternation = Alternation(variants, rounds)
    callbacks = [each for given in variants.values() for each in given if isinstance(each, TrainerCallback)]
    training(folder, alternation.steps, callbacks, jit=jit, prepare=alternation.of)
    (folder / "took.json").write_text(json.dumps(alternation.took))


def in_processes(command: Sequence[str], root: Path, times: int, ranks: int = 1) -> list[dict[str, list[Took]]]:
    """Run a command that calls `alternate` some times over, each time in as many processes as there are ranks.

    Args:
        command: It is given one word more, the folder that it may use.
        root: Where those folders come to lie.
        times: How often.
        ranks: How many train one model together.

    Returns:
        For each rank variant → what its blocks took, all times one after the other.
    """
    took: list[dict[str, list[Took]]] = [defaultdict(list) for _ in range(ranks)]
    for number in range(times):
        folders = [root / f"{number}-{rank}" for rank in range(ranks)]
        group = {"WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
        running = []
        for rank, folder in enumerate(folders):
            folder.mkdir(parents=True)
            place = {**group, "RANK": str(rank), "LOCAL_RANK": str(rank)} if ranks > 1 else {}
            environment = {**os.environ, "OMP_NUM_THREADS": "1", **place}
            running.append(subprocess.Popen([*command, str(folder)], env=environment))
        ended = [each.wait() for each in running]
        if any(ended):
            raise SystemExit(f"A training ended with {ended}: {' '.join(command)}")
        for rank, folder in enumerate(folders):
            for name, blocks in json.loads((folder / "took.json").read_text()).items():
                took[rank][name] += [Took(*block) for block in blocks]
    return took
