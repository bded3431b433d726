"""How each kind of strike is carried out on a world, and how it is taken back."""

from __future__ import annotations

import contextlib
import errno
import heapq
import json
import os
import signal
import time
from collections.abc import Callable, Iterable
from functools import partial
from itertools import count
from pathlib import Path
from typing import Final

from tests.acceptance.story import alive
from tests.chaos.schedule import Kind, Strike
from tests.chaos.world import SMALL, World

Say = Callable[[str], None]
PATIENCE_S = 60.0
"""How long a strike waits for a trainer to strike, where there is none yet."""
DOWN: Final = "it was down"
NO_DISK: Final = "it has no file system of its own"
_PIECE = b"\0" * (1 << 20)


def play(world: World, strikes: Iterable[Strike], say: Say) -> list[Strike]:
    """Carry out a round's strikes, each at its time, and take each back when it is over; returns those that met whom.

    Args:
        world: What is struck.
        strikes: With their times, counted from now.
        say: Told of each strike what it met.
    """
    order = count()
    hit: list[Strike] = []
    waiting: list[tuple[float, int, Callable[[], object]]] = []

    def later(at_s: float, act: Callable[[], object]) -> None:
        heapq.heappush(waiting, (at_s, next(order), act))

    def fall(strike: Strike) -> None:
        now_s = time.monotonic() - began
        if strike.victim == "far" and "far" not in world.members:
            say(f"{strike}: this machine gives no namespace to put it in")
            return
        met, after = _BEGIN[strike.kind](world, strike)
        if met is None and now_s < strike.at_s + PATIENCE_S:
            later(now_s + 0.2, partial(fall, strike))
            return
        say(f"{strike}: at {now_s:.1f} s, {met or 'there is none'}")
        if met not in {None, DOWN, NO_DISK}:
            hit.append(strike)
        if after is not None:
            later(now_s + strike.for_s, after)

    for strike in strikes:
        later(strike.at_s, partial(fall, strike))
    began = time.monotonic()
    while waiting:
        at_s, _, act = heapq.heappop(waiting)
        time.sleep(max(0.0, began + at_s - time.monotonic()))
        act()
    return hit


After = tuple[str | None, Callable[[], object] | None]
"""What a strike has met, null if it has to wait for somebody to strike, and what takes it back."""


def _kill(world: World, strike: Strike) -> After:
    if strike.victim == "trainer":
        found = trainers(world)
        for pid, _ in found[:1]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return (f"pid {found[0][0]} of {found[0][1].name}" if found else None), None
    if strike.victim in world.down:
        return DOWN, None
    world.down.add(strike.victim)
    member = world.members[strike.victim]
    met = "killed" if member.signal(signal.SIGKILL) else DOWN

    def back() -> None:
        member.start()
        world.down.discard(strike.victim)

    return met, back


def _stop(world: World, strike: Strike) -> After:
    if strike.victim == "trainer":
        found = trainers(world)[:1]
        for pid, _ in found:
            os.kill(pid, signal.SIGSTOP)

        def go() -> None:
            for pid, _ in found:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGCONT)

        return (f"pid {found[0][0]} of {found[0][1].name}" if found else None), go if found else None
    member = world.members[strike.victim]
    met = "stands still" if member.signal(signal.SIGSTOP) else DOWN
    return met, lambda: member.signal(signal.SIGCONT)


def _fill(world: World, strike: Strike) -> After:
    if strike.victim not in SMALL or not world.ballast(strike.victim).parent.is_mount():
        return NO_DISK, None
    ballast, size = world.ballast(strike.victim), 0
    with ballast.open("wb", buffering=0) as file:
        try:
            while True:
                size += file.write(_PIECE)
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise
    return f"{size >> 20} MiB were free", lambda: ballast.unlink(missing_ok=True)


def _flush(world: World, _: Strike) -> After:
    if "redis" in world.down:
        return DOWN, None
    with world.redis.client as client:
        size = client.dbsize()
        client.flushall()
    return f"{size} keys", None


def _restart_redis(world: World, _: Strike) -> After:
    if "redis" in world.down:
        return DOWN, None
    world.down.add("redis")
    world.redis.kill()

    def back() -> None:
        world.redis.start()
        world.down.discard("redis")

    return "killed, and it keeps nothing", back


def _restart_database(world: World, strike: Strike) -> After:
    if "database" in world.down:
        return DOWN, None
    world.down.add("database")
    how = signal.SIGQUIT if strike.for_s > 2 else signal.SIGINT
    world.postgres.stop(how)

    def back() -> None:
        world.postgres.start()
        world.down.discard("database")

    return "crashed" if how is signal.SIGQUIT else "stopped", back


def _part(world: World, strike: Strike) -> After:
    if strike.victim == "far":
        net = world.net
        assert net is not None
        net.cable("down")
        return "its cable is pulled", lambda: net.cable("up")
    line = world.lines[strike.victim]
    line.tell("hold")
    return "nothing passes, nothing is closed", lambda: line.tell("go")


def _jump(world: World, strike: Strike) -> After:
    file = world.clock(strike.victim)
    wrong_s = float(file.read_text() or 0) + strike.jump_s
    # Whoever reads it must not meet an empty file.
    fresh = file.with_suffix(".new")
    fresh.write_text(str(wrong_s))
    fresh.replace(file)
    return f"it is {wrong_s:+.0f} s wrong now", None


def _corrupt(world: World, strike: Strike) -> After:
    for pid, folder in trainers(world):
        whole = sorted(
            (folder / "checkpoints").glob("checkpoint-*/manifest.json"),
            key=lambda path: int(path.parent.name.rpartition("-")[2]),
        )
        files = [path for path in whole[-1].parent.glob("*.safetensors")] if whole else []
        if not files:
            continue
        content = bytearray(files[0].read_bytes())
        content[len(content) // 2] ^= 0xFF
        # Not in place: what was uploaded may be the same file under another name.
        fresh = files[0].with_suffix(".new")
        fresh.write_bytes(content)
        fresh.replace(files[0])
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        return f"{files[0].parent.name} of {folder.name}, and its trainer is killed", None
    return None, None


_BEGIN: dict[Kind, Callable[[World, Strike], After]] = {
    Kind.KILL: _kill,
    Kind.STOP: _stop,
    Kind.DISK: _fill,
    Kind.FLUSH: _flush,
    Kind.REDIS: _restart_redis,
    Kind.DATABASE: _restart_database,
    Kind.PARTITION: _part,
    Kind.CLOCK: _jump,
    Kind.CORRUPT: _corrupt,
}


def trainers(world: World) -> list[tuple[int, Path]]:
    """Return the pids of the jobs that run, with their folders, the newest first."""
    found: list[tuple[float, int, Path]] = []
    for results in world.results().values():
        for file in results.glob("*/process.json"):
            # A job may end, and its folder go, at any moment.
            with contextlib.suppress(OSError, ValueError):
                pid, at = int(json.loads(file.read_bytes())["pid"]), file.stat().st_mtime
                if alive(pid):
                    found.append((at, pid, file.parent))
    return [(pid, folder) for _, pid, folder in sorted(found, reverse=True)]
