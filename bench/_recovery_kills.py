"""SIGKILLs of busy workers, one after the other or several in one window, and the count of what was lost or doubled."""

from __future__ import annotations

import json
import os
import random
import signal
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from subprocess import DEVNULL, Popen
from typing import Final

import psutil
from _recovery_systems import NAP_S, ROOT, Peer, System

MARGIN_S: Final = 120.0
POKE_S: Final = 0.5


@dataclass
class Found:
    """What some kills have shown."""

    window_s: float
    taken_s: list[float] = field(default_factory=list)
    kills: int = 0
    lost: int = 0
    doubled: int = 0
    given_up: str | None = None


class Crew:
    """Workers of one system, each in a session of its own, by the id of that."""

    def __init__(self, system: System) -> None:
        self.system, self.started = system, 0
        self.living: dict[int, Popen[bytes]] = {}

    def start(self) -> None:
        """Start one more worker."""
        environment = {**os.environ, **self.system.environment}
        words = self.system.words(self.started)
        self.started += 1
        process = Popen(words, cwd=ROOT, env=environment, stdout=DEVNULL, stderr=DEVNULL, start_new_session=True)
        self.living[process.pid] = process

    def kill(self, session: int) -> None:
        """Kill a worker with all of its processes, as the loss of its machine does."""
        process = self.living.pop(session)
        whole = [psutil.Process(session), *psutil.Process(session).children(recursive=True)]
        for each in whole:
            with suppress(psutil.NoSuchProcess):
                each.send_signal(signal.SIGKILL)
        process.wait()

    def end(self) -> None:
        """Kill all."""
        for session in list(self.living):
            if psutil.pid_exists(session):
                self.kill(session)


def runs_of(system: System) -> list[tuple[int, int, float]]:
    """Return (task, session of the worker, time) of every run that began."""
    return [tuple(json.loads(each)) for each in system.counter.lrange("began", 0, -1)]


def ends_of(system: System) -> Counter[int]:
    """Return how often each task came to its end."""
    return Counter(int(each) for each in system.counter.lrange("ended", 0, -1))


def until(seen: Callable[[], bool], within_s: float, poke: Callable[[], None] | None = None) -> bool:
    """Wait for something; poke the system meanwhile, if it needs that."""
    deadline, poked = time.monotonic() + within_s, time.monotonic()
    while not seen():
        if time.monotonic() > deadline:
            return False
        if poke is not None and time.monotonic() - poked > POKE_S:
            poke()
            poked = time.monotonic()
        time.sleep(0.01)
    return True


def kill_workers(system: System, kills: int, together: int = 1, seed: int = 0) -> Found:
    """Kill busy workers.

    Args:
        system: Whose workers.
        kills: How many.
        together: How many of them in one window; one worker more than that is there.
        seed: Of the moments within the task.
    """
    found, crew, chance = Found(system.window_s), Crew(system), random.Random(seed)
    # Taskiq looks for what the dead have left only after it was given something new.
    poke = (lambda: system.submit([-1])) if isinstance(system, Peer) and system.name == "taskiq" else None
    try:
        for _ in range(together + 1):
            crew.start()
        system.await_workers(together + 1)
        sent = 0
        # Kills that came too late are tried again, so often at most.
        for _ in range(3 * kills):
            if found.kills >= kills:
                break
            number = min(together, kills - found.kills)
            mine = list(range(sent, sent + number))
            sent += number
            if not _round(crew, mine, found, chance, poke):
                break
        # Whoever was only slow is given the time to double what another has done.
        time.sleep(min(system.window_s, 5.0) + NAP_S)
        ends, stored = ends_of(system), system.stored()
        results = ends if stored is None else Counter(stored)
        found.lost = sum(not results[each] for each in range(sent))
        # Counted in the tasks' own code for all: what a store keeps once may still have been done twice.
        found.doubled = sum(max(0, count - 1) for count in ends.values())
        return found
    finally:
        crew.end()


def _round(crew: Crew, mine: list[int], found: Found, chance: random.Random, poke: Callable[[], None] | None) -> bool:
    system = crew.system
    within_s = 3 * system.window_s + MARGIN_S
    wanted = set(mine)
    system.submit(mine)
    if not until(lambda: wanted <= {task for task, _, _ in runs_of(system)}, within_s, poke):
        found.given_up = "a task did not begin"
        return False
    time.sleep(chance.uniform(0.05, 0.6) * NAP_S)
    running = {task: session for task, session, _ in runs_of(system) if task in wanted}
    killed_at = time.time()
    dead = set(running.values()) & set(crew.living)
    for session in dead:
        crew.kill(session)
    # On a busy machine a task may have come to its end before the kill: that one shows nothing.
    early = ends_of(system)
    hit = {task for task in wanted if not early[task]}
    found.kills += len({running[task] for task in hit})
    for _ in dead:
        crew.start()
    if not until(lambda: all(ends_of(system)[each] for each in wanted), within_s, poke):
        found.given_up = f"a task did not end within {within_s:.0f} s of the kill"
        return False
    for task in hit:
        again = [at for number, session, at in runs_of(system) if number == task and session not in dead]
        later = [at - killed_at for at in again if at > killed_at]
        found.taken_s.extend(later[:1])
    return True
