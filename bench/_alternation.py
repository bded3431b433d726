"""One training that is had with some callbacks and without them, step by step in turns.

Two processes that run the same code differ by one or two per cent, by where their memory happens to lie. That is more
than what callbacks cost, and more steps do not make it less. So all variants are had in one process, in which what is
not compared stays as it is; and several such processes are had one after the other, since a callback's own memory lies
somewhere too. Steps that are compared lie milliseconds apart: a machine is slower for seconds.

What a callback's threads do meanwhile may fall into a step of another variant. So the processor time that they have
for a step while all callbacks are in, at the beginning, is added to each step of theirs, as if the training had waited
for it.
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

import numpy as np
from _common import free_port
from _trainings import others_s, training
from transformers import Trainer, TrainerCallback
from transformers.trainer_callback import CallbackHandler

TEN: Final = 10
# Steps with all callbacks: until the libraries are warm, and then so many to see what their threads do.
WARM: Final = 20
ALL_IN: Final = 120
OURS: Final = "ours"
TURNS: Final = (
    "each sample is the mean of ten steps, in turns with steps of the other's in the same process; to ours is added "
    "what our other threads compute for a step"
)
Variants = Mapping[str, Sequence[TrainerCallback | type[TrainerCallback]]]


class Took(NamedTuple):
    """Seconds of a step, the mean of ten: on the wall, and of all threads of its process."""

    wall_s: float
    processor_s: float


class Alternation(TrainerCallback):
    """Takes callbacks out of a running training, puts them back, and notes what each step took; the last of all.

    Args:
        variants: Name → callbacks that only this one has, or their classes; an empty one is the training without any.
            Those of `ours` are the only ones that have threads.
        tens: How many times ten steps each variant has.
    """

    def __init__(self, variants: Variants, tens: int) -> None:
        self.steps = WARM + ALL_IN + TEN * len(variants) * tens
        self._variants = variants
        self._handler: CallbackHandler | None = None
        self._lists: dict[str, list[TrainerCallback]] = {}
        self._turns = self._order(TEN * tens)
        self._name: str | None = None
        self._took: dict[str, list[tuple[float, float]]] = {name: [] for name in variants}
        self._others_s = 0.0
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
        self._handler, self._all = trainer.callback_handler, everything

    def on_step_end(self, _args: Any, state: Any, _control: Any, **_: Any) -> None:
        now = self._now()
        if state.global_step == WARM:
            self._others_s = -others_s()
        if state.global_step < WARM + ALL_IN:
            return
        if self._name is None:
            self._others_s += others_s()
        else:
            self._took[self._name].append((now[0] - self._began[0], now[1] - self._began[1]))
        self._name = next(self._turns, None)
        # Bound anew, and not changed: the handler goes through the list meanwhile.
        assert self._handler is not None
        self._handler.callbacks = self._lists[self._name] if self._name is not None else self._all
        self._began = self._now()

    def took(self) -> dict[str, list[Took]]:
        """Return variant → what its steps took, by tens."""
        found = {}
        for name, steps in self._took.items():
            more = self._others_s / ALL_IN if name == OURS else 0.0
            tens = np.array(steps).reshape(-1, TEN, 2).mean(axis=1)
            found[name] = [Took(wall + more, processor + more) for wall, processor in tens.tolist()]
        return found

    def _order(self, cycles: int) -> Iterator[str]:
        names = list(self._variants)
        for number in range(cycles):
            first = number % len(names)
            yield from [*names[first:], *names[:first]]

    def _is(self, callback: TrainerCallback, name: str) -> bool:
        return any(callback is one or type(callback) is one for one in self._variants[name])

    @staticmethod
    def _now() -> tuple[float, float]:
        return time.perf_counter(), time.process_time()


def alternate(folder: Path, variants: Variants, tens: int, *, jit: bool = False) -> None:
    """Train in this process, which may be one of several ranks, and leave what the steps took in a folder."""
    alternation = Alternation(variants, tens)
    callbacks = [each for given in variants.values() for each in given if isinstance(each, TrainerCallback)]
    training(folder, alternation.steps, callbacks, jit=jit, prepare=alternation.of)
    (folder / "took.json").write_text(json.dumps(alternation.took()))


def in_processes(command: Sequence[str], root: Path, times: int, ranks: int = 1) -> list[dict[str, list[Took]]]:
    """Run a command that calls `alternate` some times over, each time in as many processes as there are ranks.

    Args:
        command: It is given one word more, the folder that it may use.
        root: Where those folders come to lie.
        times: How often.
        ranks: How many train one model together.

    Returns:
        For each rank variant → what its steps took, by tens, all times one after the other.
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
            for name, tens in json.loads((folder / "took.json").read_text()).items():
                took[rank][name] += [Took(*ten) for ten in tens]
    return took
